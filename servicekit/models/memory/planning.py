"""Plans the memory of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from servicekit.errors import UserError
from servicekit.models.memory import llamacpp, sglang, vllm
from servicekit.models.memory.sources import find_geometry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from servicekit.models.memory.geometry import Geometry
    from servicekit.models.memory.outcome import Budget
    from servicekit.models.memory.recipe import Recipe

# Tokens of an average request, for which SGLang's cookbook balances its pools.
AVERAGE_LENGTH: Final = 5120

_ENGINES: Final[Mapping[str, Callable[[Recipe, Geometry, int, int], Budget]]] = {
    "sglang": sglang.plan,
    "vllm": vllm.plan,
    "llamacpp": llamacpp.plan,
}


def budget(
    recipe: Recipe,
    geometry: Geometry,
    gpu_memory_bytes: int,
    *,
    average_length: int = AVERAGE_LENGTH,
) -> Budget:
    """Work out what `recipe` does with a GPU of so many usable bytes (RTX 5090: 31.4 GiB). Pure.

    Raises `UserError` for an engine without arithmetic, an option that is no number where one is
    needed, a KV type of unknown size, or a model spread over several GPUs.
    """
    if gpu_memory_bytes < 1 or average_length < 1:
        raise UserError("memory and average length must be positive")
    try:
        plan = _ENGINES[recipe.engine]
    except KeyError:
        known = ", ".join(_ENGINES)
        raise UserError(
            f'the memory of engine "{recipe.engine}" cannot be planned',
            hint=f"supported engines are {known}",
        ) from None
    if not recipe.gpu and recipe.engine != "llamacpp":
        raise UserError(f'the memory of engine "{recipe.engine}" without a GPU cannot be planned')
    return plan(recipe, geometry, gpu_memory_bytes, average_length)


def plan_memory(
    recipe: Recipe,
    gpu_memory_bytes: int,
    *,
    model_path: Path | None = None,
    average_length: int = AVERAGE_LENGTH,
) -> Budget:
    """Find the model's geometry and work out the budget: what a command line calls.

    `model_path` is where the model lies on this host, where that is known: a directory, a
    `config.json` or a GGUF.
    """
    geometry = find_geometry(recipe.model, model_path)
    return budget(recipe, geometry, gpu_memory_bytes, average_length=average_length)
