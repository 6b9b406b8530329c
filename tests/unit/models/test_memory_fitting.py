"""The longest context that fits: no longer one does, and where none does, why."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from servicekit.errors import UserError
from servicekit.models.memory.fitting import STEP, longest
from servicekit.models.memory.outcome import Fit
from servicekit.models.memory.planning import budget
from servicekit.models.memory.recipe import Recipe
from servicekit.models.memory.sources import known_geometry
from servicekit.models.memory.units import parse_size

if TYPE_CHECKING:
    from servicekit.models.memory.geometry import Geometry

MODEL = "unsloth/Qwen3.8-27B-NVFP4"
QUANTISED: dict[str, dict[str, Any]] = {
    "sglang": {"kv-cache-dtype": "fp8_e4m3", "mem-fraction-static": 0.9},
    "vllm": {"kv-cache-dtype": "fp8"},
    "llamacpp": {"cache-type-k": "q8_0", "cache-type-v": "q8_0"},
}


def recipe(engine: str, **more: Any) -> Recipe:  # noqa: ANN401 (options)
    """Return a recipe of the engine, with `more` options."""
    return Recipe(
        engine=engine,
        engine_version={"sglang": "0.5.23", "vllm": "0.33.0", "llamacpp": ""}[engine],
        model=MODEL,
        options={**QUANTISED[engine], **more},
        context_requested=4096,
        context_minimum=4096,
    )


@pytest.fixture
def geometry() -> Geometry:
    """Give a model whose layers are known."""
    found = known_geometry(MODEL)
    assert found is not None
    return found


@pytest.mark.parametrize("requests", [1, 2])
@pytest.mark.parametrize("memory", ["31.4GiB", "80GiB"])
@pytest.mark.parametrize("engine", QUANTISED)
def test_the_longest_context_fits_and_a_longer_one_does_not(
    engine: str, memory: str, requests: int, geometry: Geometry
) -> None:
    """Set as told, the plan serves it; with a step more, the plan is worse or beyond the model."""
    size = parse_size(memory)
    found = longest(recipe(engine), geometry, size, requests=requests)
    assert found.context > 0
    assert found.requests == requests

    def planned(more: int) -> tuple[bool, Fit]:
        length = found.context + more
        context = next(iter(found.options))
        slots = requests if engine == "llamacpp" else 1
        options = {**QUANTISED[engine], **found.options, context: length * slots}
        changed = replace(
            recipe(engine), options=options, context_requested=length, context_minimum=length
        )
        plan = budget(changed, geometry, size, average_length=min(5120, length))
        serves = plan.effective_context >= length and plan.concurrency >= requests
        if engine == "sglang":
            serves = serves and plan.kv_tokens >= length * requests
        return serves, plan.verdict

    serves, verdict = planned(0)
    assert serves
    assert verdict is found.plan.verdict
    assert verdict in (Fit.FITS, Fit.TIGHT)
    beyond = found.context + STEP > geometry.context
    assert beyond or planned(STEP) != (True, verdict)


def test_more_requests_never_get_a_longer_context(geometry: Geometry) -> None:
    """Whoever shares has less."""
    size = parse_size("31.4GiB")
    for engine in QUANTISED:
        found = [longest(recipe(engine), geometry, size, requests=n).context for n in (1, 2, 4)]
        assert found == sorted(found, reverse=True), engine


def test_a_limit_of_the_profile_does_not_limit_the_search(geometry: Geometry) -> None:
    """A cap on the pool is for the context that the profile has now."""
    size = parse_size("80GiB")
    for engine, cap in (("sglang", "max-total-tokens"), ("vllm", "num-gpu-blocks-override")):
        capped = longest(recipe(engine, **{cap: 16}), geometry, size)
        assert capped.context == longest(recipe(engine), geometry, size).context


def test_where_none_fits_the_reason_is_given(geometry: Geometry) -> None:
    """Neither the weights alone fit, nor so many requests."""
    for engine in QUANTISED:
        found = longest(recipe(engine), geometry, parse_size("8GiB"))
        assert (found.context, found.plan.verdict) == (0, Fit.DOES_NOT_FIT)
        assert found.reason
    few = longest(recipe("sglang"), geometry, parse_size("31.4GiB"), requests=400)
    assert few.context == 0
    assert few.reason


def test_an_engine_without_arithmetic_is_refused(geometry: Geometry) -> None:
    """No search without a plan."""
    with pytest.raises(UserError, match='the memory of engine "tgi" cannot be planned'):
        longest(replace(recipe("vllm"), engine="tgi"), geometry, 1 << 35)
