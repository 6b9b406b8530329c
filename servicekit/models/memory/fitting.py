"""The longest context that fits a card, for so many requests at once. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from servicekit.errors import UserError
from servicekit.models.memory.outcome import Fit
from servicekit.models.memory.planning import AVERAGE_LENGTH, budget
from servicekit.models.memory.units import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.models.memory.geometry import Geometry
    from servicekit.models.memory.outcome import Budget
    from servicekit.models.memory.recipe import Recipe

STEP: Final = 256  # tokens between the contexts that are tried


class _Names(NamedTuple):
    """How an engine calls what is varied."""

    context: str
    requests: str
    dropped: tuple[str, ...] = ()
    """Options that would limit the search."""


_ENGINES: Final[Mapping[str, _Names]] = {
    "sglang": _Names("context-length", "max-running-requests", ("max-total-tokens",)),
    "vllm": _Names("max-model-len", "max-num-seqs", ("num-gpu-blocks-override",)),
    "llamacpp": _Names("ctx-size", "parallel", ("c", "np")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Longest:
    """The longest context, and the plan with it."""

    context: int
    """Tokens of each request; 0 where none fits."""
    requests: int
    options: Mapping[str, int]
    """What to set in the profile."""
    plan: Budget

    @property
    def reason(self) -> str:
        """Why none fits, where none does."""
        if self.plan.verdict is not Fit.DOES_NOT_FIT and self.plan.concurrency < self.requests:
            return f"{counted(self.plan.concurrency, 'request')} at once, not {self.requests}"
        return self.plan.reason


def longest(
    recipe: Recipe, geometry: Geometry, gpu_memory_bytes: int, *, requests: int = 1
) -> Longest:
    """Find the longest context that `requests` can use at once.

    Among the contexts that fit comfortably; where none does, among those that are tight. Raises
    `UserError` where the plan does.
    """
    names = _ENGINES.get(recipe.engine)
    if names is None:
        raise UserError(f'the memory of engine "{recipe.engine}" cannot be planned')

    def tried(steps: int) -> tuple[Budget, Mapping[str, int]]:
        length = steps * STEP
        size = length * requests if recipe.engine == "llamacpp" else length
        options = {names.context: size, names.requests: requests}
        kept = {name: one for name, one in recipe.options.items() if name not in names.dropped}
        changed = replace(
            recipe,
            options={**kept, **options},
            context_requested=length,
            context_minimum=length,
        )
        average = min(AVERAGE_LENGTH, length)
        plan = budget(changed, geometry, gpu_memory_bytes, average_length=average)
        return plan, options

    def fits(steps: int, wanted: tuple[Fit, ...]) -> bool:
        plan, _ = tried(steps)
        length = steps * STEP
        # SGLang shares one pool, and its concurrency is for requests of the average length.
        shared = plan.kv_tokens >= length * requests if recipe.engine == "sglang" else True
        return (
            plan.verdict in wanted
            and plan.effective_context >= length
            and plan.concurrency >= requests
            and shared
        )

    most = max(1, geometry.context // STEP)
    for wanted in ((Fit.FITS,), (Fit.FITS, Fit.TIGHT)):
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle, wanted) else (low, middle - 1)
        if low:
            plan, options = tried(low)
            return Longest(context=low * STEP, requests=requests, options=options, plan=plan)
    plan, options = tried(1)
    return Longest(context=0, requests=requests, options=options, plan=plan)
