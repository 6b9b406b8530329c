"""What an engine must find on this host to start without a network, and whether it is here. Disk.

Fast enough for every install and start: names and links are looked at, no file is read. Whether the
files are whole down to the last bit is for `servicekit fetch --check`.
"""

from __future__ import annotations

import fnmatch
import json
import math
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from servicekit.errors import UserError
from servicekit.host import untrusted
from servicekit.models.hub_cache import MAIN, Repository
from servicekit.profiles.vocabulary import HUB_FILE, HUB_ID, EngineName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from servicekit.profiles.model import Profile

TOKENIZERS: Final = ("tokenizer", "tokenizer-path", "hf-config-path")
"""Options that name another model whose small files an engine reads."""
DRAFT_REVISION: Final = "speculative-draft-model-revision"
"""SGLang's option for the revision of the drafter."""

_SAFE: Final = "*.safetensors"
_OTHER_WEIGHTS: Final = (
    *("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.ot", "*.tflite", "*.gguf"),
    *("*.onnx", "*.onnx_data", "*.mlmodel", "*.npz"),
)
"""The same weights in other forms, which no engine reads where there are safetensors."""
_WEIGHTS: Final = (_SAFE, *_OTHER_WEIGHTS)
_INDEX: Final = "model.safetensors.index.json"
_LARGEST_INDEX: Final = 64 << 20
"""Bytes of an index that are read."""
_ORIGINAL: Final = "original/*"
"""Weights in the form that their makers train with; engines pass the directory over."""
_PART: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<all>\d{5})(?P<suffix>\.[a-z]+)")
_BESIDE: Final = re.compile(r"(?:mmproj|imatrix)", re.IGNORECASE)
"""GGUF files that are no language model: what sees images, what quantization was made with."""
_QUANTIZATION: Final = "Q4_K_M"
"""What llama.cpp takes where a model's name says nothing."""


@dataclass(frozen=True, slots=True)
class Need:
    """A model of the hub that an engine loads."""

    role: str
    """`model`, `drafter` or `tokenizer`."""
    repo: str
    """`owner/name`."""
    revision: str = MAIN
    """Branch, tag or commit."""
    gguf: str | None = None
    """For llama.cpp, a file's name or a quantization; `None` for engines that take all files."""

    @property
    def title(self) -> str:
        """What messages call it."""
        at = "" if self.revision == MAIN else f' at revision "{self.revision}"'
        return f'the {self.role} "{self.repo}"{at}'


@dataclass(frozen=True, slots=True)
class Lack:
    """One thing that is not here."""

    need: Need | None
    """`None` for what is not on the hub."""
    why: str
    """A sentence without its end, such as `the model "a/b" is not in /var/cache/…`."""
    size: int | None = None
    """Bytes of all its weights, where that is known without asking the hub."""
    begun: int = 0
    """Bytes that a broken-off download left, for the next one to go on from."""


@dataclass(frozen=True, slots=True)
class Missing:
    """What the engine of a profile would not find."""

    profile: str
    lacks: tuple[Lack, ...]
    remedy: str
    """A command that mends it, or what else does."""


def needs(profile: Profile) -> tuple[Need, ...]:
    """Name the models of the hub that the engine of `profile` loads."""
    if profile.engine is EngineName.OPENAI:
        return ()  # how it comes to its model is its own business
    # llama.cpp has no option for a revision, and so reads what `main` is.
    llamacpp = profile.engine is EngineName.LLAMACPP
    revision = None if llamacpp else profile.revision
    found = [("model", profile.model, revision), ("drafter", *_drafter(profile))]
    found += [("tokenizer", profile.options.get(option), None) for option in TOKENIZERS]
    default = _QUANTIZATION if llamacpp else None
    made = (_need(role, named, at or MAIN, default) for role, named, at in found)
    return tuple(dict.fromkeys(need for need in made if need is not None))


def _need(role: str, named: object, revision: str, default: str | None) -> Need | None:
    if not isinstance(named, str):
        return None
    if match := HUB_FILE.match(named):
        return Need(role, match["repo"], revision, match["file"])
    if not HUB_ID.match(named):
        return None
    repo, _, quantization = named.partition(":")
    return Need(role, repo, revision, quantization or default)


def _drafter(profile: Profile) -> tuple[object, str | None]:
    """Find the drafter and its revision, wherever the engine takes them from."""
    table = profile.options.get("speculative-config")
    config = table if isinstance(table, dict) else {}
    revision = profile.options.get(DRAFT_REVISION) or config.get("revision")
    return profile.drafter or config.get("model"), str(revision) if revision else None


def select(need: Need, names: Collection[str]) -> tuple[str, ...]:
    """Choose of a repository's files those that the engine reads, sorted.

    Raises `UserError` where a GGUF is wanted that is not among them, or more than one would do.
    """
    kept = sorted(name for name in names if not _is(name, (_ORIGINAL,)))
    if need.role == "tokenizer":
        return tuple(name for name in kept if not _is(name, _WEIGHTS))
    if need.gguf is not None:
        return _ggufs(need, need.gguf, kept)
    if any(_is(name, (_SAFE,)) for name in kept):
        return tuple(name for name in kept if not _is(name, _OTHER_WEIGHTS))
    return tuple(kept)


def _is(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _ggufs(need: Need, wanted: str, names: Collection[str]) -> tuple[str, ...]:
    """Choose the file, with all its parts where it is split, and what sees images beside it."""
    if wanted.endswith(".gguf"):
        match = [name for name in names if name == wanted]
    else:
        # IQ4_XS is another quantization than Q4_XS.
        pattern = re.compile(rf"(?<![A-Za-z0-9]){re.escape(wanted)}[.-]", re.IGNORECASE)
        models = (name for name in names if name.endswith(".gguf") and not _BESIDE.search(name))
        match = [name for name in models if pattern.search(name)]
    chosen = {_series(name) for name in match}
    if len(chosen) == 1:
        (series,) = chosen
        parts = tuple(name for name in names if _series(name) == series)
        return parts if wanted.endswith(".gguf") else (*parts, *_projector(names))
    ggufs = [name for name in names if name.endswith(".gguf")]
    there = ", ".join(sorted(match or ggufs)[:8]) or "none"
    problem = f"several of its files are {wanted}" if match else f"it has no {wanted}"
    raise UserError(
        f'the {need.role} "{need.repo}": {problem}',
        hint=f'name one as model = "{need.repo}:FILE.gguf"; there are: {there}',
    )


def _series(name: str) -> str:
    """Return what all parts of a split file have in common; the name of one that is not split."""
    part = _PART.fullmatch(name)
    return name if part is None else f"{part['stem']}-of-{part['all']}{part['suffix']}"


def _projector(names: Collection[str]) -> tuple[str, ...]:
    """Choose what llama.cpp loads beside a model that it was given by its name, to see images."""
    found = sorted(name for name in names if "mmproj" in name.lower() and name.endswith(".gguf"))
    preferred = [name for name in found if re.search(r"(?<![A-Za-z])f16", name, re.IGNORECASE)]
    return tuple((preferred or found)[:1])


def distribution(package: str) -> str:
    """Return what to ask pip for to get `package`, as packages are usually called."""
    return package.partition(".")[0].replace("_", "-")


def lacking(need: Need, cache: Path, root: Path) -> Iterator[Lack]:
    """Yield what of `need` is not in `cache`, looked at below `root`."""
    repository = Repository(root / str(cache).lstrip("/"), need.repo)
    here, begun = repository.listing(need.revision), repository.begun()
    if here is None:
        yield Lack(need, f"{need.title} is not in {cache}", _known_size(need), begun)
        return
    snapshot = repository.snapshot(here.commit)
    absent = _absent(need, {file.name for file in here.files}, snapshot)
    if absent:
        size = _indexed_size(snapshot) or _known_size(need)
        why = f"{need.title} is incomplete in {cache}: {absent} is missing"
        yield Lack(need, why, size, begun)


def _absent(need: Need, names: Collection[str], snapshot: Path) -> str:
    """Name what cannot be missing from a whole model and is; empty where nothing is."""
    if need.role == "tokenizer":
        return "" if any(_is(name, ("*.json",)) for name in names) else "its tokenizer"
    if need.gguf is not None:
        try:
            parts = _ggufs(need, need.gguf, sorted(names))
        except UserError:
            return need.gguf
        return _absent_part(parts)
    if "config.json" not in names:
        return "config.json"
    weights = [name for name in names if _is(name, _WEIGHTS)]
    shards = _shards(snapshot / _INDEX)
    if shards:
        return next((shard for shard in sorted(shards) if shard not in names), "")
    safe = [name for name in weights if _is(name, (_SAFE,))]
    return _absent_part(safe or weights) if weights else "every file with weights"


def _absent_part(names: Collection[str]) -> str:
    """Name the first part of a split file that is not among its other parts."""
    for name in sorted(names):
        if part := _PART.fullmatch(name):
            for number in range(1, int(part["all"]) + 1):
                other = f"{part['stem']}-{number:05d}-of-{part['all']}{part['suffix']}"
                if other not in names:
                    return other
    return ""


def _shards(index: Path) -> Collection[str]:
    """Name the files that an index of weights tells of."""
    said = _read(index).get("weight_map")
    return {str(name) for name in said.values()} if isinstance(said, dict) else ()


def _indexed_size(snapshot: Path) -> int | None:
    said = _read(snapshot / _INDEX).get("metadata")
    size = said.get("total_size") if isinstance(said, dict) else None
    return int(size) if isinstance(size, int | float) and math.isfinite(size) else None


def _read(index: Path) -> dict[str, object]:
    try:
        with os.fdopen(untrusted.open_linked(index), "rb") as file:
            said = json.loads(file.read(_LARGEST_INDEX))
    except PermissionError:
        raise
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _known_size(need: Need) -> int | None:
    """Bytes of weights that our own tables know, about the size of the files that hold them."""
    from servicekit.models.memory.sources import known_geometry

    known = known_geometry(need.repo)
    return None if known is None else known.weights
