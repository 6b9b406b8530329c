"""Whether a median is better than another, or the same within the measurement's noise. Pure."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from math import atan, cos, pi, sin, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

from servicekit.lab.bench.figures import FIGURES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servicekit.lab.bench.figures import Figure, Statistics
    from servicekit.lab.bench.result import BenchResult, Case

FEWEST: Final = 3  # samples below which the spread is unknown
# Part of the comparisons of equal runs that may name a winner by chance, in any of their rows.
CHANCE: Final = 0.01
# Standard error of a median, in standard errors of the mean: the root of pi / 2.
OF_MEDIAN: Final = sqrt(pi / 2)
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


def judged(results: Sequence[BenchResult]) -> int:
    """Count the verdicts of a comparison of each of `results` with the first."""
    first, *others = results
    pairs = [(case, other.case(case.name)) for other in others for case in first.cases]
    return sum(
        min(len(case.values(figure)), len(other.values(figure))) >= FEWEST
        for case, other in pairs
        if other is not None
        for figure in FIGURES
    )


def judge(figure: Figure, before: Case, now: Case, rows: int = 1) -> Judgement:
    """Compare the medians of `figure` in two matching cases, in one of `rows` verdicts.

    A difference counts if it exceeds what chance does in `CHANCE` of all comparisons, however many
    rows they have, and the benchmark's precision. A median that is better because slow requests
    were cut off or failed is not better.
    """
    judgement = apparent(figure, before, now, rows)
    winner, loser = (now, before) if judgement.verdict is Difference.BETTER else (before, now)
    decided = judgement.verdict in {Difference.BETTER, Difference.WORSE}
    # Rounded: 1 - 0.99 is a little more than 0.01 in floating point.
    if decided and round(_left_out(figure, winner) - _left_out(figure, loser), 9) > LEFT_OUT:
        return judgement._replace(verdict=Difference.UNKNOWN)
    return judgement


def apparent(figure: Figure, before: Case, now: Case, rows: int = 1) -> Judgement:
    """Compare as `judge` does, whatever requests either case leaves out."""
    return compare(before.statistics(figure), now.statistics(figure), figure, rows)


def _left_out(figure: Figure, case: Case) -> float:
    return 1 - len(case.values(figure)) / max(1, len(case.samples))


def compare(
    before: Statistics | None, now: Statistics | None, figure: Figure, rows: int = 1
) -> Judgement:
    old = before.median if before else None
    new = now.median if now else None
    change = relative(old, new)
    if before is None or now is None or min(before.samples, now.samples) < FEWEST:
        return Judgement(Difference.UNKNOWN, old, new, change, None)
    precision = PRECISION * max(before.median, now.median)
    if figure.unit == "s":
        precision = max(precision, CLOCK)
    noise = max(_by_chance(before, now, rows), precision)
    gap = now.median - before.median
    if abs(gap) <= noise:
        verdict = Difference.SAME
    else:
        verdict = Difference.BETTER if (gap > 0) is figure.more_is_better else Difference.WORSE
    return Judgement(verdict, old, new, change, noise)


def _by_chance(before: Statistics, now: Statistics, rows: int) -> float:
    """Return what equal runs differ by in one comparison of `1 / CHANCE`, in any of `rows`.

    Bonferroni's bound over the rows on Student's t of the medians, with the pooled deviation.
    """
    freedom = before.samples + now.samples - 2
    squares = sum((one.samples - 1) * one.deviation**2 for one in (before, now))
    error = OF_MEDIAN * sqrt(squares / freedom * (1 / before.samples + 1 / now.samples))
    return error * quantile(CHANCE / max(1, rows), freedom)


@cache
def quantile(level: float, freedom: int) -> float:
    """Return the value that Student's t of `freedom` degrees exceeds with `level`, either way."""
    low, high = 0.0, 1.0
    while _beyond(high, freedom) > level:
        high *= 2
    while high - low > high * 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _beyond(middle, freedom) > level else (low, middle)
    return high


def _beyond(value: float, freedom: int) -> float:
    """Return how often |t| exceeds `value` (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = atan(value / sqrt(freedom))
    odd, square = freedom % 2, cos(angle) ** 2
    term, total = (cos(angle) if odd else 1.0), 0.0
    for number in range(1 + odd, freedom, 2):
        total += term
        term *= number / (number + 1) * square
    within = sin(angle) * total
    return 1 - (2 / pi * (angle + within) if odd else within)


def relative(before: float | None, now: float | None) -> float | None:
    """Return the change as a part of `before`; `None` if that is not a number."""
    return now / before - 1 if before and now is not None else None
