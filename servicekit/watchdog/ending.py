"""How a run ends: towards the engine, towards the manager, and with which exit code. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, assert_never

from servicekit.diagnosis.causes import Cause, Retry
from servicekit.diagnosis.fault import Fault
from servicekit.errors import ExitCode
from servicekit.profiles.vocabulary import Reason
from servicekit.watchdog.events import (
    Actions,
    CancelProbe,
    Exit,
    ExtendTimeout,
    Kill,
    Policy,
    RunPhase,
    Terminate,
)

if TYPE_CHECKING:
    from servicekit.watchdog.memory import Memory

OVERDUE: Final = 10.0  # seconds: an answer that is later than its own limit by this is given up
HUNG_GRACE: Final = 5.0
"""Seconds: an engine that is hung, or lost a process, has nothing to drain: its grace period."""
MARGIN: Final = 30.0
"""Seconds added to what the manager is asked to wait, so that our deadline comes before its own."""

# How engines end whose GPU context did not survive a suspend.
AFTER_SUSPEND: Final = frozenset(
    {
        Cause.DRIVER,
        Cause.ENGINE_EXIT,
        Cause.ENGINE_SIGNAL,
        Cause.GPU_FAULT,
        Cause.HUNG,
        Cause.WORKER_DIED,
        Cause.WRONG_ANSWER,
    }
)
# What no new engine changes, even one that follows an engine that has served.
PERMANENT: Final = frozenset({Cause.BUDGET_SPENT, Cause.DRIVER, Cause.GPU_LOST, Cause.UNKILLABLE})
OUT_OF_MEMORY: Final = frozenset({Cause.CUDA_OOM, Cause.GRAPH_OOM, Cause.HOST_OOM, Cause.OOM_KILL})


def fault_of(cause: Cause, sentence: str) -> Fault:
    """Make a fault with the first remedy of its cause."""
    return Fault(cause, sentence, cause.remedies[0] if cause.remedies else "")


def extend_hold(policy: Policy, memory: Memory, at: float) -> ExtendTimeout:
    """Ask the manager to wait for the hold-off and for the GPU."""
    hold = max(memory.started.hold_until - at, 0.0)
    return ExtendTimeout(hold + policy.gpu_wait + OVERDUE + policy.settle + MARGIN)


def extend_start(policy: Policy, memory: Memory, at: float) -> ExtendTimeout:
    """Ask the manager to wait for a start that made progress at `at`."""
    left = memory.load.launched_at + policy.start_limit - at
    wait = min(policy.start_stall, max(left, 0.0))
    return ExtendTimeout(wait + policy.grace + policy.settle + MARGIN)


def extend_end(policy: Policy, grace: float) -> ExtendTimeout:
    """Ask the manager to wait for a whole end."""
    return ExtendTimeout(grace + policy.kill + policy.settle + MARGIN)


def stop(policy: Policy, memory: Memory, at: float, fault: Fault | None) -> tuple[Memory, Actions]:
    """Begin the end of the run: of the engine where there is one, else straight to settling."""
    hung = fault is not None and (fault.cause is Cause.HUNG or memory.holds(Reason.WORKER_DIED))
    fault = after_suspend(memory, fault)
    if not memory.alive:
        return settle(policy, memory, at, fault)
    grace = min(policy.grace, HUNG_GRACE) if hung else policy.grace
    memory = _idle(memory, RunPhase.STOPPING, at)
    memory = replace(memory, end=replace(memory.end, fault=fault, sigterms_sent=1, grace=grace))
    return memory, (CancelProbe(), extend_end(policy, grace), Terminate())


def kill(_: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    """Kill the engine's whole tree."""
    return replace(memory, phase=RunPhase.KILLING, since=at), (Kill(),)


def settle(
    policy: Policy, memory: Memory, at: float, fault: Fault | None = None
) -> tuple[Memory, Actions]:
    """Wait until a survey shows that nothing is left; an earlier fault stands before `fault`."""
    memory = _idle(memory, RunPhase.SETTLING, at)
    memory = replace(
        memory,
        survey=replace(memory.survey, next_at=at),
        end=replace(memory.end, fault=memory.end.fault or fault),
    )
    return memory, (CancelProbe(), ExtendTimeout(policy.settle + MARGIN))


def _idle(memory: Memory, phase: RunPhase, at: float) -> Memory:
    """Enter a phase in which the engine is asked nothing."""
    return replace(
        memory,
        phase=phase,
        since=at,
        probe=replace(memory.probe, running=False),
        reading=replace(memory.reading, running=False),
        conditions=(),
    )


def after_suspend(memory: Memory, fault: Fault | None) -> Fault | None:
    """Blame the suspend for the fault of an engine that has not answered since."""
    if fault is None or not memory.suspended or fault.cause not in AFTER_SUSPEND:
        return fault
    return fault_of(Cause.SUSPEND, f"{memory.suspended}, and since then: {fault.sentence}")


def gone(policy: Policy, memory: Memory, fault: Fault | None = None) -> tuple[Memory, Actions]:
    """End the run with the code that its fault, the ledger and the request to stop add up to.

    `fault` replaces the one that the run ended by.
    """
    code, fault = ExitCode.OK, fault or memory.end.fault
    started = memory.started
    if fault is not None and (memory.end.stop is None or fault.cause is Cause.UNKILLABLE):
        code = _code(policy, memory, fault.cause)
        if code is ExitCode.TEMPFAIL and started.faults_left <= 1:
            code, fault = ExitCode.UNAVAILABLE, budget_spent(memory, fault.sentence, fault.remedy)
        elif code is ExitCode.UNAVAILABLE and fault.cause is started.last_cause:
            fault = replace(fault, sentence=f"the same fault again: {fault.sentence}")
    ended = replace(memory.end, fault=fault, code=code)
    return replace(memory, phase=RunPhase.GONE, end=ended), (Exit(code),)


def budget_spent(memory: Memory, last: str, remedy: str = "") -> Fault:
    """Make the fault of a run after which only an operator starts the service again."""
    return Fault(
        Cause.BUDGET_SPENT,
        f"restart budget spent ({memory.started.budget}); last: {last}",
        remedy or "fix the cause, then `servicekit start {profile}`",
    )


def _code(policy: Policy, memory: Memory, cause: Cause) -> ExitCode:
    """Return the exit code; an engine that has served is restarted once by nearly any cause.

    What keeps the next one from serving, too, ends that run for good.
    """
    if memory.served and cause not in PERMANENT | OUT_OF_MEMORY:
        return ExitCode.TEMPFAIL
    match cause.retry:
        case Retry.ALWAYS:
            return ExitCode.TEMPFAIL
        case Retry.ONCE:
            capped = policy.on_wsl and cause in OUT_OF_MEMORY
            again = cause is memory.started.last_cause or capped
            return ExitCode.UNAVAILABLE if again else ExitCode.TEMPFAIL
        case Retry.NEVER_CONFIG:
            return ExitCode.CONFIG
        case Retry.NEVER_HOST:
            return ExitCode.UNAVAILABLE
        case _:
            assert_never(cause.retry)
