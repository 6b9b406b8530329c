"""The loop, with a world that only records what it was asked to do."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from servicekit.diagnosis.causes import Cause
from servicekit.diagnosis.fault import Fault
from servicekit.engines.base import Contexts, Counters
from servicekit.errors import ExitCode
from servicekit.host.facts import Process
from servicekit.watchdog.events import (
    EngineExited,
    LaunchFailedError,
    Policy,
    ProbeFailed,
    ProbeFailure,
    ProbePassed,
    Started,
    StopRequested,
    SurveyResult,
)
from servicekit.watchdog.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from servicekit.watchdog.memory import Memory
    from servicekit.watchdog.view import View

POLICY = Policy(
    start_stall=60,
    start_limit=60,
    gpu_wait=60,
    probe_deadline=10,
    interval=60,
    stall=60,
    still=60,
    failure_limit=60,
    unfinished=60,
    survey=60,
    condition_limit=60,
    grace=60,
    kill=60,
    settle=60,
    restart_on=frozenset(),
    foreign_allowance=1024,
    uses_gpu=False,
)
FULL = Contexts(requested=2048, declared=2048, physical=2048)
LEFT = Process(501, started=1, user="servicekit", command="worker")
EXITED = Fault(Cause.ENGINE_EXIT, "exited with 0")
LIMIT = 20.0
"""Seconds within which every run here is over."""


def nothing() -> None:
    """Do nothing."""


@dataclass
class Recorder:
    """A world in which all is well; each field says what happens instead."""

    said: list[str] = field(default_factory=list)
    """Orders, and each state that was published."""
    on: dict[str, Callable[[], None]] = field(default_factory=dict)
    """What happens at an order."""
    surveys: list[SurveyResult] = field(default_factory=list)
    """Looks before those that find nothing."""
    failures: list[ProbeFailure] = field(default_factory=list)
    """Attempts at the readiness probe before the one that passes."""
    quiet: float = 10.0
    kept_alive: int = 0
    state: str = ""
    loop: Loop = field(init=False)

    def __post_init__(self) -> None:
        self.loop = Loop(POLICY, self)

    def run(self) -> ExitCode:
        """Run to the end."""

        async def run() -> ExitCode:
            now = time.monotonic()
            started = Started(now, now, faults_left=5, budget="5 faults in 60 min")
            async with asyncio.timeout(LIMIT):
                return await self.loop.run(started)

        return asyncio.run(run())

    def stop(self) -> None:
        """Somebody asks for a stop."""
        self.loop.post(StopRequested(time.monotonic(), Cause.STOP_REQUESTED, "asked by systemd"))

    def exit(self) -> None:
        """The engine's end is seen."""
        self.loop.post(EngineExited(time.monotonic(), EXITED))

    def _say(self, order: str) -> None:
        self.said.append(order)
        self.on.get(order, nothing)()

    def launch(self) -> int:
        self._say("launch")
        return 4711

    def terminate(self) -> None:
        self._say("terminate")

    def kill(self) -> None:
        self._say("kill")

    def sweep(self, processes: tuple[Process, ...]) -> None:
        self._say(f"sweep {' '.join(str(process.pid) for process in processes)}")

    async def survey(self) -> SurveyResult:
        self._say("look")
        return self.surveys.pop(0) if self.surveys else SurveyResult()

    async def probe(self) -> ProbePassed | ProbeFailed:
        self._say("try")
        if self.failures:
            return ProbeFailed(time.monotonic(), self.failures.pop(0), "nothing listens")
        return ProbePassed(time.monotonic(), FULL)

    async def read_counters(self) -> Counters | None:
        self._say("read")
        return Counters(progress=(1.0,))

    def report_ready(self) -> None:
        self._say("READY=1")

    def extend_timeout(self, seconds: float) -> None:
        assert seconds > 0

    def keep_alive(self) -> float:
        self.kept_alive += 1
        return self.quiet

    def changed(self, before: Memory, now: Memory, seen: View) -> None:
        assert before != now
        if seen.state != self.state:
            self.state = seen.state
            self._say(seen.state)


def test_a_run_from_start_to_stop() -> None:
    """What `step` orders is done, its answers come back, and the state is told before the act."""
    world = Recorder(failures=[ProbeFailure.REFUSED])
    world.on = {"READY=1": world.stop, "terminate": world.exit}
    assert world.run() is ExitCode.OK
    assert [said for said in world.said if said != "read"] == [
        "starting",
        "look",
        "launch",
        "try",
        "try",
        "ready",
        "READY=1",
        "degraded",
        "terminate",
        "look",
        "stopped",
    ]


def test_orphans_are_swept_before_the_launch() -> None:
    """An orphan that a look finds is killed, and only a clean look is followed by a launch."""
    world = Recorder(surveys=[SurveyResult(orphans=(LEFT,))])
    world.on = {"launch": world.stop, "terminate": world.exit}
    assert world.run() is ExitCode.OK
    assert world.said[: world.said.index("launch")] == [
        "starting",
        "look",
        "sweep 501",
        "look",
    ]


def test_a_launch_that_fails_ends_the_run() -> None:
    """An engine that cannot be started at all is a fault, and nobody is signalled."""

    def refuse() -> None:
        raise LaunchFailedError(Fault(Cause.EXECUTABLE_MISSING, "no such file"))

    world = Recorder(on={"launch": refuse})
    assert world.run() is ExitCode.CONFIG
    assert "terminate" not in world.said
    assert world.said[-2:] == ["failed", "look"]


def test_the_answer_of_an_attempt_that_was_cancelled_counts_for_nothing() -> None:
    """An engine is not ready by an answer that waited in the queue behind the order to stop."""
    world = Recorder()
    world.on = {"try": world.stop, "terminate": world.exit}
    assert world.run() is ExitCode.OK
    assert "READY=1" not in world.said
    assert world.loop.memory.contexts is None


def test_an_engine_that_stays_is_killed() -> None:
    """Kill follows when the time for a graceful end is over."""
    world = Recorder()
    world.loop = Loop(policy_with(grace=0.2, kill=0.2), world)
    world.on = {"READY=1": world.stop, "kill": world.exit}
    assert world.run() is ExitCode.OK
    assert [said for said in world.said if said in {"terminate", "kill"}] == [
        "terminate",
        "terminate",
        "kill",
    ]


def test_a_bug_in_a_task_is_loud() -> None:
    """An answer that will never come is not waited for: the exception ends the run."""

    def fail() -> None:
        raise ZeroDivisionError

    world = Recorder(on={"look": fail})
    with pytest.raises(ZeroDivisionError):
        world.run()


def test_the_manager_hears_that_the_loop_turns() -> None:
    """It wakes as often as the manager wants to hear from it, though nothing is due."""
    world = Recorder(quiet=0.01)
    world.loop = Loop(policy_with(grace=0.4, kill=60), world)
    world.on = {"READY=1": world.stop, "kill": world.exit}
    assert world.run() is ExitCode.OK
    assert world.kept_alive > 10


@pytest.mark.parametrize(
    "seen",
    [
        "_drift",  # a suspended machine: the wall's clock goes on, the monotonic one does not
        "_back_at",  # a pause of all that runs: both go on, and we are late
    ],
)
def test_a_sleep_of_the_machine_is_noticed(seen: str) -> None:
    """When the clocks have drifted apart, or the loop was not run, the engine is asked at once."""
    world = Recorder()

    def sleep_and_stop() -> None:
        if world.said.count("try") == 1:
            setattr(world.loop, seen, getattr(world.loop, seen) - 3600)
        else:
            world.stop()

    world.quiet = 0.05
    world.on = {"try": sleep_and_stop, "terminate": world.exit}
    assert world.run() is ExitCode.OK
    assert world.loop.memory.suspended.startswith("the machine was suspended")


def policy_with(*, grace: float, kill: float) -> Policy:
    """Give a policy with other bounds on the end of the engine."""
    return replace(POLICY, grace=grace, kill=kill)
