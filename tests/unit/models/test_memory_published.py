"""The plan gives the figures that were published of real starts; each test names its own."""

from __future__ import annotations

import pytest
from memory_cases import (
    DSPARK,
    INFERACT,
    LONG,
    OFFICIAL,
    RTX_5090,
    geometry_of,
    plan_of,
    recipe_of,
)

from servicekit.models.memory.geometry import mtp_parameters, parameter_count
from servicekit.models.memory.llamacpp import state_bytes, token_bytes
from servicekit.models.memory.outcome import Fit, PartName
from servicekit.models.memory.sglang import balanced_ratio, draft_states_bytes
from servicekit.models.memory.units import GIB, KIB, MIB, gib
from servicekit.models.memory.vllm import resolve, shares
from servicekit.models.memory.vllm_blocks import Blocks, DraftLayers, block_layout

MTP_3 = {"method": "mtp", "num_speculative_tokens": 3}

# ---- the model


def test_slot_and_token_have_the_cookbooks_sizes() -> None:
    """A state slot is 153.9 or 78.4 MB and a token 32.8 or 65.5 KB, as SGLang's cookbook says."""
    geometry = geometry_of()
    assert geometry.recurrent is not None
    slots = [geometry.recurrent.slot_bytes(dtype) for dtype in ("float32", "bfloat16")]
    tokens = [geometry.kv_token_bytes(dtype) for dtype in ("fp8_e4m3", "bfloat16")]
    assert slots == [153_944_064, 78_446_592]
    assert tokens == [32_768, 65_536]
    assert [f"{slot / 1e6:.1f}" for slot in slots] == ["153.9", "78.4"]
    assert [f"{token / 1e3:.1f}" for token in tokens] == ["32.8", "65.5"]


def test_shape_adds_up_to_the_published_parameters() -> None:
    """The shapes in the tables add up to the parameters that the checkpoints' tensors have."""
    assert parameter_count(geometry_of()) == 27_320_697_856
    assert mtp_parameters(geometry_of()) == 424_699_392
    llama = geometry_of("meta-llama/Llama-3.1-8B")
    assert parameter_count(llama) == 8_030_261_248
    assert llama.weights == 2 * parameter_count(llama)


# ---- SGLang: the published recipe for one RTX 5090 and its log


def test_official_recipe_is_balanced_at_its_own_ratio() -> None:
    """4.58 to 4.59 is the ratio for requests of 5,120 tokens, five slots each."""
    ratio = plan_of(OFFICIAL).balanced_ratio
    assert ratio is not None
    assert 4.58 <= ratio <= 4.59
    assert balanced_ratio(153_944_064, 32_768, slots_per_request=5) == ratio


def test_official_recipe_has_the_logged_pools() -> None:
    """The log says 33 slots and 38,688 tokens; the plan is within 0.1 % and serves six."""
    plan = plan_of(OFFICIAL)
    assert plan.slots == 33
    assert plan.kv_tokens == pytest.approx(38_688, rel=0.001)
    assert plan.concurrency == 6
    assert plan.usable_input == plan.effective_context - 6 == plan.kv_tokens - 6
    assert plan.verdict is Fit.FITS


def test_official_recipe_leaves_what_the_log_says() -> None:
    """`avail mem` is 4.47 GB when the pools stand and 3.86 GB behind the graphs, to 0.05 GB."""
    plan = plan_of(OFFICIAL)
    assert plan.left_after_pools / GIB == pytest.approx(4.47, abs=0.05)
    states = plan.bytes_of(PartName.STATES) / GIB
    assert states == pytest.approx(0.09 + 4.78, abs=0.01)  # conv_state and ssm_state size
    assert plan.bytes_of(PartName.KV) / GIB == pytest.approx(0.59 + 0.59, abs=0.01)


def test_long_variant_holds_200000_tokens_for_four_requests() -> None:
    """The 200,000-token variant fills its cap, serves four, and leaves 2.9 GiB (log: 2.87)."""
    plan = plan_of(LONG, context_requested=200_000)
    assert plan.kv_tokens == plan.effective_context == 200_000
    assert plan.concurrency == 4
    assert plan.left_after_pools / GIB == pytest.approx(2.9, abs=0.07)
    assert plan.free / GIB == pytest.approx(1.5, abs=0.1)  # 31.1 of 32.6 GB are held under load
    assert plan.verdict is Fit.FITS


def test_four_slots_serve_nothing_and_the_three_remedies_come_in_order() -> None:
    """K = 4 < S = 5 is refused, with the remedies in the order of the engine's own error."""
    plan = plan_of({"mem-fraction-static": 0.7})
    assert plan.slots == 4
    assert plan.concurrency == plan.effective_context == 0
    assert plan.verdict is Fit.DOES_NOT_FIT
    assert plan.reason == "serves nothing: 4 state slots, and a request needs 5"
    assert plan.levers == (
        "reduce --max-running-requests",
        "increase --mem-fraction-static to 0.709 or above (now 0.7)",
        (
            "lower S, the slots of a request: --mamba-radix-cache-strategy extra_buffer_lazy "
            "(S = 4) or --disable-radix-cache (S = 1)"
        ),
        "halve the states: --mamba-ssm-dtype bfloat16",
    )


def test_second_remedy_names_a_fraction_that_serves() -> None:
    """Raising the memory fraction to the number the remedy names does serve a request."""
    assert plan_of({"mem-fraction-static": 0.709}).concurrency == 1
    assert plan_of({"mem-fraction-static": 0.708}).concurrency == 0


def test_dsparks_draft_states_are_627_mb_a_request() -> None:
    """Eight intermediate states in BF16 are about 627 MB for each running request."""
    each = draft_states_bytes(78_446_592, 8)
    assert each == pytest.approx(627e6, rel=0.001)
    options = {"speculative-algorithm": "DSPARK", "mamba-ssm-dtype": "bfloat16"}
    plan = plan_of({**options, "mem-fraction-static": 0.95}, drafter=DSPARK)
    assert plan.bytes_of(PartName.INTERMEDIATE) == (plan.concurrency + 1) * each
    assert plan.bytes_of(PartName.DRAFTER) == pytest.approx(2.71e9, rel=0.01)


def test_dspark_on_the_old_release_is_refused_as_it_was_published() -> None:
    """DSpark at 0.95 leaves 0.2 to 0.9 GiB and its first request runs out of memory."""
    options = {"speculative-algorithm": "DSPARK", "mamba-ssm-dtype": "bfloat16"}
    plan = plan_of({**options, "mem-fraction-static": 0.95}, drafter=DSPARK)
    assert 0.2 <= plan.left_after_pools / GIB <= 0.91
    assert plan.verdict is Fit.DOES_NOT_FIT
    assert plan.reason.startswith("the pools leave 0.29 GiB beside the graphs")


DSPARK_112K = {
    "mem-fraction-static": 0.95,
    "speculative-algorithm": "DSPARK",
    "mamba-ssm-dtype": "bfloat16",
    "max-running-requests": 1,
    "cuda-graph-max-bs-decode": 1,
    "max-mamba-cache-size": 6,
    "max-total-tokens": 114_688,
    "chunked-prefill-size": 2048,
}


def test_a_prefill_chunk_of_8192_costs_dspark_its_draft_graph() -> None:
    """Trap one: at 2,048 the graph stays, at 8,192 it is lost, and the chunk is the lever."""
    good = plan_of(DSPARK_112K, engine_version="0.5.23", drafter=DSPARK)
    assert good.kv_tokens == 114_688
    assert "draft graph" not in " ".join((good.reason, *good.notes))
    options = {**DSPARK_112K, "chunked-prefill-size": 8192}
    bad = plan_of(options, engine_version="0.5.23", drafter=DSPARK)
    said = next(text for text in (bad.reason, *bad.notes) if "draft graph" in text)
    assert said.startswith("0.75 GiB are left after target capture: below 1.00 GiB DSPARK gives")
    assert bad.verdict is not Fit.FITS
    assert bad.levers[0] == "lower --chunked-prefill-size to 2048 (now 8192)"


# ---- vLLM: the pools of its recipe page, one RTX 5090, --max-model-len 32768

PUBLISHED = [
    pytest.param({}, 75, 91_022, id="enforce-eager"),
    pytest.param({"language-model-only": True}, 112, 135_926, id="text-only"),
    pytest.param({"language-model-only": True, "max-num-seqs": 8}, 126, 152_917, id="8-sequences"),
    pytest.param(
        {"language-model-only": True, "kv-cache-dtype": "bfloat16"}, 112, 76_458, id="bf16-cache"
    ),
    pytest.param(
        {"language-model-only": True, "max-num-seqs": 8, "speculative-config": MTP_3},
        99,
        90_112,
        id="mtp-3",
    ),
]


@pytest.mark.parametrize(("options", "blocks", "tokens"), PUBLISHED)
def test_published_pools_come_from_their_blocks(
    options: dict[str, object], blocks: int, tokens: int
) -> None:
    """So many blocks are exactly the tokens that vLLM's recipe page reports for 32,768."""
    layout = _layout(options)
    assert layout.reported(blocks, 32_768)[0] == tokens


@pytest.mark.parametrize(("options", "blocks", "tokens"), PUBLISHED)
def test_published_blocks_come_from_the_memory(
    options: dict[str, object], blocks: int, tokens: int
) -> None:
    """31.4 GiB at the default utilization are exactly so many blocks and so many tokens."""
    full = {"enforce-eager": True, "kv-cache-dtype": "fp8", **options}
    recipe = recipe_of(
        full, engine="vllm", engine_version="0.32.0", model=INFERACT, context_requested=32_768
    )
    geometry = geometry_of(INFERACT)
    setting = resolve(recipe, geometry, RTX_5090)
    sizes = shares(setting, geometry)
    assert sizes.count == blocks
    assert sizes.available // setting.blocks.bytes == blocks
    plan = plan_of(
        full, engine="vllm", engine_version="0.32.0", model=INFERACT, context_requested=32_768
    )
    assert plan.kv_tokens == tokens
    assert plan.verdict is Fit.FITS


def _layout(options: dict[str, object]) -> Blocks:
    kv_dtype = str(options.get("kv-cache-dtype", "fp8"))
    drafts = DraftLayers(tokens=3, full=1) if "speculative-config" in options else DraftLayers()
    return block_layout(geometry_of(INFERACT), kv_dtype=kv_dtype, drafts=drafts)


@pytest.mark.parametrize(
    ("kv_dtype", "state_dtype", "tokens"),
    [("fp8", "float32", 1568), ("bfloat16", "float32", 784), ("fp8", "bfloat16", 800)],
)
def test_block_has_the_logged_length(kv_dtype: str, state_dtype: str, tokens: int) -> None:
    """The log says 1,568 tokens; with a BF16 cache they are 784, with BF16 states 800."""
    layout = block_layout(geometry_of(), kv_dtype=kv_dtype, state_dtype=state_dtype)
    assert layout.tokens == tokens
    assert block_layout(geometry_of(), kv_dtype="fp8").bytes == 51_380_224


# A public report of six starts on one RTX 5090: MTP with three tokens, --max-model-len 262144. It
# logs blocks of 1,600 tokens: the convolution's window keeps a column for each draft token.

REPORT = block_layout(
    geometry_of(), kv_dtype="fp8", drafts=DraftLayers(tokens=3, full=1), batched_tokens=2048
)


@pytest.mark.parametrize(
    ("available", "blocks", "tokens"),
    [
        (9.30, 179, 262_144),
        (9.38, 180, 263_608),
        (9.39, 181, 265_072),
        (9.41, 181, 265_072),
        (9.44, 181, 265_072),
    ],
)
def test_reported_starts_come_from_their_memory(available: float, blocks: int, tokens: int) -> None:
    """The available KV memory that the report logs, rounded as it is, gives its pool."""
    least, most = ((available + error) * GIB // REPORT.bytes for error in (-0.005, 0.005))
    assert least <= blocks <= most
    assert REPORT.reported(blocks, 262_144)[0] == tokens


def test_reported_refusal_comes_from_its_memory() -> None:
    """9.29 GiB are needed, 9.28 there are, and 260,800 tokens would fit: the engine's own words."""
    assert REPORT.tokens == 1600
    assert gib(REPORT.per_request(262_144) * REPORT.bytes) == "9.29 GiB"
    blocks = round(9.28 * GIB) // REPORT.bytes
    assert blocks < REPORT.per_request(262_144)
    # That build kept no block back, as 0.32.0 does: with one more the estimates are the same.
    assert REPORT.longest(blocks + 1) == 260_800


# ---- llama.cpp


def test_cells_and_states_have_llamacpps_sizes() -> None:
    """64, 34 and 18 KiB a token in f16, q8_0 and q4_0, and 149.6 MiB a sequence."""
    geometry = geometry_of()
    sizes = [token_bytes(geometry, dtype, dtype) / KIB for dtype in ("f16", "q8_0", "q4_0")]
    assert sizes == [64, 34, 18]
    assert state_bytes(geometry) / MIB == pytest.approx(149.6, abs=0.05)


def test_a_plan_names_its_figures_as_a_boot_log_does() -> None:
    """Weights, pools and graphs are in GiB under the names of the log's figures."""
    figures = plan_of(LONG, context_requested=200_000).figures
    assert figures["weights_gib"] == pytest.approx(20.14, abs=0.01)
    assert figures["kv_gib"] == pytest.approx(6.10, abs=0.01)
    assert figures["state_gib"] == pytest.approx(1.53, abs=0.01)
    assert "free_gib" not in figures
