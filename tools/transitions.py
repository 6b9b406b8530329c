"""Print the watchdog's transitions and deadlines for docs/transitions.md.

`python tools/transitions.py` prints both tables; with `--write` that page is updated.
The deadlines are the rules of `due.DUE`. The transitions come from asking `step` itself: for every
phase there are memories of typical runs, made by replaying them, and for every kind of event
its typical cases. Each is tried in each; nothing in the table is written by hand.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from servicekit.diagnosis.causes import Cause
from servicekit.diagnosis.fault import Fault
from servicekit.engines.base import Contexts, Counters
from servicekit.host.facts import Activity, GpuView, Process
from servicekit.profiles.vocabulary import Reason
from servicekit.watchdog.due import DUE, Rule
from servicekit.watchdog.events import (
    ActivityRead,
    ClockJumped,
    CountersRead,
    EngineExited,
    Event,
    Exit,
    FaultSeen,
    Kill,
    Launch,
    Launched,
    LaunchFailed,
    Observed,
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
    SurveyResult,
    SurveyTaken,
    Sweep,
    Terminate,
    TimePassed,
    WorkerExited,
)
from servicekit.watchdog.memory import Memory
from servicekit.watchdog.state import step, wake_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

DOCUMENT: Final = Path(__file__).parents[1] / "docs/transitions.md"
BEGIN: Final = "<!-- {}: made by tools/transitions.py -->"
END: Final = "<!-- end of {} -->"

POLICY: Final = Policy(
    start_stall=100,
    start_limit=1000,
    gpu_wait=60,
    probe_deadline=10,
    interval=30,
    stall=50,
    still=5,
    failure_limit=60,
    unfinished=60,
    survey=15,
    condition_limit=120,
    grace=20,
    kill=10,
    settle=30,
    restart_on=frozenset({Reason.CPU_FALLBACK}),
    foreign_allowance=1024,
    uses_gpu=True,
)
FULL: Final = Contexts(requested=2048, declared=4096, physical=2048)
SHORT: Final = Contexts(requested=2048, declared=1024, physical=2048)
CLEAN: Final = SurveyResult(gpu=GpuView.PRESENT)
IDLE_GPU: Final = SurveyTaken(0, replace(CLEAN, gpu_busy=False), 0)
LEFT: Final = Process(501, started=1, user="servicekit", command="worker")
STRANGER: Final = Process(502, started=1, user="alice", command="train.py", mib=9000)
FAULT: Final = Fault(Cause.ENGINE_SIGNAL, "killed by SIGSEGV")
EXITED: Final = EngineExited(0, FAULT)
LOST: Final = WorkerExited(0, Fault(Cause.WORKER_DIED, "pid 4712 died"))
STOP: Final = StopRequested(0, Cause.STOP_REQUESTED, "asked by systemd")
STARTED: Final = Started(0, hold_until=0, faults_left=5, budget="5 faults in 60 min")
LOADING: Final = (STARTED, SurveyTaken(1, CLEAN, 0), Launched(1, 4711))
SERVING: Final = (*LOADING, ProbePassed(10, FULL))
ENDING: Final = (*SERVING, replace(STOP, at=20))
KILLING: Final = (TimePassed(30), TimePassed(40), TimePassed(41))
SETTLING: Final = (*SERVING, replace(EXITED, at=20))
WRONG_MODEL: Final = ProbeFailed(0, ProbeFailure.WRONG_MODEL, 'serves "a", not "b"')
SILENT: Final = ProbeFailed(0, ProbeFailure.UNANSWERED, "no answer within 10 s", identified=True)
CPU: Final = Observed(0, Reason.CPU_FALLBACK, present=True, sentence="holds no VRAM")

RUNS: Final[Mapping[RunPhase, tuple[tuple[Event, ...], ...]]] = {
    RunPhase.HOLDING: (
        (STARTED,),
        (replace(STARTED, hold_until=20.0), SurveyTaken(1, CLEAN, 0)),
        (STARTED, SurveyTaken(1, SurveyResult(foreign=(STRANGER,)), 0)),
    ),
    RunPhase.LOADING: (
        LOADING,
        (*LOADING, *(replace(WRONG_MODEL, at=at) for at in (2.0, 4.0))),
        (*LOADING, replace(SILENT, at=12), CountersRead(12, Counters(progress=(1.0,)))),
        (*LOADING, replace(CPU, at=3)),
    ),
    RunPhase.SERVING: (
        SERVING,
        (*SERVING, CountersRead(11, Counters(progress=(1.0,), finished=1))),
        (*SERVING, TimePassed(40)),
        (*SERVING, TimePassed(40), ActivityRead(43.5, Activity()), replace(IDLE_GPU, at=44)),
    ),
    RunPhase.DEGRADED: (
        (*SERVING, replace(SILENT, at=50), CountersRead(50.1, Counters((1.0,), finished=1))),
        (*SERVING, *(replace(WRONG_MODEL, at=at) for at in (41.0, 43.0))),
        (
            *SERVING,
            replace(SILENT, at=50),
            ActivityRead(50.5, Activity()),
            replace(IDLE_GPU, at=51),
        ),
        (*SERVING, ProbeFailed(41, ProbeFailure.ERROR, "answered by 500")),
        (*SERVING, replace(CPU, at=20)),
        (*SERVING, replace(LOST, at=20)),
        (*SERVING, SurveyTaken(25, SurveyResult(foreign=(STRANGER,)), 25)),
    ),
    RunPhase.STOPPING: (
        ENDING,
        (*ENDING, ActivityRead(20, Activity(), alone=True)),
        (*ENDING, TimePassed(30)),
        (*SERVING, FaultSeen(20, FAULT)),
    ),
    RunPhase.KILLING: ((*ENDING, *KILLING), (*SERVING, FaultSeen(20, FAULT), *KILLING)),
    RunPhase.SETTLING: (
        SETTLING,
        (*ENDING, replace(EXITED, at=21)),
        (*SETTLING, SurveyTaken(21, SurveyResult(orphans=(LEFT,)), 20.5)),
    ),
    RunPhase.GONE: (
        (*SETTLING, SurveyTaken(21, CLEAN, 20.5)),
        (*ENDING, replace(EXITED, at=21), SurveyTaken(22, CLEAN, 21.5)),
    ),
}
"""Typical runs that are in each phase."""

EVENTS: Final[tuple[Event, ...]] = (
    STOP,
    FaultSeen(0, FAULT),
    EXITED,
    SurveyTaken(0, CLEAN, 0),
    SurveyTaken(0, SurveyResult(orphans=(LEFT,)), 0),
    SurveyTaken(0, SurveyResult(foreign=(STRANGER,)), 0),
    SurveyTaken(0, SurveyResult(gpu=GpuView.LOST, gpu_note="Xid 79"), 0),
    Launched(0, 4711),
    LaunchFailed(0, Fault(Cause.EXECUTABLE_MISSING, "no such file")),
    Progressed(0, Sign.PHASE, "loading weights"),
    ProbePassed(0, FULL),
    ProbePassed(0, SHORT),
    WRONG_MODEL,
    SILENT,
    CountersRead(0, None),
    CountersRead(0, Counters(progress=(2.0,), finished=2)),
    CPU,
    replace(CPU, present=False),
    ActivityRead(0, Activity(), alone=True),
    LOST,
    ClockJumped(0, 3600),
)
"""The typical cases of each kind of event but the passing of time."""

Outcome: TypeAlias = tuple[RunPhase, tuple[str, ...], bool]
"""The phase afterwards, what was ordered, and whether anything is remembered."""
Matrix: TypeAlias = dict[tuple[RunPhase, str], set[Outcome]]

LASTED: Final = 7.0
"""Seconds after which a fatal failure has lasted for `FAILURE_WINDOW`."""
SHOWN: Final = (Launch, Sweep, Terminate, Kill, ReportReady, Exit)
"""Orders in the table; the others are surveys, probes, readings and extended timeouts."""


def matrix() -> Matrix:
    """What every kind of event makes of every phase."""
    found: Matrix = defaultdict(set)
    for phase, runs in RUNS.items():
        for run in runs:
            memory = Memory()
            for event in run:
                memory, _ = step(POLICY, memory, event)
            if memory.phase is not phase:
                raise AssertionError(f"a run that should be {phase} is {memory.phase}")
            for event in _events(memory, run[-1].at):
                after, actions = step(POLICY, memory, event)
                orders = tuple(
                    type(action).__name__ for action in actions if isinstance(action, SHOWN)
                )
                kind = type(event).__name__
                found[phase, kind].add((after.phase, orders, after != memory))
    return found


def _events(memory: Memory, now: float) -> Iterator[Event]:
    """Every event at a time when nothing else is due, and the passing of time until all is due."""
    for event in EVENTS:
        if isinstance(event, SurveyTaken):
            yield replace(event, at=now, asked_at=now)
        else:
            yield replace(event, at=now)
        idle = memory.end.idle or memory.vitals.still
        if (isinstance(event, ActivityRead) and idle) or (
            isinstance(event, ProbeFailed) and memory.alive
        ):
            yield replace(event, at=now + LASTED)
    due = wake_at(POLICY, memory)
    if due is not None:
        yield TimePassed(due)
    # Once for each bound of its own, as if nothing had come due before.
    yield from (TimePassed(now + later) for later in (10.0, 60.0, 130.0, 2000.0))


def table() -> str:
    """Give the matrix as Markdown."""
    found = matrix()
    kinds = dict.fromkeys(type(event).__name__ for event in (*EVENTS, TimePassed(0)))
    rows = [["", *RunPhase], ["---"] * (len(RunPhase) + 1)]
    rows += [
        [f"**{kind}**", *(_cell(phase, found[phase, kind]) for phase in RunPhase)] for kind in kinds
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(phase: RunPhase, outcomes: set[Outcome]) -> str:
    """Say what may happen: phases that are entered and what is ordered, `·` for what is noted."""
    cells = {
        " ".join([f"→ {after}"] * (after is not phase) + [f"`{order}`" for order in orders])
        for after, orders, _ in sorted(outcomes)
    } - {""}
    noted = any(changed for _, _, changed in outcomes)
    return "<br>".join(sorted(cells)) or ("·" if noted else "")


def deadlines() -> str:
    """Give what comes due in each phase as Markdown, in the order in which it happens."""
    phases: dict[tuple[Rule, ...], list[str]] = defaultdict(list)
    for phase, rules in DUE.items():
        phases[rules].append(phase)
    rows = [["phase", "due", "function of `due`"], ["---"] * 3]
    for rules, names in phases.items():
        for number, rule in enumerate(rules):
            first = ", ".join(names) if number == 0 else ""
            rows.append([first, rule.what, f"`{rule.then.__name__}`"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


TABLES: Final[Mapping[str, Callable[[], str]]] = {"transitions": table, "deadlines": deadlines}


def documented(text: str, name: str) -> str:
    """Give one of the tables in the text of docs/transitions.md."""
    return text.partition(BEGIN.format(name))[2].partition(END.format(name))[0].strip()


def main() -> None:
    """Print the tables, or update docs/transitions.md."""
    if sys.argv[1:] != ["--write"]:
        print("\n\n".join(make() for make in TABLES.values()))
        return
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, after = text.partition(begin)[0], text.partition(end)[2]
        text = f"{before}{begin}\n\n{make()}\n\n{end}{after}"
    DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
