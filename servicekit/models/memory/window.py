"""A model's own window: the longest context that it was made for. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from servicekit.models.memory.outcome import Fit, PlanFinding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.models.memory.geometry import Geometry
    from servicekit.models.memory.recipe import Recipe

# Options and variables that extend the window, or let a longer context pass.
_EXTENSIONS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "sglang": (("json-model-override-args",), "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"),
    "vllm": (("hf-overrides", "rope-scaling"), "VLLM_ALLOW_LONG_MAX_MODEL_LEN"),
}
# Kinds of rope scaling whose factor is already in `max_position_embeddings`.
_INCLUDED: Final = frozenset({"default", "mrope", "llama3", "longrope", "su"})


def window_of_config(text: Mapping[str, Any], declared: int) -> int:
    """Return the window of a `config.json` that declares so many positions: with its rope scaling.

    YaRN counts from the length before scaling, other kinds from the declared one.
    """
    rope = text.get("rope_scaling") or text.get("rope_parameters")
    if not isinstance(rope, dict):
        return declared
    factor, original = rope.get("factor"), rope.get("original_max_position_embeddings")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind in _INCLUDED or isinstance(factor, bool) or not isinstance(factor, int | float):
        return declared
    base = original if kind == "yarn" and type(original) is int else declared
    return max(declared, int(base * factor))


def beyond_window(recipe: Recipe, geometry: Geometry, context: int) -> PlanFinding | None:
    """Report a context above the model's window, which SGLang and vLLM refuse to start with."""
    options, variable = _EXTENSIONS.get(recipe.engine, ((), ""))
    extended = any(recipe.options.get(option) for option in options)
    if context <= geometry.context or not options or extended or recipe.switched_on(variable):
        return None
    return PlanFinding(
        Fit.DOES_NOT_FIT,
        f"the model's own window is {geometry.context:,} tokens, not the {context:,} requested",
        (
            f"lower context.requested to {geometry.context}",
            f"extend the window by rope scaling: --{options[0]}",
            "choose a checkpoint with a longer window",
        ),
    )
