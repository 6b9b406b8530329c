"""A world plays against `servicekit.watchdog.state`, and what must always hold is looked at.

In this world an engine may die, leave children behind, be deaf to SIGTERM or held in the kernel;
surveys, readiness probes and readings of counters are answered late or never; anybody may ask for a
stop at any time. Time passes only to where `wake_at` asks for it, or to less.

Bugs that were put into a copy of `state.py` on purpose, and what caught each:

- the hold-off not waited for: `order`, "a launch before the hold-off is over";
- a run that goes back to holding when its engine ends: `order`, "a second engine";
- the engine's end leaves the phase as it was: `order`, "to an engine whose end is known";
- READY=1 again after each recovery: `order`, "READY=1 twice";
- an attempt at the readiness probe never given up: `order`, "two attempts at once";
- a stop while holding forgotten, or a stop that ends with its fault's code:
  `a_request_to_stop_is_obeyed`;
- `alive` or `looking` not reset by what ends them, a launch that fails during a stop ignored:
  `it_knows_what_it_waits_for`;
- a grace period without an end, a look never given up, the deadline of a hang asked for while it
  answers with errors: `pass_time`, "woken for nothing";
- the grace period begun anew by the second SIGTERM, or by a second request to stop:
  `an_end_is_bounded`;
- a look from before the engine's end taken for a proof: `it_is_gone_only_when_nothing_is_left`;
- a hang told by time alone, without the counters: `only_what_stands_still_is_hung`;
- faults without their sentence: `nothing_is_published_without_a_reason`;
- a spent budget, or the same one-time fault again, restarted all the same:
  `it_asks_for_a_restart_only_where_one_may_help`.

Two were not caught in 300 worlds, and are held by stories in `test_state_stories`: `degraded` by
counters that never moved, and no patience asked of the manager after a sleep during a start.
"""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from servicekit.diagnosis.causes import Cause, Retry
from servicekit.diagnosis.fault import Fault
from servicekit.engines.base import Contexts, Counters
from servicekit.errors import ExitCode
from servicekit.host.facts import Activity, GpuView, Process
from servicekit.profiles.vocabulary import Reason
from servicekit.watchdog.ending import OUT_OF_MEMORY, PERMANENT
from servicekit.watchdog.events import (
    Action,
    ActivityRead,
    CancelProbe,
    ClockJumped,
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
    Observed,
    Policy,
    ProbeFailed,
    ProbeFailure,
    ProbePassed,
    Progressed,
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
    WorkerExited,
)
from servicekit.watchdog.memory import Memory
from servicekit.watchdog.state import step, wake_at
from servicekit.watchdog.view import Published, view

MATRIX: Final = runpy.run_path(str(Path(__file__).parents[2] / "tools/transitions.py"))["matrix"]()
ENDING: Final = {RunPhase.STOPPING, RunPhase.KILLING, RunPhase.SETTLING}
UP: Final = {RunPhase.SERVING, RunPhase.DEGRADED}
ORDER: Final = list(RunPhase)
TICKS: Final = 5_000
"""Wakings within which a run that nobody answers must be over."""
ROUNDING: Final = 1e-6
"""Seconds by which sums of floating-point times may differ."""

# Whole numbers, so that a counterexample can be read.
SECONDS = st.integers(1, 60).map(float)
POLICIES = st.builds(
    Policy,
    start_stall=st.integers(1, 150).map(float),
    start_limit=st.integers(60, 200).map(float),
    gpu_wait=SECONDS,
    probe_deadline=SECONDS,
    interval=SECONDS,
    stall=SECONDS,
    still=SECONDS,
    failure_limit=SECONDS,
    unfinished=SECONDS,
    survey=SECONDS,
    condition_limit=SECONDS,
    grace=SECONDS,
    kill=SECONDS,
    settle=SECONDS,
    restart_on=st.frozensets(st.sampled_from(Reason), max_size=3),
    foreign_allowance=st.just(1024),
    uses_gpu=st.booleans(),
    on_wsl=st.booleans(),
)
CAUSES = st.sampled_from(
    [Cause.OUTSIDE_KILL, Cause.CUDA_OOM, Cause.START_LIMIT, Cause.BAD_FLAGS, Cause.GPU_LOST]
)
"""For each say on restarts at least one."""
FAULTS = st.builds(Fault, CAUSES, st.just("a fault"), st.just("a remedy"))
TOKENS = st.sampled_from([None, 512, 2048])
LEFT = Process(501, started=1, user="servicekit", command="worker")
STRANGER = Process(502, started=1, user="alice", command="train.py")


SURVEYS = st.just(SurveyResult(gpu=GpuView.PRESENT)) | st.builds(
    SurveyResult,
    foreign=st.sampled_from([(), (replace(STRANGER, mib=100),), (replace(STRANGER, mib=9000),)]),
    port_holder=st.sampled_from([None, STRANGER]),
    locked_by=st.sampled_from(["", "balanced"]),
    gpu=st.sampled_from(GpuView),
    gpu_note=st.just("the driver does not answer"),
    unattributed_mib=st.sampled_from([0, 1024, 9000]),
)
"""Mostly nothing in the way."""


class World(RuleBasedStateMachine):
    """One run, and the world around it."""

    def __init__(self) -> None:
        super().__init__()
        self.policy: Policy
        self.memory = Memory()
        self.now = 100.0
        self.began = False
        # What the world really is.
        self.engine: str = "none"
        """none, launching, up, dead."""
        self.end_known = False
        self.held_in_kernel = False
        self.left: tuple[Process, ...] = ()
        self.progress = 0.0
        self.spent = 0.0
        self.moved_at = 0.0
        """When two readings, with no answer in between, last told of movement."""
        self.told: float | None = None
        # What was ordered and is not answered yet.
        self.survey_asked: float | None = None
        self.trying = False
        self.reading = False
        # What has happened.
        self.launches = 0
        self.stop_asked = False
        self.reported_ready = False
        self.code: ExitCode | None = None
        self.proven_clean = False
        self.ending_since: float | None = None
        self.patience = 0.0
        self.events = 0
        self.peace = 0
        """Events before the first disaster: most worlds would end before they are interesting."""

    # The machine under test.

    def take(self, event: Event) -> None:
        """Feed one event, and perform what is ordered."""
        self.events += 1
        before, self.now = self.memory, event.at
        self.memory, actions = step(self.policy, before, event)
        if self.memory.phase in {*ENDING, RunPhase.GONE} and self.ending_since is None:
            self.ending_since = self.now
        for action in actions:
            self.order(action)
        if self.began:
            self.forward_only(before.phase, self.memory.phase, type(event).__name__)

    def forward_only(self, before: RunPhase, now: RunPhase, kind: str) -> None:
        """Phases follow docs/transitions.md; only serving and degraded alternate."""
        assert ORDER.index(now) >= ORDER.index(before) or {before, now} == UP
        reached = {before, *(outcome[0] for outcome in MATRIX[before, kind])}
        # After each event, what has come due by then happens, too.
        due = {outcome[0] for phase in reached for outcome in MATRIX[phase, "TimePassed"]}
        assert now in reached | due

    def order(self, action: Action) -> None:
        """Perform an order as the loop would, or fail where it must never have been given."""
        match action:
            case Launch():
                assert self.launches == 0, "a second engine"
                assert not self.stop_asked, "a launch after a stop"
                assert self.now >= self.memory.started.hold_until, (
                    "a launch before the hold-off is over"
                )
                self.launches, self.engine = 1, "launching"
            case Terminate() | Kill():
                assert self.launches == 1, "an order to no engine"
                assert not self.end_known, "an order to an engine whose end is known"
                if isinstance(action, Kill) and not self.held_in_kernel and self.engine == "up":
                    self.engine = "dead"
            case Sweep(processes):
                assert {process.pid for process in processes} == {LEFT.pid}, (
                    "a foreign process was swept"
                )
                self.left = tuple(process for process in self.left if process.stuck)
            case RunProbe():
                assert not self.trying, "two attempts at once"
                assert not self.end_known, "an attempt at an engine whose end is known"
                self.trying = True
            case CancelProbe():
                self.trying = False
            case ReadCounters():
                assert not self.end_known, "a reading of an engine whose end is known"
                self.reading = True
            case TakeSurvey():
                assert self.survey_asked is None, "two surveys at once"
                self.survey_asked = self.now
            case ReportReady():
                assert not self.reported_ready, "READY=1 twice"
                self.reported_ready = True
            case ExtendTimeout(seconds):
                self.patience = self.now + seconds
            case Exit(code):
                assert self.code is None, "two exits"
                self.code = code

    def due(self) -> float:
        """When the state machine wants to be woken; it must not be in the past for long."""
        due = wake_at(self.policy, self.memory)
        assert due is not None
        return max(due, self.now)

    @property
    def runs(self) -> bool:
        """Whether the run is not over."""
        return self.began and self.code is None

    @property
    def at_risk(self) -> bool:
        """Whether the time of disasters has come."""
        return self.runs and self.events >= self.peace

    # What the world does.

    @initialize(
        policy=POLICIES,
        hold=st.integers(0, 60),
        last_cause=st.none() | CAUSES,
        faults_left=st.sampled_from([0, 1, 2, 3, 4, 5]),
        held_in_kernel=st.booleans(),
        left=st.booleans(),
        far=st.sampled_from(
            [RunPhase.HOLDING, RunPhase.LOADING, RunPhase.SERVING, RunPhase.SERVING]
        ),
        peace=st.integers(0, 60),
    )
    def begin(
        self,
        *,
        policy: Policy,
        hold: int,
        last_cause: Cause | None,
        faults_left: int,
        held_in_kernel: bool,
        left: bool,
        far: RunPhase,
        peace: int,
    ) -> None:
        """Begin a run, perhaps with something left over from the one before; it may get `far`."""
        self.policy, self.held_in_kernel = policy, held_in_kernel
        self.left = (LEFT,) if left else ()
        self.take(Started(self.now, self.now + hold, last_cause, faults_left, "5 faults in 60 min"))
        self.began, self.peace = True, peace
        while ORDER.index(self.memory.phase) < ORDER.index(far):
            if self.engine == "launching":
                self.answer_launch(None)
            elif self.survey_asked is not None:
                self.answer_survey(SurveyResult(gpu=GpuView.PRESENT), stuck=False)
            elif self.trying:
                self.pass_probe(2048, 2048, 2048)
            else:
                self.pass_time()

    @precondition(lambda self: self.runs)
    @rule()
    def pass_time(self) -> None:
        """Let time pass to the next waking: it must not be for nothing."""
        due, before, now = self.due(), self.memory, self.now
        self.take(TimePassed(due))
        assert self.memory != before, "woken for nothing"
        # A launch and a first try fall together; more than that would keep a core busy.
        for _ in range(3):
            if not self.runs or self.due() > max(due, now):
                return
            self.take(TimePassed(self.due()))
        pytest.fail(f"woken without end at {due}")

    @precondition(lambda self: self.runs)
    @rule(seconds=st.integers(1, 20))
    def wait(self, seconds: int) -> None:
        """Let less time pass: something else is about to happen."""
        self.now = min(self.now + seconds, self.due())

    @precondition(lambda self: self.runs and self.survey_asked is not None)
    @rule(survey=SURVEYS, stuck=st.booleans())
    def answer_survey(self, survey: SurveyResult, *, stuck: bool) -> None:
        """Tell what is there, orphans as they really are."""
        asked, self.survey_asked = self.survey_asked, None
        assert asked is not None
        stuck = stuck and self.held_in_kernel
        self.left = tuple(replace(process, stuck=stuck) for process in self.left)
        survey = replace(survey, orphans=self.left)
        clean = not self.left and survey.unattributed_mib <= self.policy.foreign_allowance
        self.proven_clean = clean and asked >= self.memory.since
        self.take(SurveyTaken(self.now, survey, asked))

    @precondition(lambda self: self.runs and self.engine == "launching")
    @rule(fault=st.none() | FAULTS)
    def answer_launch(self, fault: Fault | None) -> None:
        """The engine's process is there, or cannot be."""
        if fault is None:
            self.engine = "up"
            self.take(Launched(self.now, 4711))
        else:
            self.engine, self.end_known = "dead", True
            self.take(LaunchFailed(self.now, fault))

    @precondition(lambda self: self.runs and self.trying and self.engine == "up")
    @rule(requested=TOKENS, declared=TOKENS, physical=TOKENS)
    def pass_probe(self, requested: int | None, declared: int | None, physical: int | None) -> None:
        """The engine answers."""
        self.trying, self.told = False, None
        self.progress += 1
        self.take(ProbePassed(self.now, Contexts(requested, declared, physical)))

    @precondition(lambda self: self.runs and self.trying)
    @rule(
        failure=st.sampled_from(ProbeFailure)
        | st.sampled_from([ProbeFailure.UNANSWERED, ProbeFailure.REFUSED, ProbeFailure.ERROR]),
        identified=st.booleans(),
    )
    def fail_probe(self, failure: ProbeFailure, *, identified: bool) -> None:
        """The attempt comes to nothing."""
        self.trying = False
        self.take(ProbeFailed(self.now, failure, "it did not answer", identified))

    @precondition(lambda self: self.runs and self.reading)
    @rule(moved=st.booleans(), finished=st.booleans(), readable=st.booleans())
    def answer_counters(self, *, moved: bool, finished: bool, readable: bool) -> None:
        """The engine's counters, which move while it works."""
        self.reading = False
        if not readable:
            self.take(CountersRead(self.now, None))
            return
        if moved:
            self.progress += 1
        if self.told not in {None, self.progress} and self.memory.phase in {RunPhase.LOADING, *UP}:
            self.moved_at = self.now
        self.told = self.progress
        count = self.progress if finished else 0.0
        self.take(CountersRead(self.now, Counters(progress=(self.progress,), finished=count)))

    @precondition(lambda self: self.runs and self.memory.phase in UP)
    @rule(
        turns=st.integers(5, 40),
        failure=st.sampled_from(
            [ProbeFailure.UNANSWERED, ProbeFailure.UNANSWERED, ProbeFailure.ERROR]
        ),
        moved=st.booleans(),
    )
    def be_busy(self, turns: int, failure: ProbeFailure, *, moved: bool) -> None:
        """Answer nothing for a while, working or not."""
        for _ in range(turns):
            if self.memory.phase not in UP:
                return
            self.wait(10)
            if self.reading:
                self.answer_counters(moved=moved, finished=False, readable=True)
            elif self.trying:
                self.fail_probe(failure, identified=True)
            else:
                self.pass_time()

    @precondition(lambda self: self.at_risk and self.engine == "up")
    @rule(leaves=st.booleans())
    def die(self, *, leaves: bool) -> None:
        """The engine dies, perhaps leaving a child; nobody has noticed yet."""
        self.engine = "dead"
        self.left = (*self.left, LEFT) if leaves and not self.left else self.left

    @precondition(lambda self: self.runs and self.engine == "dead" and not self.end_known)
    @rule(fault=FAULTS)
    def notice_end(self, fault: Fault) -> None:
        """The engine's end is seen."""
        self.end_known = True
        self.take(EngineExited(self.now, fault))

    @precondition(lambda self: self.runs and self.engine == "up")
    @rule(sign=st.sampled_from(Sign))
    def progress_made(self, sign: Sign) -> None:
        """A sign of life of a start."""
        self.take(Progressed(self.now, sign, "loading weights" if sign is Sign.PHASE else ""))

    @precondition(lambda self: self.runs and self.engine == "up")
    @rule(reason=st.sampled_from(Reason), present=st.booleans())
    def observe(self, reason: Reason, *, present: bool) -> None:
        """Silent badness, or its end."""
        self.take(Observed(self.now, reason, present, "it is slow" if present else ""))

    @precondition(lambda self: self.runs and self.engine == "up")
    @rule(alone=st.booleans(), cpu=st.sampled_from([0.0, 0.0, 1.0]))
    def read_activity(self, cpu: float, *, alone: bool) -> None:
        """An ending engine works, or waits for nothing."""
        self.spent += cpu
        self.take(ActivityRead(self.now, Activity(self.spent), alone=alone))

    @precondition(lambda self: self.at_risk and self.memory.phase in UP)
    @rule(fault=FAULTS)
    def lose_worker(self, fault: Fault) -> None:
        """A process of the engine dies."""
        self.take(WorkerExited(self.now, fault))

    @precondition(lambda self: self.at_risk)
    @rule(fault=FAULTS)
    def see_fault(self, fault: Fault) -> None:
        """Something outside ends the run."""
        self.take(FaultSeen(self.now, fault))

    @precondition(lambda self: self.at_risk)
    @rule()
    def ask_to_stop(self) -> None:
        """Somebody asks for a stop, once or again."""
        self.stop_asked = True
        self.take(StopRequested(self.now, Cause.STOP_REQUESTED, "asked by systemd"))

    @precondition(lambda self: self.at_risk)
    @rule()
    def jump(self) -> None:
        """The machine suspended: the time is nobody's, and what is bounded has its time anew."""
        self.take(ClockJumped(self.now, 3600))
        if self.ending_since is not None:
            self.ending_since = self.now

    @precondition(lambda self: self.code is not None)
    @rule(
        event=st.sampled_from(
            [
                StopRequested(0, Cause.STOP_REQUESTED, "asked by systemd"),
                EngineExited(0, Fault(Cause.ENGINE_EXIT, "exited")),
                ProbePassed(0, Contexts()),
                TimePassed(0),
            ]
        )
    )
    def come_late(self, event: Event) -> None:
        """Something arrives when the run is over: it changes nothing."""
        before = self.memory
        self.take(replace(event, at=self.now))
        assert self.memory == before

    # What must always hold.

    @invariant()
    def it_waits_for_something(self) -> None:
        """There is a time to wake up at in every phase but the last."""
        if self.began:
            assert (wake_at(self.policy, self.memory) is None) == (
                self.memory.phase is RunPhase.GONE
            )

    @invariant()
    def it_knows_what_it_waits_for(self) -> None:
        """What it takes for alive or under way is so."""
        memory = self.memory
        assert not (memory.alive and self.end_known)
        assert memory.survey.running == (self.survey_asked is not None)
        assert memory.probe.running == self.trying
        assert self.reading or not memory.reading.running

    @invariant()
    def a_dead_engine_is_never_ready(self) -> None:
        """Ready and degraded-but-serving imply READY=1, and an engine whose end nobody has seen."""
        published = view(self.memory).state
        if published is Published.READY or self.memory.phase in UP:
            assert self.reported_ready
            assert self.launches == 1
            assert not self.end_known

    @invariant()
    def nothing_is_published_without_a_reason(self) -> None:
        """Every state has words, and one that is not as it should be has a cause or a reason."""
        seen = view(self.memory)
        assert seen.why.strip(": ;")
        if seen.state is Published.FAILED:
            assert seen.cause is not None
        if seen.state is Published.DEGRADED:
            assert seen.cause is not None or seen.reasons

    @invariant()
    def an_end_is_bounded(self) -> None:
        """From a stop or a fault on, a run is over within grace, kill and settle."""
        if self.ending_since is not None and self.runs:
            policy = self.policy
            bound = policy.grace + policy.kill + policy.settle
            assert self.now <= self.ending_since + bound + ROUNDING

    @invariant()
    def the_manager_is_patient_for_long_enough(self) -> None:
        """While it starts or ends, our own deadlines come before the manager's."""
        memory, policy = self.memory, self.policy
        if self.runs and memory.phase not in UP:
            assert self.now < self.patience
        if memory.phase is RunPhase.LOADING:
            limit, stall = memory.load.launched_at + policy.start_limit, policy.start_stall
            assert min(limit, memory.load.progressed_at + stall) < self.patience

    @invariant()
    def a_request_to_stop_is_obeyed(self) -> None:
        """After a stop the run only ends; 0 unless the engine cannot be killed."""
        if self.stop_asked:
            assert self.memory.phase in {*ENDING, RunPhase.GONE}
        if self.stop_asked and self.code is not None:
            fault = self.memory.end.fault
            unkillable = fault is not None and fault.cause is Cause.UNKILLABLE
            assert self.code is ExitCode.OK or unkillable

    @invariant()
    def it_is_gone_only_when_nothing_is_left(self) -> None:
        """A run is over by a look that finds nothing, or else it says what is left."""
        if self.code is not None and not self.proven_clean:
            fault = self.memory.end.fault
            assert self.memory.end.unsettled or (fault and fault.cause is Cause.UNKILLABLE)

    @invariant()
    def only_what_stands_still_is_hung(self) -> None:
        """An engine whose counters move is busy, whatever its answers do."""
        fault = self.memory.end.fault
        if fault and fault.sentence.startswith("no completion") and self.ending_since is not None:
            still = fault.sentence.partition(" the engine did nothing")[1]
            limit = self.policy.still if still else self.policy.stall
            assert self.ending_since >= self.moved_at + limit - ROUNDING

    @invariant()
    def it_asks_for_a_restart_only_where_one_may_help(self) -> None:
        """75 needs a budget, a cause that a new run may mend, and not the same one-time fault."""
        if self.code is ExitCode.TEMPFAIL:
            cause = view(self.memory).cause
            assert cause is not None
            assert self.memory.started.faults_left > 1
            if not self.memory.served or cause in PERMANENT | OUT_OF_MEMORY:
                assert cause.retry in {Retry.ALWAYS, Retry.ONCE}
                assert cause.retry is Retry.ALWAYS or cause is not self.memory.started.last_cause

    @override
    def teardown(self) -> None:
        """Whatever has happened: a world that falls silent still sees the end of the run."""
        if not self.began:
            return
        for _ in range(TICKS):
            if not self.runs:
                break
            self.pass_time()
            self.an_end_is_bounded()
            self.only_what_stands_still_is_hung()
            self.the_manager_is_patient_for_long_enough()
        assert self.code is not None, "a run that nobody answers goes on for ever"
        self.nothing_is_published_without_a_reason()
        self.it_is_gone_only_when_nothing_is_left()
        self.it_asks_for_a_restart_only_where_one_may_help()


@pytest.mark.timeout(300)
def test_whatever_the_world_does() -> None:
    """No sequence of happenings breaks what must always hold of a run."""
    run_state_machine_as_test(
        World, settings=settings(max_examples=300, stateful_step_count=60, deadline=None)
    )
