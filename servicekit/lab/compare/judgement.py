"""Whether a median is better than another, or the same within what was measured. Pure."""

from __future__ import annotations

from enum import StrEnum
from math import sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from servicekit.lab.bench.values import Case, Figure, Statistics

FEWEST: Final = 3
"""Samples of a case below which nobody knows its spread."""
ENOUGH: Final = 16
"""Samples whose standard deviation is the whole noise. The medians of fewer are apart by chance
more easily: the deviation then counts as often as the root of `ENOUGH` over their number, so that
of a hundred comparisons of equal runs three at most find a difference, with three samples, too."""
PRECISION: Final = 0.02
"""Part of a median that a benchmark may be wrong by, as it promises against known timings."""
LEFT_OUT: Final = 0.01
"""Part of the requests by which the better of two medians may leave out more than the other."""
CLOCK: Final = 0.002
"""Seconds that it may be wrong by where that is more."""


class Difference(StrEnum):
    """What a median is, measured against another one."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference"
    """The medians differ by no more than the samples do among themselves."""
    UNKNOWN = "cannot tell"
    """One of them was not measured, or not often enough; or the better one leaves requests out."""


class Judgement(NamedTuple):
    """A median against the one it is compared with."""

    verdict: Difference
    before: float | None
    """The other median."""
    now: float | None
    """This one, in the figure's unit."""
    change: float | None
    """Part of the other median by which this one is more; `None` where one is missing or 0."""
    noise: float | None
    """What the difference must exceed to be one, in the figure's unit; `None` if not known."""


def judge(figure: Figure, before: Case, now: Case) -> Judgement:
    """Compare the medians of `figure` in two cases that match.

    A difference is one where it exceeds what lies between the samples of either run, and what the
    benchmark itself may be wrong by. What looks better since it is of fewer of the requests, as the
    slow ones were cut off or failed, is not.
    """
    found = apparent(figure, before, now)
    winner, loser = (now, before) if found.verdict is Difference.BETTER else (before, now)
    decided = found.verdict in {Difference.BETTER, Difference.WORSE}
    # Rounded: 1 - 0.99 is a little more than 0.01 to a computer.
    if decided and round(_left_out(figure, winner) - _left_out(figure, loser), 9) > LEFT_OUT:
        return found._replace(verdict=Difference.UNKNOWN)
    return found


def apparent(figure: Figure, before: Case, now: Case) -> Judgement:
    """Do the same with what was measured alone, whatever each of them leaves out."""
    return compare(before.statistics(figure), now.statistics(figure), figure)


def _left_out(figure: Figure, case: Case) -> float:
    """Part of the requests that have no such figure."""
    return 1 - len(case.values(figure)) / max(1, len(case.samples))


def compare(before: Statistics | None, now: Statistics | None, figure: Figure) -> Judgement:
    """Do the same with the statistics themselves."""
    was = before.median if before else None
    became = now.median if now else None
    change = relative(was, became)
    if before is None or now is None or min(before.samples, now.samples) < FEWEST:
        return Judgement(Difference.UNKNOWN, was, became, change, None)
    precision = PRECISION * max(before.median, now.median)
    if figure.unit == "s":
        precision = max(precision, CLOCK)
    noise = max(_scatter(before), _scatter(now), precision)
    gap = now.median - before.median
    if abs(gap) <= noise:
        verdict = Difference.SAME
    else:
        verdict = Difference.BETTER if (gap > 0) is figure.more_is_better else Difference.WORSE
    return Judgement(verdict, was, became, change, noise)


def _scatter(found: Statistics) -> float:
    return found.deviation * max(1.0, sqrt(ENOUGH / found.samples))


def relative(before: float | None, now: float | None) -> float | None:
    """By which part of `before` the other is more; `None` where that is no number."""
    return now / before - 1 if before and now is not None else None
