"""Geometries from data already read: a table of ours, or a checkpoint's `config.json`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from servicekit.errors import UserError
from servicekit.models.memory.geometry import (
    ELEMENT_BYTES,
    Caution,
    Drafter,
    Geometry,
    Recurrent,
    Vision,
    elements,
    parameter_count,
)
from servicekit.models.memory.window import window_of_config

if TYPE_CHECKING:
    from collections.abc import Sequence

_FULL: Final = "full_attention"
_SLIDING: Final = ("sliding_attention", "chunked_attention")
_LINEAR: Final = "linear_attention"


def geometry_from_table(table: Mapping[str, Any], checkpoint: str) -> Geometry:
    """Make the geometry of `checkpoint`, which a table of `servicekit/data/models/` describes.

    Raises `KeyError` where the table lacks a key: the tables are ours, and a test reads every one
    of them.
    """
    entry = next(one for one in table["checkpoints"] if one["id"] == checkpoint)
    recurrent, vision = table.get("recurrent"), table.get("vision")
    return Geometry(
        name=table["name"],
        hidden=table["hidden"],
        ffn=table["ffn"],
        vocabulary=table["vocabulary"],
        context=table["context"],
        attention_layers=table["attention"]["layers"],
        heads=table["attention"]["heads"],
        kv_heads=table["attention"]["kv_heads"],
        head_dim=table["attention"]["head_dim"],
        gated_attention=table["attention"].get("gated", False),
        qk_norm=table["attention"].get("qk_norm", False),
        recurrent=Recurrent(**recurrent) if recurrent else None,
        mtp_layers=table.get("mtp_layers", 0),
        tied=table.get("tied", False),
        weights=entry["weights"],
        weights_estimated=entry.get("estimated", False),
        checkpoint=checkpoint,
        source=entry["source"],
        kv_dtype=entry.get("kv_dtype", "bfloat16"),
        vision=Vision(**vision) if vision else None,
        drafters=tuple(Drafter(**one) for one in table.get("drafters", ())),
        cautions=tuple(Caution(**one) for one in entry.get("cautions", ())),
    )


def geometry_from_config(
    config: Mapping[str, Any], *, checkpoint: str = "", weights: int | None = None
) -> Geometry:
    """Make a geometry of a parsed Hugging Face `config.json`.

    `weights` are the bytes of the checkpoint's tensors where they are known; without them they are
    worked out from the parameters at 16 bits, marked as an estimate. Raises `UserError` for a model
    whose pools this package cannot work out (latent attention, a quantised or mixed-expert model
    without its weights).
    """
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise UserError('config.json: "text_config" must be a table')
    if text.get("kv_lora_rank"):
        raise UserError("config.json: models with latent attention (MLA) cannot be planned")
    kinds = _layer_kinds(text)
    heads = _integer(text, "num_attention_heads")
    hidden = _integer(text, "hidden_size")
    dtype = _dtype(config, text)
    recurrent = _recurrent(text, kinds.count(_LINEAR)) if _LINEAR in kinds else None
    experts = next((text[key] for key in ("num_experts", "num_local_experts") if text.get(key)), 0)
    quantised = bool(_quantisation(config))
    model_type = str(text.get("model_type", ""))
    geometry = Geometry(
        name=checkpoint or str(config.get("_name_or_path") or config.get("model_type") or "model"),
        hidden=hidden,
        ffn=_integer(text, "intermediate_size", default=text.get("moe_intermediate_size")),
        vocabulary=_integer(text, "vocab_size"),
        context=window_of_config(text, _integer(text, "max_position_embeddings")),
        attention_layers=len(kinds) - kinds.count(_LINEAR),
        sliding=any(kind in _SLIDING for kind in kinds),
        heads=heads,
        kv_heads=_integer(text, "num_key_value_heads", default=heads),
        head_dim=_integer(text, "head_dim", default=hidden // heads if heads else 0),
        recurrent=recurrent,
        mtp_layers=_integer(text, "mtp_num_hidden_layers", default=0),
        gated_attention=bool(text.get("attn_output_gate", recurrent is not None)),
        qk_norm=model_type.startswith("qwen3"),
        tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        experts=experts,
        weights=weights or 0,
        weights_estimated=True,
        checkpoint=checkpoint,
        source="the sizes of its files" if weights else "its parameters at 16 bits",
        kv_dtype=_kv_dtype(config, dtype),
        vision=_vision(config),
    )
    if weights:
        return geometry
    if quantised:
        raise UserError(
            "config.json: it does not give the size of a quantised checkpoint",
            hint="give the directory of its weights",
        )
    return replace(geometry, weights=elements(parameter_count(geometry), dtype))


def _integer(table: Mapping[str, Any], key: str, *, default: object = None) -> int:
    value = table.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(f'config.json: "{key}" must be a whole number, not {value!r}')
    return value


def _layer_kinds(text: Mapping[str, Any]) -> Sequence[str]:
    """Name every layer's kind, from `layer_types` or from the interval of full attention."""
    count = _integer(text, "num_hidden_layers")
    if isinstance(kinds := text.get("layer_types"), list):
        return [str(kind) for kind in kinds]
    if "linear_num_value_heads" in text:
        interval = _integer(text, "full_attention_interval", default=4) or 1
        return [_FULL if (index + 1) % interval == 0 else _LINEAR for index in range(count)]
    return [_FULL] * count


def _recurrent(text: Mapping[str, Any], layers: int) -> Recurrent:
    dtype = str(text.get("mamba_ssm_dtype", "float32"))
    return Recurrent(
        layers=layers,
        value_heads=_integer(text, "linear_num_value_heads"),
        key_heads=_integer(text, "linear_num_key_heads"),
        value_dim=_integer(text, "linear_value_head_dim"),
        key_dim=_integer(text, "linear_key_head_dim"),
        conv_kernel=_integer(text, "linear_conv_kernel_dim"),
        dtype=dtype if dtype in ELEMENT_BYTES else "float32",  # SGLang warns and does the same
    )


def _vision(config: Mapping[str, Any]) -> Vision | None:
    """Describe the vision tower, whose weights are counted with the checkpoint's."""
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return None
    # The defaults are those of SGLang's adjust_mem_fraction_for_vlm.
    return Vision(
        hidden=_integer(vision, "hidden_size", default=1024),
        layers=_integer(vision, "num_hidden_layers", default=24),
        weights=0,
        encoder=0,
    )


def _quantisation(config: Mapping[str, Any]) -> Mapping[str, Any]:
    quantisation = config.get("quantization_config")
    return quantisation if isinstance(quantisation, Mapping) else {}


def _dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    for table in (text, config):
        for key in ("dtype", "torch_dtype"):
            if table.get(key) in ELEMENT_BYTES:
                return str(table[key])
    return "bfloat16"


def _kv_dtype(config: Mapping[str, Any], dtype: str) -> str:
    """Return what `--kv-cache-dtype auto` means: the declared KV type, else the model's own."""
    quantisation = _quantisation(config)
    scheme = quantisation.get("kv_cache_scheme")
    declared = str(quantisation.get("kv_cache_quant_algo", "")).upper()
    if declared == "FP8" or (isinstance(scheme, Mapping) and scheme.get("num_bits") == 8):  # noqa: PLR2004 (bits)
        return "fp8_e4m3"
    return dtype
