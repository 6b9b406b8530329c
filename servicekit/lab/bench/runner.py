"""Runs the cases of a suite: sends requests, measures times, reads counters. Clock, tasks.

Each sample is reported at once, so that an interrupt loses only the requests in progress.
"""

from __future__ import annotations

import asyncio
import re
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from servicekit.engines.base import ShapeError
from servicekit.errors import UserError
from servicekit.lab.bench import counters, prompts
from servicekit.lab.bench.result import Case
from servicekit.lab.bench.samples import Sample
from servicekit.lab.ruler import LONG, SHORT, Length, Ruler
from servicekit.lab.verify.chat import ChatRequest
from servicekit.lab.verify.runner import ChatClient

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from servicekit.lab.bench.cases import Planned
    from servicekit.lab.bench.samples import EngineSide
    from servicekit.lab.verify.chat import ChatReply
    from servicekit.profiles.vocabulary import EngineName

QUOTED: Final = 400  # characters of an answer that are kept
LONGEST_ANSWER: Final = 16_384  # characters of an answer that a suite's pattern is searched in
# Counters are read every `QUIET` seconds until two reads agree. After `READS` reads or `SETTLE`
# seconds they are taken as they are: another client is being served, or the server is slow.
QUIET: Final = 0.1
READS: Final = 20
SETTLE: Final = 10.0


class MeasuredServer(ChatClient, Protocol):
    """The server under test."""

    async def page(self, path: str) -> str:
        """Return the page at `path`; empty if there is none."""


class BenchListener(Protocol):
    """Receives the progress of a run."""

    def begins(self, planned: Planned) -> None:
        """A case begins."""

    def measured(self, sample: Sample) -> None:
        """One of its requests was answered."""

    def ended(self, case: Case) -> None:
        """The case is complete."""


class SuiteRunner:
    """One run against one service; `run` is a word that makes its prompts unlike all others."""

    def __init__(
        self,
        server: MeasuredServer,
        listener: BenchListener,
        *,
        served_name: str,
        engine: EngineName,
        metrics_path: str | None,
        run: str,
    ) -> None:
        self._server = server
        self._listener = listener
        self._served_name = served_name
        self._engine = engine
        self._metrics_path = metrics_path
        self._run = run
        self._begun: Mapping[str, float] | None = None
        self._read = 0  # tokens of all prompts so far, warm-up included

    async def measure(self, cases: Sequence[Planned]) -> None:
        """Measure one case after the other.

        Raises `UserError` if a case cannot be run, or none of its requests is answered: the cases
        after it would fail as well.
        """
        self._begun = await self._counters()
        for planned in cases:
            length = await self._warm_up(planned, await self._ruler(planned))
            self._listener.begins(planned)
            case = await self._case(planned, length)
            self._listener.ended(case)
            if not case.sound:
                raise UserError(f"{planned.name}: no request was answered: {case.faults[0]}")

    async def _ask(
        self, planned: Planned, length: Length | None, turn: int, max_tokens: int | None = None
    ) -> ChatReply:
        text = prompts.prompt(planned, length, run=self._run, turn=turn)
        body = prompts.body(planned, text, served_name=self._served_name, max_tokens=max_tokens)
        reply = await self._server.ask(ChatRequest(body, streamed=True))
        self._read += reply.prompt_tokens or 0
        return reply

    async def _ruler(self, planned: Planned) -> Ruler | None:
        """Count two short prompts; `None` for a case without text before its question."""
        if not planned.conditions.prompt_tokens:
            return None
        counts = []
        for turn, sentences in ((-1, SHORT), (-2, LONG)):
            reply = await self._ask(planned, Length(sentences), turn, max_tokens=1)
            counts.append(_counted(planned, reply))
        ruler = Ruler.of(*counts)
        if ruler is None:
            raise UserError(f"{planned.name}: the token count does not grow with the prompt")
        return ruler

    async def _warm_up(self, planned: Planned, ruler: Ruler | None) -> Length | None:
        """Send as many requests at once as will be measured, and record none of them.

        Returns the length, corrected by what the warm-up's prompts were off by.
        """
        wanted = planned.conditions.prompt_tokens
        length = None if ruler is None else ruler.length(wanted)
        turns = range(-10, -10 - planned.conditions.concurrency, -1)
        replies = await asyncio.gather(*(self._ask(planned, length, turn) for turn in turns))
        for reply in replies:
            if reply.broken:
                raise UserError(f"{planned.name}: the warm-up request failed: {reply.broken}")
        if ruler is None or length is None:
            return None
        return ruler.mended(length, wanted=wanted, counted=_counted(planned, replies[0]))

    async def _case(self, planned: Planned, length: Length | None) -> Case:
        before = await self._rested()
        samples: list[Sample] = []
        clock = asyncio.get_running_loop().time  # as the client's
        began = clock()
        turns = iter(range(planned.data.requests))

        async def client() -> None:
            for turn in turns:  # shared: each client takes the next turn
                asked = clock() - began
                sample = sample_of(planned, await self._ask(planned, length, turn), asked)
                samples.append(sample)
                self._listener.measured(sample)

        await asyncio.gather(*(client() for _ in range(planned.conditions.concurrency)))
        after = await self._rested()
        if before is None or after is None:
            return case_of(planned, samples, None)
        return case_of(planned, samples, counters.moved(self._engine, before, after))

    async def _counters(self) -> Mapping[str, float] | None:
        """Read the engine's counters; `None` if it has none."""
        if self._metrics_path is None:
            return None
        try:
            return counters.read(self._engine, await self._server.page(self._metrics_path))
        except ShapeError:
            return None

    async def _rested(self) -> Mapping[str, float] | None:
        """Read the counters once they have settled, since some lag behind the answer.

        They have settled when two reads agree and include every prompt that was sent.
        """
        if self._begun is None:
            return None
        clock = asyncio.get_running_loop().time
        until = clock() + SETTLE
        now = await self._counters()
        for _ in range(READS):
            if now is None or clock() > until:
                break
            await asyncio.sleep(QUIET)
            last, now = now, await self._counters()
            if last == now and self._read <= _grown("prompt_tokens", self._begun, now):
                break
        return now


def _grown(figure: str, before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """How far a figure grew; infinite if it is not reported, so that nothing waits for it."""
    return after[figure] - before.get(figure, 0.0) if figure in after else inf


def _counted(planned: Planned, reply: ChatReply) -> int:
    if reply.broken:
        raise UserError(f"{planned.name}: the request that counts a prompt failed: {reply.broken}")
    if reply.prompt_tokens is None:
        raise UserError(f"{planned.name}: the engine does not count prompt tokens")
    return reply.prompt_tokens


def sample_of(planned: Planned, reply: ChatReply, asked: float) -> Sample:
    """Make a sample of a reply. The content of an answer with a forced length is not judged."""
    fault = reply.broken if planned.conditions.exact_output else reply.fault
    expect = planned.data.expect
    correct: bool | None = None
    if expect is not None:
        match = re.search(expect, reply.content[:LONGEST_ANSWER], re.IGNORECASE | re.DOTALL)
        correct = not fault and match is not None
    return Sample(
        asked=asked,
        first=reply.ttft,
        visible=reply.visible,
        last=reply.last,
        done=reply.seconds,
        prompt_tokens=reply.prompt_tokens,
        cached_tokens=reply.cached_tokens,
        completion_tokens=reply.completion_tokens,
        finish_reason=reply.finish_reason,
        correct=correct,
        answer=reply.content[:QUOTED],
        fault=fault,
    )


def case_of(planned: Planned, samples: Sequence[Sample], engine: EngineSide | None) -> Case:
    return Case(
        name=planned.name,
        conditions=planned.conditions,
        planned=planned.data.requests,
        samples=tuple(samples),
        engine=engine,
    )
