"""Whether a median is better than another, or the same within the measurement's noise. Pure."""

from __future__ import annotations

from enum import StrEnum
from math import hypot, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from servicekit.lab.bench.figures import Figure, Statistics
    from servicekit.lab.bench.result import Case

FEWEST: Final = 3  # samples below which the spread is unknown
# With `ENOUGH` samples, the noise of a run is its standard deviation; with fewer it grows by the
# root of `ENOUGH` over their number, since medians of few samples differ by chance more easily.
ENOUGH: Final = 16
# Part of the larger median by which two runs of one service may differ beyond their own spread:
# clock rates, temperature, where memory lies, and what a benchmark may be wrong by (2 %).
PRECISION: Final = 0.05
CLOCK: Final = 0.002  # seconds by which a time may be wrong, where that is more
LEFT_OUT: Final = 0.01  # part of the requests that the better median may leave out beyond the other


class Difference(StrEnum):
    """A median compared with another one."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference"  # the medians differ by no more than the noise
    UNKNOWN = "cannot tell"
    """One was not measured often enough, or the better one leaves out requests."""


class Judgement(NamedTuple):
    """A median and the one that it is compared with."""

    verdict: Difference
    before: float | None  # the other median
    now: float | None  # this one, in the figure's unit
    change: float | None  # relative change from the other median; `None` if one is missing or 0
    noise: float | None  # what the difference must exceed, in the figure's unit; `None` if unknown


def judge(figure: Figure, before: Case, now: Case) -> Judgement:
    """Compare the medians of `figure` in two matching cases.

    A difference counts if it exceeds the spread of the samples and the benchmark's precision. A
    median that is better because slow requests were cut off or failed is not better.
    """
    judgement = apparent(figure, before, now)
    winner, loser = (now, before) if judgement.verdict is Difference.BETTER else (before, now)
    decided = judgement.verdict in {Difference.BETTER, Difference.WORSE}
    # Rounded: 1 - 0.99 is a little more than 0.01 in floating point.
    if decided and round(_left_out(figure, winner) - _left_out(figure, loser), 9) > LEFT_OUT:
        return judgement._replace(verdict=Difference.UNKNOWN)
    return judgement


def apparent(figure: Figure, before: Case, now: Case) -> Judgement:
    """Compare as `judge` does, whatever requests either case leaves out."""
    return compare(before.statistics(figure), now.statistics(figure), figure)


def _left_out(figure: Figure, case: Case) -> float:
    return 1 - len(case.values(figure)) / max(1, len(case.samples))


def compare(before: Statistics | None, now: Statistics | None, figure: Figure) -> Judgement:
    old = before.median if before else None
    new = now.median if now else None
    change = relative(old, new)
    if before is None or now is None or min(before.samples, now.samples) < FEWEST:
        return Judgement(Difference.UNKNOWN, old, new, change, None)
    precision = PRECISION * max(before.median, now.median)
    if figure.unit == "s":
        precision = max(precision, CLOCK)
    noise = max(hypot(_scatter(before), _scatter(now)), precision)
    gap = now.median - before.median
    if abs(gap) <= noise:
        verdict = Difference.SAME
    else:
        verdict = Difference.BETTER if (gap > 0) is figure.more_is_better else Difference.WORSE
    return Judgement(verdict, old, new, change, noise)


def _scatter(stats: Statistics) -> float:
    return stats.deviation * max(1.0, sqrt(ENOUGH / stats.samples))


def relative(before: float | None, now: float | None) -> float | None:
    """Return the change as a part of `before`; `None` if that is not a number."""
    return now / before - 1 if before and now is not None else None
