"""What `servicekit bench` adds to what it measures: its figures beside those of the server itself.

The server knows when it sent what. It runs in the client's own event loop, so that the work of both
is in each figure, as on a machine with one core; the clock is the real one.
"""

from __future__ import annotations

import asyncio
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from machines.paced import Pace, paced

from benchmarks.table import Row
from servicekit.lab.bench import suites
from servicekit.lab.bench.figures import DECODE, DONE, TTFT, Figure, Statistics
from servicekit.lab.bench.runner import SuiteRunner
from servicekit.lab.verify.client import Client
from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from machines.paced import Sent

    from benchmarks.machinery import Machinery
    from servicekit.lab.bench.cases import Planned
    from servicekit.lab.bench.result import Case
    from servicekit.lab.bench.samples import Sample

RATES: Final = (100, 300, 1000)
"""Events/s of one answer; an RTX 5090 gives some 50 to 300 tokens/s of a model of 27 billions."""
AT_ONCE: Final = (1, 4)
FIRST: Final = 0.2
"""Seconds to the first token."""
REQUESTS: Final = 12
WITHIN: Final = 2.0
"""Percent by which a figure may differ from what the server knows."""
SUITE: Final = """
name = "overhead"
version = 1
summary = "known timings"
[[cases]]
name = "one"
question = "Go on."
max_tokens = 512
requests = {requests}
concurrency = [{at_once}]
"""
SETTING: Final = suites.ServiceLimits(
    4096, 4096, 4095, "?", tells_thinking=True, forces_length=True
)


class _Kept:
    """Keeps the case."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def begins(self, planned: Planned) -> None:
        """Nothing is to be told."""

    def measured(self, sample: Sample) -> None:
        """Nothing is to be told."""

    def ended(self, case: Case) -> None:
        """Keep it."""
        self.cases.append(case)


class _Known(NamedTuple):
    """A figure of the client's, and what the server knows of it."""

    figure: Figure
    ours: Statistics | None
    theirs: float


def measure(_: Machinery) -> Iterator[Row]:
    """Measure answers that come slowly and fast, one at a time and four."""
    for at_once in AT_ONCE:
        for rate in RATES:
            for known in asyncio.run(_measured(rate, at_once)):
                yield _row(known, f"{rate} events/s, {at_once} at once")


async def _measured(rate: int, at_once: int) -> list[_Known]:
    loaded = suites.parse(SUITE.format(requests=REQUESTS, at_once=at_once), where="overhead")
    cases, _ = suites.planned(loaded.data, SETTING)
    kept = _Kept()
    pace = Pace(first=FIRST, gap=1 / rate, words=min(rate, 300))
    async with paced(pace) as server, Client(server.url, limit=60) as client:
        runner = SuiteRunner(
            client,
            kept,
            served_name="m",
            engine=EngineName.VLLM,
            metrics_path="/metrics",
            run="benchmarks",
        )
        await runner.measure(cases)
        return list(_compared(kept.cases[0], server.sent[-REQUESTS:]))


def _compared(case: Case, sent: Sequence[Sent]) -> Iterator[_Known]:
    first = [each.first - each.arrived for each in sent if each.first]
    done = [each.done - each.arrived for each in sent if each.done]
    rates = [
        (each.tokens - 1) / (each.last - each.first) for each in sent if each.first and each.last
    ]
    for figure, theirs in ((TTFT, first), (DECODE, rates), (DONE, done)):
        yield _Known(figure, case.statistics(figure), median(theirs))


def _row(known: _Known, of: str) -> Row:
    what = f"bench: {known.figure.label}, off by"
    if known.ours is None:
        return Row(what, of, None, "%", aim=WITHIN, said="nothing measured")
    ratio = known.ours.median / known.theirs
    how = (
        f"{known.ours.median:.4g} {known.figure.unit} measured, {known.theirs:.4g} sent: "
        f"{ratio:.4f} times, medians of {known.ours.samples}"
    )
    return Row(what, of, abs(ratio - 1) * 100, "%", aim=WITHIN, how=how)
