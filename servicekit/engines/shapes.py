"""Shapes of OpenAI-compatible replies, as far as the engines agree on them. Pure."""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from servicekit.engines.base import Completion, ShapeError
from servicekit.profiles.vocabulary import HUB_FILE, HUB_ID
from servicekit.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

_CACHED: Final = re.compile(r"(?:^|/)models--(?P<repository>[^/]+)")
LONGEST: Final = 18  # digits of a figure; Python refuses to read some thousand
QUOTED: Final = 200  # characters of an unexpected body that an error quotes


def models_listed(models: Any) -> tuple[Mapping[str, Any], ...]:  # noqa: ANN401 - parsed JSON
    """Return the entries of a `/v1/models` body that have an id, or raise `ShapeError`."""
    data = models.get("data") if isinstance(models, dict) else None
    if not isinstance(data, list):
        raise ShapeError(f"not a list of models: {quote(models)}")
    entries = (entry for entry in data if isinstance(entry, dict))
    return tuple(entry for entry in entries if isinstance(entry.get("id"), str))


def names_listed(models: Any) -> tuple[str, ...]:  # noqa: ANN401 - parsed JSON
    return tuple(entry["id"] for entry in models_listed(models))


def read_completion(body: Any) -> Completion:  # noqa: ANN401 - parsed JSON
    """Read a chat completion of any engine, or raise `ShapeError`.

    Reasoning is `reasoning_content` at SGLang and llama-server and `reasoning` at vLLM. Each text
    may be missing or null in a healthy reply: a model that still thought when its tokens ran out.
    """
    try:
        choice = body["choices"][0]
        message = choice["message"]
        texts = [message.get(key) for key in ("reasoning_content", "reasoning", "content")]
        model, usage, reason = body.get("model"), body.get("usage"), choice.get("finish_reason")
    except (AttributeError, IndexError, KeyError, TypeError):
        raise ShapeError(f"not a chat completion: {quote(body)}") from None
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return Completion(
        model=model if isinstance(model, str) else None,
        completion_tokens=tokens if type(tokens) is int else 0,
        finish_reason=reason if isinstance(reason, str) else None,
        text="\n".join(text for text in texts if isinstance(text, str) and text),
    )


def figure(value: object) -> int | None:
    """Return `value` if it can be a context figure, a positive whole number, else `None`."""
    return value if type(value) is int and value > 0 else None


def whole(text: str | None) -> int | None:
    """Read a whole number, `None` where there is none, or one that no computer has as a figure."""
    return int(text) if text and text.isdecimal() and len(text) <= LONGEST else None


def parse_object(body: str) -> dict[str, Any]:
    """Parse a body that must be a JSON object, or raise `ShapeError`."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ShapeError(f"not a JSON object: {quote(body)}")
    return parsed


def may_be_model(path: str, model: str) -> bool:
    """Whether the path that an engine reports can be the model that a profile names.

    Only like is compared with like: two names on the hub, two files or directories, or a name with
    the hub's cache. An engine may have the model from elsewhere, by a path of its own.
    """
    repository = model.partition(":")[0]
    cached = _CACHED.search(path)
    if HUB_ID.match(model) or HUB_FILE.match(model):
        if cached is not None and cached["repository"] != repository.replace("/", "--"):
            return False
        if HUB_ID.match(path):
            return path.partition(":")[0] == repository
    named = "" if HUB_ID.match(model) else PurePosixPath(model.rpartition(":")[2]).name
    is_file = named.endswith(".gguf") or (model.startswith("/") and path.startswith("/"))
    return not path or not named or not is_file or PurePosixPath(path).name == named


def quote(body: object) -> str:
    """Return the beginning of a body, on one line, for an error.

    Control characters are escaped, so that they cannot control the terminal of a reader.
    """
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, default=repr)
    line = printable(" ".join(text[:QUOTED].split()))
    return line if len(text) <= QUOTED else f"{line}…"
