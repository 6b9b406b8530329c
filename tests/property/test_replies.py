"""Whatever an engine answers, it is read or refused: nothing that it says can end the watchdog."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import profile

from servicekit.engines import ENGINES
from servicekit.engines.base import Counters, ShapeError
from servicekit.profiles.vocabulary import EngineName

PROFILES = {
    EngineName.SGLANG: profile("balanced"),
    EngineName.VLLM: profile("mtp"),
    EngineName.LLAMACPP: profile("demo"),
    EngineName.OPENAI: profile("demo"),
}
WORDS = st.sampled_from(
    (
        *("data", "id", "root", "meta", "n_ctx", "n_ctx_train", "max_model_len", "model"),
        *("choices", "message", "content", "reasoning", "usage", "completion_tokens"),
        *("finish_reason", "default_generation_settings", "qwen3.8-27b", "smollm2-135m", "stop"),
    )
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=6),
    max_leaves=20,
)
MODELS = st.fixed_dictionaries(
    {
        "data": st.lists(
            st.fixed_dictionaries(
                {"id": WORDS | VALUES},
                optional={"root": VALUES, "meta": VALUES, "max_model_len": VALUES},
            ),
            max_size=3,
        )
    }
)
REPLIES = st.fixed_dictionaries(
    {"choices": st.lists(st.dictionaries(WORDS, VALUES, max_size=3), max_size=2)},
    optional={"model": VALUES, "usage": VALUES},
)
SERIES = st.sampled_from(
    (
        *("sglang:realtime_tokens_total", "sglang:num_requests_total"),
        *("sglang:max_total_num_tokens", "vllm:prompt_tokens_total", "vllm:kv_cache_usage_perc"),
        *("vllm:cache_config_info", "llamacpp:n_decode_total", "llamacpp:tokens_predicted_total"),
    )
)
FIGURES = st.floats().map(repr) | st.sampled_from(["NaN", "+Inf", "-Inf", "x", "1e999", "0x1"])
LABELS = st.sampled_from(
    [
        "",
        '{a="b"}',
        '{kv_cache_size_tokens="' + "9" * 5000 + '"}',
        '{kv_cache_size_tokens="²"}',
        "{",
    ]
)
PAGES = st.lists(st.tuples(SERIES, LABELS, FIGURES), max_size=6).map(
    lambda lines: "\n".join(f"{name}{labels} {figure}" for name, labels, figure in lines)
)
each_engine = pytest.mark.parametrize("name", EngineName)


@each_engine
@given(models=VALUES | MODELS)
def test_any_list_of_models(name: EngineName, models: Any) -> None:  # noqa: ANN401 - JSON
    """It lists the model or not, or it is no list of models."""
    engine, recipe = ENGINES[name], PROFILES[name]
    with suppress(ShapeError):
        served = engine.served(models, recipe)
        declared = engine.declared(models, recipe)
        assert isinstance(served, bool)
        assert declared is None or declared > 0


@each_engine
@given(body=VALUES | REPLIES)
def test_any_completion(name: EngineName, body: Any) -> None:  # noqa: ANN401 - as above
    """It is a completion or it is none."""
    engine, recipe = ENGINES[name], PROFILES[name]
    with suppress(ShapeError):
        completion = engine.completion(body)
        assert isinstance(completion.text, str)
        assert completion.finish_reason is None or isinstance(completion.finish_reason, str)
        engine.answers_as(completion.model, recipe)


@each_engine
@given(body=VALUES.map(json.dumps) | PAGES | st.text() | st.just("[" * 100_000))
def test_any_pool_and_any_counters(name: EngineName, body: str) -> None:
    """Figures are read where there are any, and what is no number is none."""
    engine, recipe = ENGINES[name], PROFILES[name]
    with suppress(ShapeError):
        pool = engine.pool(body, recipe)
        assert pool is None or pool > 0
    with suppress(ShapeError):
        counters: Counters = engine.counters(body)
        assert all(map(math.isfinite, counters.progress))
        assert engine.counters(body).progress == counters.progress
