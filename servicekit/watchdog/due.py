"""Everything that happens by itself: `DUE` says for each phase when, and what is made of it. Pure.

`state.wake_at` and `state.step` both read this table, so no deadline stands in two places.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from servicekit.diagnosis.causes import Cause
from servicekit.diagnosis.fault import Fault
from servicekit.profiles.vocabulary import Reason
from servicekit.watchdog import ending, reactions
from servicekit.watchdog.conditions import FATAL_WHILE_LOADING, REASON_CAUSE, set_condition
from servicekit.watchdog.ending import OVERDUE, fault_of, kill
from servicekit.watchdog.events import (
    Actions,
    CancelProbe,
    Launch,
    Policy,
    ProbeFailed,
    ProbeFailure,
    ReadCounters,
    RunPhase,
    RunProbe,
    TakeSurvey,
    Terminate,
)
from servicekit.watchdog.memory import Condition, Load, Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Rule(NamedTuple):
    """Something that happens by itself: when it is due, and what is made of it."""

    what: str  # the deadline, as docs/transitions.md prints it
    due: Callable[[Policy, Memory], float | None]  # the time; `None` while it is not waited for
    then: Callable[[Policy, Memory, float], tuple[Memory, Actions]]


# Holding.


def give_up_waiting(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    """End by what stands in the way of the launch."""
    return ending.settle(policy, memory, at, memory.hold.blocked)


def launch(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    """Launch the engine, and probe it at once."""
    memory = replace(
        memory,
        phase=RunPhase.LOADING,
        since=at,
        alive=True,
        load=Load(launched_at=at, progressed_at=at),
        probe=replace(memory.probe, next_at=at),
    )
    return memory, (ending.extend_start(policy, memory, at), Launch())


def give_up_survey(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    """End without a survey of the holders of GPU and port."""
    waited = at - memory.survey.next_at
    sentence = f"no survey of the GPU and the port for {waited:.0f} s"
    return ending.settle(policy, memory, at, fault_of(Cause.DRIVER, sentence))


def take_survey(_: Policy, memory: Memory, __: float) -> tuple[Memory, Actions]:
    """Begin a survey."""
    return replace(memory, survey=replace(memory.survey, running=True)), (TakeSurvey(),)


# Loading.


def _doing(memory: Memory) -> str:
    why = memory.probe.sentence
    return (memory.load.boot or "launched") + (f": {why}" if why else "")


def start_too_long(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    """End a start that takes too long altogether."""
    sentence = f"not ready {policy.start_limit:g} s after the launch, while {_doing(memory)}"
    fault = Fault(Cause.START_LIMIT, sentence, "raise start.limit if it needs longer")
    return ending.stop(policy, memory, at, fault)


def start_stalled(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    """End a start without progress; why the probe fails says more than that it does."""
    sentence = f"no progress for {policy.start_stall:g} s while {_doing(memory)}"
    failure = memory.probe.failure
    cause = FATAL_WHILE_LOADING.get(failure) if failure else None
    return ending.stop(policy, memory, at, fault_of(cause or Cause.START_STALLED, sentence))


# Loading and serving.


def probe(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    """Probe, or take an attempt that does not come back for one without an answer."""
    if memory.probe.running:
        sentence = f"the probe did not return within {at - memory.probe.sent_at:.0f} s"
        failed = ProbeFailed(at, ProbeFailure.UNANSWERED, sentence)
        memory, actions = reactions.probe_failed(policy, memory, failed)
        return memory, (CancelProbe(), *actions)
    # Whether the engine is busy or hung meanwhile is seen by what moves from now on.
    reading = replace(memory.reading, next_at=min(memory.reading.next_at, at))
    sent = replace(memory.probe, running=True, sent_at=at)
    return replace(memory, probe=sent, reading=reading), (RunProbe(),)


def _probe_at(policy: Policy, memory: Memory) -> float:
    sent = memory.probe
    return sent.sent_at + policy.probe_deadline + OVERDUE if sent.running else sent.next_at


def read_counters(_: Policy, memory: Memory, __: float) -> tuple[Memory, Actions]:
    """Begin a reading of the counters."""
    return replace(memory, reading=replace(memory.reading, running=True)), (ReadCounters(),)


# Serving.


def only_errors(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    """End an engine that says it is unavailable, while none of its counters moves."""
    sentence = f"{memory.probe.sentence} (only errors for {policy.stall:g} s)"
    return ending.stop(policy, memory, at, fault_of(Cause.WRONG_ANSWER, sentence))


def _only_errors_at(policy: Policy, memory: Memory) -> float | None:
    since = memory.probe.error_since
    if since is None or memory.probe.failure is not ProbeFailure.UNAVAILABLE:
        return None
    return max(since, memory.reading.moved_at) + policy.stall  # what moves is load


def hung(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    """End an engine that answers nothing while none of its counters moves."""
    since = memory.probe.unanswered_since or 0.0
    still = f"no counter moved for {at - max(since, memory.reading.moved_at):.0f} s"
    if memory.reading.counters is None:
        still = "the engine reports no progress"
    sentence = f"no completion for {at - since:.0f} s and {still}"
    return ending.stop(policy, memory, at, fault_of(Cause.HUNG, sentence))


def _hung_at(policy: Policy, memory: Memory) -> float | None:
    since = memory.probe.unanswered_since
    if since is None or memory.probe.error_since is not None:
        return None
    had_its_chance = max(since, memory.reading.moved_at, memory.vitals.hindered_at)
    return max(since + policy.probe_deadline, had_its_chance + policy.stall)


def _oldest(policy: Policy, memory: Memory) -> Condition | None:
    """Of the conditions that are followed by a restart, the oldest."""
    return next((one for one in memory.conditions if one.reason in policy.restart_on), None)


def condition_lasted(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    """End an engine that is degraded for too long in a way that `restart.on` names."""
    oldest = _oldest(policy, memory)
    if oldest is None:
        return memory, ()
    sentence = f"{oldest.sentence} (for {at - oldest.since:.0f} s)"
    return ending.stop(policy, memory, at, fault_of(REASON_CAUSE[oldest.reason], sentence))


def _condition_lasted_at(policy: Policy, memory: Memory) -> float | None:
    oldest = _oldest(policy, memory)
    return None if oldest is None else oldest.since + policy.condition_limit


def nothing_finishes(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    """Degrade an engine that works and finishes nothing."""
    sentence = f"counters move, but no completion has finished for {policy.unfinished:g} s"
    return set_condition(memory, Reason.PROGRESS_WITHOUT_COMPLETION, at, sentence), ()


def _nothing_finishes_at(policy: Policy, memory: Memory) -> float | None:
    since = memory.probe.unanswered_since
    noted = memory.holds(Reason.PROGRESS_WITHOUT_COMPLETION)
    if since is None or memory.reading.moved_at <= since or noted:
        return None
    return max(since, memory.probe.finished_at) + policy.unfinished


# Ending.


def terminate_again(_: Policy, memory: Memory, __: float) -> tuple[Memory, Actions]:
    """Send the second SIGTERM."""
    return replace(memory, end=replace(memory.end, sigterms_sent=2)), (Terminate(),)


def _terminate_again_at(_: Policy, memory: Memory) -> float | None:
    once = memory.end.sigterms_sent == 1
    return memory.since + memory.end.grace / 2 if once else None


def unkillable(policy: Policy, memory: Memory, _: float) -> tuple[Memory, Actions]:
    """Give up on an engine that survives SIGKILL."""
    sentence = "cannot kill the engine: it is in uninterruptible sleep, most likely in the driver"
    return ending.gone(policy, memory, Fault(Cause.UNKILLABLE, sentence, "reboot the machine"))


def unsettled(policy: Policy, memory: Memory, _: float) -> tuple[Memory, Actions]:
    """Give up on what the engine left behind."""
    end = memory.end
    if end.orphaned:
        fault = Fault(
            Cause.UNKILLABLE, f"cannot kill what is {end.unsettled}", "reboot the machine"
        )
        return ending.gone(policy, memory, fault)
    if end.unsettled:
        remedy = "reset the GPU or reboot the machine"
        fault = Fault(Cause.VRAM_ORPHAN, end.unsettled, remedy)
    else:
        fault = fault_of(Cause.DRIVER, "no survey shows what is left of the engine")
    memory = replace(memory, end=replace(end, unsettled=fault.sentence))
    return ending.gone(policy, memory, end.fault or fault)


_SURVEY: Final = Rule("the next survey", lambda _, m: m.survey.due, take_survey)
_PROBE: Final = Rule(
    f"the next probe, or {OVERDUE:g} s after the deadline of the one under way", _probe_at, probe
)
_WATCHING: Final = (
    Rule(
        "`watch.stall` after the first of only errors, if the last is 429 or 503, and after a"
        " counter last moved",
        _only_errors_at,
        only_errors,
    ),
    Rule(
        "`probe.deadline` after the first unanswered completion, and `watch.stall` after a counter"
        " last moved or the engine was last kept from running",
        _hung_at,
        hung,
    ),
    Rule(
        "`watch.ail_limit` after the oldest condition that `restart.on` names",
        _condition_lasted_at,
        condition_lasted,
    ),
    Rule(
        "`watch.unfinished` after a completion last finished, while counters move",
        _nothing_finishes_at,
        nothing_finishes,
    ),
    _PROBE,
    Rule("the next reading of the counters", lambda _, m: m.reading.due, read_counters),
    _SURVEY,
)
# By phase, in order: of what is due at once, the first that ends the phase is the last to happen.
DUE: Final[Mapping[RunPhase, tuple[Rule, ...]]] = {
    RunPhase.HOLDING: (
        Rule(
            "`start.gpu_wait` after something stood in the way",
            lambda p, m: m.hold.blocked_since + p.gpu_wait if m.hold.blocked else None,
            give_up_waiting,
        ),
        Rule(
            "the hold-off, once nothing stands in the way",
            lambda _, m: m.started.hold_until if m.hold.clear else None,
            launch,
        ),
        Rule(
            f"`start.gpu_wait` and {OVERDUE:g} s after a survey began",
            lambda p, m: m.survey.next_at + p.gpu_wait + OVERDUE if m.survey.running else None,
            give_up_survey,
        ),
        _SURVEY,
    ),
    RunPhase.LOADING: (
        Rule(
            "`start.limit` after the launch",
            lambda p, m: m.load.launched_at + p.start_limit,
            start_too_long,
        ),
        Rule(
            "`start.stall` after the last progress",
            lambda p, m: m.load.progressed_at + p.start_stall,
            start_stalled,
        ),
        _PROBE,
        Rule(
            "the next reading of the counters, once the model was listed",
            lambda _, m: m.reading.due if m.load.identified else None,
            read_counters,
        ),
    ),
    RunPhase.SERVING: _WATCHING,
    RunPhase.DEGRADED: _WATCHING,
    RunPhase.STOPPING: (
        Rule("the grace period", lambda _, m: m.since + m.end.grace, kill),
        Rule("half of the grace period", _terminate_again_at, terminate_again),
    ),
    RunPhase.KILLING: (
        Rule("`stop.kill` after SIGKILL", lambda p, m: m.since + p.kill, unkillable),
    ),
    RunPhase.SETTLING: (
        Rule("`stop.settle` after the engine's end", lambda p, m: m.since + p.settle, unsettled),
        _SURVEY,
    ),
    RunPhase.GONE: (),
}
