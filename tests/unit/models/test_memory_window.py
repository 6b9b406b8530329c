"""The model's own window: where it is read, and what a plan says of a longer context."""

from __future__ import annotations

from typing import Any

import pytest
from memory_cases import plan_of

from servicekit.models.memory.outcome import Budget, Fit
from servicekit.models.memory.units import GIB
from servicekit.models.memory.window import window_of_config

WINDOW = 262_144


def beyond(engine: str, version: str, **more: Any) -> Budget:  # noqa: ANN401 (the recipe's fields)
    """Plan twice the window of Qwen3.8-27B on a GPU with room for it."""
    options = more.pop("options", {})
    return plan_of(
        options,
        engine=engine,
        engine_version=version,
        context_requested=2 * WINDOW,
        memory=180 * GIB,
        **more,
    )


ENGINES = [("vllm", "0.32.0"), ("sglang", "0.5.16"), ("sglang", "0.5.23")]


@pytest.mark.parametrize(("engine", "version"), ENGINES)
def test_a_context_above_the_window_does_not_fit(engine: str, version: str) -> None:
    """The engine would refuse it: the plan names the window, and no lever of memory."""
    plan = beyond(engine, version)
    assert plan.verdict is Fit.DOES_NOT_FIT
    assert plan.reason == "the model's own window is 262,144 tokens, not the 524,288 requested"
    assert plan.levers[0] == "lower context.requested to 262144"
    assert "rope scaling" in plan.levers[1]
    assert len(plan.levers) == 3


@pytest.mark.parametrize(
    ("engine", "version", "more"),
    [
        ("vllm", "0.32.0", {"options": {"hf-overrides": '{"rope_parameters": {}}'}}),
        ("vllm", "0.32.0", {"environment": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}}),
        ("sglang", "0.5.23", {"options": {"json-model-override-args": "{}"}}),
        (
            "sglang",
            "0.5.16",
            {"environment": {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "true"}},
        ),
    ],
)
def test_an_extended_window_is_left_to_the_engine(
    engine: str, version: str, more: dict[str, Any]
) -> None:
    """Who overrides the model's configuration knows its window better than its files do."""
    assert "own window" not in beyond(engine, version, **more).reason


@pytest.mark.parametrize(
    ("rope", "window"),
    [
        (None, 32_768),
        ("none", 32_768),
        ({"rope_type": "default"}, 32_768),
        ({"rope_type": "linear", "factor": 2.0}, 65_536),
        ({"type": "dynamic", "factor": 4}, 131_072),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, 32_768),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}, 131_072),
        ({"rope_type": "llama3", "factor": 8.0}, 32_768),
        ({"rope_type": "longrope", "factor": 32.0}, 32_768),
        ({"rope_type": "linear", "factor": "many"}, 32_768),
        ({"rope_type": "linear", "factor": True}, 32_768),
    ],
)
def test_rope_scaling_lengthens_the_window(rope: object, window: int) -> None:
    """Of a `config.json`, as vLLM and SGLang derive it; an odd value changes nothing."""
    assert window_of_config({"rope_scaling": rope}, 32_768) == window
