"""What a profile's KV cache is made of, in one word for all engines. Disk: the model's own word."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from servicekit.errors import UserError
from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from servicekit.profiles.model import Profile

UNKNOWN: Final = "?"
_ALIKE: Final[Mapping[str, str]] = {
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "bfloat16": "bf16",
    "float16": "f16",
    "fp16": "f16",
    "half": "f16",
}
"""What engines call it, and what it is called here."""


def kv_precision(profile: Profile, model: Path | None) -> str:
    """Give the type of the KV cache of `profile`, whose model's files are at `model`.

    `fp8`, `bf16`, `f16`, `q8_0` …; for keys and values of different types both. `?` where neither
    the profile nor the model tells.
    """
    if profile.engine is EngineName.LLAMACPP:
        keys = _option(profile, "cache-type-k", "ctk") or "f16"
        values = _option(profile, "cache-type-v", "ctv") or "f16"
        return _word(keys) if keys == values else f"k {_word(keys)}, v {_word(values)}"
    if profile.engine is EngineName.OPENAI:
        return UNKNOWN
    said = _option(profile, "kv-cache-dtype") or "auto"
    return _word(_declared(profile.model, model) if said == "auto" else said)


def _option(profile: Profile, *names: str) -> str | None:
    """Find an option among the profile's, or among its plain arguments."""
    for name, value in profile.options.items():
        if name.replace("_", "-") in names:
            return str(value)
    for word, following in pairwise((*profile.arguments, "")):
        name, _, joined = word.lstrip("-").partition("=")
        if word.startswith("-") and name.replace("_", "-") in names:
            return joined or following
    return None


def _word(said: str) -> str:
    plain = said.lower()
    return _ALIKE.get(plain, plain)


def _declared(checkpoint: str, model: Path | None) -> str:
    """What `auto` means: the type that the checkpoint declares, else that of its weights."""
    from servicekit.models.memory.sources import find_geometry

    try:
        return find_geometry(checkpoint, model).kv_dtype
    except UserError:
        return UNKNOWN
