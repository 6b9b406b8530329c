"""Drives gates: performs their orders with a client, and takes the time. Clock, tasks."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from servicekit.lab.verify.values import Batch, GateResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from servicekit.lab.verify.values import ChatReply, ChatRequest, GateVerdict, ServedModel, Steps


KEPT: Final = 2000
"""Characters of a text that are kept; an answer of the gates has a few hundred."""


class Asker(Protocol):
    """What performs a request."""

    async def ask(self, request: ChatRequest) -> ChatReply:
        """Give the reply, good or bad."""


async def run(
    gates: Mapping[str, Callable[[ServedModel], Steps[GateVerdict]]],
    subject: ServedModel,
    asker: Asker,
    vram: Callable[[], Awaitable[int | None]],
    found: Callable[[GateResult], object],
) -> None:
    """Ask one gate after the other; `found` is told each finding at once, so that none is lost."""
    for name, gate in gates.items():
        began = time.monotonic()
        judgement = await _drive(gate(subject), asker, vram)
        seconds = round(time.monotonic() - began, 3)
        reason, evidence = _cut(judgement.reason), _cut(judgement.evidence)
        found(GateResult(name, judgement.outcome, reason, evidence, seconds))


def _cut(told: Any) -> Any:  # noqa: ANN401 - of any shape
    """Give what a gate tells with no text in it longer than `KEPT`: a server may say megabytes."""
    if isinstance(told, str):
        return told if len(told) <= KEPT else f"{told[:KEPT]}…"
    if isinstance(told, list | tuple):
        return [_cut(each) for each in told]
    if isinstance(told, dict):
        return {_cut(key): _cut(value) for key, value in told.items()}
    return told


async def _drive(
    steps: Steps[GateVerdict], asker: Asker, vram: Callable[[], Awaitable[int | None]]
) -> GateVerdict:
    answer: object = None
    while True:
        try:
            order = steps.send(answer)  # the first is None, which begins it
        except StopIteration as ended:
            judgement: GateVerdict = ended.value
            return judgement
        if isinstance(order, Batch):
            answer = tuple(await asyncio.gather(*map(asker.ask, order.requests)))
        else:
            answer = await vram()
