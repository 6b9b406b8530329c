"""A model's own window: the longest context that it was made for. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from servicekit.models.memory.outcome import Fit, PlanFinding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.models.memory.recipe import Recipe


class ContextOption(NamedTuple):
    """How an engine is given its context, and a longer one than the model's window."""

    option: str
    extensions: tuple[str, ...]  # options that extend the window; the first is the one to suggest
    variable: str = ""  # variable that lets a longer context pass


LENGTHS: Final[Mapping[str, ContextOption]] = {
    "sglang": ContextOption(
        "context-length",
        ("json-model-override-args",),
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
    ),
    "vllm": ContextOption(
        "max-model-len",
        ("hf-overrides", "rope-scaling"),
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    ),
    "llamacpp": ContextOption(
        "ctx-size",
        (
            *("rope-scaling", "rope-scale", "rope-freq-base", "rope-freq-scale"),
            *("yarn-orig-ctx", "override-kv"),
        ),
    ),
}
# Kinds of rope scaling whose factor is already in `max_position_embeddings`.
_INCLUDED: Final = frozenset({"default", "mrope", "llama3", "longrope", "su"})


def window_of_config(text: Mapping[str, Any], declared: int) -> int:
    """Return the window of a `config.json` that declares so many positions: with its rope scaling.

    YaRN counts from the length before scaling, other kinds from the declared one. Gemma 3 scales
    its layers without a window to the length that it declares.
    """
    if "gemma3" in str(text.get("model_type")):
        return declared
    rope = text.get("rope_scaling") or text.get("rope_parameters")
    if not isinstance(rope, dict):
        return declared
    factor, original = rope.get("factor"), rope.get("original_max_position_embeddings")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind in _INCLUDED or isinstance(factor, bool) or not isinstance(factor, int | float):
        return declared
    base = original if kind == "yarn" and type(original) is int else declared
    return max(declared, int(base * factor))


def beyond_window(recipe: Recipe, window: int, context: int) -> PlanFinding | None:
    """Report a context above the model's window.

    SGLang and vLLM refuse to start with it. llama.cpp caps every slot at the window, so it starts
    as long as the window is no less than the recipe's minimum.
    """
    length = LENGTHS.get(recipe.engine)
    if length is None or not 0 < window < context:
        return None
    extensions = {name.partition(".")[0] for name, value in recipe.options.items() if value}
    if extensions & {*length.extensions} or recipe.switched_on(length.variable):
        return None
    minimum = recipe.context_minimum or 0
    capped = recipe.engine == "llamacpp" and minimum <= window
    wanted = "context.requested" if context == recipe.context_requested else f"--{length.option}"
    also = " and context.minimum to no more than that" if minimum > window else ""
    return PlanFinding(
        Fit.TIGHT if capped else Fit.DOES_NOT_FIT,
        f"the model's own window is {window:,} tokens, not the {context:,} requested",
        (
            f"lower {wanted} to {window}{also}",
            f"extend the window by rope scaling: --{length.extensions[0]}",
            "choose a checkpoint with a longer window",
        ),
    )
