"""Engines: one adapter each, found by `engine(name)`. Pure.

Facts about options, endpoints and metrics are those of SGLang 0.5.16 and 0.5.23, vLLM 0.32.0 and
llama.cpp b11434.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from servicekit.engines.llamacpp import LlamaCpp
from servicekit.engines.openai import OpenAi
from servicekit.engines.sglang import SgLang
from servicekit.engines.vllm import Vllm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.engines.adapter import Engine
    from servicekit.profiles.vocabulary import EngineName

ENGINES: Final[Mapping[EngineName, Engine]] = {
    adapter.name: adapter for adapter in (SgLang(), Vllm(), LlamaCpp(), OpenAi())
}


def engine(name: EngineName) -> Engine:
    return ENGINES[name]
