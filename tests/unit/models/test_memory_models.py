"""The layers of well-known models, from the facts of their public configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from servicekit.errors import UserError
from servicekit.models.memory.description import geometry_from_config
from servicekit.models.memory.gguf import Header, geometry_from_header
from servicekit.models.memory.llamacpp import resolve as resolve_llamacpp
from servicekit.models.memory.planning import budget
from servicekit.models.memory.recipe import Recipe
from servicekit.models.memory.sglang_options import resolve as resolve_sglang
from servicekit.models.memory.units import GIB
from servicekit.models.memory.vllm_blocks import block_layout

if TYPE_CHECKING:
    from servicekit.models.memory.geometry import Geometry

PATTERN: Final = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
NANO: Final = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"


def text(kind: str, layers: int, hidden: int, heads: int, kv: int, **more: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    """Return a text configuration."""
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": 4 * hidden,
        "vocab_size": 131072,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
        **more,
    }


MAMBA: Final[dict[str, Any]] = {"mamba_d_conv": 4, "mamba_expand": 2}
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "Gemma 3 27B": {
        "model_type": "gemma3",
        "text_config": text("gemma3_text", 62, 5376, 32, 16, head_dim=128, sliding_window=1024),
    },
    "Gemma 3 4B": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
    },
    "Falcon-H1 34B": text(
        *("falcon_h1", 72, 5120, 20, 4),
        **MAMBA,
        head_dim=128,
        mamba_d_ssm=4096,
        mamba_n_heads=32,
        mamba_n_groups=2,
        mamba_d_state=256,
    ),
    "Nemotron-H 8B": text(
        *("nemotron_h", 52, 4096, 32, 8),
        hybrid_override_pattern=PATTERN,
        mamba_num_heads=128,
        mamba_head_dim=64,
        ssm_state_size=128,
        n_groups=8,
        conv_kernel=4,
    ),
    "Nemotron 3 Nano 30B": text(
        *("nemotron_h", 52, 2688, 32, 2),
        head_dim=128,
        hybrid_override_pattern=NANO,
        mamba_num_heads=64,
        mamba_head_dim=64,
        n_routed_experts=128,
    ),
    "Jamba 1.5 Mini": text("jamba", 32, 4096, 32, 8, num_experts=16),
    "LFM2 1.2B": text("lfm2", 16, 2048, 32, 8, full_attn_idxs=[2, 5, 8, 10, 12, 14]),
    "Kimi-Linear 48B": text(
        *("kimi_linear", 27, 2304, 32, 32),
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        num_experts=256,
        linear_attn_config={
            "num_heads": 32,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "kda_layers": [n for n in range(1, 27) if n % 4],
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        },
    ),
    "DeepSeek V3": text(
        *("deepseek_v3", 61, 7168, 128, 128),
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        n_routed_experts=256,
    ),
    "GLM-4.5": text("glm4_moe", 92, 5120, 96, 8, head_dim=128, n_routed_experts=160),
    "Qwen3-Next 80B": text(
        *("qwen3_next", 48, 2048, 16, 2),
        head_dim=256,
        full_attention_interval=4,
        linear_num_value_heads=32,
        linear_num_key_heads=16,
        linear_value_head_dim=128,
        linear_key_head_dim=128,
        linear_conv_kernel_dim=4,
        num_experts=512,
    ),
    "gpt-oss 20B": text(
        *("gpt_oss", 24, 2880, 64, 8),
        head_dim=64,
        sliding_window=128,
        layer_types=["sliding_attention", "full_attention"] * 12,
        num_local_experts=32,
        architectures=["GptOssForCausalLM"],
    ),
    "Mistral 7B v0.1": text("mistral", 32, 4096, 32, 8, sliding_window=4096),
    "Mistral Small": text("mistral", 40, 5120, 32, 8, head_dim=128, sliding_window=None),
    "Qwen3 without its window": text(
        "qwen3", 36, 4096, 32, 8, sliding_window=4096, use_sliding_window=False
    ),
    "Llama 4 Scout": {
        "model_type": "llama4",
        "architectures": ["Llama4ForConditionalGeneration"],
        "text_config": text(
            *("llama4_text", 48, 5120, 40, 8),
            head_dim=128,
            no_rope_layers=[1, 1, 1, 0] * 12,
            num_local_experts=16,
        ),
    },
}


class Expected(NamedTuple):
    """What the layers of a model keep."""

    attention: int
    windowed: int
    states: int
    token: int
    """Bytes of keys and values of a token, all layers, in 16 bits."""
    state: int = 0
    """Bytes of a layer's state with FP32, and a convolution's window in BF16."""


EXPECTED: Final = {
    "Gemma 3 27B": Expected(62, 52, 0, 62 * 2 * 16 * 128 * 2),
    "Gemma 3 4B": Expected(34, 29, 0, 34 * 2 * 4 * 256 * 2),
    "Falcon-H1 34B": Expected(72, 0, 72, 147_456, 4096 * 256 * 4 + 5120 * 3 * 2),
    "Nemotron-H 8B": Expected(4, 0, 24, 16_384, 8192 * 128 * 4 + 10_240 * 3 * 2),
    "Nemotron 3 Nano 30B": Expected(6, 0, 23, 6_144, 4096 * 128 * 4 + 6144 * 3 * 2),
    "Jamba 1.5 Mini": Expected(4, 0, 28, 16_384, 8192 * 16 * 4 + 8192 * 3 * 2),
    "LFM2 1.2B": Expected(6, 0, 10, 12_288, 2048 * 2 * 2),
    "Kimi-Linear 48B": Expected(7, 0, 20, 7 * 576 * 2, 32 * 128 * 128 * 4 + 12_288 * 3 * 2),
    "DeepSeek V3": Expected(61, 0, 0, 70_272),  # its report: 70.272 KB
    "GLM-4.5": Expected(92, 0, 0, 376_832),
    "Qwen3-Next 80B": Expected(12, 0, 36, 24_576, 32 * 128 * 128 * 4 + 8192 * 3 * 2),
    "gpt-oss 20B": Expected(24, 12, 0, 49_152),
    "Mistral 7B v0.1": Expected(32, 32, 0, 131_072),
    "Mistral Small": Expected(40, 0, 0, 163_840),
    "Qwen3 without its window": Expected(36, 0, 0, 147_456),
    "Llama 4 Scout": Expected(48, 36, 0, 196_608),
}


def geometry_of(name: str) -> Geometry:
    """Return the geometry of a model with 20 GB of weights."""
    return geometry_from_config(CONFIGS[name], checkpoint=name, weights=20 * 10**9)


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_keep_what_their_configuration_says(name: str) -> None:
    """Attention, windows, latent vectors and states are counted each in their own way."""
    geometry = geometry_of(name)
    state = geometry.recurrent
    assert EXPECTED[name] == Expected(
        geometry.attention_layers,
        geometry.windowed_layers,
        state.layers if state else 0,
        geometry.kv_token_bytes("bfloat16"),
        state.layer_bytes("float32") if state else 0,
    )


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_every_model_has_a_plan(engine: str, name: str) -> None:
    """On a card of 80 GB each serves at least one request of 8,192 tokens."""
    recipe = Recipe(engine=engine, model=name, context_requested=8192)
    plan = budget(recipe, geometry_of(name), 80 * GIB)
    assert plan.effective_context == 8192
    assert plan.concurrency >= 1
    assert sum(part.bytes for part in plan.parts) == plan.total


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (text("deepseek_v32", 61, 7168, 128, 128, index_topk=2048), 'it has "index_topk"'),
        (text("new", 2, 64, 4, 4, layer_types=["full_attention", "zebra"]), 'type "zebra" is not'),
        (text("plamo", 2, 64, 4, 4, mamba_step=2), "does not say which layers keep a state"),
        (text("new", 2, 64, 4, 4, hybrid_override_pattern="MX"), 'layer type "X" is not known'),
        (text("new", 2, 64, 4, 4, layer_types=["mamba", "attention"]), "shape of its states"),
    ],
)
def test_an_unknown_layout_is_refused_with_its_reason(config: dict[str, Any], why: str) -> None:
    """It is not counted as plain attention, and the sentence says what is not known."""
    with pytest.raises(UserError, match=why):
        geometry_from_config(config, weights=10**9)


def test_layers_with_a_window_take_fewer_blocks_of_vllm() -> None:
    """Gemma 3 27B: a long request fills blocks in 10 full layers; the windows stay as they are."""
    blocks = block_layout(geometry_of("Gemma 3 27B"), kv_dtype="bfloat16")
    # Groups of 10 layers: one of full attention, six with the window of 1,024 and a batch.
    assert (blocks.attention_groups, blocks.windows) == (1, 6)
    window = -(-(1024 - 1 + 2048) // 16) + 1
    assert blocks.per_request(131_072) == 131_072 // 16 + 6 * window
    assert blocks.per_request(64) == 4 + 6 * (4 + 1)
    assert blocks.longest(blocks.per_request(131_072) + 1) == 131_072


class Start(NamedTuple):
    """What a public log of vLLM says: GiB for the cache, and tokens for requests of a length."""

    cache: float
    length: int
    tokens: int


QWEN_27B: Final = text(  # as each of two GPUs holds it
    *("qwen3_next", 64, 5120, 12, 2),
    head_dim=256,
    full_attention_interval=4,
    linear_num_value_heads=24,
    linear_num_key_heads=8,
    linear_value_head_dim=128,
    linear_key_head_dim=128,
    linear_conv_kernel_dim=4,
)
QWEN_35B: Final = {**CONFIGS["Qwen3-Next 80B"], "num_hidden_layers": 40}


@pytest.mark.parametrize(
    ("config", "start"),
    [
        (QWEN_35B, Start(5.98, 131_072, 567_978)),  # noonghunna/club-3090#612, one RTX 5090
        (QWEN_35B, Start(6.01, 131_072, 569_878)),  # noonghunna/club-3090#652
        (QWEN_27B, Start(4.99, 131_072, 302_921)),  # mitchross/talos-argocd-proxmox#1995
    ],
)
def test_blocks_are_those_of_public_logs(config: dict[str, Any], start: Start) -> None:
    """From the memory for the cache follow the tokens that vLLM said, to the token."""
    geometry = geometry_from_config(config, checkpoint="m", weights=20 * 10**9)
    blocks = block_layout(geometry, kv_dtype="fp8")
    count = int(start.cache * GIB) // blocks.bytes
    assert blocks.reported(count, start.length)[0] == start.tokens


def test_blocks_of_mamba_and_latent_attention_are_those_of_public_logs() -> None:
    """Nemotron Nano 9B v2 has 672 tokens (vllm#24280), Kimi-Linear a page 1.89% longer (#28228)."""
    nemotron = text(
        *("nemotron_h", 56, 4480, 40, 8),
        hybrid_override_pattern="M-" * 26 + "*-" + "M*",
        head_dim=128,
        mamba_num_heads=128,
        mamba_head_dim=80,
        n_groups=8,
        ssm_state_size=128,
        conv_kernel=4,
    )
    geometry = geometry_from_config(nemotron, checkpoint="m", weights=20 * 10**9)
    blocks = block_layout(geometry, kv_dtype="bfloat16", state_dtype="bfloat16")
    assert blocks.tokens == 672
    kimi = CONFIGS["Kimi-Linear 48B"]
    halved = {**kimi, "linear_attn_config": {**kimi["linear_attn_config"], "num_heads": 16}}
    geometry = geometry_from_config(halved, checkpoint="m", weights=20 * 10**9)
    assert geometry.recurrent is not None
    page = geometry.recurrent.layer_bytes("float32")
    token = geometry.kv_layer_bytes("bfloat16")
    assert f"{960 * token / page - 1:.2%}" == "1.89%"  # that version aligned to 64
    assert block_layout(geometry, kv_dtype="bfloat16").tokens == 1024


def test_a_token_is_as_long_as_in_a_public_log_of_sglang() -> None:
    """A quarter of Qwen3-235B: 367,404 tokens take 8.23 GB for keys (vllm#21348)."""
    quarter = text("qwen3_moe", 94, 4096, 16, 1, head_dim=128, num_experts=128)
    geometry = geometry_from_config(quarter, checkpoint="m", weights=20 * 10**9)
    assert f"{367_404 * geometry.kv_token_bytes('bfloat16') / 2 / GIB:.2f}" == "8.23"


def test_chunked_attention_is_kept_in_full_by_vllm() -> None:
    """Llama 4 has one kind of layer for vLLM."""
    blocks = block_layout(geometry_of("Llama 4 Scout"), kv_dtype="bfloat16")
    assert (blocks.attention_groups, blocks.windows) == (1, 0)


def test_sglang_has_a_smaller_pool_for_windows_of_some_architectures() -> None:
    """gpt-oss keeps 0.8 tokens in a windowed layer for each of a full one; Gemma 3 keeps all."""
    recipe = Recipe(engine="sglang", model="m")
    assert resolve_sglang(recipe, geometry_of("gpt-oss 20B"), 80 * GIB).token == round(
        49_152 * (0.5 + 0.8 * 0.5)
    )
    tight = Recipe(engine="sglang", model="m", options={"swa-full-tokens-ratio": 0.25})
    assert resolve_sglang(tight, geometry_of("gpt-oss 20B"), 80 * GIB).token == 30_720
    gemma = geometry_of("Gemma 3 27B")
    assert resolve_sglang(recipe, gemma, 80 * GIB).token == gemma.kv_token_bytes("bfloat16")


@pytest.mark.parametrize(
    ("options", "cells"),
    [
        ({"ctx-size": 32768}, 1536),  # 1,024 and a batch of 512
        ({"ctx-size": 32768, "parallel": 4}, 4 * 1536),
        ({"ctx-size": 32768, "parallel": 4, "kv-unified": True}, 4 * 1024 + 512),
        ({"ctx-size": 1024}, 1024),
        ({"ctx-size": 32768, "swa-full": True}, 32768),
    ],
)
def test_llamacpp_keeps_a_window_and_a_batch(options: dict[str, Any], cells: int) -> None:
    """Layers with a window have fewer cells, unless `--swa-full` asks for all."""
    recipe = Recipe(engine="llamacpp", model="m", options=options)
    assert resolve_llamacpp(recipe, geometry_of("Gemma 3 27B")).window_cells == cells


def header(architecture: str, layers: int, **more: Any) -> Geometry:  # noqa: ANN401 (GGUF's values)
    """Return the geometry of a GGUF header; `__` in a key stands for a point."""
    keys = {
        "block_count": layers,
        "context_length": 8192,
        "embedding_length": 2048,
        "feed_forward_length": 8192,
        "attention.head_count": 32,
        "attention.head_count_kv": 8,
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    metadata = {f"{architecture}.{key}": value for key, value in keys.items()}
    return geometry_from_header(
        Header({"general.architecture": architecture, **metadata}, {}), checkpoint="m.gguf"
    )


SSM: Final[dict[str, Any]] = {
    "ssm__inner_size": 4096,
    "ssm__state_size": 128,
    "ssm__conv_kernel": 4,
    "ssm__group_count": 8,
}
WINDOW: Final[dict[str, Any]] = {"attention__sliding_window": 1024}


@pytest.mark.parametrize(
    ("geometry", "attention", "windowed", "states"),
    [
        (header("gemma3", 62, **WINDOW), 62, 52, 0),
        (header("gpt-oss", 24, attention__sliding_window=128), 24, 12, 0),
        (header("new", 8, **WINDOW, attention__sliding_window_pattern=4), 8, 6, 0),
        (header("new", 4, **WINDOW, attention__sliding_window_pattern=(True, False)), 4, 2, 0),
        (header("falcon-h1", 6, **SSM), 6, 0, 6),
        (header("granitehybrid", 4, **SSM, attention__head_count_kv=(0, 8, 0, 0)), 1, 0, 3),
        (
            header(
                *("nemotron_h", 4),
                **SSM,
                attention__head_count_kv=(0, 0, 8, 0),
                feed_forward_length=(0, 8192, 0, 8192),
            ),
            *(1, 0, 1),
        ),
        (header("lfm2", 3, shortconv__l_cache=3, attention__head_count_kv=(0, 8, 0)), 1, 0, 2),
        (header("qwen3next", 48, **SSM), 12, 0, 36),
    ],
)
def test_a_gguf_says_which_layers_keep_what(
    geometry: Geometry, attention: int, windowed: int, states: int
) -> None:
    """Windows and states are counted by the header's own keys, and what llama.cpp adds to them."""
    recurrent = geometry.recurrent
    found = (geometry.attention_layers, geometry.windowed_layers)
    assert (*found, recurrent.layers if recurrent else 0) == (attention, windowed, states)


def test_a_gguf_with_an_unknown_hybrid_is_refused() -> None:
    """A header that does not say which layers keep a state is not counted by a guess."""
    with pytest.raises(UserError, match="does not say which layers keep a state"):
        header("zebra", 8, **SSM)


def test_a_gguf_with_windows_of_an_unknown_number_is_an_upper_bound() -> None:
    """A window without a known pattern is counted in full, and said to be."""
    geometry = header("new", 8, **WINDOW)
    assert (geometry.sliding, geometry.windowed_layers) == (True, 0)
