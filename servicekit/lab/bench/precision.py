"""The type of a profile's KV cache, in one vocabulary for all engines. Disk: the model's config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from servicekit.engines.commandline import given
from servicekit.errors import UserError
from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from servicekit.profiles.model import Profile

UNKNOWN: Final = "?"
# Other names of a type.
_ALIASES: Final[Mapping[str, str]] = {
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "bfloat16": "bf16",
    "float16": "f16",
    "fp16": "f16",
    "half": "f16",
}


def kv_precision(profile: Profile, model: Path | None) -> str:
    """Return the type of the KV cache of `profile`, whose model's files are at `model`.

    `fp8`, `bf16`, `f16`, `q8_0` …; both if keys and values differ; `?` if unknown.
    """
    if profile.engine is EngineName.LLAMACPP:
        keys = _plain(given(profile, "cache-type-k", "ctk") or "f16")
        values = _plain(given(profile, "cache-type-v", "ctv") or "f16")
        return keys if keys == values else f"k {keys}, v {values}"
    if profile.engine is EngineName.OPENAI:
        return UNKNOWN
    dtype = given(profile, "kv-cache-dtype") or "auto"
    return _plain(_declared(profile.model, model) if dtype == "auto" else dtype)


def _plain(dtype: str) -> str:
    return _ALIASES.get(dtype.lower(), dtype.lower())


def _declared(checkpoint: str, model: Path | None) -> str:
    """Return what `auto` means: the type that the checkpoint declares, else that of its weights."""
    from servicekit.models.memory.sources import find_geometry

    try:
        return find_geometry(checkpoint, model).kv_dtype
    except UserError:
        return UNKNOWN
