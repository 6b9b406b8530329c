"""The memory plan: what a recipe does with the GPU, worked out before anything starts.

`plan_memory` is the one call for a command line, `budget` the pure one; `render_budget` and
`budget_json` say the result. docs/memory.md explains the model and where each number comes from.
"""

from servicekit.models.memory.description import geometry_from_config
from servicekit.models.memory.geometry import Geometry
from servicekit.models.memory.outcome import Budget, Fit, Part, PartName
from servicekit.models.memory.planning import AVERAGE_LENGTH, budget, plan_memory
from servicekit.models.memory.recipe import Recipe
from servicekit.models.memory.rendering import budget_json, render_budget
from servicekit.models.memory.sources import find_geometry, geometry_from_gguf, known_geometry
from servicekit.models.memory.units import parse_size

__all__ = [
    "AVERAGE_LENGTH",
    "Budget",
    "Fit",
    "Geometry",
    "Part",
    "PartName",
    "Recipe",
    "budget",
    "budget_json",
    "find_geometry",
    "geometry_from_config",
    "geometry_from_gguf",
    "known_geometry",
    "parse_size",
    "plan_memory",
    "render_budget",
]
