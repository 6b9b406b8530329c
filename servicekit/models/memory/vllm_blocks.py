"""vLLM's blocks: one pool of equal blocks that hold either keys and values or a recurrent state.

Read in vLLM 0.32.0: `platforms/interface.py` (`_align_hybrid_block_size`),
`v1/core/kv_cache_utils.py` (`_get_kv_cache_groups_uniform_page_size`, `get_kv_cache_configs`,
`get_kv_cache_capacity`) and `v1/kv_cache_interface.py`. Checked against the pools that vLLM's
recipe page publishes for Qwen3.8-27B on one RTX 5090, and against a public report of six more
starts on such a card.

A layer's state and a layer's block of tokens must be equally long, so the block grows to as many
tokens as fill a state. Layers of each kind form groups of equal size, and a block number stands for
one block in every layer of a group. A request of L tokens takes `ceil(L / block)` numbers in each
attention group, and in each group of states one or two, and one more for each draft token. Bytes
throughout. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from servicekit.models.memory.units import ceil_div

if TYPE_CHECKING:
    from servicekit.models.memory.geometry import Geometry

KERNEL_BLOCK: Final = 16  # tokens to which an attention block is aligned, and its default length
_LATENT_BLOCK: Final = 128  # the same beside states, for latent attention
# Kinds of layers whose numbers differ by less than this factor form groups of the larger number.
_ALIKE: Final = 1.5
_UNBOUNDED: Final = 1 << 30  # tokens of a request where every layer has a window


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLayers:
    """What speculation adds to the pool."""

    tokens: int = 0
    """Draft tokens of one step; each keeps a state, and a column in the convolution's window."""
    full: int = 0  # attention layers beside the target's without a window
    windowed: int = 0  # attention layers with a window of `window` tokens
    window: int = 0


NO_DRAFTS: Final = DraftLayers()


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The pool's unit and what a request takes of it."""

    tokens: int  # tokens in one attention block
    bytes: int  # bytes that one block number stands for, all layers of a group
    attention_groups: int
    fixed: int
    """Block numbers that a request takes however short it is: states, and a drafter's windows."""
    windows: int = 0
    """Groups of the target's layers with a window of `reach` tokens, a batch in flight with
    them."""
    reach: int = 0

    def per_request(self, length: int) -> int:
        """Block numbers that a request of `length` tokens takes."""
        # A window may begin inside a block: one more than it and a batch in flight fill.
        window = (ceil_div(min(length, self.reach), self.tokens) + 1) * self.windows
        return ceil_div(length, self.tokens) * self.attention_groups + window + self.fixed

    def reported(self, blocks: int, length: int) -> tuple[int, float]:
        """Return what vLLM says of `blocks` at `max_model_len`: tokens, and requests at once.

        The tokens are no count of anything stored but `blocks / per request * max_model_len`. For
        Qwen3.8-27B at 32,768 the published 91,022, 135,926, 152,917, 76,458 and 90,112 are 75, 112,
        126, 112 and 99 blocks.
        """
        concurrency = blocks / self.per_request(length)
        return int(concurrency * length), concurrency

    def longest(self, blocks: int) -> int:
        """Return the longest request for `blocks`; the pool reserves one of them."""
        least, most = 0, blocks  # blocks of tokens: the first fits, the last may not
        if not self.attention_groups and self.per_request(self.reach) < blocks:
            return _UNBOUNDED
        while least < most:
            middle = (least + most + 1) // 2
            if self.per_request(middle * self.tokens) < blocks:
                least = middle
            else:
                most = middle - 1
        return least * self.tokens


def block_layout(
    geometry: Geometry,
    *,
    kv_dtype: str,
    state_dtype: str = "float32",
    aligned: bool = True,
    drafts: DraftLayers = NO_DRAFTS,
    batched_tokens: int = 2048,
    block_size: int = KERNEL_BLOCK,
) -> Blocks:
    """Work the block out.

    `aligned` is the cache mode that prefix caching brings: two states for a request, not one.
    """
    token = geometry.kv_layer_bytes(kv_dtype)
    # With chunks vLLM keeps one kind of layer only (`attention_chunk_size` in config/vllm.py).
    own = 0 if geometry.chunked else geometry.windowed_layers
    attention = geometry.attention_layers - own + drafts.full
    tokens, state_layers, states = block_size, 0, 0
    if (state := geometry.recurrent) is not None:
        page = state.layer_bytes(state_dtype, draft_tokens=drafts.tokens)
        aligned_to = max(block_size, _LATENT_BLOCK if geometry.latent else KERNEL_BLOCK)
        tokens = aligned_to * ceil_div(page, aligned_to * token)
        state_layers, states = state.layers, (2 if aligned else 1) + drafts.tokens
    size = _group_size(attention, drafts.windowed, own, state_layers)
    windowed = ceil_div(drafts.window - 1 + batched_tokens, tokens) + 1
    return Blocks(
        tokens=tokens,
        bytes=size * tokens * token,
        attention_groups=ceil_div(attention, size),
        fixed=ceil_div(state_layers, size) * states + ceil_div(drafts.windowed, size) * windowed,
        windows=ceil_div(own, size),
        reach=geometry.window - 1 + batched_tokens if own else 0,
    )


def _group_size(*layers: int) -> int:
    """Return the layers of a group: those of the rarest kind, or of the most frequent if alike."""
    counts = [count for count in layers if count]
    rare, frequent = min(counts), max(counts)
    return frequent if frequent < rare * _ALIKE else rare
