"""What each layer of a `config.json` keeps: keys and values, a window of them, or a state. Pure.

Read in the configurations of transformers 5.24 and in the state shapes of vLLM 0.33
(`mamba_utils.py`). A layout that is not known here is refused: counted as plain attention it would
be wrong by any factor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from servicekit.errors import UserError
from servicekit.models.memory.geometry import ELEMENT_BYTES, Recurrent

_LARGEST: Final = 1 << 40  # beyond any number of a model
_ATTENTION: Final = frozenset({"full_attention", "attention", "*"})
_WINDOWED: Final = frozenset({"sliding_attention", "sliding_window_attention"})
_CHUNKED: Final = "chunked_attention"
_STATES: Final = frozenset({"linear_attention", "mamba", "mamba2", "conv", "M"})
_NOTHING: Final = frozenset({"mlp", "moe", "-", "E"})
# What a configuration does not write where it is the default of its kind in transformers.
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    },
    "gemma2": {"sliding_window_pattern": 2},
    "cohere2": {"sliding_window_pattern": 4},
    "gpt_oss": {"sliding_window_pattern": 2},
    "llama4_text": {"attention_chunk_size": 8192, "no_rope_layer_interval": 4},
    "jamba": {
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
    },
    "nemotron_h": {"ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4},
    "falcon_h1": {"mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2},
    "granitemoehybrid": {"mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2},
    "bamba": {"mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2},
    "lfm2": {"conv_L_cache": 3},
    "lfm2_moe": {"conv_L_cache": 3},
}
_ALWAYS_WINDOWED: Final = frozenset({"mistral", "mixtral", "ministral", "phi3", "starcoder2"})
# Keys of layouts that are not known here, unless the kind above them is.
_FOREIGN: Final = (
    *("block_types", "attn_type_list", "cross_attention_layers", "index_topk", "compress_ratios"),
    *("rwkv_hidden_size", "lru_width", "retention_heads", "hybrid_layer_ids", "num_mem_blocks"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The layers of a model, by what they keep."""

    attention: int
    """Those with keys and values, windowed or not."""
    windowed: int = 0
    window: int = 0
    chunked: bool = False
    sliding: bool = False
    """Whether layers have a window whose number or length is not known."""
    recurrent: Recurrent | None = None


def with_defaults(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a text configuration with the values that its kind leaves out."""
    given = {key: value for key, value in text.items() if value is not None}
    return {**_DEFAULTS.get(str(text.get("model_type", "")), {}), **given}


def layers_of(text: Mapping[str, Any], dtype: str) -> Layers:
    """Count the layers of a text configuration, `dtype` being the type of the model.

    Raises `UserError` for a layout that is not known.
    """
    kind = str(text.get("model_type", ""))
    foreign = [key for key in _FOREIGN if text.get(key)]
    if foreign:
        raise _unknown(kind, f'it has "{foreign[0]}"')
    if kind == "falcon_h1":  # attention and a state side by side in every layer
        count = whole(text, "num_hidden_layers")
        return Layers(attention=count, recurrent=_recurrent(text, count, kind, dtype))
    kinds = Counter(_kinds(text, kind))
    known = {*_ATTENTION, *_WINDOWED, _CHUNKED, *_STATES, *_NOTHING}
    if strange := sorted(kinds.keys() - known):
        raise _unknown(kind, f'its layer type "{strange[0]}" is not known')
    states = sum(kinds[name] for name in _STATES)
    windowed = sum(kinds[name] for name in (*_WINDOWED, _CHUNKED))
    chunked = kinds[_CHUNKED] > 0
    window = text.get("attention_chunk_size" if chunked else "sliding_window")
    length = window if isinstance(window, int) and not isinstance(window, bool) else 0
    return Layers(
        attention=windowed + sum(kinds[name] for name in _ATTENTION),
        windowed=windowed if length else 0,
        window=length if windowed else 0,
        chunked=chunked and length > 0,
        sliding=(windowed > 0) != (length > 0) and text.get("use_sliding_window") is not False,
        recurrent=_recurrent(text, states, kind, dtype) if states else None,
    )


def whole(table: Mapping[str, Any], key: str, *, default: object = None) -> int:
    """Return a whole number of `config.json`, or raise `UserError`."""
    value = table.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
        raise UserError(f'config.json: "{key}" must be a whole number, not {value!r}')
    return value


def _unknown(kind: str, why: str) -> UserError:
    return UserError(
        f'config.json: the memory of model type "{kind}" cannot be planned: {why}',
        hint="start it once: the engine's log gives the figures",
    )


def _kinds(text: Mapping[str, Any], kind: str) -> list[str]:
    """Name every layer's kind."""
    count = whole(text, "num_hidden_layers")
    for key in ("layer_types", "layers_block_type"):
        if isinstance(kinds := text.get(key), list):
            return [str(one) for one in kinds]
    if isinstance(pattern := text.get("hybrid_override_pattern"), str):
        return list(pattern)
    linear = text.get("linear_attn_config")
    if isinstance(linear, Mapping) and isinstance(linear.get("kda_layers"), list):
        states = len(linear["kda_layers"])
        return ["linear_attention"] * states + ["full_attention"] * max(0, count - states)
    if "linear_num_value_heads" in text:
        interval = whole(text, "full_attention_interval", default=4) or 1
        return _every(count, interval, "full_attention", "linear_attention")
    if "attn_layer_period" in text:
        period, offset = whole(text, "attn_layer_period") or 1, whole(text, "attn_layer_offset")
        return ["attention" if n % period == offset else "mamba" for n in range(count)]
    for key in ("attn_layer_indices", "full_attn_idxs"):
        if isinstance(full := text.get(key), list):
            other = "conv" if key == "full_attn_idxs" else "mamba"
            return ["attention" if n in full else other for n in range(count)]
    if any(key.startswith(("mamba_", "ssm_")) for key in text):
        raise _unknown(kind, "it does not say which layers keep a state")
    return _windows(text, kind, count)


def _windows(text: Mapping[str, Any], kind: str, count: int) -> list[str]:
    """Name the layers of a model whose layers all have attention."""
    if kind == "llama4_text":
        rope = text.get("no_rope_layers")
        interval = whole(text, "no_rope_layer_interval") or 1
        if isinstance(rope, list) and rope:
            return [_CHUNKED if one else "full_attention" for one in rope]
        return _every(count, interval, "full_attention", _CHUNKED)
    if not text.get("sliding_window") or text.get("use_sliding_window") is False:
        return ["full_attention"] * count
    if pattern := whole(text, "sliding_window_pattern", default=0):
        return _every(count, pattern, "full_attention", "sliding_attention")
    if kind in _ALWAYS_WINDOWED:
        return ["sliding_attention"] * count
    if text.get("use_sliding_window"):
        first = min(count, whole(text, "max_window_layers", default=0))
        return ["full_attention"] * first + ["sliding_attention"] * (count - first)
    return ["full_attention"] * count


def _every(count: int, interval: int, one: str, others: str) -> list[str]:
    """Name `count` layers, of which each `interval`-th is `one`."""
    return [one if (number + 1) % interval == 0 else others for number in range(count)]


def _recurrent(text: Mapping[str, Any], layers: int, kind: str, dtype: str) -> Recurrent:
    """Describe one layer's state (the `*_state_shape` functions of vLLM)."""
    if "linear_num_value_heads" in text:
        declared = str(text.get("mamba_ssm_dtype", "float32"))
        return Recurrent(
            layers=layers,
            value_heads=whole(text, "linear_num_value_heads"),
            key_heads=whole(text, "linear_num_key_heads"),
            value_dim=whole(text, "linear_value_head_dim"),
            key_dim=whole(text, "linear_key_head_dim"),
            conv_kernel=whole(text, "linear_conv_kernel_dim"),
            # SGLang warns of another type and does the same
            dtype=declared if declared in ELEMENT_BYTES else "float32",
        )
    linear = text.get("linear_attn_config")
    if isinstance(linear, Mapping):  # Kimi's delta attention: one head shape for all three
        heads, dim = whole(linear, "num_heads"), whole(linear, "head_dim")
        return Recurrent(
            layers=layers,
            conv_kernel=whole(linear, "short_conv_kernel_size", default=4),
            channels=3 * heads * dim,
            elements=heads * dim * dim,
        )
    if kind.startswith("lfm2"):  # a short convolution, whose window is all that it keeps
        hidden = whole(text, "hidden_size")
        return Recurrent(
            layers=layers,
            conv_kernel=whole(text, "conv_L_cache"),
            channels=whole(text, "conv_dim", default=hidden),
            elements=0,
        )
    declared = str(text.get("mamba_ssm_cache_dtype") or text.get("mamba_ssm_dtype") or "")
    automatic = "float32" if kind == "nemotron_h" else dtype
    shape = _mamba(text, kind)
    return Recurrent(
        layers=layers,
        dtype=declared if declared in ELEMENT_BYTES else "float32",
        automatic=declared if declared in ELEMENT_BYTES else automatic,
        **shape,
    )


def _mamba(text: Mapping[str, Any], kind: str) -> dict[str, int]:
    """Return kernel, channels and elements of a Mamba layer, of its first or second form."""
    if "mamba_num_heads" in text:  # Nemotron-H
        heads, dim = whole(text, "mamba_num_heads"), whole(text, "mamba_head_dim")
        inner, state = heads * dim, whole(text, "ssm_state_size")
        groups, kernel = whole(text, "n_groups"), whole(text, "conv_kernel")
    elif "mamba_d_state" in text:
        inner = whole(text, "mamba_expand", default=2) * whole(text, "hidden_size")
        inner = whole(text, "mamba_d_ssm", default=inner)
        state, kernel = whole(text, "mamba_d_state"), whole(text, "mamba_d_conv", default=4)
        groups = whole(text, "mamba_n_groups", default=0)
    else:
        raise _unknown(kind, "the shape of its states is not known")
    return {
        "conv_kernel": kernel,
        "channels": inner + 2 * groups * state,
        "elements": inner * state,
    }
