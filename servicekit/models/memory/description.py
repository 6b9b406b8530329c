"""Geometries from data already read: a table of ours, or a checkpoint's `config.json`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

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
from servicekit.models.memory.layers import layers_of, whole, with_defaults
from servicekit.models.memory.window import window_of_config
from servicekit.text import shown

_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
_WIDTHS: Final = ("moe_intermediate_size", "block_ff_dim", "ffn_hidden_size")


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
    whose pools this package cannot work out (a layout that it does not know; without the weights a
    quantised model, a mixture of experts, latent attention or Mamba), and for values of other types
    than a model's: the owner of the checkpoint wrote them.
    """
    try:
        return _geometry(config, checkpoint, weights)
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError):
        raise UserError(
            f'the configuration of "{shown(checkpoint)}" has values that no model has',
            hint="download it again",
        ) from None


def _geometry(config: Mapping[str, Any], checkpoint: str, weights: int | None) -> Geometry:
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise UserError('config.json: "text_config" must be a table')
    text = with_defaults(text)
    dtype = _dtype(config, text)
    layers = layers_of(text, dtype)
    heads = whole(text, "num_attention_heads")
    hidden = whole(text, "hidden_size")
    latent = whole(text, "kv_lora_rank", default=0)
    latent += whole(text, "qk_rope_head_dim", default=0) if latent else 0
    experts = next((whole(text, key) for key in _EXPERTS if text.get(key)), 0)
    quantised = bool(_quantisation(config))
    model_type = str(text.get("model_type", ""))
    geometry = Geometry(
        name=checkpoint or str(config.get("_name_or_path") or config.get("model_type") or "model"),
        hidden=hidden,
        ffn=whole(text, "intermediate_size", default=_feed_forward(text, hidden)),
        vocabulary=whole(text, "vocab_size"),
        context=window_of_config(text, whole(text, "max_position_embeddings")),
        attention_layers=layers.attention,
        windowed_layers=layers.windowed,
        window=layers.window,
        sliding=layers.sliding,
        chunked=layers.chunked,
        latent=latent,
        architecture=_architecture(config),
        heads=heads,
        kv_heads=whole(text, "num_key_value_heads", default=heads),
        head_dim=whole(text, "head_dim", default=_head_dim(text, hidden, heads)),
        recurrent=layers.recurrent,
        mtp_layers=whole(text, "mtp_num_hidden_layers", default=0),
        gated_attention=bool(text.get("attn_output_gate", "linear_num_value_heads" in text)),
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


def _head_dim(text: Mapping[str, Any], hidden: int, heads: int) -> int:
    return whole(text, "attention_head_dim", default=hidden // heads if heads else 0)


def _feed_forward(text: Mapping[str, Any], hidden: int) -> int:
    """Return the width of the feed-forward layers where it has another name, or a usual one."""
    return next((text[key] for key in _WIDTHS if isinstance(text.get(key), int)), 4 * hidden)


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _vision(config: Mapping[str, Any]) -> Vision | None:
    """Describe the vision tower, whose weights are counted with the checkpoint's."""
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return None
    # The defaults are those of SGLang's adjust_mem_fraction_for_vlm.
    return Vision(
        hidden=whole(vision, "hidden_size", default=1024),
        layers=whole(vision, "num_hidden_layers", default=24),
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
