"""Whether results can be compared at all. Pure.

Results of different suites, or measured under different conditions, say nothing about which of two
runs is faster.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from servicekit.errors import UserError
from servicekit.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from servicekit.lab.bench.result import BenchResult, Case

LENGTHS_APART: Final = 0.04  # part by which prompts may differ: each may be off by 2 %


def mismatches(first: BenchResult, other: BenchResult) -> tuple[str, ...]:
    """Name each condition that differs, with both values; empty if the results match."""
    return tuple(dict.fromkeys(_mismatches(first, other)))


def _mismatches(first: BenchResult, other: BenchResult) -> Iterator[str]:
    if first.suite.name != other.suite.name:
        yield f"suite ({first.suite.name}, {other.suite.name})"
        return
    if first.suite.version != other.suite.version:
        yield f"suite version ({first.suite.version}, {other.suite.version})"
    if first.suite.hash != other.suite.hash:
        yield f"suite hash ({first.suite.hash}, {other.suite.hash})"
    pairs = both(first, other)
    for one, two in pairs:
        for name, values in one.conditions.differences(two.conditions):
            yield f"{name.replace('_', ' ')} {values}"
        lengths = _counted(one), _counted(two)
        if one.conditions.prompt_tokens and _apart(*lengths):
            yield f"counted prompt tokens ({lengths[0]:.0f}, {lengths[1]:.0f})"
    if not pairs:
        yield f"measured cases ({_measured(first)}, {_measured(other)})"


def _counted(case: Case) -> float:
    """Median prompt tokens as counted by the engine; 0 if it did not count."""
    return median([each.prompt_tokens or 0 for each in case.sound] or [0])


def _apart(one: float, two: float) -> bool:
    return bool(one and two) and abs(one - two) > LENGTHS_APART * max(one, two)


def _measured(result: BenchResult) -> str:
    return " ".join(case.name for case in result.cases if case.samples) or "none"


def both(first: BenchResult, other: BenchResult) -> tuple[tuple[Case, Case], ...]:
    differences = ((case, other.case(case.name)) for case in first.cases if case.samples)
    return tuple((one, two) for one, two in differences if two is not None and two.samples)


def refuse_mismatch(results: Sequence[BenchResult]) -> None:
    """Raise a one-line `UserError` unless all `results` match the first."""
    first, *others = results
    apart = [
        f'"{other.name}" does not match "{first.name}" in {", ".join(differences)}'
        for other in others
        if (differences := mismatches(first, other))
    ]
    if apart:
        raise UserError(
            printable(f"cannot compare: {'; '.join(apart)}"),
            hint="compare runs of the same suite under the same conditions",
        )
