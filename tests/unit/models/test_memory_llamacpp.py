"""How llama.cpp's options become buffers.

Logged sizes are of b11434 and of the wheel `xllamacpp`, on a CPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from memory_cases import DSPARK, NVFP4, geometry_of, plan_of

from servicekit.models.memory.geometry import Geometry, Layout
from servicekit.models.memory.llamacpp import CONTEXT
from servicekit.models.memory.outcome import Budget, Fit, PartName
from servicekit.models.memory.units import GIB, MIB

SMOLLM2 = Geometry(
    name="SmolLM2-135M",
    hidden=576,
    ffn=1536,
    vocabulary=49_152,
    context=8192,
    attention_layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    tied=True,
    weights=96_576_768,
    kv_dtype="f16",
    layout=Layout(layers=(2_216_448,) * 30, embedding=30_081_024, output=2_304, tied=True),
)
RANDOM = Geometry(
    name="tiny-random",
    hidden=1024,
    ffn=4096,
    vocabulary=288,
    context=32_768,
    attention_layers=16,
    heads=8,
    kv_heads=4,
    head_dim=128,
    weights=1_009_129_472,
    kv_dtype="f16",
)


def llama_plan(
    options: dict[str, Any],
    *,
    geometry: Geometry = SMOLLM2,
    memory: float = 24,
    **more: Any,  # noqa: ANN401 (the recipe's fields)
) -> Budget:
    """Plan a recipe of llama.cpp on so many GiB."""
    fields = {"engine": "llamacpp", "engine_version": "", "model": geometry.name, **more}
    return plan_of(options, geometry=geometry, memory=round(memory * GIB), **fields)


def mib(plan: Budget, name: PartName) -> float:
    """Return a part's size in MiB."""
    return plan.bytes_of(name) / MIB


# ---- logged


@pytest.mark.parametrize(
    ("size", "slots", "ubatch", "cells", "kv", "compute"),
    [
        (2048, 1, 512, 2048, 45.0, 16.64 + 0.19),
        (8192, 1, 512, 8192, 180.0, 22.64 + 0.19),
        (2048, 1, 256, 2048, 45.0, 8.32 + 0.19),
        (2048, 2, 512, 2048, 45.0, 15.64 + 0.38),
        (8192, 4, 512, 8192, 180.0, 16.64 + 0.75),
        (1000, 1, 512, 1024, 22.5, 15.64 + 0.19),
        (1000, 3, 512, 1536, 33.75, 15.17 + 0.56),
    ],
)
def test_buffers_are_as_logged(
    *, size: int, slots: int, ubatch: int, cells: int, kv: float, compute: float
) -> None:
    """SmolLM2-135M's cells and buffers are the logged ones, to a third of a per cent."""
    options = {"ctx-size": size, "ubatch-size": ubatch}
    plan = llama_plan(options, parallel=slots, gpu=False)
    assert plan.kv_tokens == cells
    assert mib(plan, PartName.KV) == kv
    assert mib(plan, PartName.TRANSIENTS) == pytest.approx(compute, rel=0.0035)
    assert mib(plan, PartName.WEIGHTS) == pytest.approx(92.10, abs=0.005)


def test_buffers_of_another_shape_are_as_logged() -> None:
    """962.38 MiB of weights, 64 of cache and 36.02 of compute: the log of a random F32 model."""
    plan = llama_plan({"ctx-size": 2048}, geometry=RANDOM, gpu=False)
    assert mib(plan, PartName.WEIGHTS) == pytest.approx(962.38, abs=0.01)
    assert mib(plan, PartName.KV) == 64
    assert mib(plan, PartName.TRANSIENTS) == pytest.approx(36.02, rel=0.001)


# ---- options


def test_context_is_what_each_request_was_promised() -> None:
    """`-c` is the total of all slots; a profile's request is for each of them."""
    promised = llama_plan({}, context_requested=4096, parallel=2)
    assert (promised.kv_tokens, promised.effective_context, promised.slots) == (8192, 4096, 2)
    total = llama_plan({"ctx-size": 4096}, context_requested=4096, parallel=2)
    assert total.effective_context == 2048
    assert total.verdict is Fit.TIGHT
    assert total.reason == "a request can use 2,048 tokens, not the 4,096 requested"
    assert total.levers == ("raise --ctx-size, which 2 slots share",)


def test_a_unified_cache_is_for_all_slots() -> None:
    """With `--kv-unified` one request may use all cells."""
    plan = llama_plan({"ctx-size": 4096, "kv-unified": True}, parallel=2)
    assert (plan.kv_tokens, plan.effective_context, plan.concurrency) == (4096, 4096, 2)


def test_a_context_beyond_the_models_is_not_used() -> None:
    """More cells than the model was made for do not make a longer context."""
    plan = llama_plan({}, context_requested=16_384)
    assert plan.effective_context == 8192
    assert plan.verdict is Fit.TIGHT
    assert plan.reason == "the model's own window is 8,192 tokens, not the 16,384 requested"
    assert plan.levers[0] == "lower context.requested to 8192"


def test_without_any_context_the_models_own_is_taken() -> None:
    """An unset `-c` means the context the model was made for."""
    assert llama_plan({}).effective_context == 8192


def test_every_slot_has_cells() -> None:
    """Even a context smaller than the number of slots gives each of them a row of 256 cells."""
    plan = llama_plan({"ctx-size": 1}, parallel=2)
    assert (plan.kv_tokens, plan.effective_context) == (512, 256)


def test_short_names_mean_the_long_ones() -> None:
    """A recipe may use the names that people type."""
    short = {"c": 2048, "np": 2, "ctk": "q8_0", "ctv": "q4_0", "ub": 256, "ngl": 99, "kvu": True}
    full = {
        "ctx-size": 2048,
        "parallel": 2,
        "cache-type-k": "q8_0",
        "cache-type-v": "q4_0",
        "ubatch-size": 256,
        "n-gpu-layers": 99,
        "kv-unified": True,
    }
    assert llama_plan(short) == llama_plan(full)
    kv = next(part for part in llama_plan(short).parts if part.name is PartName.KV)
    assert kv.detail.endswith(", q8_0/q4_0")


# ---- placement


def test_on_a_gpu_the_embedding_stays_on_the_host() -> None:
    """An untied embedding is not on the GPU; a tied one is copied there for the head."""
    tied = llama_plan({})
    assert tied.bytes_of(PartName.WEIGHTS) == SMOLLM2.weights
    assert tied.bytes_of(PartName.RUNTIME) == CONTEXT
    untied = replace(
        SMOLLM2,
        tied=False,
        layout=Layout(layers=(2_216_448,) * 30, embedding=30_081_024, output=99, tied=False),
    )
    plan = llama_plan({}, geometry=untied)
    assert plan.bytes_of(PartName.WEIGHTS) == 30 * 2_216_448 + 99


def test_layers_on_the_host_take_their_cells_along() -> None:
    """With eleven layers on the GPU, head included, ten of thirty and their cells are there."""
    plan = llama_plan({"n-gpu-layers": 11, "ctx-size": 2048})
    assert plan.bytes_of(PartName.WEIGHTS) == 10 * 2_216_448 + 30_081_024 + 2304
    assert mib(plan, PartName.KV) == 15
    details = [part.detail for part in plan.parts]
    assert f"{SMOLLM2.name}, 10 of 30 layers" in details
    only_head = llama_plan({"n-gpu-layers": 1, "ctx-size": 2048})
    assert only_head.bytes_of(PartName.WEIGHTS) == 30_081_024 + 2304
    assert mib(only_head, PartName.KV) == 0


@pytest.mark.parametrize("layers", ["all", "auto", "-1", -1, 31, 999])
def test_every_layer_is_on_the_gpu_unless_said_otherwise(layers: object) -> None:
    """All of them, by any of its names or by a number that is large enough."""
    plan = llama_plan({"n-gpu-layers": layers})
    assert plan.bytes_of(PartName.WEIGHTS) == SMOLLM2.weights


def test_without_a_layout_the_share_is_an_estimate() -> None:
    """A model that is not read from its file is split evenly, and marked so."""
    plan = llama_plan({"n-gpu-layers": 9}, geometry=RANDOM)
    part = next(part for part in plan.parts if part.name is PartName.WEIGHTS)
    assert part.bytes == RANDOM.weights // 2
    assert part.estimated


def test_without_a_gpu_the_plan_is_for_the_hosts_memory() -> None:
    """No layer on a GPU: nothing of CUDA, and the words say which memory is meant."""
    for plan in (llama_plan({}, gpu=False), llama_plan({"n-gpu-layers": 0})):
        assert plan.bytes_of(PartName.RUNTIME) == 0
        assert plan.reason.endswith("of host memory stay free")
        assert not any(part.estimated for part in plan.parts)
        assert plan.notes == ()


# ---- states and drafters


def test_a_hybrid_keeps_states_for_every_slot_and_draft_token() -> None:
    """149.6 MiB a sequence, and once more for each token that is drafted."""
    geometry = geometry_of(NVFP4)
    one = llama_plan({"ctx-size": 4096}, geometry=geometry, memory=31.4)
    assert mib(one, PartName.STATES) == pytest.approx(149.6, abs=0.05)
    options = {"ctx-size": 4096, "spec-type": "draft-mtp"}
    drafted = llama_plan(options, geometry=geometry, memory=31.4, parallel=2)
    assert mib(drafted, PartName.STATES) == pytest.approx(149.62 * 2 * 4, abs=0.1)
    two = llama_plan({**options, "spec-draft-n-max": 1}, geometry=geometry, memory=31.4)
    assert mib(two, PartName.STATES) == pytest.approx(149.62 * 2, abs=0.1)


def test_a_drafter_brings_weights_and_cells() -> None:
    """A known drafter is counted, an unknown one is said."""
    geometry = geometry_of(NVFP4)
    plan = llama_plan({"ctx-size": 4096}, geometry=geometry, memory=31.4, drafter=DSPARK)
    assert plan.bytes_of(PartName.DRAFTER) == 2_718_569_474
    assert mib(plan, PartName.KV) == 4096 * (65_536 + 20_480) / MIB
    unknown = llama_plan({"ctx-size": 4096}, drafter="small.gguf")
    assert unknown.verdict is Fit.TIGHT
    assert unknown.reason == 'the drafter "small.gguf" is not known and not counted'


# ---- what does not fit


def test_buffers_beyond_the_memory_name_their_levers() -> None:
    """Narrower cells, a shorter context, fewer slots, layers on the host: in this order."""
    plan = llama_plan(
        {}, geometry=RANDOM, memory=3, parallel=4, context_requested=32_768, engine_version="b11434"
    )
    assert plan.title == "tiny-random on llama.cpp b11434"
    assert plan.verdict is Fit.DOES_NOT_FIT
    assert plan.reason.startswith("the buffers exceed the memory by 2.")
    assert plan.levers == (
        "halve the cache: --cache-type-k q8_0 --cache-type-v q8_0",
        "lower the context (now 32,768 tokens in each slot)",
        "lower the number of slots (now 4)",
        "leave layers on the host: --n-gpu-layers (now 16)",
    )
    assert (plan.concurrency, plan.effective_context, plan.usable_input) == (0, 0, 0)


def test_on_the_host_a_shortage_is_no_matter_of_doubt() -> None:
    """Nothing is estimated there, so a little too little is refused, which a GPU's would not be."""
    options = {"ctx-size": 2048, "cache-type-k": "q8_0", "cache-type-v": "q8_0"}
    host = llama_plan(options, geometry=RANDOM, memory=1.0, gpu=False)
    assert host.free < 0
    assert host.verdict is Fit.DOES_NOT_FIT
    assert host.levers == ("lower the context (now 2,048 tokens in each slot)",)
    gpu = llama_plan(options, geometry=RANDOM, memory=1.3)
    assert gpu.free < 0
    assert gpu.verdict is Fit.TIGHT
    assert gpu.reason.startswith("the buffers may exceed the memory by 0.")
    assert gpu.concurrency == 1


def test_little_left_is_tight() -> None:
    """Less than a quarter of a GiB beside the buffers is tight."""
    plan = llama_plan({"ctx-size": 2048}, geometry=RANDOM, memory=1.6)
    assert plan.verdict is Fit.TIGHT
    assert plan.reason.startswith("only 0.")


def test_windowed_layers_are_said() -> None:
    """A note tells that the cache will be smaller than the plan."""
    plan = llama_plan({}, geometry=replace(SMOLLM2, sliding=True), gpu=False)
    assert plan.notes == ("sliding-window layers are counted in full: the cache will be smaller",)
