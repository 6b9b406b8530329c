"""Whether results may be put side by side at all. Pure.

A suite of another version or text asks something else, and what was asked under other conditions
answers something else: neither says anything about which of two runs is the faster one.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from servicekit.errors import UserError
from servicekit.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from servicekit.lab.bench.values import BenchResult, Case

LENGTHS_APART: Final = 0.04
"""Part by which prompts of one length may differ in two runs: either may be off by 2 %."""


def mismatches(first: BenchResult, other: BenchResult) -> tuple[str, ...]:
    """Name what keeps two results apart, each with both values; empty where they match.

    The order of the two changes the order of the values alone.
    """
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
        for difference in one.conditions.differences(two.conditions):
            name, values = difference.split(" ", 1)
            yield f"{name.replace('_', ' ')} {values}"
        lengths = _counted(one), _counted(two)
        if one.conditions.prompt_tokens and _apart(*lengths):
            yield f"tokens of the prompts as counted ({lengths[0]:.0f}, {lengths[1]:.0f})"
    if not pairs:
        yield f"measured cases ({_measured(first)}, {_measured(other)})"


def _counted(case: Case) -> float:
    """Tokens of a prompt in the middle, as the engine counted them; 0 where it did not."""
    return median([each.prompt_tokens or 0 for each in case.sound] or [0])


def _apart(one: float, two: float) -> bool:
    return bool(one and two) and abs(one - two) > LENGTHS_APART * max(one, two)


def _measured(result: BenchResult) -> str:
    return " ".join(case.name for case in result.cases if case.samples) or "none"


def both(first: BenchResult, other: BenchResult) -> tuple[tuple[Case, Case], ...]:
    """Pair the cases that both have measured, in the order of the first."""
    found = ((case, other.case(case.name)) for case in first.cases if case.samples)
    return tuple((one, two) for one, two in found if two is not None and two.samples)


def refuse_mismatch(results: Sequence[BenchResult]) -> None:
    """Raise `UserError`, one line, where not all `results` match the first."""
    first, *others = results
    apart = [
        f'"{other.name}" does not match "{first.name}" in {", ".join(found)}'
        for other in others
        if (found := mismatches(first, other))
    ]
    if apart:
        raise UserError(
            printable(f"nothing is compared: {'; '.join(apart)}"),
            hint="only what was measured in the same way is put side by side",
        )
