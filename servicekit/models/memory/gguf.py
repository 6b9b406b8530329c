"""The header of a GGUF file, read within bounds. Pure: the caller opens the file.

A GGUF begins with its metadata and the list of its tensors; the weights follow. Nothing of the
weights is read: a tensor's bytes are the distance to the next one, so that no table of quantisation
formats is needed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

from servicekit.errors import UserError
from servicekit.models.memory.geometry import Geometry, Layout, Recurrent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
# Metadata entries, tensors or dimensions beyond which a count is taken for damage.
_MOST_ENTRIES: Final = 1 << 20
_LONGEST_NAME: Final = 1 << 16
# Longest text or array that is kept; what is longer (vocabularies, chat templates) is skipped.
_LONGEST_KEPT: Final = 1 << 12
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final[Mapping[int, str]] = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_MOST_DIMENSIONS: Final = 8
_MOST_BLOCKS: Final = 1 << 12
# One layer of so many has no window, where the header does not say how many have one.
_PATTERNS: Final[Mapping[str, int]] = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "cohere2": 4,
}
_SIDE_BY_SIDE: Final = frozenset({"falcon-h1"})  # attention and a state in every layer
_INTERVAL: Final = frozenset({"qwen3next", "qwen35", "qwen35moe"})


@dataclass(frozen=True, slots=True)
class Skipped:
    """A value too long to keep, such as a vocabulary; only its length is used."""

    length: int


Number = int | float | bool
Value = Number | str | tuple[Number, ...] | Skipped


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata and tensor sizes of one GGUF file."""

    metadata: Mapping[str, Value]
    tensors: Mapping[str, int]  # bytes of each tensor, with the padding behind it


class _Reader:
    """Reads values from a binary stream, never past its end."""

    def __init__(self, stream: BinaryIO, size: int, where: str) -> None:
        self._stream = stream
        self._size = size
        self._where = where
        self.position = 0

    def damaged(self, what: str) -> UserError:
        return UserError(
            f'"{self._where}" is not a whole GGUF file: {what}',
            hint="download it again, or give another file",
        )

    def bytes(self, count: int) -> bytes:
        if count > self._size - self.position:
            raise self.damaged(f"it ends after {self._size} bytes, inside its header")
        data = self._stream.read(count)
        self.position += len(data)
        if len(data) != count:
            raise self.damaged(f"it ends after {self.position} bytes, inside its header")
        return data

    def skip(self, count: int) -> None:
        if count > self._size - self.position:
            raise self.damaged(f"it ends after {self._size} bytes, inside its header")
        self._stream.seek(count, 1)
        self.position += count

    def scalar(self, form: str) -> Number:
        (value,) = struct.unpack(form, self.bytes(struct.calcsize(form)))
        if not isinstance(
            value, int | float
        ):  # pragma: no cover (struct gives nothing else for these forms)
            raise TypeError(form)
        return value

    def count(self, what: str, most: int) -> int:
        value = int(self.scalar("<Q"))
        if value > most:
            raise self.damaged(f"it claims {value} {what}")
        return value

    def name(self) -> str:
        return self.bytes(self.count("characters in a name", _LONGEST_NAME)).decode(
            "utf-8", "replace"
        )

    def value(self) -> Value:
        kind = self._kind()
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._array()
        return self.scalar(self._form(kind))

    def _kind(self) -> int:
        return int(self.scalar("<I"))

    def _form(self, kind: int) -> str:
        form = _SCALARS.get(kind)
        if form is None:  # arrays of arrays are in the format and in no model
            raise self.damaged(f"it has a value of the unknown kind {kind}")
        return form

    def _text(self) -> str | Skipped:
        length = self.count("characters in a text", self._size)
        if length > _LONGEST_KEPT:
            self.skip(length)
            return Skipped(length)
        return self.bytes(length).decode("utf-8", "replace")

    def _array(self) -> tuple[Number, ...] | Skipped:
        kind = self._kind()
        length = self.count("elements in an array", self._size)
        if kind == _STRING:
            for _ in range(length):
                self.skip(self.count("characters in a text", self._size))
            return Skipped(length)
        form = self._form(kind)
        if length > _LONGEST_KEPT:
            self.skip(length * struct.calcsize(form))
            return Skipped(length)
        return tuple(self.scalar(form) for _ in range(length))


def read_header(stream: BinaryIO, size: int, where: str) -> Header:
    """Read a GGUF's header from the beginning of `stream`, `size` bytes long and named `where`.

    Raises `UserError` for what is no GGUF, a format that is not version 2 or 3, or a file that ends
    too early.
    """
    reader = _Reader(stream, size, where)
    if size < len(MAGIC) or reader.bytes(len(MAGIC)) != MAGIC:
        raise UserError(f'"{where}" is not a GGUF file: it does not begin with "GGUF"')
    version = int(reader.scalar("<I"))
    if version not in _VERSIONS:
        raise UserError(
            f'"{where}" is GGUF version {version}; little-endian version 2 or 3 is required'
        )
    tensor_count = reader.count("tensors", _MOST_ENTRIES)
    metadata_count = reader.count("metadata entries", _MOST_ENTRIES)
    metadata: dict[str, Value] = {}
    for _ in range(metadata_count):
        key = reader.name()
        metadata[key] = reader.value()
    offsets = dict(_offsets(reader, tensor_count))
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1:
        raise reader.damaged(f'its "general.alignment" is {alignment!r}')
    return Header(metadata, _sizes(reader, offsets, alignment, size))


def _offsets(reader: _Reader, count: int) -> Iterator[tuple[str, int]]:
    for _ in range(count):
        name = reader.name()
        dimensions = int(reader.scalar("<I"))
        if dimensions > _MOST_DIMENSIONS:
            raise reader.damaged(f"a tensor has {dimensions} dimensions")
        reader.skip(8 * dimensions + 4)  # its shape, then its type
        yield name, int(reader.scalar("<Q"))


def _sizes(
    reader: _Reader, offsets: Mapping[str, int], alignment: int, size: int
) -> dict[str, int]:
    """Work out each tensor's bytes from where the next begins, and the last's from the end."""
    data = -(-reader.position // alignment) * alignment
    ordered = sorted(offsets.items(), key=lambda item: item[1])
    if not ordered:
        return {}
    ends = [offset for _, offset in ordered[1:]] + [size - data]
    if ordered[-1][1] >= size - data:
        raise reader.damaged(f"its weights extend beyond its {size} bytes")
    return {name: end - offset for (name, offset), end in zip(ordered, ends, strict=True)}


def geometry_from_header(header: Header, *, checkpoint: str) -> Geometry:
    return _Describer(header, checkpoint).geometry()


def window_of_header(header: Header) -> int | None:
    """Return the context that the model was trained for; `None` where its header does not say."""
    window = header.metadata.get(f"{header.metadata.get('general.architecture')}.context_length")
    return window if type(window) is int else None


class _Describer:
    """Reads the keys of one architecture, which its name precedes."""

    def __init__(self, header: Header, checkpoint: str) -> None:
        self._header = header
        self._checkpoint = checkpoint
        self._architecture = header.metadata.get("general.architecture")
        if not isinstance(self._architecture, str):
            raise UserError(f'"{checkpoint}" is a GGUF file without "general.architecture"')

    def _get(self, key: str) -> Value | None:
        return self._header.metadata.get(f"{self._architecture}.{key}")

    def _integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key)
        if isinstance(value, tuple):  # one per layer, where layers without attention have 0
            value = max(value, default=0)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise UserError(
                f'"{self._checkpoint}" is a GGUF without a usable "{self._architecture}.{key}"',
                hint="only language models can be planned",
            )
        return value

    def geometry(self) -> Geometry:
        if self._get("attention.kv_lora_rank"):
            raise UserError(f'"{self._checkpoint}": latent attention (MLA) cannot be planned')
        blocks = self._integer("block_count")
        if not 1 <= blocks <= _MOST_BLOCKS:
            raise UserError(f'"{self._checkpoint}" is a GGUF file that claims {blocks} layers')
        hidden = self._integer("embedding_length")
        heads = self._integer("attention.head_count")
        mtp = min(self._integer("nextn_predict_layers", 0), blocks - 1)
        attention, states = self._split(blocks - mtp)
        window, windowed = self._windows(attention)
        layout = self._layout(blocks)
        return Geometry(
            name=str(self._header.metadata.get("general.name", self._checkpoint)),
            hidden=hidden,
            ffn=self._integer("feed_forward_length"),
            vocabulary=self._vocabulary(),
            context=self._integer("context_length"),
            attention_layers=attention,
            sliding=bool(window) and not windowed,
            windowed_layers=windowed,
            window=window if windowed else 0,
            heads=heads,
            kv_heads=self._integer("attention.head_count_kv", heads),
            head_dim=self._integer("attention.key_length", hidden // heads if heads else 0),
            recurrent=self._recurrent(states, hidden) if states else None,
            mtp_layers=mtp,
            tied=layout.tied,
            experts=self._integer("expert_count", 0),
            weights=sum(layout.layers) + layout.embedding + layout.output,
            checkpoint=self._checkpoint,
            source="the tensors in its header",
            kv_dtype="f16",
            layout=layout,
        )

    def _split(self, layers: int) -> tuple[int, int]:
        """Count the layers with keys and values, and those with a state."""
        heads = self._get("attention.head_count_kv")
        stateful = self._integer("ssm.inner_size", 0) or self._integer("shortconv.l_cache", 0)
        if not stateful:
            return layers, 0
        if self._architecture in _SIDE_BY_SIDE:
            return layers, layers
        if isinstance(heads, tuple) and len(heads) >= layers:
            widths = self._get("feed_forward_length")
            wide = widths if isinstance(widths, tuple) else (0,) * layers
            # A layer that is neither attention nor feed-forward alone keeps a state.
            states = sum(not head and not width for head, width in zip(heads, wide, strict=False))
            return sum(head > 0 for head in heads[:layers]), states
        if self._get("full_attention_interval") or self._architecture in _INTERVAL:
            full = layers // (self._integer("full_attention_interval", 4) or 1)
            return full, layers - full
        raise UserError(
            f'"{self._checkpoint}" cannot be planned: its header does not say which layers keep '
            "a state",
            hint="start it once: the engine's log gives the figures",
        )

    def _windows(self, layers: int) -> tuple[int, int]:
        """Return the window in tokens, and how many layers have it (`set_swa_pattern`)."""
        window = self._integer("attention.sliding_window", 0)
        pattern = self._get("attention.sliding_window_pattern")
        if isinstance(pattern, tuple) and pattern:
            return window, sum(bool(pattern[n % len(pattern)]) for n in range(layers))
        every = pattern if isinstance(pattern, int) else _PATTERNS.get(str(self._architecture), 0)
        return window, sum(n % every < every - 1 for n in range(layers)) if window and every else 0

    def _recurrent(self, layers: int, hidden: int) -> Recurrent:
        """Describe the recurrent layers the way llama.cpp does (`n_embd_r`, `n_embd_s`)."""
        if not (inner := self._integer("ssm.inner_size", 0)):
            kernel = self._integer("shortconv.l_cache")
            return Recurrent(
                layers=layers, conv_kernel=kernel, channels=hidden, elements=0, dtype="f32"
            )
        state = self._integer("ssm.state_size") or 1
        return Recurrent(
            layers=layers,
            value_heads=inner // state,
            key_heads=self._integer("ssm.group_count", 0),
            value_dim=state,
            key_dim=state,
            conv_kernel=self._integer("ssm.conv_kernel"),
            dtype="f32",
        )

    def _vocabulary(self) -> int:
        tokens = self._header.metadata.get("tokenizer.ggml.tokens")
        return tokens.length if isinstance(tokens, Skipped) else self._integer("vocab_size", 0)

    def _layout(self, blocks: int) -> Layout:
        layers = [0] * blocks
        embedding = output = 0
        tied = True
        for name, size in self._header.tensors.items():
            first, _, rest = name.partition(".")
            number = rest.partition(".")[0]
            if first == "blk" and number.isdecimal() and int(number) < blocks:
                layers[int(number)] += size
            elif name == "token_embd.weight":
                embedding += size
            else:
                output += size
                tied = tied and name != "output.weight"
        return Layout(layers=tuple(layers), embedding=embedding, output=output, tied=tied)
