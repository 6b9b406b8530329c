"""The watchdog's decisions: one pure function, `step(policy, memory, event) -> (memory, actions)`.

No clock, no I/O, no logging: every event carries its time (seconds of `CLOCK_MONOTONIC`), every
order is a value that the loop performs. One run of the watchdog is one pass through the phases:

    holding → loading → serving ⇄ degraded → stopping → killing → settling → gone

and never back, since an engine that must be restarted is restarted by the service manager in a new
run. After each event, whatever has come due by then is ordered (`_due`), so a deadline is data in
`Memory`, and `wake_at` tells the loop when to say `TimePassed`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, assert_never

from servicekit.diagnosis.causes import Cause, Retry
from servicekit.diagnosis.fault import Fault
from servicekit.errors import ExitCode
from servicekit.host.facts import GpuView
from servicekit.profiles.vocabulary import Reason
from servicekit.watchdog.events import (
    Actions,
    CancelProbe,
    ClockJumped,
    Condition,
    CountersRead,
    EngineExited,
    Event,
    Exit,
    ExtendTimeout,
    FaultSeen,
    Kill,
    Launch,
    Launched,
    LaunchFailed,
    Memory,
    Observed,
    Policy,
    ProbeFailed,
    ProbeFailure,
    ProbePassed,
    Progressed,
    Published,
    ReadCounters,
    ReportReady,
    RunPhase,
    RunProbe,
    Sign,
    Started,
    StopRequested,
    SurveyResult,
    SurveyTaken,
    Sweep,
    TakeSurvey,
    Terminate,
    TimePassed,
    View,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

# Cadences that no profile needs to change, in seconds.
PROBE_EVERY: Final = 0.1
"""Between attempts at the gate while loading: most of the delay from "can answer" to `READY=1`."""
DEGRADED_EVERY: Final = 1.0
COUNTERS_EVERY: Final = 5.0
SETTLE_EVERY: Final = 0.1
HOLD_EVERY: Final = 1.0
FAILURE_WINDOW: Final = 5.0
"""How long a wrong identity, a foreign socket or a refused key must last before it is believed …"""
FAILURE_THRESHOLD: Final = 3
"""… and how many times in a row it must be seen."""
OVERDUE: Final = 10.0
"""An answer that is later than its own bound by this will not come any more."""
LINGER: Final = 1.0
"""What an engine that ended as it was asked to may still have running for so long: its workers are
ending, too, and nothing was left behind."""
HUNG_GRACE: Final = 5.0
"""A hung engine has nothing to drain: its grace is cut to this."""
MARGIN: Final = 30.0
"""Added to what the manager is asked to wait, so that our own deadline always comes before its."""


FATAL_WHILE_LOADING: Final[Mapping[ProbeFailure, Cause]] = {
    ProbeFailure.GARBAGE: Cause.WRONG_ANSWER,
    ProbeFailure.UNAUTHORIZED: Cause.UNAUTHORIZED,
    ProbeFailure.WRONG_MODEL: Cause.WRONG_MODEL,
    ProbeFailure.NOT_OURS: Cause.NOT_OUR_SOCKET,
    ProbeFailure.WRONG_ANSWER: Cause.WRONG_ANSWER,
    ProbeFailure.REPEATED: Cause.REPEATED_ANSWER,
    ProbeFailure.CPU_FALLBACK: Cause.CPU_FALLBACK,
    ProbeFailure.CONTEXT_TOO_SMALL: Cause.CONTEXT_TOO_SMALL,
}
"""Probe failures that end a start, each by its cause, once they have lasted `FAILURE_WINDOW`."""

FATAL_WHILE_SERVING: Final[Mapping[ProbeFailure, Cause]] = {
    ProbeFailure.REFUSED: Cause.HUNG,
    ProbeFailure.GARBAGE: Cause.WRONG_ANSWER,
    ProbeFailure.UNAUTHORIZED: Cause.UNAUTHORIZED,
    ProbeFailure.WRONG_MODEL: Cause.WRONG_MODEL,
    ProbeFailure.NOT_OURS: Cause.NOT_OUR_SOCKET,
}
"""The same for a service that was ready; a wrong answer there is a reason to be degraded first."""

FAILURE_REASON: Final[Mapping[ProbeFailure, Reason]] = {
    ProbeFailure.WRONG_ANSWER: Reason.WRONG_ANSWER,
    ProbeFailure.REPEATED: Reason.REPEATED_ANSWER,
    ProbeFailure.CPU_FALLBACK: Reason.CPU_FALLBACK,
    ProbeFailure.CONTEXT_TOO_SMALL: Reason.CONTEXT_BELOW_REQUESTED,
}
"""Reasons that a miss of a ready service stands for; every other miss is `Reason.UNANSWERED`."""

CLEARED_BY_AN_ANSWER: Final = (
    Reason.UNANSWERED,
    Reason.PROGRESS_WITHOUT_COMPLETION,
    Reason.WRONG_ANSWER,
    Reason.REPEATED_ANSWER,
    Reason.CPU_FALLBACK,
)

REASON_CAUSE: Final[Mapping[Reason, Cause]] = {
    Reason.UNANSWERED: Cause.UNANSWERED,
    Reason.PROGRESS_WITHOUT_COMPLETION: Cause.PROGRESS_WITHOUT_COMPLETION,
    Reason.WRONG_ANSWER: Cause.WRONG_ANSWER,
    Reason.REPEATED_ANSWER: Cause.REPEATED_ANSWER,
    Reason.CPU_FALLBACK: Cause.CPU_FALLBACK,
    Reason.DRAFT_GRAPH_DISABLED: Cause.DRAFT_GRAPH_DISABLED,
    Reason.TOO_SLOW: Cause.TOO_SLOW,
    Reason.ACCEPTANCE_ZERO: Cause.ACCEPTANCE_ZERO,
    Reason.CONTEXT_BELOW_REQUESTED: Cause.CONTEXT_BELOW_REQUESTED,
    Reason.STRANGER_ON_GPU: Cause.STRANGER_ON_GPU,
    Reason.VRAM_ORPHAN: Cause.VRAM_ORPHAN,
}

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
"""How engines end whose GPU did not survive a sleep of the machine."""

OUT_OF_MEMORY: Final = frozenset({Cause.CUDA_OOM, Cause.GRAPH_OOM, Cause.HOST_OOM, Cause.OOM_KILL})


def view(memory: Memory) -> View:
    """Map a run's memory to what is published: total, and never without a reason."""
    fault, reasons = memory.fault or memory.stop, tuple(ail.reason for ail in memory.conditions)
    cause, remedy = (fault.cause, fault.remedy) if fault else (None, "")
    match memory.phase:
        case RunPhase.HOLDING:
            blocked = memory.blocked
            why = f"waiting: {blocked.sentence}" if blocked else "holding off before the launch"
            return View(Published.STARTING, memory.phase, why)
        case RunPhase.LOADING:
            return View(Published.STARTING, memory.phase, memory.boot or "launched")
        case RunPhase.SERVING:
            return View(Published.READY, memory.phase, "answering")
        case RunPhase.DEGRADED:
            why = "; ".join(ail.sentence for ail in memory.conditions)
            return View(Published.DEGRADED, memory.phase, why, reasons=reasons)
        case RunPhase.STOPPING | RunPhase.KILLING | RunPhase.SETTLING:
            doing = {
                RunPhase.STOPPING: "stopping",
                RunPhase.KILLING: "killing",
                RunPhase.SETTLING: "settling",
            }[memory.phase]
            state = Published.DEGRADED if memory.stop else Published.FAILED
            why = f"{doing}: {fault.sentence if fault else ''}" + (
                f"; {memory.unsettled}" if memory.unsettled else ""
            )
            return View(state, memory.phase, why, cause, remedy=remedy)
        case RunPhase.GONE:
            state = Published.STOPPED if memory.code is ExitCode.OK else Published.FAILED
            return View(state, memory.phase, fault.sentence if fault else "", cause, remedy=remedy)
        case _:
            assert_never(memory.phase)


def wake_at(policy: Policy, memory: Memory) -> float | None:
    """When `step` next wants a `TimePassed`; `None` when it only waits for other events."""
    times: list[float] = []
    match memory.phase:
        case RunPhase.HOLDING:
            times += [_blind_at(policy, memory) if memory.looking else memory.look_at]
            times += [memory.blocked_since + policy.gpu_wait] if memory.blocked else []
            times += [memory.hold_until] if memory.clear else []
        case RunPhase.LOADING:
            times += [
                memory.launched_at + policy.start_limit,
                memory.progressed_at + policy.start_stall,
            ]
            times += [_gate_at(policy, memory)]
            times += [memory.read_at] if memory.identified and not memory.reading else []
        case RunPhase.SERVING | RunPhase.DEGRADED:
            times += [_gate_at(policy, memory)]
            times += [memory.read_at] if not memory.reading else []
            times += [memory.look_at] if not memory.looking else []
            times += [
                ail.since + policy.condition_limit
                for ail in memory.conditions
                if ail.reason in policy.restart_on
            ]
            if memory.error_since is not None:
                times += [memory.error_since + policy.stall]
            elif memory.unanswered_since is not None:
                times += [_hung_at(policy, memory)]
            times += _unfinished_times(policy, memory)
        case RunPhase.STOPPING:
            times += [memory.since + memory.grace / (2 if memory.sigterms_sent == 1 else 1)]
        case RunPhase.KILLING:
            times += [memory.since + policy.kill]
        case RunPhase.SETTLING:
            times += [memory.since + policy.settle]
            times += [memory.look_at] if not memory.looking else []
        case RunPhase.GONE:
            pass
        case _:
            assert_never(memory.phase)
    return min(times, default=None)


def _blind_at(policy: Policy, memory: Memory) -> float:
    """When a look before the launch is given up."""
    return memory.look_at + policy.gpu_wait + OVERDUE


def _gate_at(policy: Policy, memory: Memory) -> float:
    """When the gate is tried next, or the attempt under way given up."""
    return memory.asked_at + policy.probe_deadline + OVERDUE if memory.trying else memory.try_at


def _hung_at(policy: Policy, memory: Memory) -> float:
    """When an unanswered completion under still counters becomes a hang."""
    since = memory.unanswered_since or 0.0
    return max(since + policy.probe_deadline, max(since, memory.moved_at) + policy.stall)


def _unfinished_times(policy: Policy, memory: Memory) -> list[float]:
    """When moving counters without a finished completion become a reason of their own."""
    since = memory.unanswered_since
    if since is None or memory.moved_at <= since:
        return []
    if any(ail.reason is Reason.PROGRESS_WITHOUT_COMPLETION for ail in memory.conditions):
        return []
    return [max(since, memory.finished_at) + policy.unfinished]


def step(policy: Policy, memory: Memory, event: Event) -> tuple[Memory, Actions]:
    """Take one event: what the run remembers from now on, and what is to be done."""
    memory, actions = _react(policy, memory, event)
    memory, due = _due(policy, memory, event.at)
    return memory, (*actions, *due)


def _react(policy: Policy, memory: Memory, event: Event) -> tuple[Memory, Actions]:
    phase = memory.phase
    ending = phase in {RunPhase.STOPPING, RunPhase.KILLING, RunPhase.SETTLING}
    match event:
        case _ if phase is RunPhase.GONE:
            return memory, ()
        case TimePassed():
            return memory, ()
        case Started():
            return _begin(policy, memory, event)
        case StopRequested():
            return _stop_requested(policy, memory, event)
        case FaultSeen() if not ending:
            return _stop(policy, memory, event.at, event.fault)
        case EngineExited():
            return _engine_exited(policy, memory, event)
        case SurveyTaken():
            return _surveyed(policy, replace(memory, looking=False), event)
        case Launched() if phase is RunPhase.LOADING:
            launched = replace(memory, launched_at=event.at, progressed_at=event.at)
            return launched, (_extend_start(policy, launched, event.at),)
        case LaunchFailed() if memory.alive:
            fault = memory.fault or event.fault
            return _settle(policy, replace(memory, alive=False, fault=fault), event.at)
        case Progressed() if phase is RunPhase.LOADING:
            return _progressed(policy, memory, event)
        case ProbePassed() if phase in {RunPhase.LOADING, RunPhase.SERVING, RunPhase.DEGRADED}:
            return _gate_passed(policy, memory, event)
        case ProbeFailed() if phase in {RunPhase.LOADING, RunPhase.SERVING, RunPhase.DEGRADED}:
            return _gate_missed(policy, memory, event)
        case CountersRead() if phase in {RunPhase.LOADING, RunPhase.SERVING, RunPhase.DEGRADED}:
            return _counters_read(policy, replace(memory, reading=False), event)
        case Observed() if phase in {RunPhase.LOADING, RunPhase.SERVING, RunPhase.DEGRADED}:
            changed = _set_condition(
                memory, event.reason, event.at, event.sentence if event.present else ""
            )
            return changed, ()
        case ClockJumped() if phase is RunPhase.HOLDING:
            # Neither a look nor what is in the way has had the time that passed.
            return replace(memory, look_at=event.at, blocked_since=event.at), (
                _extend_hold(policy, memory, event.at),
            )
        case ClockJumped() if ending:
            return replace(memory, since=event.at), (_extend_end(policy, policy.grace),)
        case ClockJumped():
            return _clock_jumped(policy, memory, event)
        case (
            FaultSeen() | Launched() | LaunchFailed() | Progressed() | ProbePassed() | ProbeFailed()
        ):
            return memory, ()  # late: what it speaks of is already being ended
        case CountersRead() | Observed():
            return memory, ()
        case _:
            assert_never(event)


def _begin(policy: Policy, memory: Memory, event: Started) -> tuple[Memory, Actions]:
    begun = replace(
        memory,
        since=event.at,
        hold_until=event.hold_until,
        last_cause=event.last_cause,
        faults_left=event.faults_left,
        budget=event.budget,
        look_at=event.at,
    )
    if event.faults_left <= 0:  # the last runs were cut off, and could not say so themselves
        spent = f"restart budget spent ({event.budget}); last: {event.last_sentence}"
        fault = Fault(Cause.BUDGET_SPENT, spent, "mend the cause, then start it again")
        return _settle(policy, replace(begun, fault=fault), event.at)
    return begun, (_extend_hold(policy, begun, event.at),)


def _extend_hold(policy: Policy, memory: Memory, at: float) -> ExtendTimeout:
    hold = max(memory.hold_until - at, 0.0)
    return ExtendTimeout(hold + policy.gpu_wait + OVERDUE + policy.settle + MARGIN)


def _extend_end(policy: Policy, grace: float) -> ExtendTimeout:
    return ExtendTimeout(grace + policy.kill + policy.settle + MARGIN)


def _stop_requested(policy: Policy, memory: Memory, event: StopRequested) -> tuple[Memory, Actions]:
    request = Fault(event.cause, event.sentence)
    if memory.stop:
        return memory, ()
    memory = replace(memory, stop=request)
    if memory.phase in {RunPhase.STOPPING, RunPhase.KILLING, RunPhase.SETTLING}:
        return memory, (_extend_end(policy, policy.grace),)
    return _stop(policy, memory, event.at, None)


def _stop(policy: Policy, memory: Memory, at: float, fault: Fault | None) -> tuple[Memory, Actions]:
    """Begin the end of the run: of the engine where there is one, else straight to settling."""
    memory = replace(memory, fault=_after_sleep(memory, fault))
    if not memory.alive:
        return _settle(policy, memory, at)
    grace = min(policy.grace, HUNG_GRACE) if fault and fault.cause is Cause.HUNG else policy.grace
    stopping = replace(
        memory,
        phase=RunPhase.STOPPING,
        since=at,
        sigterms_sent=1,
        grace=grace,
        trying=False,
        reading=False,
        conditions=(),
    )
    return stopping, (CancelProbe(), _extend_end(policy, grace), Terminate())


def _settle(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    settling = replace(
        memory,
        phase=RunPhase.SETTLING,
        since=at,
        look_at=at,
        trying=False,
        reading=False,
        conditions=(),
    )
    return settling, (CancelProbe(), ExtendTimeout(policy.settle + MARGIN))


def _engine_exited(policy: Policy, memory: Memory, event: EngineExited) -> tuple[Memory, Actions]:
    """Settle after the engine's end; it is a fault unless an end was already under way."""
    if not memory.alive or memory.phase is RunPhase.SETTLING:
        return memory, ()
    memory = replace(memory, alive=False)
    if memory.fault is None and memory.stop is None:
        memory = replace(memory, fault=_after_sleep(memory, event.fault))
    return _settle(policy, memory, event.at)


def _after_sleep(memory: Memory, fault: Fault | None) -> Fault | None:
    """Blame the sleep for what an engine does that has not answered since."""
    if fault is None or not memory.suspended or fault.cause not in AFTER_SUSPEND:
        return fault
    return _fault(Cause.SUSPEND, f"{memory.suspended}, and since then: {fault.sentence}")


def _gone(policy: Policy, memory: Memory) -> tuple[Memory, Actions]:
    """End the run with the code that its fault, the ledger and the request to stop add up to."""
    code, fault = ExitCode.OK, memory.fault
    if fault is not None and (memory.stop is None or fault.cause is Cause.UNKILLABLE):
        code = _code(policy, memory, fault)
        if code is ExitCode.TEMPFAIL and memory.faults_left <= 1:
            code = ExitCode.UNAVAILABLE
            fault = Fault(
                Cause.BUDGET_SPENT,
                f"restart budget spent ({memory.budget}); last: {fault.sentence}",
                fault.remedy or "mend the cause, then start it again",
            )
        elif fault.cause.retry is Retry.ONCE and fault.cause is memory.last_cause:
            fault = replace(fault, sentence=f"the same fault again: {fault.sentence}")
    gone = replace(memory, phase=RunPhase.GONE, fault=fault, code=code)
    return gone, (Exit(code),)


def _code(policy: Policy, memory: Memory, fault: Fault) -> ExitCode:
    match fault.cause.retry:
        case Retry.ALWAYS:
            return ExitCode.TEMPFAIL
        case Retry.ONCE:
            capped = policy.on_wsl and fault.cause in OUT_OF_MEMORY
            again = fault.cause is memory.last_cause or capped
            return ExitCode.UNAVAILABLE if again else ExitCode.TEMPFAIL
        case Retry.NEVER_CONFIG:
            return ExitCode.CONFIG
        case Retry.NEVER_HOST:
            return ExitCode.UNAVAILABLE
        case _:
            assert_never(fault.cause.retry)


def _surveyed(policy: Policy, memory: Memory, event: SurveyTaken) -> tuple[Memory, Actions]:
    match memory.phase:
        case RunPhase.HOLDING:
            return _surveyed_holding(policy, memory, event)
        case RunPhase.SETTLING:
            return _surveyed_settling(policy, memory, event)
        case RunPhase.SERVING | RunPhase.DEGRADED:
            return _surveyed_serving(policy, memory, event)
        case RunPhase.LOADING | RunPhase.STOPPING | RunPhase.KILLING | RunPhase.GONE:
            return memory, ()
        case _:
            assert_never(memory.phase)


def _surveyed_holding(policy: Policy, memory: Memory, event: SurveyTaken) -> tuple[Memory, Actions]:
    survey, at = event.survey, event.at
    blocked = _in_the_way(policy, survey)
    since = memory.blocked_since if memory.blocked else at
    memory = replace(
        memory,
        blocked=blocked,
        blocked_since=since,
        clear=blocked is None,
        look_at=at + (SETTLE_EVERY if survey.orphans else HOLD_EVERY),
    )
    if blocked and survey.gpu is GpuView.LOST:
        return _settle(policy, replace(memory, fault=blocked), at)
    return memory, (Sweep(survey.orphans),) if survey.orphans else ()


def _fault(cause: Cause, sentence: str) -> Fault:
    """A fault with the remedy that its cause always has."""
    return Fault(cause, sentence, cause.remedies[0] if cause.remedies else "")


def _in_the_way(policy: Policy, survey: SurveyResult) -> Fault | None:
    """Say what must be gone (or there) before an engine may be launched."""
    held = sum(stranger.mib or 0 for stranger in survey.foreign)
    if survey.orphans:
        names = ", ".join(process.named for process in survey.orphans)
        stuck = any(process.stuck for process in survey.orphans)
        why = "in uninterruptible sleep" if stuck else "still alive"
        return Fault(
            Cause.UNKILLABLE,
            f"left over from an earlier run and {why}: {names}",
            "reboot the machine",
        )
    if survey.port_holder:
        holder = survey.port_holder
        sentence = f"the port is held by {holder.named}"
        if not holder.pid:  # of another account: only root can tell who it is
            return _fault(Cause.PORT_BUSY, sentence)
        return Fault(Cause.PORT_BUSY, sentence, "stop that process or change the port")
    if survey.locked_by:
        remedy = f"servicekit stop {survey.locked_by}"
        return Fault(Cause.VRAM_BUSY, f'profile "{survey.locked_by}" uses the same GPU', remedy)
    if survey.gpu in {GpuView.ABSENT, GpuView.UNRESPONSIVE}:
        return Fault(Cause.DRIVER, survey.gpu_note, "see `nvidia-smi` and `journalctl -k -g NVRM`")
    if survey.gpu is GpuView.LOST:
        return Fault(Cause.GPU_LOST, survey.gpu_note, "reboot the machine")
    if held > policy.foreign_allowance:
        names = ", ".join(stranger.named for stranger in survey.foreign)
        return Fault(
            Cause.VRAM_BUSY, f"{held} MiB of VRAM are held by {names}", "stop that process"
        )
    if survey.unattributed_mib > policy.foreign_allowance:
        sentence = f"{survey.unattributed_mib} MiB of VRAM are held by no process that can be seen"
        return Fault(Cause.VRAM_ORPHAN, sentence, "reset the GPU or reboot the machine")
    return None


def _surveyed_settling(
    policy: Policy, memory: Memory, event: SurveyTaken
) -> tuple[Memory, Actions]:
    survey = event.survey
    if event.asked_at < memory.since:  # looked while the engine was still alive: look again
        return replace(memory, look_at=event.at), ()
    if not survey.orphans and survey.unattributed_mib <= policy.foreign_allowance:
        return _gone(policy, replace(memory, unsettled=""))
    linger = memory.since + min(LINGER, policy.settle / 2)
    if memory.stop and not memory.fault and event.at < linger:
        return replace(memory, look_at=event.at + SETTLE_EVERY), ()
    if survey.orphans:
        unsettled = "left behind: " + ", ".join(process.named for process in survey.orphans)
    else:
        unsettled = f"{survey.unattributed_mib} MiB of VRAM not yet back"
    memory = replace(memory, unsettled=unsettled, look_at=event.at + SETTLE_EVERY)
    return memory, (Sweep(survey.orphans),) if survey.orphans else ()


def _surveyed_serving(policy: Policy, memory: Memory, event: SurveyTaken) -> tuple[Memory, Actions]:
    survey, at = event.survey, event.at
    if survey.gpu is GpuView.LOST:
        return _stop(
            policy, memory, at, Fault(Cause.GPU_LOST, survey.gpu_note, "reboot the machine")
        )
    held = sum(stranger.mib or 0 for stranger in survey.foreign)
    names = ", ".join(stranger.named for stranger in survey.foreign)
    stranger = f"{held} MiB of VRAM are held by {names}" if held > policy.foreign_allowance else ""
    orphan = ""
    if survey.orphans:
        orphan = "left over from an earlier run: " + ", ".join(
            process.named for process in survey.orphans
        )
    elif survey.unattributed_mib > policy.foreign_allowance:
        orphan = f"{survey.unattributed_mib} MiB of VRAM are held by no process that can be seen"
    memory = replace(memory, look_at=at + policy.survey)
    memory = _set_condition(memory, Reason.STRANGER_ON_GPU, at, stranger)
    memory = _set_condition(memory, Reason.VRAM_ORPHAN, at, orphan)
    return memory, (Sweep(survey.orphans),) if survey.orphans else ()


def _progressed(policy: Policy, memory: Memory, event: Progressed) -> tuple[Memory, Actions]:
    """Push the stall deadline out.

    Once the model is listed, our own probes make log lines and CPU time: only real work counts.
    """
    if memory.identified and event.sign in {Sign.LOG, Sign.CPU, Sign.IO}:
        return memory, ()
    memory = replace(memory, progressed_at=event.at, boot=event.boot or memory.boot)
    return memory, (_extend_start(policy, memory, event.at),)


def _extend_start(policy: Policy, memory: Memory, at: float) -> ExtendTimeout:
    """How long the manager must wait for a start that got on at `at`."""
    left = memory.launched_at + policy.start_limit - at
    wait = min(policy.start_stall, max(left, 0.0))
    return ExtendTimeout(wait + policy.grace + policy.settle + MARGIN)


def _gate_passed(policy: Policy, memory: Memory, event: ProbePassed) -> tuple[Memory, Actions]:
    at, loading = event.at, memory.phase is RunPhase.LOADING
    memory = replace(
        memory,
        trying=False,
        try_at=at + policy.interval,
        identified=True,
        contexts=event.contexts,
        miss=None,
        misses=0,
        unanswered_since=None,
        error_since=None,
        moved_at=at,
        finished_at=at,
        suspended="",
        counters=None,  # they are about to count our own completion, which is nobody's traffic
    )
    for reason in CLEARED_BY_AN_ANSWER:
        memory = _set_condition(memory, reason, at, "")
    requested, effective = event.contexts.requested, event.contexts.effective
    short = requested is not None and effective is not None and effective < requested
    sentence = f"context is {effective} tokens, {requested} were requested" if short else ""
    memory = _set_condition(memory, Reason.CONTEXT_BELOW_REQUESTED, at, sentence)
    if not loading:
        return memory, ()
    phase = RunPhase.DEGRADED if memory.conditions else RunPhase.SERVING
    ready = replace(memory, phase=phase, since=at, read_at=at, look_at=at + policy.survey)
    return ready, (ReportReady(),)


def _gate_missed(policy: Policy, memory: Memory, event: ProbeFailed) -> tuple[Memory, Actions]:
    at, miss, loading = event.at, event.miss, memory.phase is RunPhase.LOADING
    same = miss is memory.miss
    silent = miss in {
        ProbeFailure.UNANSWERED,
        ProbeFailure.REFUSED,
        ProbeFailure.UNAVAILABLE,
        ProbeFailure.ERROR,
    }
    erring = miss in {ProbeFailure.ERROR, ProbeFailure.UNAVAILABLE}
    memory = replace(
        memory,
        trying=False,
        miss=miss,
        missed=event.sentence,
        misses=memory.misses + 1 if same else 1,
        miss_since=memory.miss_since if same else at,
        identified=memory.identified or event.identified,
        unanswered_since=(
            memory.asked_at if memory.unanswered_since is None else memory.unanswered_since
        )
        if silent
        else None,
        error_since=(at if memory.error_since is None else memory.error_since) if erring else None,
        try_at=at
        + (
            PROBE_EVERY
            if loading or miss is ProbeFailure.UNANSWERED
            else min(DEGRADED_EVERY, policy.interval)
        ),
        read_at=min(memory.read_at, at),
    )
    believed = (FATAL_WHILE_LOADING if loading else FATAL_WHILE_SERVING).get(miss)
    if believed and memory.misses >= FAILURE_THRESHOLD and at - memory.miss_since >= FAILURE_WINDOW:
        return _stop(policy, memory, at, _fault(believed, event.sentence))
    if not loading:
        memory = _set_condition(
            memory, FAILURE_REASON.get(miss, Reason.UNANSWERED), at, event.sentence
        )
    return memory, ()


def _counters_read(policy: Policy, memory: Memory, event: CountersRead) -> tuple[Memory, Actions]:
    """Note what moved; a user's finished completion is as good a proof as our own."""
    at, now, before = event.at, event.counters, memory.counters
    busy = memory.unanswered_since is not None or memory.trying
    memory = replace(
        memory, read_at=at + (min(DEGRADED_EVERY, COUNTERS_EVERY) if busy else COUNTERS_EVERY)
    )
    if now is None:
        return memory, ()
    memory = replace(memory, counters=now)
    if before is None or now.progress == before.progress:
        return memory, ()
    memory = replace(memory, moved_at=at)
    if now.finished is not None and before.finished is not None and now.finished > before.finished:
        memory = _traffic(policy, memory, at)
    if memory.phase is RunPhase.LOADING:
        return _progressed(policy, memory, Progressed(at, Sign.COUNTERS))
    return memory, ()


def _traffic(policy: Policy, memory: Memory, at: float) -> Memory:
    """Take a user's finished completion for a probe's: the next probe is put off."""
    memory = replace(memory, finished_at=at)
    if memory.phase not in {RunPhase.SERVING, RunPhase.DEGRADED}:
        return memory
    if not memory.trying:
        memory = replace(memory, try_at=max(memory.try_at, at + policy.interval))
    memory = replace(memory, unanswered_since=None, error_since=None)
    memory = _set_condition(memory, Reason.PROGRESS_WITHOUT_COMPLETION, at, "")
    return _set_condition(memory, Reason.UNANSWERED, at, "")


def _clock_jumped(policy: Policy, memory: Memory, event: ClockJumped) -> tuple[Memory, Actions]:
    """After a sleep nothing of before counts against the engine: ask at once, with patience."""
    at = event.at
    fresh = replace(
        memory,
        suspended=f"the machine slept or stood still for {abs(event.seconds):.0f} s",
        progressed_at=at,
        trying=False,
        try_at=at,
        read_at=at,
        look_at=at,
        unanswered_since=None,
        error_since=None,
        miss=None,
        misses=0,
        moved_at=at,
        finished_at=at,
    )
    loading = memory.phase is RunPhase.LOADING
    return fresh, (CancelProbe(), *([_extend_start(policy, memory, at)] if loading else []))


def _set_condition(memory: Memory, reason: Reason, at: float, sentence: str) -> Memory:
    """Note that `reason` holds, in these words, or without words that it does not hold.

    Serving and degraded follow from whether any reason is left.
    """
    held = next((ail for ail in memory.conditions if ail.reason is reason), None)
    others = tuple(ail for ail in memory.conditions if ail.reason is not reason)
    if sentence:
        conditions = (*others, Condition(reason, held.since if held else at, sentence))
        conditions = tuple(sorted(conditions, key=lambda ail: ail.since))
    else:
        conditions = others
    memory = replace(memory, conditions=conditions)
    if memory.phase is RunPhase.SERVING and conditions:
        return replace(memory, phase=RunPhase.DEGRADED, since=at)
    if memory.phase is RunPhase.DEGRADED and not conditions:
        return replace(memory, phase=RunPhase.SERVING, since=at)
    return memory


def _due(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    """Order what has come due by `at`."""
    match memory.phase:
        case RunPhase.HOLDING:
            return _due_holding(policy, memory, at)
        case RunPhase.LOADING:
            return _due_loading(policy, memory, at)
        case RunPhase.SERVING | RunPhase.DEGRADED:
            return _due_watching(policy, memory, at)
        case RunPhase.STOPPING:
            return _due_stopping(memory, at)
        case RunPhase.KILLING if at >= memory.since + policy.kill:
            sentence = (
                "the engine cannot be killed: it sleeps uninterruptibly, most likely in the driver"
            )
            fault = Fault(Cause.UNKILLABLE, sentence, "reboot the machine")
            return _gone(policy, replace(memory, fault=fault))
        case RunPhase.SETTLING:
            return _due_settling(policy, memory, at)
        case RunPhase.KILLING | RunPhase.GONE:
            return memory, ()
        case _:
            assert_never(memory.phase)


def _due_holding(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    if memory.blocked and at >= memory.blocked_since + policy.gpu_wait:
        return _settle(policy, replace(memory, fault=memory.blocked), at)
    if memory.clear and at >= memory.hold_until:
        loading = replace(
            memory,
            phase=RunPhase.LOADING,
            since=at,
            alive=True,
            launched_at=at,
            progressed_at=at,
            try_at=at,
        )
        return loading, (_extend_start(policy, loading, at), Launch())
    if memory.looking and at >= _blind_at(policy, memory):
        sentence = f"who holds GPU and port could not be seen for {at - memory.look_at:.0f} s"
        return _settle(policy, replace(memory, fault=_fault(Cause.DRIVER, sentence)), at)
    if not memory.looking and at >= memory.look_at:
        return replace(memory, looking=True), (TakeSurvey(),)
    return memory, ()


def _due_loading(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    doing = (memory.boot or "launched") + (f": {memory.missed}" if memory.missed else "")
    if at >= memory.launched_at + policy.start_limit:
        sentence = f"not ready {policy.start_limit:g} s after the launch, while {doing}"
        fault = Fault(Cause.START_LIMIT, sentence, "raise start.limit if it needs longer")
        return _stop(policy, memory, at, fault)
    if at >= memory.progressed_at + policy.start_stall:
        sentence = f"no progress for {policy.start_stall:g} s while {doing}"
        # What keeps the gate shut says more than that it is shut.
        cause = FATAL_WHILE_LOADING.get(memory.miss) if memory.miss else None
        return _stop(policy, memory, at, _fault(cause or Cause.START_STALLED, sentence))
    memory, actions = _due_gate(policy, memory, at)
    if memory.identified and not memory.reading and at >= memory.read_at:
        memory, actions = replace(memory, reading=True), (*actions, ReadCounters())
    return memory, actions


def _due_gate(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    """Try the gate, or take an attempt that does not come back for one more without an answer."""
    if at < _gate_at(policy, memory):
        return memory, ()
    if memory.trying:
        sentence = f"no answer, and no end of the attempt, within {at - memory.asked_at:.0f} s"
        missed, actions = _gate_missed(
            policy, memory, ProbeFailed(at, ProbeFailure.UNANSWERED, sentence)
        )
        return missed, (CancelProbe(), *actions)
    # Whether it is busy or hung while this waits is seen by what moves from now on.
    trying = replace(memory, trying=True, asked_at=at, read_at=min(memory.read_at, at))
    return trying, (RunProbe(),)


def _due_watching(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    fault = _overdue(policy, memory, at)
    if fault:
        return _stop(policy, memory, at, fault)
    if any(at >= due for due in _unfinished_times(policy, memory)):
        sentence = f"counters move, but no completion has finished for {policy.unfinished:g} s"
        memory = _set_condition(memory, Reason.PROGRESS_WITHOUT_COMPLETION, at, sentence)
    memory, actions = _due_gate(policy, memory, at)
    if not memory.reading and at >= memory.read_at:
        memory, actions = replace(memory, reading=True), (*actions, ReadCounters())
    if not memory.looking and at >= memory.look_at:
        memory, actions = replace(memory, looking=True), (*actions, TakeSurvey())
    return memory, actions


def _overdue(policy: Policy, memory: Memory, at: float) -> Fault | None:
    """The fault that has lasted too long for a restart to be put off."""
    since = memory.unanswered_since
    if memory.error_since is not None and at >= memory.error_since + policy.stall:
        sentence = f"nothing but errors for {policy.stall:g} s"
        return _fault(Cause.WRONG_ANSWER, sentence)
    if since is not None and memory.error_since is None and at >= _hung_at(policy, memory):
        still = f"no counter moved for {at - max(since, memory.moved_at):.0f} s"
        if memory.counters is None:
            still = "the engine tells of no progress"
        return _fault(Cause.HUNG, f"no completion for {at - since:.0f} s and {still}")
    for ail in memory.conditions:
        if ail.reason in policy.restart_on and at >= ail.since + policy.condition_limit:
            return _fault(REASON_CAUSE[ail.reason], f"{ail.sentence} (for {at - ail.since:.0f} s)")
    return None


def _due_stopping(memory: Memory, at: float) -> tuple[Memory, Actions]:
    if at >= memory.since + memory.grace:
        return replace(memory, phase=RunPhase.KILLING, since=at), (Kill(),)
    if memory.sigterms_sent == 1 and at >= memory.since + memory.grace / 2:
        return replace(memory, sigterms_sent=2), (Terminate(),)
    return memory, ()


def _due_settling(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    if at >= memory.since + policy.settle:
        if "left behind" in memory.unsettled:
            fault = Fault(
                Cause.UNKILLABLE, f"cannot be killed, {memory.unsettled}", "reboot the machine"
            )
            return _gone(policy, replace(memory, fault=fault))
        if memory.unsettled:
            fault = Fault(
                Cause.VRAM_ORPHAN, memory.unsettled, "reset the GPU or reboot the machine"
            )
        else:
            fault = _fault(Cause.DRIVER, "what is left of the engine could not be seen")
        unsettled = fault.sentence
        return _gone(policy, replace(memory, fault=memory.fault or fault, unsettled=unsettled))
    if not memory.looking and at >= memory.look_at:
        return replace(memory, looking=True), (TakeSurvey(),)
    return memory, ()
