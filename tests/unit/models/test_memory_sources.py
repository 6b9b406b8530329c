"""Where a model's geometry comes from: our tables, its configuration, its file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from memory_cases import LLAMA, NVFP4, geometry_of
from memory_gguf import QWEN35, gguf

from servicekit.errors import UserError
from servicekit.models.memory.description import geometry_from_config
from servicekit.models.memory.geometry import Recurrent, Vision
from servicekit.models.memory.sources import (
    LARGEST_CONFIG,
    find_geometry,
    geometry_from_directory,
    geometry_from_gguf,
    known_checkpoints,
    known_geometry,
)

if TYPE_CHECKING:
    from pathlib import Path

LLAMA_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""The configuration of Llama-3.1-8B, as far as it matters here."""

QWEN_CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "dtype": "bfloat16",
    },
    "vision_config": {"hidden_size": 1152, "depth": 27},
}
"""The configuration of Qwen3.8-27B, as far as it matters here."""


def text(**changes: object) -> dict[str, Any]:
    """Return the hybrid's configuration with changes to its text part."""
    return {**QWEN_CONFIG, "text_config": {**QWEN_CONFIG["text_config"], **changes}}


# ---- tables


def test_every_table_gives_the_geometry_of_its_checkpoints() -> None:
    """No table lacks a key, and each checkpoint says where its size was found."""
    checkpoints = known_checkpoints()
    assert {NVFP4, LLAMA} < set(checkpoints)
    assert len(set(checkpoints)) == len(checkpoints)
    for checkpoint in checkpoints:
        geometry = geometry_of(checkpoint)
        assert geometry.checkpoint == checkpoint
        assert geometry.weights > 0
        assert geometry.source
        assert all(drafter.source for drafter in geometry.drafters)
        assert all(caution.source for caution in geometry.cautions)
    assert known_geometry("nobody/knows") is None


# ---- configurations


def test_a_plain_configuration_is_the_tables_geometry() -> None:
    """Llama-3.1-8B read from its configuration is what the table says of it."""
    read, known = geometry_from_config(LLAMA_CONFIG), geometry_of(LLAMA)
    assert read.weights == known.weights
    assert read.kv_token_bytes("bfloat16") == known.kv_token_bytes("bfloat16") == 131_072
    assert read.head_dim == 128
    assert (read.recurrent, read.vision, read.kv_dtype) == (None, None, "bfloat16")
    assert (read.weights_estimated, read.source) == (True, "its parameters at 16 bits")


def test_a_hybrid_configuration_is_the_tables_geometry() -> None:
    """Qwen3.8-27B read from its configuration has the table's states, heads and parameters."""
    read, known = geometry_from_config(QWEN_CONFIG, checkpoint="mine"), geometry_of(NVFP4)
    assert read.recurrent == known.recurrent
    assert (read.attention_layers, read.mtp_layers) == (16, 1)
    assert read.weights == 2 * 27_320_697_856
    assert read.vision == Vision(hidden=1152, layers=24, weights=0, encoder=0)
    assert read.name == "mine"


def test_layers_may_be_named_one_by_one() -> None:
    """`layer_types` decides where it is given; windowed layers are noted, and counted in full."""
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * 16
    read = geometry_from_config(text(layer_types=kinds))
    assert read.recurrent == geometry_from_config(QWEN_CONFIG).recurrent
    windowed = ["sliding_attention", "full_attention"] * 16
    plain = geometry_from_config({**LLAMA_CONFIG, "layer_types": windowed})
    assert (plain.attention_layers, plain.sliding) == (32, True)


@pytest.mark.parametrize(
    ("change", "kv_dtype"),
    [
        ({}, "bfloat16"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "float32"}, "float32"),
        ({"torch_dtype": "strange"}, "bfloat16"),
        ({"quantization_config": {"kv_cache_quant_algo": "FP8"}}, "fp8_e4m3"),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, "fp8_e4m3"),
        ({"quantization_config": {"kv_cache_scheme": None}}, "bfloat16"),
    ],
)
def test_the_cache_type_is_the_declared_one(change: dict[str, Any], kv_dtype: str) -> None:
    """A checkpoint may declare its KV type; else it is the model's own."""
    assert geometry_from_config({**LLAMA_CONFIG, **change}, weights=1).kv_dtype == kv_dtype


def test_known_weights_are_taken_as_they_are() -> None:
    """The sizes of the files are better than a product of shapes, and enough for any model."""
    experts = {**LLAMA_CONFIG, "num_local_experts": 8, "quantization_config": {"bits": 4}}
    read = geometry_from_config(experts, weights=7_000)
    assert (read.weights, read.source) == (7_000, "the sizes of its files")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**LLAMA_CONFIG, "kv_lora_rank": 512}, "cannot be computed from its shape"),
        ({**LLAMA_CONFIG, "num_experts": 8}, "a mixture of experts, cannot be computed; give"),
        ({**LLAMA_CONFIG, "quantization_config": {"bits": 4}}, "size of a quantised checkpoint"),
        ({**LLAMA_CONFIG, "hidden_size": "big"}, "must be a whole number, not 'big'"),
        ({**LLAMA_CONFIG, "vocab_size": -1}, '"vocab_size" must be a whole number, not -1'),
        ({**LLAMA_CONFIG, "vocab_size": True}, '"vocab_size" must be a whole number, not True'),
        ({"model_type": "llama"}, '"num_hidden_layers" must be a whole number, not None'),
        ({"text_config": 7}, '"text_config" must be a table'),
        ({**LLAMA_CONFIG, "num_attention_heads": 0}, "cannot be planned: it has no head dim"),
        (text(layer_types=["linear_attention"]), "cannot be planned: it has no attention layers"),
    ],
)  # fmt: skip
def test_models_that_cannot_be_planned_are_refused(config: dict[str, Any], message: str) -> None:
    """A configuration that lacks something, or tells of another kind of memory, is named."""
    with pytest.raises(UserError, match=message):
        geometry_from_config(config)


def test_an_unknown_state_type_is_float32() -> None:
    """SGLang warns of a type it does not know and takes FP32, and so does the plan."""
    read = geometry_from_config(text(mamba_ssm_dtype="strange")).recurrent
    assert isinstance(read, Recurrent)
    assert read.dtype == "float32"


# ---- files


def test_a_checkpoints_directory_is_read(tmp_path: Path) -> None:
    """Shapes from `config.json`, weights from the sizes of the files beside it."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    assert geometry_from_directory(tmp_path).weights == geometry_of(LLAMA).weights
    for number in (1, 2):
        (tmp_path / f"model-{number}.safetensors").write_bytes(bytes(1000))
    for place in (tmp_path, tmp_path / "config.json"):
        read = find_geometry("mine", place)
        assert (read.weights, read.hidden) == (2000, 4096)


def test_unusable_configurations_are_refused(tmp_path: Path) -> None:
    """A missing, overlong or malformed `config.json` is named, with what is wrong."""
    config = tmp_path / "config.json"
    with pytest.raises(UserError, match="cannot be read: no such file or directory"):
        geometry_from_directory(tmp_path)
    for content, message in (
        (b"{", "is not JSON"),
        (b"[]", "is not a table"),
        (b" " * (LARGEST_CONFIG + 1), "is longer than 4194304 bytes"),
    ):
        config.write_bytes(content)
        with pytest.raises(UserError, match=message):
            geometry_from_directory(tmp_path)


def test_a_gguf_is_read_by_its_path(tmp_path: Path) -> None:
    """A file is read where it is given, or where the model's name is its path."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(QWEN35, [("token_embd.weight", 64), ("blk.0.x.weight", 32)]))
    assert find_geometry(str(path)) == find_geometry("any", path) == geometry_from_gguf(path)
    assert find_geometry(str(path)).weights == 96


def test_all_parts_of_a_split_gguf_are_read(tmp_path: Path) -> None:
    """The shapes are in the first part, the weights in all of them."""
    parts = [tmp_path / f"model-0000{number}-of-00002.gguf" for number in (1, 2)]
    parts[0].write_bytes(gguf(QWEN35, [("token_embd.weight", 64)]))
    with pytest.raises(UserError, match=r"model-00002-of-00002.gguf\" cannot be read"):
        geometry_from_gguf(parts[0])
    parts[1].write_bytes(gguf({}, [("blk.64.x.weight", 32)]))
    geometry = geometry_from_gguf(parts[1])
    assert geometry.weights == 96
    assert geometry.layout is not None
    assert geometry.layout.layers[64] == 32


def test_a_model_that_nothing_tells_of_is_refused() -> None:
    """The message names what would do, and what is known."""
    with pytest.raises(UserError, match='geometry of the model "who/knows" is not known') as caught:
        find_geometry("who/knows")
    assert NVFP4 in caught.value.hint
