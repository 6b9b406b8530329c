"""Runs the cases of a suite: asks, takes the time, and reads the engine's counters. Clock, tasks.

Whatever was measured is told at once, so that an interrupt loses nothing but what was under way.
"""

from __future__ import annotations

import asyncio
import re
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from servicekit.engines.base import ShapeError
from servicekit.errors import UserError
from servicekit.lab.bench import counters, prompts
from servicekit.lab.bench.values import Case, Sample
from servicekit.lab.verify.values import ChatRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from servicekit.lab.bench.cases import Planned
    from servicekit.lab.bench.prompts import Length, Ruler
    from servicekit.lab.bench.values import EngineSide
    from servicekit.lab.verify.values import ChatReply
    from servicekit.profiles.vocabulary import EngineName

QUOTED: Final = 400
"""Characters of an answer that are kept."""
QUIET: Final = 0.1
"""Seconds between two looks at counters that are to agree."""
LOOKS: Final = 20
"""Looks after which they are taken as they are: somebody else is being served."""
PATIENCE: Final = 10.0
"""Seconds after which they are, too: a server that is slow to tell would hold up every case."""


class MeasuredServer(Protocol):
    """What is measured."""

    async def ask(self, request: ChatRequest) -> ChatReply:
        """Give the reply, good or bad."""

    async def page(self, path: str) -> str:
        """Give a page, empty where there is none."""


class BenchListener(Protocol):
    """Who is told how it gets on."""

    def begins(self, planned: Planned) -> None:
        """A case begins."""

    def measured(self, sample: Sample) -> None:
        """One of its requests was answered."""

    def ended(self, case: Case) -> None:
        """It is over."""


class SuiteRunner:
    """One run against one service; `run` is a word by which its prompts differ from all others'."""

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
        self._read = 0
        """Tokens of all prompts so far, measured ones and others."""

    async def measure(self, cases: Sequence[Planned]) -> None:
        """Measure one case after the other.

        Raise `UserError` where one cannot be asked at all, or none of its requests is answered:
        nothing that follows would be.
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
        """Find how long the text before a question becomes; `None` where there is none."""
        if not planned.conditions.prompt_tokens:
            return None
        counts = []
        for turn, sentences in ((-1, prompts.SHORT), (-2, prompts.LONG)):
            reply = await self._ask(planned, prompts.Length(sentences), turn, max_tokens=1)
            counts.append(_counted(planned, reply))
        ruler = prompts.Ruler.of(*counts)
        if ruler is None:
            raise UserError(f"{planned.name}: the tokens of a prompt do not grow with it")
        return ruler

    async def _warm_up(self, planned: Planned, ruler: Ruler | None) -> Length | None:
        """Answer as many requests at once as are going to be, and count none of them.

        What their length was off by is made up for in the one that is given back.
        """
        wanted = planned.conditions.prompt_tokens
        length = None if ruler is None else ruler.length(wanted)
        turns = range(-10, -10 - planned.conditions.concurrency, -1)
        replies = await asyncio.gather(*(self._ask(planned, length, turn) for turn in turns))
        for reply in replies:
            if reply.broken:
                raise UserError(f"{planned.name}: the warm-up was not answered: {reply.broken}")
        if ruler is None or length is None:
            return None
        return ruler.mended(length, wanted=wanted, counted=_counted(planned, replies[0]))

    async def _case(self, planned: Planned, length: Length | None) -> Case:
        before = await self._rested()
        samples: list[Sample] = []
        clock = asyncio.get_running_loop().time  # as the client's
        began = clock()
        turns = iter(range(planned.data.requests))

        async def one_after_the_other() -> None:
            for turn in turns:  # shared: each takes the next one that nobody has
                asked = clock() - began
                sample = sample_of(planned, await self._ask(planned, length, turn), asked)
                samples.append(sample)
                self._listener.measured(sample)

        await asyncio.gather(
            *(one_after_the_other() for _ in range(planned.conditions.concurrency))
        )
        after = await self._rested()
        if before is None or after is None:
            return case_of(planned, samples, None)
        return case_of(planned, samples, counters.moved(self._engine, before, after))

    async def _counters(self) -> Mapping[str, float] | None:
        """Read the engine's counters; `None` where it has none."""
        if self._metrics_path is None:
            return None
        try:
            return counters.read(self._engine, await self._server.page(self._metrics_path))
        except ShapeError:
            return None

    async def _rested(self) -> Mapping[str, float] | None:
        """Read the counters when they have come to rest: some lag behind the answer.

        They have when they stand still, with every prompt that was read in them.
        """
        if self._begun is None:
            return None
        clock = asyncio.get_running_loop().time
        until = clock() + PATIENCE
        now = await self._counters()
        for _ in range(LOOKS):
            if now is None or clock() > until:
                break
            await asyncio.sleep(QUIET)
            last, now = now, await self._counters()
            if last == now and self._read <= _grown("prompt_tokens", self._begun, now):
                break
        return now


def _grown(figure: str, before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """How far a figure grew; without end where it is not told, as nobody could wait for that."""
    return after[figure] - before.get(figure, 0.0) if figure in after else inf


def _counted(planned: Planned, reply: ChatReply) -> int:
    if reply.broken:
        raise UserError(f"{planned.name}: a prompt to count was not answered: {reply.broken}")
    if reply.prompt_tokens is None:
        raise UserError(f"{planned.name}: the engine does not count the tokens of a prompt")
    return reply.prompt_tokens


def sample_of(planned: Planned, reply: ChatReply, asked: float) -> Sample:
    """Make a sample of a reply. What a model says when it must go on is its own business."""
    fault = reply.broken if planned.conditions.exact_output else reply.fault
    expect = planned.data.expect
    correct: bool | None = None
    if expect is not None:
        found = re.search(expect, reply.content, re.IGNORECASE | re.DOTALL)
        correct = not fault and found is not None
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
    """Make a case of its samples, all of them or what an interrupt left."""
    return Case(
        name=planned.name,
        conditions=planned.conditions,
        planned=planned.data.requests,
        samples=tuple(samples),
        engine=engine,
    )
