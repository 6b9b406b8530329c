"""How SGLang's options become pools, and what is said of pools that do not serve."""

from __future__ import annotations

from typing import Any

import pytest
from memory_cases import (
    DFLASH,
    DSPARK,
    LLAMA,
    LONG,
    NVFP4,
    OFFICIAL,
    geometry_of,
    plan_of,
    recipe_of,
)

from servicekit.errors import UserError
from servicekit.models.memory.outcome import Fit, PartName
from servicekit.models.memory.sglang import pools
from servicekit.models.memory.sglang_options import (
    SglangSettings,
    arithmetic,
    resolve,
    slots_per_request,
)
from servicekit.models.memory.units import GIB, MIB


def setting_of(options: dict[str, Any], *, memory: float = 31.4, **more: Any) -> SglangSettings:  # noqa: ANN401
    """Resolve a recipe on a GPU of so many GiB."""
    recipe = recipe_of(options, **more)
    return resolve(recipe, geometry_of(recipe.model), round(memory * GIB))


# ---- releases


@pytest.mark.parametrize(
    ("version", "used"),
    [
        ("0.5.16", "0.5.16"),
        ("0.5.16.post1", "0.5.16"),
        ("0.5.22", "0.5.16"),
        ("0.5.23", "0.5.23"),
        ("0.6.0", "0.5.23"),
        ("1.0", "0.5.23"),
        ("0.4.9", "0.5.16"),
        ("", "0.5.23"),
        ("main", "0.5.23"),
    ],
)
def test_the_newest_release_that_is_not_newer_decides(version: str, used: str) -> None:
    """A version between two known ones is worked out like the older, no version like the newest."""
    assert arithmetic(version).name == used


def test_a_release_without_its_own_arithmetic_is_said() -> None:
    """The plan says which release's arithmetic stands in."""
    plan = plan_of(OFFICIAL, engine_version="0.5.18")
    assert "SGLang 0.5.18 is planned like 0.5.16" in plan.notes
    assert not plan_of(OFFICIAL, engine_version="0.5.16").notes
    assert not plan_of(OFFICIAL, engine_version="").notes


def test_the_newer_release_charges_its_padding_row_and_its_images() -> None:
    """0.5.23 keeps 100 MiB back and charges one slot more, so both pools are a little smaller."""
    old, new = plan_of(OFFICIAL), plan_of(OFFICIAL, engine_version="0.5.23")
    assert (old.slots, new.slots) == (33, 32)
    lost = (100 * MIB) / 32_768  # the slot it lost pays for the row that it charges
    assert old.kv_tokens - new.kv_tokens == pytest.approx(lost, abs=2)


def test_images_on_the_gpu_take_a_gibibyte_more() -> None:
    """`--mm-feature-transport cuda_ipc` reserves its pool from the same budget, from 0.5.23 on."""
    on_gpu = {"mm-feature-transport": "cuda_ipc"}
    assert setting_of({}, engine_version="0.5.23").images == 100 * MIB
    assert setting_of(on_gpu, engine_version="0.5.23").images == 1124 * MIB
    assert setting_of(on_gpu).images == 0
    assert setting_of({}, engine_version="0.5.23", model=LLAMA).images == 0


# ---- slots


@pytest.mark.parametrize(
    ("options", "slots"),
    [
        ({}, 5),
        ({"mamba-radix-cache-strategy": "auto"}, 5),
        ({"mamba-radix-cache-strategy": "extra_buffer"}, 5),
        ({"mamba-radix-cache-strategy": "extra_buffer", "disable-overlap-schedule": True}, 4),
        ({"mamba-radix-cache-strategy": "extra_buffer_lazy"}, 4),
        ({"mamba-radix-cache-strategy": "no_buffer"}, 3),
        ({"mamba-scheduler-strategy": "no_buffer"}, 3),
        ({"disable-radix-cache": True}, 1),
    ],
)
def test_slots_of_a_request_follow_the_cache_strategy(options: dict[str, Any], slots: int) -> None:
    """S is 5, 4, 3 or 1, by radix cache, strategy and scheduler."""
    assert slots_per_request(recipe_of(options), arithmetic("0.5.16")) == slots


def test_skipping_the_decode_lock_saves_a_slot_in_the_newer_release() -> None:
    """The variable saves one slot from 0.5.23 on, but none of `no_buffer`."""
    on = {"SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK": "1"}
    new, old = arithmetic("0.5.23"), arithmetic("0.5.16")
    assert slots_per_request(recipe_of({}, environment=on), new) == 4
    assert slots_per_request(recipe_of({}, environment=on), old) == 5
    off = {"SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK": "false"}
    assert slots_per_request(recipe_of({}, environment=off), new) == 5
    strategy = {"mamba-radix-cache-strategy": "no_buffer"}
    assert slots_per_request(recipe_of(strategy, environment=on), new) == 3


def test_without_radix_cache_the_requests_are_the_slots() -> None:
    """K is `--max-running-requests` when the radix cache is off, and else what the ratio yields."""
    options = {"mem-fraction-static": 0.85, "disable-radix-cache": True}
    assert plan_of({**options, "max-running-requests": 4}).slots == 4
    assert plan_of({**options, "max-running-requests": 4}).concurrency == 4
    assert (plan_of(options).slots or 0) > 4


def test_running_requests_bound_the_concurrency() -> None:
    """Fewer running requests than slots allow are all that is served."""
    assert plan_of({**OFFICIAL, "max-running-requests": 2}).concurrency == 2


def test_tokens_come_in_whole_pages() -> None:
    """The pool, and its cap, are rounded down to `--page-size`."""
    assert plan_of({**OFFICIAL, "page-size": 64}).kv_tokens % 64 == 0
    assert plan_of({**LONG, "page-size": 64}).kv_tokens == 200_000
    assert plan_of({**LONG, "page-size": 4096}).kv_tokens == 196_608


# ---- cache types


@pytest.mark.parametrize(
    ("dtype", "token"),
    [
        ("auto", 32_768),
        ("fp8_e5m2", 32_768),
        ("bf16", 65_536),
        ("mxfp8", 33_792),
        ("nvfp4", 20_480),
    ],
)
def test_a_token_has_the_size_of_its_type(dtype: str, token: int) -> None:
    """`auto` follows the checkpoint; the narrow types carry their scales along."""
    assert setting_of({"kv-cache-dtype": dtype}).token == token


def test_an_unknown_type_is_refused() -> None:
    """A type whose size is not known is named, and so are those that are."""
    with pytest.raises(
        UserError, match='element size of type "int3" is not known; known types are float32,'
    ):
        plan_of({"kv-cache-dtype": "int3"})


# ---- speculation


def test_the_head_inside_the_checkpoint_adds_a_layer_and_its_weights() -> None:
    """EAGLE without a draft model is the checkpoint's own head: one layer more in the cache."""
    setting = setting_of({"speculative-algorithm": "EAGLE"})
    assert setting.speculation.draft_tokens == 4
    assert setting.speculation.weights == 849_398_784
    assert setting.token == 32_768 * 17 // 16
    assert setting.requests == 48
    assert setting_of(
        {"speculative-algorithm": "nextn", "speculative-num-steps": 2}
    ).speculation == (
        setting_of(
            {"speculative-algorithm": "NEXTN", "speculative-num-draft-tokens": 3}
        ).speculation
    )


@pytest.mark.parametrize(
    ("algorithm", "drafter", "more", "tokens"),
    [
        ("DSPARK", DSPARK, {}, 8),
        ("DSPARK", DSPARK, {"speculative-dspark-block-size": 4}, 5),
        ("DFLASH", DFLASH, {}, 8),
        ("DFLASH", DFLASH, {"speculative-num-draft-tokens": 6}, 6),
        ("DSPARK", "someone/else", {}, 8),
        ("DFLASH", "someone/else", {}, 16),
        ("NGRAM", None, {}, 12),
        ("NGRAM", None, {"speculative-num-draft-tokens": 5}, 5),
        ("STANDALONE", DFLASH, {}, 4),
        ("STANDALONE", "someone/else", {"speculative-num-draft-tokens": 7}, 7),
    ],
)
def test_draft_tokens_follow_drafter_and_options(
    algorithm: str, drafter: str | None, more: dict[str, int], tokens: int
) -> None:
    """D is the drafter's window, gamma + 1, or what the options say."""
    options = {"speculative-algorithm": algorithm, **more}
    assert setting_of(options, drafter=drafter).speculation.draft_tokens == tokens


@pytest.mark.parametrize("version", ["0.5.16", "0.5.23"])
def test_a_block_drafter_has_its_own_cache(version: str) -> None:
    """DSpark's five layers have pages as long as the target's, so both releases agree on them."""
    options = {"speculative-algorithm": "DSPARK"}
    setting = setting_of(options, engine_version=version, drafter=DSPARK)
    assert setting.speculation.token == 10_240
    wide = setting_of(
        {**options, "kv-cache-dtype": "nvfp4"}, engine_version="0.5.23", drafter=DSPARK
    )
    assert wide.speculation.token == 10_240


def test_a_drafter_of_unknown_size_is_said() -> None:
    """A plan that leaves a drafter out is no better than tight, and says so."""
    options = {**OFFICIAL, "speculative-algorithm": "STANDALONE", "max-running-requests": 1}
    plan = plan_of({**options, "mamba-ssm-dtype": "bfloat16"}, drafter="someone/else")
    assert plan.verdict is Fit.TIGHT
    assert plan.reason == 'the drafter "someone/else" is not known and not counted'
    plan = plan_of({**options, "mamba-ssm-dtype": "bfloat16"})
    assert plan.reason == "the drafter of this speculation is not known and not counted"


@pytest.mark.parametrize(
    ("version", "option", "rings"),
    [
        ("0.5.16", "enable-gdn-replayssm-spec", 21),
        ("0.5.23", "enable-linear-replayssm-spec", 2),
    ],
)
def test_replaying_keeps_rings_in_place_of_states(version: str, option: str, rings: int) -> None:
    """Replaying keeps a ring per slot (0.5.16) or per request (0.5.23), and no draft states."""
    options = {
        "speculative-algorithm": "EAGLE",
        "mem-fraction-static": 0.93,
        "max-mamba-cache-size": 20,
        "max-running-requests": 1,
        option: True,
    }
    plan = plan_of(options, engine_version=version)
    part = next(part for part in plan.parts if part.name is PartName.INTERMEDIATE)
    assert part.detail == f"{rings} rings \N{MULTIPLICATION SIGN} 24.1 MiB"
    assert part.estimated
    states = plan_of({**options, option: False}, engine_version=version)
    assert plan.balanced_ratio is not None
    assert states.balanced_ratio is not None
    assert plan.balanced_ratio < states.balanced_ratio  # D counts only where states are kept


def test_only_the_newer_release_spends_what_replaying_saves() -> None:
    """0.5.16 reserves draft states that it does not allocate; 0.5.23 gives them to slots."""
    options = {**OFFICIAL, "speculative-algorithm": "EAGLE"}
    old = [plan_of({**options, "enable-gdn-replayssm-spec": on}).slots for on in (True, False)]
    new = [
        plan_of({**options, "enable-linear-replayssm-spec": on}, engine_version="0.5.23").slots
        for on in (True, False)
    ]
    assert old[0] == old[1]
    assert (new[0] or 0) > (new[1] or 0)


def test_speculation_reserves_states_in_every_mode() -> None:
    """Draft states come off the budget with a ratio, with a pin, and without radix cache."""
    for options in (
        OFFICIAL,
        {"mem-fraction-static": 0.85, "max-mamba-cache-size": 20},
        {"mem-fraction-static": 0.85, "disable-radix-cache": True, "max-running-requests": 4},
    ):
        plain = pools(setting := setting_of(options), setting.fraction)
        setting = setting_of({**options, "speculative-algorithm": "NGRAM"})
        drafted = pools(setting, setting.fraction)
        assert (drafted.slots, drafted.tokens) < (plain.slots, plain.tokens)


# ---- defaults


@pytest.mark.parametrize(
    ("memory", "old", "new"),
    [
        (16, (2048, 8), (2048, 8)),
        (24, (2048, 24), (4096, 48)),
        (48, (4096, 32), (4096, 32)),
        (80, (8192, 256), (8192, 256)),
        (192, (16384, 512), (16384, 512)),
    ],
)
def test_chunk_and_batch_follow_the_gpu(
    memory: int, old: tuple[int, int], new: tuple[int, int]
) -> None:
    """Both releases have classes of GPUs, and differ for cards like the RTX 4090 and 5090."""
    for version, expected in (("0.5.16", old), ("0.5.23", new)):
        setting = setting_of({}, memory=memory, engine_version=version, model=LLAMA)
        assert (setting.chunk, setting.decode_batch) == expected


def test_memory_fraction_has_a_default() -> None:
    """Without the option the engine's rule gives the fraction, less for a multimodal model."""
    text = setting_of({}, memory=24, engine_version="0.5.23", model=LLAMA)
    # 512 + 1.5 * 4096 + 128 MiB, 2 for each of 48 decode batches, 8 for each of 50 prefill sizes
    assert text.fraction == round((24576 - 512 - 6144 - 128 - 96 - 400) / 24576, 3)
    large = setting_of({}, memory=80, model=LLAMA)
    assert large.fraction == round((81920 - 512 - 12288 - 128 - 512 - 464) / 81920, 3)
    eager = setting_of({"disable-cuda-graph": True, "chunked-prefill-size": 2048}, memory=80)
    floor = round((81920 - 10240) / 81920, 3)
    assert eager.fraction == pytest.approx(floor * 0.95 * (1 - 0.1 * (1152**2 / 1024**2 - 1)))
    images = setting_of({})
    assert 0.81 < images.fraction < 0.82


@pytest.mark.parametrize(
    ("options", "batch"),
    [
        ({"disable-cuda-graph": True}, 0),
        ({"cuda-graph-backend-decode": "disabled"}, 0),
        ({"cuda-graph-max-bs-decode": 4}, 4),
        ({"cuda-graph-max-bs": 6}, 6),
        ({"max-running-requests": 3}, 24),
    ],
)
def test_decode_graphs_follow_the_options(options: dict[str, Any], batch: int) -> None:
    """The largest captured batch is what the options say, and 0 without graphs."""
    assert setting_of(options).decode_batch == batch


def test_running_requests_cap_the_captured_batch_in_the_newer_release() -> None:
    """0.5.23 captures no larger batch than may run."""
    assert setting_of({"max-running-requests": 3}, engine_version="0.5.23").decode_batch == 3


def test_prefill_graphs_are_for_text_models_unless_asked_for() -> None:
    """A multimodal model has prefill graphs only where a backend is named, a text model always."""
    assert setting_of({"chunked-prefill-size": 2048}).prefill_graphs == 0
    asked = {"cuda-graph-backend-prefill": "breakable", "chunked-prefill-size": 2048}
    assert setting_of(asked).prefill_graphs == 42 * 8 * MIB
    assert setting_of({}, model=LLAMA).prefill_graphs == 42 * 8 * MIB
    off = {"disable-prefill-cuda-graph": True}
    assert setting_of(off, model=LLAMA).prefill_graphs == 0


def test_without_any_graph_none_is_counted() -> None:
    """`--disable-cuda-graph` leaves the graphs' part empty, of target and drafter."""
    plan = plan_of({**OFFICIAL, "disable-cuda-graph": True, "speculative-algorithm": "EAGLE"})
    part = next(part for part in plan.parts if part.name is PartName.GRAPHS)
    assert (part.bytes, part.detail, part.estimated) == (0, "", False)


def test_another_attention_backend_has_no_flashinfer_workspace() -> None:
    """The workspace of 384 MiB is FlashInfer's alone."""
    assert setting_of({"attention-backend": "triton"}).workspace == 0
    assert setting_of({}).workspace == 384 * MIB


# ---- a plain transformer


def test_a_plain_transformer_has_tokens_only() -> None:
    """Llama-3.1-8B has no state slots and no ratio; requests of average length share the pool."""
    plan = plan_of({"mem-fraction-static": 0.9}, model=LLAMA, average_length=4096)
    assert plan.slots is None
    assert plan.balanced_ratio is None
    assert plan.bytes_of(PartName.STATES) == 0
    assert plan.concurrency == plan.kv_tokens // 4096
    assert plan.verdict is Fit.FITS
    graphs = next(part for part in plan.parts if part.name is PartName.GRAPHS)
    assert graphs.detail == "decode and prefill"


def test_a_plain_transformer_keeps_no_draft_states() -> None:
    """Speculation costs a plain transformer weights and cache, but no states."""
    plan = plan_of({"speculative-algorithm": "NGRAM"}, model=LLAMA)
    assert plan.bytes_of(PartName.INTERMEDIATE) == 0


# ---- what does not serve


def test_weights_beyond_the_card_are_refused() -> None:
    """BF16 weights of 51.7 GiB do not fit a card of 31.4."""
    plan = plan_of({}, model="Qwen/Qwen3.8-27B")
    assert plan.verdict is Fit.DOES_NOT_FIT
    assert plan.reason == "the weights need 20.99 GiB more than the GPU has"
    assert plan.levers == ("choose a smaller checkpoint",)
    assert plan.free < 0


def test_weights_that_leave_no_pool_name_the_fraction() -> None:
    """FP8 weights leave nothing at the fraction given; the lever is the engine's own minimum."""
    plan = plan_of({"mem-fraction-static": 0.9}, model="Qwen/Qwen3.8-27B-FP8")
    assert plan.verdict is Fit.DOES_NOT_FIT
    assert plan.reason == "the weights leave no memory for a pool at memory fraction 0.9"
    assert plan.levers == ("raise --mem-fraction-static above 0.935", "choose a smaller checkpoint")
    plain = plan_of({"mem-fraction-static": 0.4}, model=LLAMA)
    assert plain.reason == "the weights leave no memory for a pool at memory fraction 0.4"


def test_a_pin_below_s_is_raised_first() -> None:
    """Where the slots are pinned, the pin is what has to grow, and no fraction is promised."""
    plan = plan_of({**LONG, "max-mamba-cache-size": 4})
    assert plan.levers[:2] == (
        "reduce --max-running-requests, and raise --max-mamba-cache-size to 6",
        "increase --mem-fraction-static (now 0.95)",
    )


def test_lazy_buffers_are_no_remedy_where_the_release_refuses_them() -> None:
    """0.5.16 refuses `extra_buffer_lazy` with speculation, so only the cache can be turned off."""
    options = {"mem-fraction-static": 0.7, "speculative-algorithm": "NGRAM"}
    assert plan_of(options).levers[2] == (
        "lower S, the slots of a request: --disable-radix-cache (S = 1)"
    )
    new = plan_of(options, engine_version="0.5.23").levers
    assert "extra_buffer_lazy (S = 4)" in new[2]


def test_a_request_of_one_slot_has_no_s_to_lower() -> None:
    """Without radix cache and slots there is only memory to add."""
    options = {"mem-fraction-static": 0.66, "disable-radix-cache": True}
    plan = plan_of({**options, "mamba-ssm-dtype": "bfloat16", "mamba-full-memory-ratio": 0.01})
    assert plan.reason == "serves nothing: 0 state slots, and a request needs 1"
    assert len(plan.levers) == 2


def test_slots_that_take_everything_serve_nothing() -> None:
    """A pin so large that no token is left is refused, with what makes room for tokens."""
    plan = plan_of({"mem-fraction-static": 0.85, "max-mamba-cache-size": 60})
    assert plan.verdict is Fit.DOES_NOT_FIT
    assert plan.reason == "serves nothing: 60 state slots leave no memory for the KV cache"
    assert plan.levers[0] == "raise --mem-fraction-static to 0.95 (now 0.85)"
    assert plan.levers[2] == "move memory from states to tokens: --max-mamba-cache-size 6 (now 60)"


def test_too_small_a_context_names_the_levers_of_the_long_variant() -> None:
    """The official recipe asked for 200,000 tokens is led to the published variant."""
    plan = plan_of(OFFICIAL, context_requested=200_000)
    assert plan.verdict is Fit.TIGHT
    assert plan.reason == "a request can use 38,706 tokens, not the 200,000 requested"
    assert plan.levers == (
        "raise --mem-fraction-static to 0.95 (now 0.85)",
        "keep the rest free: --max-total-tokens 200000",
        "move memory from states to tokens: --max-mamba-cache-size 19 (now 33)",
        "halve the states: --mamba-ssm-dtype bfloat16",
    )
    pulled = {
        "mem-fraction-static": 0.95,
        "max-total-tokens": 200_000,
        "max-mamba-cache-size": 19,
        "mamba-ssm-dtype": "bfloat16",
    }
    assert plan_of({**OFFICIAL, **pulled}, context_requested=200_000).verdict is Fit.FITS


def test_every_limit_of_the_context_has_its_lever() -> None:
    """A cap, a declared length and a BF16 cache are each named where they are in the way."""
    options = {
        **LONG,
        "max-total-tokens": 90_000,
        "context-length": 80_000,
        "kv-cache-dtype": "bf16",
    }
    plan = plan_of(options, context_requested=100_000)
    assert plan.levers == (
        "raise --max-total-tokens to 100000 (now 90000)",
        "raise --context-length to 100000 (now 80000)",
        "halve the cache: --kv-cache-dtype fp8_e4m3",
    )
    roomy = plan_of({**options, "max-total-tokens": 999_999}, context_requested=200_000)
    assert not any("raise --max-total-tokens" in lever for lever in roomy.levers)
    plain = plan_of(
        {"mem-fraction-static": 0.95}, model=LLAMA, memory=20 * GIB, context_requested=99_999
    )
    assert plain.levers[-1] == "halve the cache: --kv-cache-dtype fp8_e4m3"
    assert not any("mamba" in lever for lever in plain.levers)


def test_below_the_minimum_a_start_is_refused() -> None:
    """The watchdog would call such a start a fault, so the plan refuses it."""
    plan = plan_of(OFFICIAL, context_requested=200_000, context_minimum=100_000)
    assert plan.verdict is Fit.DOES_NOT_FIT
    assert plan.reason == "a request can use 38,706 tokens, less than the minimum of 100,000"
    enough = plan_of(OFFICIAL, context_requested=38_000, context_minimum=30_000)
    assert enough.verdict is Fit.FITS


def test_a_little_too_little_is_tight_not_refused() -> None:
    """A shortage within what the estimates may be off by is no refusal."""
    options = {**LONG, "max-total-tokens": 999_999}
    assert plan_of({**options, "mem-fraction-static": 0.96}).verdict is Fit.TIGHT
    tight = plan_of({**options, "mem-fraction-static": 0.965})
    assert tight.free < 0
    assert tight.verdict is Fit.TIGHT
    assert plan_of({**options, "mem-fraction-static": 0.99}).verdict is Fit.DOES_NOT_FIT


def test_short_memory_names_the_levers_of_the_troubleshooting() -> None:
    """Fewer tokens, fewer slots, a lower fraction: the order that was published."""
    plan = plan_of({**LONG, "mem-fraction-static": 0.99, "max-total-tokens": 999_999})
    assert plan.levers == (
        f"lower --max-total-tokens (now {plan.kv_tokens})",
        "shrink --max-mamba-cache-size (now 20)",
        "lower --mem-fraction-static (now 0.99)",
    )
    plain = plan_of({"mem-fraction-static": 0.995}, model=LLAMA)
    assert not any("mamba" in lever for lever in plain.levers)


def test_several_gpus_are_not_planned() -> None:
    """A model spread over GPUs is refused, since every figure here is for one."""
    with pytest.raises(UserError, match='one GPU: option "tp" spreads the model'):
        plan_of({"tp": 2})
    assert plan_of({**OFFICIAL, "tp": 1}).verdict is Fit.FITS


def test_a_checkpoint_with_windowed_layers_says_that_it_is_counted_in_full() -> None:
    """A note tells that the pool will be larger than the plan."""
    from dataclasses import replace

    plan = plan_of(OFFICIAL, geometry=replace(geometry_of(NVFP4), sliding=True))
    assert plan.notes == (
        "sliding-window layers are counted in full: the pool will hold more tokens",
    )
