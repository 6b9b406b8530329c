"""An event loop whose time passes while it sleeps or works, and not while others have the machine.

A test of what a client measures must not hang on how busy the machine is, nor must the client's own
work be left out. So time is what this process has computed, plus what it has slept: a sleep is not
slept but counted, once nothing is left under way on loopback.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

UNDER_WAY = 0.003
"""Seconds of real time in which what was sent on loopback arrives."""


class _Selector(selectors.DefaultSelector):
    """Counts the time that it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = 0.0

    @override
    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            return super().select()
        ready = super().select(UNDER_WAY)
        if not ready:
            self.slept += max(0.0, timeout)
        return ready


class OwnTime(asyncio.SelectorEventLoop):
    """The loop."""

    def __init__(self) -> None:
        self._own = _Selector()
        super().__init__(self._own)

    @override
    def time(self) -> float:
        return self._own.slept + time.process_time()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` in such a loop."""
    with asyncio.Runner(loop_factory=OwnTime) as runner:
        return runner.run(main)
