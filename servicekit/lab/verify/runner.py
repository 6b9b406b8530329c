"""Runs gates: performs their actions with a client, and measures the time. Clock, tasks."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from servicekit.lab.verify.gate import Batch, GateResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from servicekit.lab.verify.chat import ChatReply, ChatRequest
    from servicekit.lab.verify.gate import GateVerdict, ServedModel, Steps

KEPT: Final = 2000  # characters kept of any text; an answer to a gate has a few hundred


class ChatClient(Protocol):
    """Sends chat requests."""

    async def ask(self, request: ChatRequest) -> ChatReply:
        """Return the reply, successful or not."""


async def run(
    gates: Mapping[str, Callable[[ServedModel], Steps[GateVerdict]]],
    model: ServedModel,
    client: ChatClient,
    vram: Callable[[], Awaitable[int | None]],
    report: Callable[[GateResult], object],
) -> None:
    """Run one gate after the other. `report` gets each result at once, so that none is lost."""
    for name, gate in gates.items():
        began = time.monotonic()
        verdict = await _drive(gate(model), client, vram)
        seconds = round(time.monotonic() - began, 3)
        reason, evidence = _cut(verdict.reason), _cut(verdict.evidence)
        report(GateResult(name, verdict.outcome, reason, evidence, seconds))


def _cut(value: Any) -> Any:  # noqa: ANN401 - of any shape
    """Cut every text in `value` to `KEPT` characters: a server may send megabytes."""
    if isinstance(value, str):
        return value if len(value) <= KEPT else f"{value[:KEPT]}…"
    if isinstance(value, list | tuple):
        return [_cut(each) for each in value]
    if isinstance(value, dict):
        return {_cut(key): _cut(each) for key, each in value.items()}
    return value


async def _drive(
    steps: Steps[GateVerdict], client: ChatClient, vram: Callable[[], Awaitable[int | None]]
) -> GateVerdict:
    result: object = None
    while True:
        try:
            action = steps.send(result)  # the first is None, which starts the gate
        except StopIteration as ended:
            verdict: GateVerdict = ended.value
            return verdict
        if isinstance(action, Batch):
            result = tuple(await asyncio.gather(*map(client.ask, action.requests)))
        else:
            result = await vram()
