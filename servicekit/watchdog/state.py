"""The watchdog's decisions: one pure function, `step(policy, memory, event) -> (memory, actions)`.

No clock, no I/O, no logging: every event carries its time (seconds of `CLOCK_MONOTONIC`), every
order is a value that the loop performs. One run of the watchdog is one pass through the phases:

    holding → loading → serving ⇄ degraded → stopping → killing → settling → gone

and never back, since an engine that must be restarted is restarted by the service manager in a new
run. After each event, whatever has come due by then happens, too: a deadline is data in `Memory`,
`due.DUE` says what follows from it, and `wake_at` when the loop must say `TimePassed`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, assert_never

from servicekit.watchdog import ending, reactions, surveyed
from servicekit.watchdog.conditions import set_condition
from servicekit.watchdog.due import DUE
from servicekit.watchdog.events import (
    Actions,
    ActivityRead,
    ClockJumped,
    CountersRead,
    EngineExited,
    Event,
    FaultSeen,
    Launched,
    LaunchFailed,
    Observed,
    Policy,
    ProbeFailed,
    ProbePassed,
    Progressed,
    RunPhase,
    Started,
    StopRequested,
    SurveyTaken,
    TimePassed,
    WorkerExited,
)

if TYPE_CHECKING:
    from servicekit.watchdog.memory import Memory

ENDING: Final = frozenset({RunPhase.STOPPING, RunPhase.KILLING, RunPhase.SETTLING})
UP: Final = frozenset({RunPhase.LOADING, RunPhase.SERVING, RunPhase.DEGRADED})


def wake_at(policy: Policy, memory: Memory) -> float | None:
    """When `step` next wants a `TimePassed`; `None` when it only waits for other events."""
    times = (rule.due(policy, memory) for rule in DUE[memory.phase])
    return min((time for time in times if time is not None), default=None)


def step(policy: Policy, memory: Memory, event: Event) -> tuple[Memory, Actions]:
    """Take one event; return the new memory and the actions."""
    memory, actions = _react(policy, memory, event)
    memory, due = _happen(policy, memory, event.at)
    return memory, (*actions, *due)


def _happen(policy: Policy, memory: Memory, at: float) -> tuple[Memory, Actions]:
    """Apply each rule of the phase that has come due by `at`, until one ends the phase."""
    rules = DUE[memory.phase]
    actions: Actions = ()
    for rule in rules:
        due = rule.due(policy, memory)
        if due is not None and at >= due:
            memory, more = rule.then(policy, memory, at)
            actions = (*actions, *more)
            if DUE[memory.phase] is not rules:
                break
    return memory, actions


def _react(policy: Policy, memory: Memory, event: Event) -> tuple[Memory, Actions]:
    phase = memory.phase
    match event:
        case _ if phase is RunPhase.GONE:
            return memory, ()
        case TimePassed():
            return memory, ()
        case Started():
            return reactions.begin(policy, memory, event)
        case StopRequested():
            return reactions.stop_requested(policy, memory, event)
        case FaultSeen() if phase not in ENDING:
            return ending.stop(policy, memory, event.at, event.fault)
        case EngineExited():
            return reactions.engine_exited(policy, memory, event)
        case WorkerExited() if phase in {RunPhase.SERVING, RunPhase.DEGRADED}:
            return reactions.worker_exited(memory, event)
        case SurveyTaken():
            return surveyed.survey_taken(policy, memory, event)
        case Launched() if phase is RunPhase.LOADING:
            return reactions.launched(policy, memory, event)
        case LaunchFailed() if memory.alive:
            return ending.settle(policy, replace(memory, alive=False), event.at, event.fault)
        case Progressed() if phase is RunPhase.LOADING:
            return reactions.progressed(policy, memory, event)
        case ProbePassed() if phase in UP:
            return reactions.probe_passed(policy, memory, event)
        case ProbeFailed() if phase in UP:
            return reactions.probe_failed(policy, memory, event)
        case CountersRead() if phase in UP:
            return reactions.counters_read(policy, memory, event)
        case Observed() if phase in UP:
            sentence = event.sentence if event.present else ""
            return set_condition(memory, event.reason, event.at, sentence), ()
        case ActivityRead() if phase is RunPhase.STOPPING:
            return reactions.activity_while_ending(policy, memory, event)
        case ActivityRead() if phase in {RunPhase.SERVING, RunPhase.DEGRADED}:
            return reactions.activity_while_serving(policy, memory, event)
        case ClockJumped():
            return reactions.clock_jumped(policy, memory, event)
        case (
            FaultSeen()
            | Launched()
            | LaunchFailed()
            | Progressed()
            | ProbePassed()
            | ProbeFailed()
            | CountersRead()
            | Observed()
            | ActivityRead()
            | WorkerExited()
        ):
            return memory, ()  # late: what it speaks of is already being ended
        case _:
            assert_never(event)
