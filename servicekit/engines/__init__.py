"""Engines: one small module each, found by `engine(name)`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from servicekit.engines.llamacpp import LlamaCpp
from servicekit.engines.openai import OpenAi
from servicekit.engines.sglang import SgLang
from servicekit.engines.vllm import Vllm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.engines.base import Engine
    from servicekit.profiles.vocabulary import EngineName

ENGINES: Final[Mapping[EngineName, Engine]] = {
    adapter.name: adapter for adapter in (SgLang(), Vllm(), LlamaCpp(), OpenAi())
}


def engine(name: EngineName) -> Engine:
    """Return the adapter of engine `name`."""
    return ENGINES[name]
