"""The figures of a benchmark and their statistics. Pure."""

from __future__ import annotations

from math import ceil
from statistics import median, stdev
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from servicekit.lab.bench.samples import Sample


class Statistics(NamedTuple):
    """A figure over the samples of a case."""

    samples: int
    median: float
    p99: float
    """The smallest value that 99 % of the samples do not exceed; with fewer than 100, the largest.
    """
    least: float
    most: float
    deviation: float  # standard deviation of the samples; 0 for one sample


def statistics(values: tuple[float, ...]) -> Statistics | None:
    """Summarise `values`; `None` for none."""
    if not values:
        return None
    ordered = sorted(values)
    return Statistics(
        samples=len(ordered),
        median=median(ordered),
        p99=ordered[ceil(0.99 * len(ordered)) - 1],
        least=ordered[0],
        most=ordered[-1],
        deviation=stdev(ordered) if len(ordered) > 1 else 0.0,
    )


class Figure(NamedTuple):
    """A figure of one request."""

    name: str
    label: str
    unit: str
    of: Callable[[Sample], float | None]

    @property
    def more_is_better(self) -> bool:
        """Whether it is a rate, not a time."""
        return self.unit != "s"


TTFT: Final = Figure("ttft", "first token", "s", lambda sample: sample.ttft)
VISIBLE: Final = Figure("visible", "first visible", "s", lambda sample: sample.first_visible)
PREFILL: Final = Figure("prefill", "prefill", "tokens/s", lambda sample: sample.prefill)
DECODE: Final = Figure("decode", "decode", "tokens/s", lambda sample: sample.decode)
DONE: Final = Figure("done", "answer finished", "s", lambda sample: sample.done)

FIGURES: Final = (TTFT, VISIBLE, PREFILL, DECODE, DONE)  # in the order of a request
