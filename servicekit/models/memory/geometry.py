"""What a model looks like to a memory pool: layers, heads, states, weights. Pure.

Three kinds of model share one shape: a plain transformer has only attention layers, a hybrid has
recurrent layers (Gated DeltaNet, Mamba, short convolutions) beside them, and a GGUF also knows the
bytes of each layer, since llama.cpp may place layers one by one. All sizes are in bytes and all
counts are of one GPU that holds the whole model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from servicekit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Bytes of so many elements, by the names that engines give their types; from `q8_0` on these are
# ggml's block formats.
ELEMENT_BYTES: Final[Mapping[str, tuple[int, int]]] = {
    "float32": (4, 1),
    "f32": (4, 1),
    "float16": (2, 1),
    "f16": (2, 1),
    "half": (2, 1),
    "bfloat16": (2, 1),
    "bf16": (2, 1),
    "fp8": (1, 1),
    "fp8_e4m3": (1, 1),
    "fp8_e5m2": (1, 1),
    "fp8_inc": (1, 1),
    "q8_0": (34, 32),
    "q5_1": (24, 32),
    "q5_0": (22, 32),
    "q4_1": (20, 32),
    "q4_0": (18, 32),
    "iq4_nl": (18, 32),
}


SIXTEEN_BITS: Final = frozenset(name for name, size in ELEMENT_BYTES.items() if size == (2, 1))


def elements(count: int, dtype: str) -> int:
    """Return the bytes of `count` elements of `dtype`; `UserError` if its size is not known."""
    try:
        size, per = ELEMENT_BYTES[dtype.lower()]
    except KeyError:
        known = ", ".join(ELEMENT_BYTES)
        raise UserError(
            f'the element size of type "{dtype}" is not known', hint=f"known types are {known}"
        ) from None
    return count * size // per


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """The recurrent layers of a hybrid; in each, a request has one state of fixed size.

    Those of Gated DeltaNet have heads; of others only `channels` and `elements` are known.
    """

    layers: int
    conv_kernel: int
    value_heads: int = 0
    key_heads: int = 0
    value_dim: int = 0
    key_dim: int = 0
    channels: int | None = None
    elements: int | None = None
    dtype: str = "float32"
    """Type of the recurrent state as the model's own configuration asks for it."""
    automatic: str = ""
    """What vLLM takes for `auto`, where that is another type."""

    @property
    def conv_dim(self) -> int:
        """Channels of the short convolution: queries, keys and values side by side."""
        if self.channels is not None:
            return self.channels
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state_elements(self) -> int:
        if self.elements is not None:
            return self.elements
        return self.value_heads * self.value_dim * self.key_dim

    def layer_bytes(self, dtype: str, *, draft_tokens: int = 0) -> int:
        """Bytes of one layer's state: the recurrence in `dtype`, the convolution's window in BF16.

        vLLM keeps `draft_tokens` more columns in that window
        (`gated_delta_net_state_shape(num_spec=…)`).
        """
        window = self.conv_dim * (self.conv_kernel - 1 + draft_tokens)
        return elements(self.state_elements, dtype) + elements(window, "bfloat16")

    def slot_bytes(self, dtype: str) -> int:
        """Bytes of one state slot, all layers: SGLang's `mamba_cache_per_req`.

        Qwen3.8-27B: 153,944,064 B in FP32 and 78,446,592 B in BF16, the 153.9 and 78.4 MB of
        SGLang's cookbook.
        """
        return self.layers * self.layer_bytes(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """The vision tower, which a text-only start may leave out."""

    hidden: int
    layers: int
    weights: int
    encoder: int  # bytes that vLLM's profiling run sets aside for encoding images


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """A separate draft model for speculation."""

    id: str
    weights: int
    layers: int
    kv_heads: int
    head_dim: int
    draft_tokens: int
    """Tokens that one verification step covers: gamma + 1 for DSpark, the block size for DFlash."""
    window: int | None = None  # tokens of its attention window, where it is bounded
    source: str = ""

    @property
    def kv_elements(self) -> int:
        """Elements of keys and values that one token adds, all layers."""
        return self.layers * self.kv_heads * self.head_dim * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Caution:
    """Something published about a checkpoint that cannot be computed."""

    engine: str
    text: str
    unless: str  # option that avoids it
    below: int  # bytes of GPU memory from which on it was not seen
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the bytes of a GGUF sit, since llama.cpp places layers on the GPU one by one."""

    layers: tuple[int, ...]
    embedding: int
    output: int
    """Bytes of the output head and what belongs to no layer; 0 for the head where it is tied to the
    embedding."""
    tied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """A model as the memory arithmetic sees it."""

    name: str
    hidden: int
    ffn: int
    vocabulary: int
    context: int  # tokens the model was made for: its declared length where the recipe sets none
    attention_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    recurrent: Recurrent | None = None
    mtp_layers: int = 0  # layers of the multi-token-prediction head inside the checkpoint
    gated_attention: bool = False
    """Whether queries carry an output gate of their own size (Qwen3.5 and later)."""
    qk_norm: bool = False
    tied: bool = False
    experts: int = 0
    sliding: bool = False
    """Whether some attention layers have a window, but not how many: all are counted in
    full, an upper bound."""
    windowed_layers: int = 0
    """Attention layers with a window of `window` tokens."""
    window: int = 0
    chunked: bool = False
    """Whether the window begins at multiples of itself, as Llama 4's does."""
    latent: int = 0
    """Elements that one token keeps in each attention layer under latent attention (MLA)."""
    architecture: str = ""
    weights: int  # bytes of the weights as they lie on the GPU
    weights_estimated: bool = False
    checkpoint: str = ""
    source: str = ""
    kv_dtype: str = "bfloat16"  # what `--kv-cache-dtype auto` means for this checkpoint
    vision: Vision | None = None
    drafters: tuple[Drafter, ...] = ()
    cautions: tuple[Caution, ...] = ()
    layout: Layout | None = None

    def __post_init__(self) -> None:
        """Refuse, by `UserError`, a shape without keys and values, which no pool could hold."""
        for name in ("hidden", "context", "attention_layers", "kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise UserError(
                    f'the model "{self.name}" cannot be planned: it has no {name.replace("_", " ")}'
                )

    @property
    def layers(self) -> int:
        """All layers, of both kinds, without the MTP head."""
        return self.attention_layers + (self.recurrent.layers if self.recurrent else 0)

    def kv_layer_bytes(self, dtype: str) -> int:
        """Bytes of keys and values that one token adds to one attention layer."""
        if self.latent:
            return elements(self.latent, dtype)
        return 2 * elements(self.kv_heads * self.head_dim, dtype)

    def kv_token_bytes(self, dtype: str) -> int:
        """Bytes of keys and values that one token adds to all attention layers.

        Qwen3.8-27B: 32,768 B in FP8, 65,536 B in BF16, and 64 / 34 / 18 KiB in llama.cpp's f16 /
        q8_0 / q4_0.
        """
        return self.attention_layers * self.kv_layer_bytes(dtype)

    def activation_bytes(self, tokens: int) -> int:
        """Bytes that a forward pass over `tokens` needs for a moment, in 16 bits: an estimate.

        Three feed-forward rows (gate, up and their product) and six hidden rows (residual,
        normalised input, attention's input and output, and two copies in flight) are alive at the
        same time.
        """
        return tokens * (3 * self.ffn + 6 * self.hidden) * 2

    def drafter(self, model: str) -> Drafter | None:
        return next((one for one in self.drafters if one.id == model), None)


def parameter_count(geometry: Geometry) -> int:
    """Parameters of the language model with its MTP head, without the vision tower.

    Exact for dense models: 8,030,261,248 for Llama-3.1-8B and 27,320,697,856 for Qwen3.8-27B.
    Raises `UserError` for mixtures of experts, whose experts this geometry does not describe.
    """
    other = geometry.recurrent is not None and geometry.recurrent.channels is not None
    if other or geometry.latent:
        raise UserError(
            f'the size of "{geometry.name}" cannot be computed from its shape',
            hint="give the directory of its weights",
        )
    if geometry.experts:
        raise UserError(
            f'the size of "{geometry.name}", a mixture of experts, cannot be computed',
            hint="give the directory of its weights",
        )
    hidden = geometry.hidden
    total = geometry.attention_layers * (
        _attention_parameters(geometry) + _common_parameters(geometry)
    )
    if (state := geometry.recurrent) is not None:
        inner = state.value_heads * state.value_dim
        mixer = (
            hidden
            * (state.conv_dim + inner + 2 * state.value_heads)  # qkv, gate, two scalars a head
            + state.conv_dim * state.conv_kernel
            + 2 * state.value_heads
            + state.value_dim
            + inner * hidden
        )
        total += state.layers * (mixer + _common_parameters(geometry))
    embeddings = geometry.vocabulary * hidden * (1 if geometry.tied else 2)
    return total + embeddings + hidden + mtp_parameters(geometry)


def mtp_parameters(geometry: Geometry) -> int:
    """Parameters of the multi-token-prediction head: its layers, and what joins two hiddens."""
    if not geometry.mtp_layers:
        return 0
    layers = geometry.mtp_layers * (_attention_parameters(geometry) + _common_parameters(geometry))
    return layers + 2 * geometry.hidden**2 + 3 * geometry.hidden


def _attention_parameters(geometry: Geometry) -> int:
    width = geometry.heads * geometry.head_dim
    query = width * (2 if geometry.gated_attention else 1)
    norms = 2 * geometry.head_dim if geometry.qk_norm else 0
    return geometry.hidden * (query + 2 * geometry.kv_heads * geometry.head_dim + width) + norms


def _common_parameters(geometry: Geometry) -> int:
    """Parameters that every layer has: its feed-forward and two norms."""
    return 3 * geometry.hidden * geometry.ffn + 2 * geometry.hidden
