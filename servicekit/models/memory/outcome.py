"""The result of a memory plan: parts, figures, and a verdict with remedies. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from servicekit.models.memory.units import GIB, gib

if TYPE_CHECKING:
    from collections.abc import Iterable

COMFORT: Final = GIB // 4  # bytes that should stay free when everything is running
# What the estimates may be off by in all. A shortage within it is `tight`, not `does-not-fit`: a
# start that would succeed is not refused for a guess.
DOUBT: Final = GIB // 2


class PartName(StrEnum):
    """What GPU memory goes to, in the order in which an engine takes it."""

    RUNTIME = "runtime"
    WEIGHTS = "weights"
    DRAFTER = "drafter"
    STATES = "state pool"
    KV = "KV pool"
    INTERMEDIATE = "intermediate states"
    GRAPHS = "CUDA graphs"
    TRANSIENTS = "transients"
    FREE = "free"


# What stands when the pools do: the rest is what SGLang logs as `Memory pool end. avail mem`.
POOLED: Final = (
    PartName.RUNTIME,
    PartName.WEIGHTS,
    PartName.DRAFTER,
    PartName.STATES,
    PartName.KV,
    PartName.INTERMEDIATE,
)


@dataclass(frozen=True, slots=True)
class Part:
    """One item of the budget. `free` is negative where the memory is short."""

    name: PartName
    bytes: int
    detail: str = ""
    estimated: bool = False
    """Whether it is measured elsewhere or guessed, not worked out; docs/memory.md says from what.
    """


class Fit(StrEnum):
    """Whether a recipe fits, from good to bad."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does-not-fit"


_RANK: Final = {verdict: rank for rank, verdict in enumerate(Fit)}


@dataclass(frozen=True, slots=True)
class PlanFinding:
    """A problem of a plan, and its remedies in order."""

    verdict: Fit
    reason: str
    levers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The memory plan of one recipe on one GPU."""

    title: str
    total: int  # bytes of GPU memory that the plan is for; the parts add up to it
    parts: tuple[Part, ...]
    kv_tokens: int  # tokens that the physical pool holds, as the engine will report them
    slots: int | None = None
    """State slots (SGLang) or server slots (llama.cpp); `None` where the engine has none."""
    concurrency: int  # requests served at once
    effective_context: int
    """Tokens that one request can use: the smaller of the declared length and the pool."""
    usable_input: int  # tokens of input that the engine accepts in one request
    balanced_ratio: float | None = None
    """State ratio at which both pools run out together, for requests of `average_length`."""
    average_length: int
    verdict: Fit = Fit.FITS
    reason: str
    levers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def bytes_of(self, *names: PartName) -> int:
        return sum(part.bytes for part in self.parts if part.name in names)

    @property
    def figures(self) -> dict[str, float]:
        """The parts that a boot log names, too, by the names of `reading.BootFacts`."""
        parts = {
            "weights_gib": PartName.WEIGHTS,
            "kv_gib": PartName.KV,
            "state_gib": PartName.STATES,
            "graph_gib": PartName.GRAPHS,
        }
        sizes = {name: self.bytes_of(part) for name, part in parts.items()}
        return {name: round(size / GIB, 3) for name, size in sizes.items() if size}

    @property
    def free(self) -> int:
        """Bytes that stay free while a request runs; negative where they are short."""
        return self.bytes_of(PartName.FREE)

    @property
    def left_after_pools(self) -> int:
        """Bytes left when weights and pools stand: SGLang logs them as `Memory pool end`."""
        return self.total - self.bytes_of(*POOLED)


def judged(budget: Budget, findings: Iterable[PlanFinding], notes: Iterable[str] = ()) -> Budget:
    """Put the first of the worst findings into `budget`; without any, it fits for its own reason.

    The levers of the worst finding come first. The other findings precede the `notes`.
    """
    ranked = sorted(findings, key=lambda finding: -_RANK[finding.verdict])
    others = (finding.reason for finding in ranked[1:])
    budget = replace(budget, notes=(*others, *notes))
    if not ranked:
        return budget
    levers = dict.fromkeys(lever for finding in ranked for lever in finding.levers)
    first = ranked[0]
    return replace(budget, verdict=first.verdict, reason=first.reason, levers=tuple(levers))


def unknown_drafter(name: str | None) -> PlanFinding:
    """Report that the plan counts nothing for a drafter."""
    drafter = f'the drafter "{name}"' if name else "the drafter of this speculation"
    return PlanFinding(Fit.TIGHT, f"{drafter} is not known and not counted")


def with_free(parts: Iterable[Part], total: int) -> tuple[Part, ...]:
    """Return `parts` and what is left of `total` behind them, negative where they exceed it."""
    known = tuple(parts)
    left = total - sum(part.bytes for part in known)
    estimated = any(part.estimated for part in known)
    return (
        *known,
        Part(PartName.FREE, left, "" if left >= 0 else f"{gib(-left)} short", estimated=estimated),
    )
