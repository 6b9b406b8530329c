"""What each kind of event makes of a run's memory. Pure; `state` says in which phase it counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from servicekit.diagnosis.causes import Cause
from servicekit.diagnosis.fault import Fault
from servicekit.profiles.vocabulary import Reason
from servicekit.watchdog import ending
from servicekit.watchdog.conditions import (
    CLEARED_BY_AN_ANSWER,
    FAILURE_REASON,
    FAILURE_THRESHOLD,
    FAILURE_WINDOW,
    FATAL_WHILE_LOADING,
    FATAL_WHILE_SERVING,
    clear_conditions,
    set_condition,
)
from servicekit.watchdog.ending import fault_of
from servicekit.watchdog.events import (
    HOST_DEATHS,
    STEADY,
    Actions,
    ActivityRead,
    CancelProbe,
    ClockJumped,
    CountersRead,
    EngineExited,
    Launched,
    Policy,
    ProbeFailed,
    ProbeFailure,
    ProbePassed,
    Progressed,
    ReportReady,
    RunPhase,
    Sign,
    Started,
    StopRequested,
    WorkerExited,
)
from servicekit.watchdog.memory import Memory, Probing
from servicekit.watchdog.progress import stands_still, starved
from servicekit.watchdog.surveyed import survey_next

# Cadences that no profile needs to change, in seconds.
# Between probes while loading: most of the delay from "can answer" to `READY=1`.
PROBE_EVERY: Final = 0.1
DEGRADED_EVERY: Final = 1.0
COUNTERS_EVERY: Final = 5.0
# Part of the interval between probes by which the counters are read after one, and before the next:
# users' completions that are seen in between are as good as a probe.
LEAD: Final = 0.25
# How long requests may run without any counter moving before the engine is probed: nearly as long
# as there is between two readings.
SUSPICION: Final = 4.5
# How long an ending engine without its workers may do nothing. vLLM's API server waits until its
# connections are closed, which are not answered any more.
IDLE_LIMIT: Final = 1.0
# For how long after a completion was sent an engine may use CPU without working on it.
SPIN_LIMIT: Final = 3.0
# An engine that ends takes its processes along, and their deaths may be seen first.
LOST_TOGETHER: Final = 0.1
# How long an engine that lost a process must answer nothing, its counters standing still.
LOST_LIMIT: Final = 1.0
# How soon after a process of it an engine ends because of that: SGLang takes 6 s to notice.
LOST_LATELY: Final = 15.0

NO_ANSWER: Final = frozenset(
    {
        ProbeFailure.UNANSWERED,
        ProbeFailure.REFUSED,
        ProbeFailure.UNAVAILABLE,
        ProbeFailure.ERROR,
    }
)
# What answers may not be our engine, nor the counters that it reports.
NOT_ITSELF: Final = frozenset({ProbeFailure.NOT_OURS, ProbeFailure.WRONG_MODEL})
ERRORS: Final = frozenset({ProbeFailure.ERROR, ProbeFailure.UNAVAILABLE})


def begin(policy: Policy, memory: Memory, event: Started) -> tuple[Memory, Actions]:
    """Take over what the ledger says; end at once where that says that no start will help."""
    at = event.at
    memory = replace(memory, since=at, started=event, survey=replace(memory.survey, next_at=at))
    if event.host_deaths >= HOST_DEATHS:
        sentence = (
            f"the host went down {event.host_deaths} times in a row, each time before the service "
            f"was ready or within {STEADY:.0f} s of that"
        )
        fault = fault_of(Cause.HOST_DIES_UNDER_LOAD, sentence)
        return ending.settle(policy, memory, at, fault)
    if event.faults_left <= 0:  # the last runs were cut off, and could not write it themselves
        return ending.settle(policy, memory, at, ending.budget_spent(memory, event.last_sentence))
    return memory, (ending.extend_hold(policy, memory, at),)


def stop_requested(policy: Policy, memory: Memory, event: StopRequested) -> tuple[Memory, Actions]:
    """Stop once; a request while the run ends already only asks the manager to wait."""
    if memory.end.stop:
        return memory, ()
    request = Fault(event.cause, event.sentence)
    memory = replace(memory, end=replace(memory.end, stop=request))
    if memory.phase in {RunPhase.STOPPING, RunPhase.KILLING, RunPhase.SETTLING}:
        return memory, (ending.extend_end(policy, policy.grace),)
    return ending.stop(policy, memory, event.at, None)


def launched(policy: Policy, memory: Memory, event: Launched) -> tuple[Memory, Actions]:
    """Let the limits of the start begin when the engine's process exists."""
    load = replace(memory.load, launched_at=event.at, progressed_at=event.at)
    memory = replace(memory, load=load)
    return memory, (ending.extend_start(policy, memory, event.at),)


def engine_exited(policy: Policy, memory: Memory, event: EngineExited) -> tuple[Memory, Actions]:
    """Settle after the engine's end; it is a fault unless an end was already under way."""
    if not memory.alive or memory.phase is RunPhase.SETTLING:
        return memory, ()
    fault: Fault | None = event.fault
    lost, weak = memory.first_lost, event.fault.cause in {Cause.ENGINE_EXIT, Cause.ENGINE_SIGNAL}
    if lost and weak and LOST_TOGETHER < event.at - lost.at <= LOST_LATELY:
        fault = _because_lost(lost, f"then {event.fault.sentence}")
    fault = None if memory.end.stop else ending.after_suspend(memory, fault)
    return ending.settle(policy, replace(memory, alive=False), event.at, fault)


def worker_exited(memory: Memory, event: WorkerExited) -> tuple[Memory, Actions]:
    """Degrade at once, and probe at once: an engine may well replace a worker by itself."""
    # The first death is the cause: an engine may answer once more before it ends its other workers.
    first = memory.first_lost
    memory = replace(
        memory,
        lost=memory.lost if memory.holds(Reason.WORKER_DIED) else event,
        first_lost=first if first and event.at - first.at <= LOST_LATELY else event,
        probe=replace(memory.probe, running=False, next_at=event.at),
    )
    memory = set_condition(memory, Reason.WORKER_DIED, event.at, event.fault.sentence)
    return memory, (CancelProbe(),)


def _because_lost(lost: WorkerExited, more: str) -> Fault:
    return replace(lost.fault, sentence=f"{lost.fault.sentence}; {more}")


def activity_while_serving(
    policy: Policy, memory: Memory, event: ActivityRead
) -> tuple[Memory, Actions]:
    """End an engine that does nothing at all while a completion waits, though it could."""
    at, since, vitals = event.at, memory.waits_since, memory.vitals
    if since is None or memory.probe.error_since is not None:
        return replace(memory, vitals=replace(vitals, last=None, still=None, hindered="")), ()
    last, still, hindered = vitals.last, vitals.still, event.hindered
    if not hindered and last and _starved(last, event):
        hindered = "the engine does not get the CPU time that it wants"
    if hindered:
        vitals = replace(vitals, hindered_at=at)
    begin = max(since + SPIN_LIMIT, memory.reading.moved_at)
    seconds = at - still.at if still else 0.0
    could = not hindered and not event.blocked
    if still is None or still.at < begin or not could or not _still(still, event, seconds):
        still = event if at >= begin and could else None
    vitals = replace(vitals, last=event, still=still, hindered=hindered)
    memory = replace(memory, vitals=vitals)
    gpu_idle = not policy.uses_gpu or (still is not None and vitals.gpu_idle_at >= still.at)
    if still is None or not gpu_idle or at < still.at + policy.still:
        return memory, ()
    if at < since + policy.probe_deadline:
        return memory, ()
    sentence = (
        f"no completion for {at - since:.0f} s and the engine did nothing for {seconds:.0f} s"
    )
    return ending.stop(policy, memory, at, fault_of(Cause.HUNG, sentence))


def _starved(last: ActivityRead, now: ActivityRead) -> bool:
    seconds = now.at - last.at
    waits = last.runnable and now.runnable and _still(last, now, seconds)
    return waits or starved(last.activity, now.activity, seconds)


def _still(since: ActivityRead, now: ActivityRead, seconds: float) -> bool:
    # In less than a second one tick of the kernel's clock would already be work.
    return stands_still(since.activity, now.activity, max(seconds, 1.0))


def activity_while_ending(
    policy: Policy, memory: Memory, event: ActivityRead
) -> tuple[Memory, Actions]:
    """Kill an ending engine that waits for nothing: its workers are dead, and the rest is idle."""
    idle = memory.end.idle if event.alone else None
    seconds = event.at - idle.at if idle else 0.0
    if idle is None or not _still(idle, event, seconds):
        idle = event if event.alone else None
    elif seconds >= IDLE_LIMIT:
        return ending.kill(policy, memory, event.at)
    return replace(memory, end=replace(memory.end, idle=idle)), ()


# Progress, probes and counters.


def progressed(policy: Policy, memory: Memory, event: Progressed) -> tuple[Memory, Actions]:
    """Push the stall deadline out.

    Once the model is listed, our own probes make log lines and CPU time: only real work counts.
    """
    load = memory.load
    if load.identified and event.sign in {Sign.LOG, Sign.CPU, Sign.IO}:
        return memory, ()
    load = replace(load, progressed_at=event.at, boot=event.boot or load.boot)
    memory = replace(memory, load=load)
    return memory, (ending.extend_start(policy, memory, event.at),)


def probe_passed(policy: Policy, memory: Memory, event: ProbePassed) -> tuple[Memory, Actions]:
    """Become ready, or clear what an answer clears."""
    at, loading = event.at, memory.phase is RunPhase.LOADING
    memory = replace(
        memory,
        probe=Probing(next_at=at + policy.interval, finished_at=at),
        load=replace(memory.load, identified=True),
        contexts=event.contexts,
        # The counters are about to count our own completion, which is not user traffic.
        reading=replace(
            memory.reading,
            next_at=min(memory.reading.next_at, at + LEAD * policy.interval),
            counters=None,
            moved_at=at,
            frozen_since=None,
        ),
        suspended="",
    )
    memory = clear_conditions(memory, CLEARED_BY_AN_ANSWER, at)
    requested, effective = event.contexts.requested, event.contexts.effective
    short = requested is not None and effective is not None and effective < requested
    sentence = f"context is {effective} tokens, {requested} were requested" if short else ""
    memory = set_condition(memory, Reason.CONTEXT_BELOW_REQUESTED, at, sentence)
    if not loading:
        return memory, ()
    phase = RunPhase.DEGRADED if memory.conditions else RunPhase.SERVING
    reading = replace(memory.reading, next_at=at)
    memory = replace(memory, phase=phase, since=at, served=True, reading=reading)
    return survey_next(memory, at + policy.survey), (ReportReady(),)


def probe_failed(policy: Policy, memory: Memory, event: ProbeFailed) -> tuple[Memory, Actions]:
    """Count the failure: end the run by a fatal one, degrade a service by any other."""
    at, failure, loading = event.at, event.failure, memory.phase is RunPhase.LOADING
    memory = replace(
        memory,
        probe=_failed(policy, memory.probe, event, loading=loading),
        load=replace(memory.load, identified=memory.load.identified or event.identified),
        reading=replace(memory.reading, next_at=min(memory.reading.next_at, at)),
    )
    probe = memory.probe
    fatal = (FATAL_WHILE_LOADING if loading else FATAL_WHILE_SERVING).get(failure)
    failures, since, limit = probe.failures, probe.failing_since, FAILURE_WINDOW
    if not loading:
        failures, since, limit = probe.wrong, _first(probe.wrong_since, at), policy.failure_limit
    if fatal and at - since >= limit and failures >= FAILURE_THRESHOLD:
        lasted = "" if loading else f" (for {at - since:.0f} s)"
        fault = fault_of(fatal, event.sentence + lasted)
        fault = replace(fault, remedy=event.remedy or fault.remedy)
        return ending.stop(policy, memory, at, fault)
    lost = memory.lost if memory.holds(Reason.WORKER_DIED) else None
    if lost and failure in NO_ANSWER and at >= max(lost.at, memory.reading.moved_at) + LOST_LIMIT:
        fault = _because_lost(lost, f"since then: {event.sentence}")
        return ending.stop(policy, memory, at, fault)
    if not loading:
        reason = FAILURE_REASON.get(failure, Reason.UNANSWERED)
        hindered = memory.vitals.hindered
        sentence = f"{event.sentence}: {hindered}" if hindered else event.sentence
        memory = set_condition(memory, reason, at, sentence)
    return memory, ()


def _failed(policy: Policy, probe: Probing, event: ProbeFailed, *, loading: bool) -> Probing:
    at, failure, same = event.at, event.failure, event.failure is probe.failure
    soon = loading or failure is ProbeFailure.UNANSWERED
    unanswered, error = probe.unanswered_since, probe.error_since
    waits = failure in NO_ANSWER and (loading or failure is not ProbeFailure.REFUSED)
    wrong = not loading and failure in FATAL_WHILE_SERVING
    return Probing(
        next_at=at + (PROBE_EVERY if soon else min(DEGRADED_EVERY, policy.interval)),
        sent_at=probe.sent_at,
        failure=failure,
        sentence=event.sentence,
        failures=probe.failures + 1 if same else 1,
        failing_since=probe.failing_since if same else at,
        unanswered_since=_first(unanswered, probe.sent_at) if waits else None,
        error_since=_first(error, at) if failure in ERRORS else None,
        wrong_since=_first(probe.wrong_since, at) if wrong else probe.wrong_since,
        wrong=probe.wrong + wrong,
        finished_at=probe.finished_at,
    )


def _first(since: float | None, now: float) -> float:
    return now if since is None else since


def counters_read(policy: Policy, memory: Memory, event: CountersRead) -> tuple[Memory, Actions]:
    """Note what moved; a user's finished completion proves as much as our own."""
    memory = _counted(policy, memory, event)
    probe, at = memory.probe, event.at
    waiting = probe.unanswered_since is not None or probe.running
    next_at = at + (DEGRADED_EVERY if waiting else COUNTERS_EVERY)
    before_probe = probe.next_at - LEAD * policy.interval
    if before_probe > at:
        next_at = min(next_at, before_probe)
    memory = replace(memory, reading=replace(memory.reading, next_at=next_at, running=False))
    if memory.phase is RunPhase.LOADING and memory.reading.moved_at == at:
        return progressed(policy, memory, Progressed(at, Sign.COUNTERS))
    return memory, ()


def _counted(policy: Policy, memory: Memory, event: CountersRead) -> Memory:
    at, now, before, reading = event.at, event.counters, memory.reading.counters, memory.reading
    reading = replace(reading, counters=now or before)
    idle = memory.probe.unanswered_since is None and not memory.probe.running
    ready = memory.phase in {RunPhase.SERVING, RunPhase.DEGRADED}
    suspicious = now is None and before is not None  # it answered this question before
    if now is not None and before is not None and now.progress != before.progress:
        reading = replace(reading, moved_at=at, frozen_since=None)
    elif now is not None:
        since = _first(reading.frozen_since, at)
        suspicious = bool(now.running) and at - since >= SUSPICION
        reading = replace(reading, frozen_since=since if now.running else None)
    memory = replace(memory, reading=reading)
    if suspicious and ready and idle:  # ask it at once whether it still completes
        return replace(memory, probe=replace(memory.probe, next_at=at))
    if now is None or before is None or reading.moved_at != at or now.finished is None:
        return memory
    finished = before.finished is not None and now.finished > before.finished
    return _traffic(policy, memory, at) if finished else memory


def _traffic(policy: Policy, memory: Memory, at: float) -> Memory:
    """Take a user's finished completion for a probe's: the next probe is put off."""
    probe = replace(memory.probe, finished_at=at)
    if memory.phase not in {RunPhase.SERVING, RunPhase.DEGRADED}:
        return replace(memory, probe=probe)
    if probe.failure in NOT_ITSELF:
        return memory
    if not probe.running:
        probe = replace(probe, next_at=max(probe.next_at, at + policy.interval))
    probe = replace(probe, unanswered_since=None, error_since=None, wrong_since=None, wrong=0)
    answered = (Reason.PROGRESS_WITHOUT_COMPLETION, Reason.UNANSWERED)
    return clear_conditions(replace(memory, probe=probe), answered, at)


# Clocks.


def clock_jumped(policy: Policy, memory: Memory, event: ClockJumped) -> tuple[Memory, Actions]:
    """Let every limit begin anew: nothing had the time that passed."""
    at = event.at
    if memory.phase is RunPhase.HOLDING:
        memory = replace(memory, hold=replace(memory.hold, blocked_since=at))
        return survey_next(memory, at), (ending.extend_hold(policy, memory, at),)
    if memory.phase in {RunPhase.STOPPING, RunPhase.KILLING, RunPhase.SETTLING}:
        return replace(memory, since=at), (ending.extend_end(policy, policy.grace),)
    # Forget what counted against the engine, and probe it at once.
    memory = replace(
        memory,
        suspended=f"the machine was suspended or paused for {abs(event.seconds):.0f} s",
        load=replace(memory.load, progressed_at=at),
        probe=Probing(next_at=at, sentence=memory.probe.sentence, finished_at=at),
        reading=replace(memory.reading, next_at=at, moved_at=at),
    )
    loading = memory.phase is RunPhase.LOADING
    more = (ending.extend_start(policy, memory, at),) if loading else ()
    return survey_next(memory, at), (CancelProbe(), *more)
