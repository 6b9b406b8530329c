"""What an engine says of itself is repeated in short and on one line, whatever it says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from plans import profile

from servicekit.watchdog.events import ProbeFailure
from servicekit.watchdog.probe import NotReady, Prober

if TYPE_CHECKING:
    from collections.abc import Callable

    from machines.fake import FakeEngine

    Start = Callable[..., FakeEngine]

ODD = "\x1b[31m\x9b\x00\nsmollm2 " * 1000
"""Terminal escapes, a line's end and no end."""
LONGEST = 1000
"""Characters; a status line has no room for more."""


async def gate(port: int) -> NotReady:
    """Try the gate of an engine that must not pass it."""
    async with Prober(profile("demo", port=port)) as prober:
        found = await prober.readiness()
    assert isinstance(found, NotReady)
    return found


@pytest.mark.parametrize(
    ("lie", "miss"),
    [
        ({"name": ODD}, ProbeFailure.WRONG_MODEL),
        ({"name": "smollm2-135m", "reply_name": ODD}, ProbeFailure.WRONG_MODEL),
    ],
)
def test_a_name_cannot_lead_a_terminal_or_fill_a_ledger(
    fake_engine: Start, lie: dict[str, str], miss: ProbeFailure
) -> None:
    """A wrong name goes into status, history and journal: as one short printable line."""
    engine = fake_engine(dialect="llamacpp", **lie)
    found = asyncio.run(gate(engine.port))
    assert found.failure is miss
    assert found.sentence.isprintable()
    assert len(found.sentence) < LONGEST
