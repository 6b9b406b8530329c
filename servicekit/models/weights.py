"""Which models an engine needs to start without a network, and which are missing. Disk.

Fast enough for every install and start: only names and links are checked. `servicekit fetch
--check` compares the files with their checksums.
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

# Options that name another model whose small files an engine reads.
TOKENIZERS: Final = ("tokenizer", "tokenizer-path", "hf-config-path")
# SGLang's option for the revision of the drafter.
DRAFT_REVISION: Final = "speculative-draft-model-revision"

_SAFE: Final = "*.safetensors"
# The same weights in other forms, which no engine reads where there are safetensors.
_OTHER_WEIGHTS: Final = (
    *("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.ot", "*.tflite", "*.gguf"),
    *("*.onnx", "*.onnx_data", "*.mlmodel", "*.npz"),
)
_WEIGHTS: Final = (_SAFE, *_OTHER_WEIGHTS)
_INDEX: Final = "model.safetensors.index.json"
_LARGEST_INDEX: Final = 64 << 20  # bytes of an index that are read
# Weights in the form that their makers train with; engines pass the directory over.
_ORIGINAL: Final = "original/*"
_PART: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<all>\d{5})(?P<suffix>\.[a-z]+)")
# GGUF files that are not language models: image projectors, importance matrices.
_BESIDE: Final = re.compile(r"(?:mmproj|imatrix)", re.IGNORECASE)
_QUANTIZATION: Final = "Q4_K_M"  # what llama.cpp takes where a model's name says nothing


@dataclass(frozen=True, slots=True)
class Need:
    """A model of the hub that an engine loads."""

    role: str  # `model`, `drafter` or `tokenizer`
    repo: str  # `owner/name`
    revision: str = MAIN  # branch, tag or commit
    gguf: str | None = None
    """For llama.cpp, a file's name or a quantization; `None` for engines that take all files."""

    @property
    def title(self) -> str:
        at = "" if self.revision == MAIN else f' at revision "{self.revision}"'
        return f'the {self.role} "{self.repo}"{at}'


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that is missing."""

    need: Need | None  # `None` if it is not on the hub
    why: str  # a sentence without its end, such as `the model "a/b" is not in /var/cache/…`
    size: int | None = None  # bytes of its weights, if known without the hub
    begun: int = 0  # bytes of an interrupted download, from which a fetch resumes


@dataclass(frozen=True, slots=True)
class Missing:
    """What the engine of a profile would miss."""

    profile: str
    lacks: tuple[Lack, ...]
    remedy: str  # the command or action that helps


def needs(profile: Profile) -> tuple[Need, ...]:
    """Name the models of the hub that the engine of `profile` loads."""
    if profile.engine is EngineName.OPENAI:
        return ()  # it finds its model by itself
    # llama.cpp has no option for a revision, and always reads `main`.
    llamacpp = profile.engine is EngineName.LLAMACPP
    revision = None if llamacpp else profile.revision
    entries = [("model", profile.model, revision), ("drafter", *_drafter(profile))]
    entries += [("tokenizer", profile.options.get(option), None) for option in TOKENIZERS]
    default = _QUANTIZATION if llamacpp else None
    made = (_need(role, named, at or MAIN, default) for role, named, at in entries)
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
    """Find the drafter and its revision."""
    table = profile.options.get("speculative-config")
    config = table if isinstance(table, dict) else {}
    revision = profile.options.get(DRAFT_REVISION) or config.get("revision")
    return profile.drafter or config.get("model"), str(revision) if revision else None


def select(need: Need, names: Collection[str]) -> tuple[str, ...]:
    """Return the files of a repository that the engine reads, sorted.

    Raises `UserError` if no GGUF file, or more than one, matches.
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
    """Choose the file with all its parts, and the image projector beside it."""
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
    problem = f"several files match {wanted}" if match else f"no file matches {wanted}"
    raise UserError(
        f'the {need.role} "{need.repo}": {problem}',
        hint=f'name a file: model = "{need.repo}:FILE.gguf"; available: {there}',
    )


def _series(name: str) -> str:
    """Return what the parts of a split file have in common; else the name itself."""
    part = _PART.fullmatch(name)
    return name if part is None else f"{part['stem']}-of-{part['all']}{part['suffix']}"


def _projector(names: Collection[str]) -> tuple[str, ...]:
    """Choose the image projector that llama.cpp loads beside a model."""
    entries = sorted(name for name in names if "mmproj" in name.lower() and name.endswith(".gguf"))
    preferred = [name for name in entries if re.search(r"(?<![A-Za-z])f16", name, re.IGNORECASE)]
    return tuple((preferred or entries)[:1])


def distribution(package: str) -> str:
    """Return the usual pip name of `package`."""
    return package.partition(".")[0].replace("_", "-")


def lacking(need: Need, cache: Path, root: Path) -> Iterator[Lack]:
    """Yield what of `need` is missing in `cache` below `root`."""
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


def description(need: Need, cache: Path) -> Path | None:
    """Return the file in `cache` that describes a model: its first GGUF file or `config.json`.

    `None` where it is not here. Raises `PermissionError` where the cache may not be read.
    """
    repository = Repository(cache, need.repo)
    if need.gguf is None:
        return repository.find(need.revision, "config.json")
    here = repository.listing(need.revision)
    if here is None:
        return None
    try:
        first, *_ = select(need, [file.name for file in here.files])
    except UserError:
        return None
    return repository.snapshot(here.commit) / first


def _absent(need: Need, names: Collection[str], snapshot: Path) -> str:
    """Name a file that a complete model has and this one lacks; empty if none."""
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
    """Name the first missing part of a split file."""
    for name in sorted(names):
        if part := _PART.fullmatch(name):
            for number in range(1, int(part["all"]) + 1):
                other = f"{part['stem']}-{number:05d}-of-{part['all']}{part['suffix']}"
                if other not in names:
                    return other
    return ""


def _shards(index: Path) -> Collection[str]:
    content = _read(index).get("weight_map")
    return {str(name) for name in content.values()} if isinstance(content, dict) else ()


def _indexed_size(snapshot: Path) -> int | None:
    content = _read(snapshot / _INDEX).get("metadata")
    size = content.get("total_size") if isinstance(content, dict) else None
    return int(size) if isinstance(size, int | float) and math.isfinite(size) else None


def _read(index: Path) -> dict[str, object]:
    try:
        with os.fdopen(untrusted.open_linked(index), "rb") as file:
            content = json.loads(file.read(_LARGEST_INDEX))
    except PermissionError:
        raise
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _known_size(need: Need) -> int | None:
    """Bytes of weights from our own tables: about the size of the files."""
    from servicekit.models.memory.sources import known_geometry

    known = known_geometry(need.repo)
    return None if known is None else known.weights
