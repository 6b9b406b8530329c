"""What holds for every plan, whatever its numbers."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from memory_cases import DFLASH, DSPARK, INFERACT, LLAMA, NVFP4, geometry_of, plan_of

from servicekit.models.memory.outcome import Budget, Fit, PartName
from servicekit.models.memory.rendering import budget_json, render_budget
from servicekit.models.memory.sglang import balanced_ratio
from servicekit.models.memory.units import GIB, MIB

MEMORY = st.integers(GIB, 96 * GIB)
"""Bytes of a GPU, from one that holds nothing to one that holds all."""

SGLANG = st.fixed_dictionaries(
    {},
    optional={
        "mem-fraction-static": st.floats(0.3, 0.99),
        "mamba-full-memory-ratio": st.floats(0.1, 20),
        "max-mamba-cache-size": st.integers(1, 200),
        "max-total-tokens": st.integers(1, 400_000),
        "max-running-requests": st.integers(1, 200),
        "mamba-ssm-dtype": st.sampled_from(["float32", "bfloat16"]),
        "kv-cache-dtype": st.sampled_from(["auto", "bfloat16", "nvfp4"]),
        "mamba-radix-cache-strategy": st.sampled_from(["no_buffer", "extra_buffer_lazy"]),
        "disable-radix-cache": st.booleans(),
        "disable-cuda-graph": st.booleans(),
        "chunked-prefill-size": st.sampled_from([512, 2048, 8192]),
        "page-size": st.sampled_from([1, 16, 64]),
        "context-length": st.integers(1, 300_000),
        "enable-linear-replayssm-spec": st.booleans(),
        "enable-gdn-replayssm-spec": st.booleans(),
        "speculative-algorithm": st.sampled_from(["EAGLE", "DSPARK", "DFLASH", "NGRAM"]),
    },
)
VLLM = st.fixed_dictionaries(
    {},
    optional={
        "gpu-memory-utilization": st.floats(0.3, 0.99),
        "max-model-len": st.one_of(st.just("auto"), st.integers(1, 300_000)),
        "max-num-seqs": st.integers(1, 512),
        "kv-cache-dtype": st.sampled_from(["auto", "fp8", "bfloat16"]),
        "mamba-ssm-cache-dtype": st.sampled_from(["float32", "bfloat16"]),
        "enforce-eager": st.booleans(),
        "language-model-only": st.booleans(),
        "enable-prefix-caching": st.booleans(),
        "speculative-config": st.sampled_from(
            [
                {"method": "mtp", "num_speculative_tokens": 3},
                {"method": "dspark", "model": DSPARK, "num_speculative_tokens": 7},
                {"method": "dflash", "model": DFLASH, "num_speculative_tokens": 7},
            ]
        ),
    },
)
LLAMACPP = st.fixed_dictionaries(
    {},
    optional={
        "ctx-size": st.integers(1, 300_000),
        "parallel": st.integers(1, 16),
        "kv-unified": st.booleans(),
        "n-gpu-layers": st.one_of(st.just("all"), st.integers(0, 80)),
        "cache-type-k": st.sampled_from(["f16", "q8_0", "q4_0"]),
        "ubatch-size": st.sampled_from([128, 512, 2048]),
        "spec-type": st.sampled_from(["none", "draft-mtp"]),
    },
)
RECIPES = st.one_of(
    st.tuples(st.just("sglang"), st.sampled_from(["0.5.16", "0.5.23"]), SGLANG),
    st.tuples(st.just("vllm"), st.just("0.32.0"), VLLM),
    st.tuples(st.just("llamacpp"), st.just(""), LLAMACPP),
)
MODELS = st.sampled_from([NVFP4, INFERACT, LLAMA])
DRAFTERS = st.sampled_from([None, DSPARK, DFLASH, "someone/else"])


@given(RECIPES, MODELS, DRAFTERS, MEMORY, st.integers(1, 300_000))
def test_every_recipe_has_a_plan_that_adds_up(
    recipe: tuple[str, str, dict[str, Any]],
    model: str,
    drafter: str | None,
    memory: int,
    wanted: int,
) -> None:
    """Parts sum to the memory, figures are no less than nothing, and words go with the verdict."""
    engine, version, options = recipe
    plan = plan_of(
        options,
        engine=engine,
        engine_version=version,
        model=model,
        drafter=drafter,
        memory=memory,
        context_requested=wanted,
    )
    assert sum(part.bytes for part in plan.parts) == memory == plan.total
    assert [part.name for part in plan.parts] == list(PartName)
    assert all(part.bytes >= 0 for part in plan.parts[:-1])
    assert min(plan.kv_tokens, plan.concurrency, plan.effective_context, plan.usable_input) >= 0
    assert plan.usable_input <= plan.effective_context
    assert plan.reason
    if plan.verdict is Fit.FITS:
        assert plan.free >= 0
        assert plan.levers == ()
        assert plan.concurrency >= 1
        assert plan.effective_context >= wanted
    assert budget_json(plan)["total_bytes"] == memory
    for width in (40, 80):
        assert max(map(len, render_budget(plan, width=width).splitlines())) <= width


def grow(options: dict[str, Any], engine: str, model: str, memory: int, more: int) -> list[Budget]:
    """Plan a recipe on a GPU, and on one that has `more` bytes."""
    versions = {"sglang": "0.5.16", "vllm": "0.32.0"}
    return [
        plan_of(options, engine=engine, engine_version=versions[engine], model=model, memory=size)
        for size in (memory, memory + more)
    ]


@given(st.floats(0.5, 0.97), st.integers(1, 60), MEMORY, st.integers(0, 8 * GIB))
def test_more_memory_never_holds_fewer_tokens_for_pinned_slots(
    fraction: float, slots: int, memory: int, more: int
) -> None:
    """With the states pinned, every byte more goes to tokens."""
    options = {"mem-fraction-static": fraction, "max-mamba-cache-size": slots}
    small, large = grow(options, "sglang", NVFP4, memory, more)
    assert large.kv_tokens >= small.kv_tokens
    assert large.concurrency >= small.concurrency


@given(st.floats(0.5, 0.97), st.floats(0.1, 20), MEMORY, st.integers(0, 8 * GIB))
def test_more_memory_never_holds_less_where_a_ratio_splits_it(
    fraction: float, ratio: float, memory: int, more: int
) -> None:
    """Slots never become fewer. Tokens may, by the one slot that a few bytes more just allowed."""
    options = {"mem-fraction-static": fraction, "mamba-full-memory-ratio": ratio}
    small, large = grow(options, "sglang", NVFP4, memory, more)
    assert (large.slots or 0) >= (small.slots or 0)
    assert large.kv_tokens >= small.kv_tokens - 153_944_064 // 32_768 - 1


@given(st.floats(0.5, 0.97), MEMORY, st.integers(0, 8 * GIB))
def test_more_memory_never_holds_fewer_tokens_of_a_plain_transformer(
    fraction: float, memory: int, more: int
) -> None:
    """Without states, tokens only grow, and so does what runs at once."""
    small, large = grow({"mem-fraction-static": fraction}, "sglang", LLAMA, memory, more)
    assert large.kv_tokens >= small.kv_tokens
    assert large.concurrency >= small.concurrency


@given(st.floats(0.5, 0.97), st.integers(1, 262_144), MEMORY, st.integers(0, 8 * GIB))
def test_more_memory_never_holds_fewer_blocks(
    utilization: float, length: int, memory: int, more: int
) -> None:
    """vLLM's pool only grows, for the same defaults."""
    if memory < 70 * GIB <= memory + more:
        more = 0
    options = {"gpu-memory-utilization": utilization, "max-model-len": length}
    small, large = grow(options, "vllm", NVFP4, memory, more)
    assert large.kv_tokens >= small.kv_tokens
    assert large.concurrency >= small.concurrency


@given(st.floats(0.5, 0.97), st.integers(0, 64), MEMORY)
def test_more_slots_a_request_never_serve_more_requests(
    fraction: float, pinned: int, memory: int
) -> None:
    """Raising S, by cache strategy, never raises how many requests run at once."""
    options: dict[str, Any] = {"mem-fraction-static": fraction}
    if pinned:
        options["max-mamba-cache-size"] = pinned
    strategies: list[dict[str, Any]] = [
        {"disable-radix-cache": True},
        {"mamba-radix-cache-strategy": "no_buffer"},
        {"mamba-radix-cache-strategy": "extra_buffer_lazy"},
        {"mamba-radix-cache-strategy": "extra_buffer"},
    ]
    served = [plan_of({**options, **one}, memory=memory).concurrency for one in strategies]
    assert served == sorted(served, reverse=True)


@given(st.floats(0.6, 0.95), st.integers(2, 16), st.integers(2, 16))
def test_more_draft_tokens_never_leave_more_slots(fraction: float, few: int, many: int) -> None:
    """Every draft token keeps a state in each request, which the slots pay for."""
    few, many = sorted((few, many))
    options: dict[str, Any] = {
        "mem-fraction-static": fraction,
        "speculative-algorithm": "NGRAM",
    }
    for version in ("0.5.16", "0.5.23"):
        slots = [
            plan_of(
                {**options, "speculative-num-draft-tokens": tokens}, engine_version=version
            ).slots
            for tokens in (few, many)
        ]
        assert (slots[0] or 0) >= (slots[1] or 0)


@given(st.integers(0, 400_000), st.floats(0.6, 0.95))
def test_a_cap_is_never_exceeded(cap: int, fraction: float) -> None:
    """`--max-total-tokens` only ever lowers the pool."""
    options: dict[str, Any] = {"mem-fraction-static": fraction}
    free, capped = plan_of(options), plan_of({**options, "max-total-tokens": cap})
    assert capped.kv_tokens == min(cap, free.kv_tokens)


@given(st.integers(1, 262_144), st.integers(1, 262_144))
def test_longer_requests_need_less_of_the_state_pool(short: int, long: int) -> None:
    """The balanced ratio falls as requests grow, and gives both pools the same number of them."""
    short, long = sorted((short, long))
    geometry = geometry_of()
    assert geometry.recurrent is not None
    slot, token = geometry.recurrent.slot_bytes("float32"), geometry.kv_token_bytes("fp8")
    ratios = [
        balanced_ratio(slot, token, slots_per_request=5, average_length=length)
        for length in (short, long)
    ]
    assert ratios[0] >= ratios[1] > 0
    memory = 1000 * MIB
    states = memory * ratios[0] / (1 + ratios[0]) / (5 * slot)
    cells = memory / (1 + ratios[0]) / (short * token)
    assert abs(states - cells) < 1e-6 * states


@given(st.integers(1, 300_000), st.integers(1, 16))
def test_cells_hold_what_every_slot_was_promised(requested: int, slots: int) -> None:
    """llama.cpp's rounding never leaves a slot less than the profile asks for."""
    plan = plan_of(
        {}, engine="llamacpp", engine_version="", context_requested=requested, parallel=slots
    )
    assert plan.kv_tokens >= requested * slots
    assert plan.kv_tokens % (256 * slots) == 0
