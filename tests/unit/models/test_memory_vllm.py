"""How vLLM's options become blocks, and what is said of pools that do not serve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from memory_cases import DFLASH, DSPARK, INFERACT, LLAMA, NVFP4, geometry_of, plan_of, recipe_of

from servicekit.errors import UserError
from servicekit.models.memory.outcome import Budget, Fit, PartName
from servicekit.models.memory.units import GIB
from servicekit.models.memory.vllm import VllmSettings, resolve
from servicekit.models.memory.vllm_blocks import DraftLayers, block_layout


def vllm_plan(options: dict[str, Any], **more: Any) -> Budget:  # noqa: ANN401 (the recipe's fields)
    """Plan a recipe of vLLM 0.32.0."""
    return plan_of(options, **{"engine": "vllm", "engine_version": "0.32.0", **more})


def setting_of(options: dict[str, Any], *, memory: float = 31.4, **more: Any) -> VllmSettings:  # noqa: ANN401
    """Resolve a recipe of vLLM on a GPU of so many GiB."""
    recipe = recipe_of(options, engine="vllm", engine_version="0.32.0", **more)
    return resolve(recipe, geometry_of(recipe.model), round(memory * GIB))


# ---- blocks


def test_prefix_caching_keeps_two_states_for_a_request() -> None:
    """Aligned caching takes two numbers in each of three groups of states, otherwise one."""
    assert setting_of({}).blocks.fixed == 6
    assert setting_of({"enable-prefix-caching": True}).blocks.fixed == 6
    for options in (
        {"enable-prefix-caching": False},
        {"no-enable-prefix-caching": True},
        {"mamba-cache-mode": "none"},
    ):
        assert setting_of(options).blocks.fixed == 3


def test_an_overridden_number_of_blocks_is_the_pool() -> None:
    """The engine makes so many blocks, be it fewer than fit or more."""
    free = vllm_plan({"max-model-len": 8192})
    few = vllm_plan({"max-model-len": 8192, "num-gpu-blocks-override": 30})
    assert 0 < few.kv_tokens < free.kv_tokens
    assert few.verdict is not Fit.DOES_NOT_FIT
    none = vllm_plan({"max-model-len": 8192, "num-gpu-blocks-override": 7})
    assert none.verdict is Fit.DOES_NOT_FIT
    assert none.levers[0] == "raise --num-gpu-blocks-override (now 7)"
    many = vllm_plan({"max-model-len": 8192, "num-gpu-blocks-override": 1000})
    assert many.verdict is Fit.DOES_NOT_FIT
    assert many.levers[0] == "lower --num-gpu-blocks-override"


def test_every_draft_token_keeps_a_state_and_widens_the_window() -> None:
    """MTP with three tokens: five states a group, blocks of 1,600 tokens, and 17 layers a group."""
    config = {"method": "mtp", "num_speculative_tokens": 3}
    setting = setting_of({"speculative-config": config})
    assert (setting.blocks.tokens, setting.blocks.fixed) == (1600, 15)
    assert setting.blocks.bytes == 17 * 1600 * 2048
    assert setting.speculation.weights == 849_398_784


def test_speculation_is_read_from_json_and_dotted_options() -> None:
    """The same drafter comes of a table, of JSON text and of dotted options, by either name."""
    table = {"method": "mtp", "num_speculative_tokens": 3}
    json = '{"method": "mtp", "num_speculative_tokens": 3}'
    dotted = {"speculative-config.method": "mtp", "speculative-config.num_speculative_tokens": 3}
    expected = setting_of({"speculative-config": table}).speculation
    assert setting_of({"speculative-config": json}).speculation == expected
    assert setting_of(dotted).speculation == expected
    assert setting_of({"sc": table}).speculation == expected


@pytest.mark.parametrize("tokens", [None, 0, True, "three"])
def test_speculation_without_a_number_of_tokens_is_refused(tokens: object) -> None:
    """vLLM needs the number spelled out for this model, so the plan does."""
    config = {"method": "mtp", "num_speculative_tokens": tokens}
    with pytest.raises(UserError, match=r'"num_speculative_tokens" must be a positive number, not'):
        setting_of({"speculative-config": config})


def test_drafters_bring_their_layers() -> None:
    """DSpark's five layers join the target's; DFlash 2's have a window and stand apart."""
    dspark = setting_of(
        {"speculative-config": {"method": "dspark", "num_speculative_tokens": 7}}, drafter=DSPARK
    )
    assert dspark.speculation.layers == DraftLayers(tokens=7, full=5)
    assert dspark.blocks.attention_groups == 1
    config = {"method": "dflash", "model": DFLASH, "num_speculative_tokens": 7}
    dflash = setting_of({"speculative-config": config})
    assert dflash.speculation.layers == DraftLayers(tokens=7, windowed=5, window=2048)
    assert dflash.blocks.attention_groups == 4
    assert dflash.blocks.fixed == 10 * 9 + 4
    note = "how this drafter's layers are grouped comes from vLLM's source, not from a start"
    assert note in vllm_plan({"speculative-config": config}).notes


def test_ngrams_cost_states_only() -> None:
    """N-grams have no weights and no cache, but their tokens' states are kept."""
    config = {"method": "ngram", "num_speculative_tokens": 2}
    setting = setting_of({"speculative-config": config})
    assert setting.speculation.weights == 0
    assert setting.blocks.fixed == 12


def test_a_drafter_of_unknown_size_is_said() -> None:
    """A plan that leaves a drafter out is no better than tight, and says so."""
    config = {"method": "eagle3", "model": "someone/else", "num_speculative_tokens": 2}
    plan = vllm_plan({"speculative-config": config}, context_requested=32_768)
    assert plan.verdict is Fit.TIGHT
    assert plan.reason == 'the drafter "someone/else" is not known and not counted'
    del config["model"]
    plan = vllm_plan({"speculative-config": config}, context_requested=32_768)
    assert plan.reason == "the drafter of this speculation is not known and not counted"


def test_a_plain_transformer_has_blocks_of_sixteen_tokens() -> None:
    """Without states a block keeps its default length, and all layers are one group."""
    layout = block_layout(geometry_of(LLAMA), kv_dtype="bfloat16")
    assert (layout.tokens, layout.attention_groups, layout.fixed) == (16, 1, 0)
    assert layout.bytes == 16 * 131_072
    assert layout.per_request(1000) == 63
    assert layout.longest(64) == 63 * 16
    assert layout.longest(0) == 0
    plan = vllm_plan({}, model=LLAMA, context_requested=32_768)
    kv = next(part for part in plan.parts if part.name is PartName.KV)
    assert kv.detail.endswith("; 2048/request")
    assert setting_of({"block-size": 32}, model=LLAMA).blocks.tokens == 32


def test_alike_kinds_of_layers_form_groups_of_the_larger_number() -> None:
    """Kinds that differ by less than half are padded to the larger, so that no group is split."""
    geometry = geometry_of(LLAMA)
    alike = block_layout(geometry, kv_dtype="fp8", drafts=DraftLayers(windowed=24, window=512))
    assert alike.bytes == 32 * 16 * 2048
    assert (alike.attention_groups, alike.fixed) == (1, 161)
    apart = block_layout(geometry, kv_dtype="fp8", drafts=DraftLayers(windowed=16, window=512))
    assert apart.attention_groups == 2


# ---- memory


def test_large_gpus_have_larger_defaults() -> None:
    """From 70 GiB on a batch is 8,192 tokens and 1,024 sequences."""
    small, large = setting_of({}), setting_of({}, memory=80)
    assert (small.batched_tokens, small.sequences) == (2048, 256)
    assert (large.batched_tokens, large.sequences) == (8192, 1024)
    given = setting_of({"max-num-batched-tokens": 4096, "max-num-seqs": 16}, memory=80)
    assert (given.batched_tokens, given.sequences) == (4096, 16)


def test_a_text_only_start_leaves_the_vision_tower_out() -> None:
    """`--language-model-only`, or limits that allow no image, save the tower and its encoder."""
    full = vllm_plan({})
    saved = [
        vllm_plan(options).bytes_of(PartName.WEIGHTS)
        for options in (
            {"language-model-only": True},
            {"limit-mm-per-prompt": {"image": 0, "video": 0}},
            {"limit-mm-per-prompt": {"image": 1, "video": 0}},
        )
    ]
    weights = full.bytes_of(PartName.WEIGHTS)
    assert [weights - size for size in saved] == [921_271_009, 921_271_009, 0]


def test_graphs_follow_the_number_of_sequences() -> None:
    """Fewer sequences are fewer captured sizes; none are captured with `--enforce-eager`."""
    many, few, none = (
        vllm_plan(options).bytes_of(PartName.GRAPHS) / GIB
        for options in ({}, {"max-num-seqs": 4}, {"enforce-eager": True})
    )
    assert many == pytest.approx(0.46, abs=0.001)
    assert few == pytest.approx(0.10, abs=0.001)
    assert none == 0


def test_pinned_cache_memory_ignores_the_utilization() -> None:
    """`--kv-cache-memory-bytes` is what the blocks are made of."""
    plan = vllm_plan({"kv-cache-memory-bytes": 5 * GIB, "gpu-memory-utilization": 0.5})
    assert plan.bytes_of(PartName.KV) == 5 * GIB // 51_380_224 * 51_380_224


def test_an_automatic_length_is_the_longest_that_fits() -> None:
    """`--max-model-len auto` takes what the pool holds, up to what the model was made for."""
    for word in ("auto", "-1", -1):
        plan = vllm_plan({"max-model-len": word})
        assert plan.verdict is Fit.FITS
        assert plan.concurrency == 1
        assert plan.effective_context % 1568 == 0
    large = vllm_plan({"max-model-len": "auto"}, memory=141 * GIB)
    assert large.effective_context == 262_144


def test_length_is_declared_requested_or_the_models_own() -> None:
    """`--max-model-len` decides, else the profile's request, else the model."""
    assert setting_of({"max-model-len": "32K"}, context_requested=9000).length == 32_768
    assert setting_of({}, context_requested=9000).length == 9000
    assert setting_of({}).length == 262_144


# ---- what does not serve


def test_a_pool_too_small_names_the_levers_of_the_recipe_page() -> None:
    """Eager, text only, fewer sequences, a narrower cache, more memory, then a shorter length."""
    plan = vllm_plan({"kv-cache-dtype": "bfloat16"}, context_requested=262_144)
    assert plan.verdict is Fit.DOES_NOT_FIT
    assert plan.reason.startswith(
        "a request of 262,144 tokens takes 341 blocks and one is reserved"
    )
    assert plan.levers[:-1] == (
        "add --enforce-eager",
        "add --language-model-only",
        "lower --max-num-seqs to 8 (now 256)",
        "halve the cache: --kv-cache-dtype fp8",
        "raise --gpu-memory-utilization to 0.96 (now 0.92)",
    )
    longest = int(plan.levers[-1].removeprefix("lower --max-model-len to "))
    shorter = vllm_plan({"kv-cache-dtype": "bfloat16", "max-model-len": longest})
    assert shorter.verdict is Fit.FITS
    assert (plan.concurrency, plan.effective_context, plan.usable_input) == (0, 0, 0)


def test_levers_that_are_pulled_are_not_named_again() -> None:
    """What the recipe already does is no lever."""
    options = {
        "enforce-eager": True,
        "language-model-only": True,
        "max-num-seqs": 4,
        "gpu-memory-utilization": 0.96,
    }
    plan = vllm_plan(options, context_requested=262_144, memory=28 * GIB)
    assert [lever for lever in plan.levers if "max-model-len" not in lever] == []


def test_a_little_too_little_is_tight_not_refused() -> None:
    """A pool short by less than the estimates may be off by is tight, not refused."""
    options = {"gpu-memory-utilization": 0.95, "max-num-seqs": 4}
    plan = vllm_plan(options, context_requested=262_144)
    assert plan.verdict is Fit.TIGHT
    assert "there may be only 165" in plan.reason
    assert plan.concurrency == 1
    assert plan.effective_context == 158 * 1568


def test_weights_without_room_for_blocks_are_refused() -> None:
    """Weights that leave nothing within the utilization name a smaller checkpoint last."""
    plan = vllm_plan({}, model="Qwen/Qwen3.8-27B-FP8")
    assert plan.verdict is Fit.DOES_NOT_FIT
    assert plan.reason.startswith("no memory is left for blocks: ")
    assert plan.levers[-1] == "choose a smaller checkpoint"
    assert plan.kv_tokens == 0


def test_a_utilization_beyond_what_is_free_is_refused() -> None:
    """vLLM compares with what is free when it starts, which is never all."""
    plan = vllm_plan({"gpu-memory-utilization": 0.995}, context_requested=32_768)
    assert plan.verdict is Fit.DOES_NOT_FIT
    assert plan.reason == "utilization 0.995 is more than is free when the engine starts"
    assert plan.levers[0] == "lower --gpu-memory-utilization to 0.989"


def test_pinned_memory_beyond_the_card_is_refused() -> None:
    """A pinned pool that does not fit beside the weights is refused, and a tight one is tight."""
    too_much = vllm_plan({"kv-cache-memory-bytes": 12 * GIB}, context_requested=32_768)
    assert too_much.verdict is Fit.DOES_NOT_FIT
    assert too_much.levers == ("lower --kv-cache-memory-bytes",)
    too_little = vllm_plan({"kv-cache-memory-bytes": GIB}, context_requested=262_144)
    assert f"raise --kv-cache-memory-bytes (now {GIB})" in too_little.levers


def test_a_pool_that_leaves_nothing_free_is_tight() -> None:
    """Less than a quarter of a GiB beside everything is tight."""
    plan = vllm_plan({"kv-cache-memory-bytes": 8 * GIB}, context_requested=32_768)
    room = plan.free
    tight = vllm_plan(
        {"kv-cache-memory-bytes": 8 * GIB + room - GIB // 8}, context_requested=32_768
    )
    assert tight.verdict is Fit.TIGHT
    assert tight.reason.startswith("only 0.1")
    assert tight.levers == ("lower --gpu-memory-utilization (now 0.92)",)


def test_a_declared_length_below_the_request_is_tight() -> None:
    """A shorter `--max-model-len` than the profile asks for is said."""
    plan = vllm_plan({"max-model-len": 16_384}, context_requested=32_768)
    assert plan.verdict is Fit.TIGHT
    assert plan.reason == "a request can use 16,384 tokens, not the 32,768 requested"


def test_what_was_published_about_a_checkpoint_is_said() -> None:
    """Inferact's checkpoint ran out of memory while capturing on one card: eager avoids it."""
    plan = vllm_plan({}, model=INFERACT, context_requested=32_768)
    assert plan.verdict is Fit.TIGHT
    assert plan.reason.startswith("published: graph capture of this checkpoint ran out of memory")
    assert plan.levers == ("add --enforce-eager",)
    eager = vllm_plan({"enforce-eager": True}, model=INFERACT, context_requested=32_768)
    assert eager.verdict is Fit.FITS
    larger = vllm_plan({}, model=INFERACT, context_requested=32_768, memory=80 * GIB)
    assert larger.verdict is Fit.FITS


def test_another_release_and_windowed_layers_are_said() -> None:
    """Notes name what the plan cannot know."""
    geometry = replace(geometry_of(NVFP4), sliding=True)
    plan = vllm_plan({}, engine_version="0.29.1", geometry=geometry)
    assert "vLLM 0.29.1 is planned like 0.32.0" in plan.notes
    assert "sliding-window layers are counted in full: the pool will hold more tokens" in plan.notes


def test_several_gpus_are_not_planned() -> None:
    """A model spread over GPUs is refused, since every figure here is for one."""
    with pytest.raises(UserError, match='one GPU: option "tensor-parallel-size" spreads'):
        vllm_plan({"tensor-parallel-size": 2})
    assert vllm_plan({"tensor-parallel-size": 1}, context_requested=4096).verdict is Fit.FITS
