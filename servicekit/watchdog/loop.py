"""The loop: one queue, one consumer. It owns the run's memory and performs what `step` orders.

Handlers only post; every wait is bounded by `wake_at` or by the manager's watchdog. Orders are
performed by a `World`, so that the loop can be tested with one that only records.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from servicekit.watchdog.events import (
    CancelProbe,
    ClockJumped,
    CountersRead,
    Exit,
    ExtendTimeout,
    Kill,
    Launch,
    Launched,
    LaunchFailed,
    LaunchFailedError,
    ProbeFailed,
    ProbePassed,
    ReadCounters,
    ReportReady,
    RunPhase,
    RunProbe,
    SurveyTaken,
    Sweep,
    TakeSurvey,
    Terminate,
    TimePassed,
)
from servicekit.watchdog.memory import Memory
from servicekit.watchdog.state import step, wake_at
from servicekit.watchdog.view import view

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from servicekit.engines.base import Counters
    from servicekit.errors import ExitCode
    from servicekit.host.facts import Process
    from servicekit.watchdog.events import Action, Event, Policy, Started, SurveyResult
    from servicekit.watchdog.view import View

JUMP: Final = 5.0
"""Seconds that wall-clock and monotonic time may drift apart between two wake-ups, or that the loop
may wake too late; more is a machine that suspended, or a pause of everything that runs on it."""


class World(Protocol):
    """All that the loop can do to the world. Nothing here blocks for longer than a file write."""

    def launch(self) -> int:
        """Start the engine and return its pid, or raise `LaunchFailedError`."""

    def terminate(self) -> None:
        """SIGTERM to the engine."""

    def kill(self) -> None:
        """SIGKILL to the engine's whole tree."""

    def sweep(self, processes: tuple[Process, ...]) -> None:
        """SIGKILL orphans, each checked again."""

    async def survey(self) -> SurveyResult:
        """Survey who holds what this run needs, within a limit of its own."""

    async def probe(self) -> ProbePassed | ProbeFailed:
        """Run the readiness probe within its deadline."""

    async def read_counters(self) -> Counters | None:
        """Read the engine's counters within a limit of its own."""

    def report_ready(self) -> None:
        """Send READY=1 to the manager."""

    def extend_timeout(self, seconds: float) -> None:
        """Extend the manager's timeout."""

    def keep_alive(self) -> float:
        """Send WATCHDOG=1; return the seconds until it is due again."""

    def changed(self, before: Memory, now: Memory, seen: View) -> None:
        """Publish and record a change."""


class Loop:
    """Runs one engine from launch to a proven end."""

    def __init__(self, policy: Policy, world: World) -> None:
        self._policy = policy
        self._world = world
        self._memory = Memory()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._probe: asyncio.Task[None] | None = None
        self._answer: ProbePassed | ProbeFailed | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._drift = _drift()
        self._back_at = time.monotonic()  # when the loop meant to wake, or last did
        self._bug: BaseException | None = None
        self._code: ExitCode | None = None

    @property
    def memory(self) -> Memory:
        """What the run remembers now."""
        return self._memory

    def is_ready(self) -> bool:
        """Whether the engine serves, and is not degraded."""
        return self._memory.phase is RunPhase.SERVING

    def post(self, event: Event) -> None:
        """Enqueue an event; the only thing that a handler does."""
        self._events.put_nowait(event)

    async def run(self, started: Started) -> ExitCode:
        """Run to the end and return the code to exit with."""
        self._take(started)
        try:
            while self._code is None:
                self._take(await self._next())
                while not self._events.empty():
                    self._take(self._events.get_nowait())
        finally:
            for task in (*self._tasks, *([self._probe] if self._probe else [])):
                task.cancel()
        return self._code

    async def _next(self) -> Event:
        """Wait for an event or the next deadline, awake often enough for the manager's watchdog."""
        while True:
            longest = self._world.keep_alive()
            if jump := self._jump():
                return ClockJumped(time.monotonic(), jump)
            now = time.monotonic()
            due = wake_at(self._policy, self._memory)
            wait = longest if due is None else min(longest, max(0.0, due - now))
            self._back_at = now + wait
            try:
                event = await asyncio.wait_for(self._events.get(), wait)
            except TimeoutError:
                event = TimePassed(time.monotonic())
            if self._bug is not None:
                raise self._bug
            if jump := self._jump():
                self._events.put_nowait(event)
                return ClockJumped(time.monotonic(), jump)
            if not isinstance(event, TimePassed) or (due is not None and event.at >= due):
                return event

    def _jump(self) -> float:
        """Return the seconds for which we were suspended or not scheduled; 0 for a few."""
        now, drift = time.monotonic(), _drift()
        late, apart = now - self._back_at, abs(drift - self._drift)
        self._back_at, self._drift = now, drift
        return max((seconds for seconds in (late, apart) if seconds > JUMP), default=0.0)

    def _take(self, event: Event) -> None:
        if isinstance(event, ProbePassed | ProbeFailed) and event is not self._answer:
            return  # of an attempt that was cancelled while its answer waited here
        before = self._memory
        self._memory, actions = step(self._policy, before, event)
        seen = view(self._memory)
        if seen != view(before) or before.contexts != self._memory.contexts or not before.began:
            self._world.changed(before, self._memory, seen)
        for action in actions:
            self._perform(action)

    def _perform(self, action: Action) -> None:  # noqa: C901, PLR0912 - one row per order
        match action:
            case TakeSurvey():
                self._spawn(self._look(time.monotonic()))
            case Sweep(processes):
                self._world.sweep(processes)
            case Launch():
                self._launch()
            case RunProbe():
                self._probe = self._spawned(self._try())
            case CancelProbe():
                self._answer = None
                if self._probe is not None:
                    self._probe.cancel()
            case ReadCounters():
                self._spawn(self._read())
            case Terminate():
                self._world.terminate()
            case Kill():
                self._world.kill()
            case ReportReady():
                self._world.report_ready()
            case ExtendTimeout(seconds):
                self._world.extend_timeout(seconds)
            case Exit(code):
                self._code = code
            case _:
                assert_never(action)

    def _launch(self) -> None:
        try:
            pid = self._world.launch()
        except LaunchFailedError as error:
            self.post(LaunchFailed(time.monotonic(), error.fault))
        else:
            self.post(Launched(time.monotonic(), pid))

    async def _look(self, asked_at: float) -> None:
        survey = await self._world.survey()
        self.post(SurveyTaken(time.monotonic(), survey, asked_at))

    async def _try(self) -> None:
        self._answer = answer = await self._world.probe()
        self.post(answer)

    async def _read(self) -> None:
        counters = await self._world.read_counters()
        self.post(CountersRead(time.monotonic(), counters))

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        self._tasks.add(self._spawned(work))

    def _spawned(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        """Let a bug in a task end the run instead of losing its result."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._bug = error
            self.post(TimePassed(time.monotonic()))


def _drift() -> float:
    """Wall-clock minus monotonic time: it jumps when the machine was suspended or the VM paused."""
    return time.clock_gettime(time.CLOCK_REALTIME) - time.monotonic()
