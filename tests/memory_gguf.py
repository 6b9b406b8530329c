"""Makes small GGUF files by the format's own description: an independent check on their reader."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ALIGNMENT: Final = 32
Value = int | float | bool | str | list[int] | list[str]


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _array(items: list[int] | list[str]) -> bytes:
    texts = [_text(item) for item in items if isinstance(item, str)]
    numbers = [struct.pack("<I", item) for item in items if isinstance(item, int)]
    return struct.pack("<IQ", 8 if texts else 4, len(items)) + b"".join(texts + numbers)


def _value(value: Value) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<IQ", 10, value)
        case float():
            return struct.pack("<Id", 12, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case list():
            return struct.pack("<I", 9) + _array(value)


def gguf(
    metadata: Mapping[str, Value], tensors: Sequence[tuple[str, int]] = (), *, version: int = 3
) -> bytes:
    """Return a GGUF with `metadata` and `tensors`, the bytes of each filled with zeros."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    offset, data = 0, b""
    for name, size in tensors:
        head += _text(name) + struct.pack("<IQIQ", 1, size, 24, offset)
        padded = -(-size // ALIGNMENT) * ALIGNMENT
        data += bytes(padded)
        offset += padded
    return head + bytes(-len(head) % ALIGNMENT) + data


QWEN35: Final[Mapping[str, Value]] = {
    "general.architecture": "qwen35",
    "general.name": "Qwen3.8-27B",
    "qwen35.block_count": 65,
    "qwen35.nextn_predict_layers": 1,
    "qwen35.context_length": 262144,
    "qwen35.embedding_length": 5120,
    "qwen35.feed_forward_length": 17408,
    "qwen35.attention.head_count": 24,
    "qwen35.attention.head_count_kv": [0, 0, 0, 4],
    "qwen35.attention.key_length": 256,
    "qwen35.full_attention_interval": 4,
    "qwen35.ssm.conv_kernel": 4,
    "qwen35.ssm.state_size": 128,
    "qwen35.ssm.group_count": 16,
    "qwen35.ssm.time_step_rank": 48,
    "qwen35.ssm.inner_size": 6144,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
}
"""The keys of a hybrid's header, with a vocabulary of three."""
