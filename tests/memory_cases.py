"""Recipes and sizes that several tests of the memory plan share: the starts that were published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from servicekit.models.memory.planning import budget
from servicekit.models.memory.recipe import Recipe
from servicekit.models.memory.sources import known_geometry
from servicekit.models.memory.units import GIB

if TYPE_CHECKING:
    from servicekit.models.memory.geometry import Geometry
    from servicekit.models.memory.outcome import Budget

NVFP4: Final = "RadixArk/Qwen3.8-27B-NVFP4"
INFERACT: Final = "Inferact/Qwen3.8-27B-NVFP4"
DSPARK: Final = "RadixArk/Qwen3.8-27B-DSpark"
DFLASH: Final = "incoai/Qwen3.8-27B-DFlash2"
LLAMA: Final = "meta-llama/Llama-3.1-8B-Instruct"

RTX_5090: Final = round(31.4 * GIB)
"""Usable bytes of the card that every published start here ran on."""

OFFICIAL: Final = {
    "mem-fraction-static": 0.85,
    "attention-backend": "flashinfer",
    "chunked-prefill-size": 2048,
    "mamba-full-memory-ratio": 4.59,
}
"""The published recipe for one RTX 5090."""

LONG: Final = {
    "mem-fraction-static": 0.95,
    "attention-backend": "flashinfer",
    "chunked-prefill-size": 2048,
    "max-total-tokens": 200000,
    "max-mamba-cache-size": 20,
    "mamba-ssm-dtype": "bfloat16",
}
"""Its 200,000-token variant."""


def geometry_of(checkpoint: str = NVFP4) -> Geometry:
    """Return the geometry of a checkpoint that servicekit knows."""
    geometry = known_geometry(checkpoint)
    assert geometry is not None
    return geometry


def recipe_of(options: dict[str, Any], **more: Any) -> Recipe:  # noqa: ANN401 (the recipe's fields)
    """Return a recipe, by default of SGLang 0.5.16 and the NVFP4 checkpoint."""
    fields = {"engine": "sglang", "engine_version": "0.5.16", "model": NVFP4, **more}
    return Recipe(options=options, **fields)


def plan_of(
    options: dict[str, Any],
    *,
    memory: int = RTX_5090,
    geometry: Geometry | None = None,
    average_length: int = 5120,
    **more: Any,  # noqa: ANN401 (the recipe's fields)
) -> Budget:
    """Return the budget of a recipe as `recipe_of` makes it."""
    recipe = recipe_of(options, **more)
    if geometry is None:
        geometry = geometry_of(recipe.model)
    return budget(recipe, geometry, memory, average_length=average_length)
