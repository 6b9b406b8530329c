"""Stories of one run each: what happens, and what the watchdog makes of it: the specification."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from plans import profile

from servicekit.diagnosis.causes import Cause
from servicekit.diagnosis.fault import Fault
from servicekit.engines.base import Contexts, Counters
from servicekit.errors import ExitCode
from servicekit.host.facts import Activity, GpuView, Process
from servicekit.profiles.vocabulary import Reason
from servicekit.watchdog.events import (
    ActivityRead,
    ClockJumped,
    CountersRead,
    EngineExited,
    Exit,
    ExtendTimeout,
    FaultSeen,
    Launched,
    LaunchFailed,
    Observed,
    Policy,
    ProbeFailed,
    ProbeFailure,
    ProbePassed,
    Progressed,
    ReadCounters,
    Sign,
    Started,
    StopRequested,
    SurveyResult,
    SurveyTaken,
    TakeSurvey,
    TimePassed,
    WorkerExited,
)
from servicekit.watchdog.memory import Memory
from servicekit.watchdog.state import step, wake_at
from servicekit.watchdog.view import Published, view

if TYPE_CHECKING:
    from servicekit.watchdog.events import Action, Event

POLICY = Policy(
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
FULL = Contexts(requested=2048, declared=4096, physical=2048)
CLEAN = SurveyResult(gpu=GpuView.PRESENT)
ROUTINE = (TakeSurvey, ReadCounters, ExtendTimeout)
"""Orders that stories leave out: looks at the world and patience asked of the manager."""


def process(pid: int, *, mib: int | None = None, stuck: bool = False) -> Process:
    """Make a process that holds `mib` MiB of VRAM."""
    return Process(pid, started=1, user="alice", command="python", mib=mib, stuck=stuck)


class Run:
    """One run, event by event, waking whenever the state machine asks for it."""

    def __init__(self, policy: Policy = POLICY, started: Started | None = None) -> None:
        self.policy, self.memory = policy, Memory()
        self.said: list[str] = []
        self._feed(started or Started(0, hold_until=0, faults_left=5, budget="5 faults in 60 min"))

    def replay(self, *events: Event) -> list[str]:
        """Feed `events`, passing the time between them; return what was published and ordered."""
        self.said = []
        for event in events:
            self.pass_time(event.at)
            self._feed(event)
        return self.said

    def pass_time(self, until: float) -> None:
        """Wake at every time the state machine asks for before `until`."""
        seen: list[float] = []
        while (due := wake_at(self.policy, self.memory)) is not None and due < until:
            self._feed(TimePassed(due))
            seen.append(due)
            # A launch and a first try fall together; more than that would keep a core busy.
            if seen.count(due) > 2:
                pytest.fail(f"the state machine asks to be woken at {due} s without end")

    def _feed(self, event: Event) -> None:
        before = view(self.memory)
        self.memory, actions = step(self.policy, self.memory, event)
        orders = [name(action) for action in actions if not isinstance(action, ROUTINE)]
        now = view(self.memory)
        changed = (now.state, now.phase) != (before.state, before.phase)
        if changed or orders:
            self.said.append(" ".join([now.state if changed else "-", *orders]))

    @property
    def code(self) -> ExitCode | None:
        """The code that the run ended with."""
        return self.memory.end.code


def name(action: Action) -> str:
    """Name an order as stories spell it."""
    return f"Exit({action.code.value})" if isinstance(action, Exit) else type(action).__name__


def loading(policy: Policy = POLICY, started: Started | None = None) -> Run:
    """Give a run whose engine was launched at 1 s."""
    run = Run(policy, started)
    run.replay(SurveyTaken(1, CLEAN, 0), Launched(1, 4711))
    return run


def ready(policy: Policy = POLICY, started: Started | None = None) -> Run:
    """Give a run that is ready since 10 s."""
    run = loading(policy, started)
    run.replay(ProbePassed(10, FULL))
    return run


def test_a_run_from_launch_to_a_requested_stop() -> None:
    """A run goes through its phases once, and a requested stop ends it with code 0."""
    run = Run()
    assert run.replay(
        SurveyTaken(1, CLEAN, 0),
        Launched(1, 4711),
        Progressed(2, Sign.PHASE, "loading weights"),
        ProbeFailed(2.5, ProbeFailure.REFUSED, "nothing listens on port 18000"),
        ProbePassed(10, FULL),
        StopRequested(20, Cause.STOP_REQUESTED, "stopped by systemd"),
        EngineExited(21, Fault(Cause.ENGINE_EXIT, "exited with 0")),
        SurveyTaken(21.1, CLEAN, 21),
    ) == [
        "starting Launch",
        "- RunProbe",
        "- RunProbe",
        "ready ReportReady",
        "degraded CancelProbe Terminate",
        "degraded CancelProbe",
        "stopped Exit(0)",
    ]


DIED = WorkerExited(20, Fault(Cause.WORKER_DIED, "pid 4712 (core) died"))


def test_a_dead_worker_is_a_condition_until_the_engine_answers() -> None:
    """A pool may replace its workers: the engine is probed at once, and its answer decides."""
    run = ready()
    assert run.replay(DIED) == ["degraded CancelProbe RunProbe"]
    assert view(run.memory).why == "pid 4712 (core) died"
    assert run.replay(ProbePassed(20.1, FULL)) == ["ready"]
    exited = EngineExited(50, Fault(Cause.ENGINE_EXIT, "exited with 0"))
    run.replay(exited)
    assert run.memory.end.fault == exited.fault


def test_an_engine_that_answers_nothing_without_its_worker_is_ended() -> None:
    """After a second of errors the fault names who died, and nothing is drained for long."""
    run = ready()
    failed = ProbeFailed(20.1, ProbeFailure.ERROR, "replied with 500")
    said = run.replay(DIED, failed, replace(failed, at=21.2))
    assert said[-1] == "failed CancelProbe Terminate"
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is Cause.WORKER_DIED
    assert run.memory.end.fault.sentence == "pid 4712 (core) died; since then: replied with 500"
    assert run.memory.end.grace == 5.0


def test_a_dead_worker_of_a_busy_engine_is_no_fault() -> None:
    """While counters move, an engine without an answer is busy."""
    run = ready()
    moving = (CountersRead(20.1 + k, Counters(progress=(float(k),))) for k in range(10))
    run.replay(DIED, *moving, ProbeFailed(30, ProbeFailure.UNANSWERED, "no answer within 10 s"))
    assert run.memory.phase == "degraded"


def test_an_engine_that_ends_without_its_worker_ended_because_of_that() -> None:
    """The fault of an engine that then ends by itself names who died, unless its log knows more."""
    exited = EngineExited(21, Fault(Cause.ENGINE_EXIT, "exited with 0"))
    run = ready()
    run.replay(DIED, exited)
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is Cause.WORKER_DIED
    assert run.memory.end.fault.sentence == "pid 4712 (core) died; then exited with 0"
    run = ready()
    run.replay(DIED, replace(exited, fault=Fault(Cause.CUDA_OOM, "out of memory")))
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is Cause.CUDA_OOM


def test_the_first_dead_worker_is_blamed_though_the_engine_answered_once_more() -> None:
    """SGLang may answer between the death of a worker and the end of the others and itself."""
    run = ready()
    other = WorkerExited(20.59, Fault(Cause.WORKER_DIED, "pid 4713 (detokenizer) died"))
    run.replay(DIED, ProbePassed(20.1, FULL), other)
    run.replay(EngineExited(20.6, Fault(Cause.ENGINE_SIGNAL, "died by SIGKILL")))
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is Cause.WORKER_DIED
    assert run.memory.end.fault.sentence == "pid 4712 (core) died; then died by SIGKILL"


def stopped_with(*looks: tuple[float, float, bool]) -> Run:
    """Stop a run at 20 s; each look is a time, the CPU time so far, and whether it is alone."""
    run = ready()
    stop = StopRequested(20, Cause.STOP_REQUESTED, "stopped by systemd")
    run.replay(stop, *(ActivityRead(at, Activity(cpu), alone=alone) for at, cpu, alone in looks))
    return run


def test_an_engine_that_waits_for_nothing_is_killed_after_a_second() -> None:
    """A leader whose workers are dead, and that does nothing, has nothing to drain."""
    run = stopped_with((20, 7.0, False), (20.2, 7.0, True), (20.6, 7.02, True))
    assert run.memory.phase == "stopping"
    assert run.replay(ActivityRead(21.2, Activity(7.04), alone=True)) == ["degraded Kill"]
    run.replay(EngineExited(21.3, Fault(Cause.ENGINE_SIGNAL, "killed")))
    run.replay(SurveyTaken(21.4, CLEAN, 21.3))
    assert run.code is ExitCode.OK


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param(((20.2, 7.0, False), (22, 7.0, False), (25, 7.0, False)), id="workers"),
        pytest.param(((20.2, 7.0, True), (21.3, 7.2, True), (22.2, 7.4, True)), id="works"),
        pytest.param(((20.2, 7.0, True), (20.4, 7.1, True), (21.3, 7.1, True)), id="just-idle"),
    ],
)
def test_an_engine_that_drains_has_its_grace_period(
    looks: tuple[tuple[float, float, bool], ...],
) -> None:
    """While workers live, or the leader works, nothing is cut short."""
    assert stopped_with(*looks).memory.phase == "stopping"


def test_an_engine_that_dies_is_never_shown_as_ready() -> None:
    """The end of the engine is a fault at once, and the run ends only after a clean look around."""
    run = ready()
    assert run.replay(
        EngineExited(20, Fault(Cause.ENGINE_SIGNAL, "killed by SIGSEGV")),
        SurveyTaken(20.1, SurveyResult(orphans=(process(12),)), 20),
        SurveyTaken(20.3, CLEAN, 20.2),
    ) == ["failed CancelProbe", "- Sweep", "failed Exit(75)"]


def test_what_ends_with_its_leader_was_not_left_behind() -> None:
    """After a stop workers have a moment to end by themselves; what is there then is swept."""
    run = ready()
    run.replay(StopRequested(20, Cause.STOP_REQUESTED, "stopped by systemd"))
    worker = SurveyResult(orphans=(process(12),))
    exited = EngineExited(21, Fault(Cause.ENGINE_EXIT, "exited with 0"))
    assert run.replay(exited, SurveyTaken(21.1, worker, 21)) == ["degraded CancelProbe"]
    assert view(run.memory).why == "settling: stopped by systemd"
    assert run.code is None
    assert run.replay(SurveyTaken(22.2, worker, 22.1)) == ["- Sweep"]
    assert run.replay(SurveyTaken(22.4, CLEAN, 22.3)) == ["stopped Exit(0)"]


def test_a_budget_that_was_spent_by_runs_that_were_cut_off_allows_no_more() -> None:
    """Nothing is launched when the runs before were all killed, and could not say so themselves."""
    started = Started(
        0,
        hold_until=300,
        last_cause=Cause.WATCHDOG_KILLED,
        last_sentence="the watchdog was killed",
        faults_left=0,
        budget="5 faults in 60 min",
    )
    run = Run(started=started)
    assert run.replay(SurveyTaken(0.2, CLEAN, 0.1)) == ["failed Exit(69)"]
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is Cause.BUDGET_SPENT
    assert run.memory.end.fault.sentence == (
        "restart budget spent (5 faults in 60 min); last: the watchdog was killed"
    )


def test_a_host_that_dies_under_load_is_not_started_again() -> None:
    """After three deaths in a row nothing is launched, and the cause is one of its own."""
    started = Started(0, hold_until=0, faults_left=5, host_deaths=3)
    run = Run(started=started)
    assert run.replay(SurveyTaken(0.2, CLEAN, 0.1)) == ["failed Exit(69)"]
    assert view(run.memory).cause is Cause.HOST_DIES_UNDER_LOAD
    assert view(run.memory).why == (
        "the host went down 3 times in a row, each time before the service was ready or within "
        "120 s of that"
    )
    run = Run(started=replace(started, host_deaths=2))
    assert run.replay(SurveyTaken(0.2, CLEAN, 0.1)) == ["starting Launch"]


def test_a_look_from_before_the_end_proves_nothing() -> None:
    """A survey ordered while the engine was alive is looked at again and never taken for clean."""
    run = ready()
    run.replay(EngineExited(20, Fault(Cause.ENGINE_EXIT, "exited")), SurveyTaken(20.1, CLEAN, 19))
    assert run.code is None


def test_a_late_probe_alone_is_busy_not_hung() -> None:
    """While counters move, missed deadlines degrade the service after a minute, no more."""
    run = ready()
    said: list[str] = []
    for second in range(41, 141, 11):
        said += run.replay(
            ProbeFailed(second, ProbeFailure.UNANSWERED, "no answer within 10 s", identified=True),
            CountersRead(second + 0.5, Counters(progress=(float(second),))),
        )
    assert not any("Terminate" in line for line in said)
    assert view(run.memory).state is Published.DEGRADED
    assert Reason.PROGRESS_WITHOUT_COMPLETION in view(run.memory).reasons


def test_still_counters_under_an_unanswered_completion_are_a_hang() -> None:
    """The clock of a hang starts when the completion is sent, and its grace is short."""
    run = ready()
    run.replay(CountersRead(39, Counters(progress=(7.0,))))
    run.replay(ProbeFailed(50, ProbeFailure.UNANSWERED, "no answer within 10 s"))
    run.replay(
        *(ProbeFailed(at, ProbeFailure.UNANSWERED, "no answer") for at in (60.2, 70.4, 80.6))
    )
    assert run.replay(TimePassed(90.1)) == ["- RunProbe", "failed CancelProbe Terminate"]
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is Cause.HUNG
    assert "no counter moved for" in run.memory.end.fault.sentence
    assert run.memory.end.grace == 5.0


def waiting(policy: Policy = POLICY) -> Run:
    """Give a run whose completion of 40 s has had no answer at 50 s."""
    run = ready(policy)
    run.replay(CountersRead(39, Counters(progress=(7.0,))))
    run.replay(ProbeFailed(50, ProbeFailure.UNANSWERED, "no answer within 10 s"))
    return run


def looks(*activities: Activity, hindered: str = "") -> list[ActivityRead]:
    """Look at the engine every second from 51 s on."""
    return [
        ActivityRead(51.0 + second, activity, hindered=hindered)
        for second, activity in enumerate(activities)
    ]


CPU_ONLY = replace(POLICY, uses_gpu=False)


def test_an_engine_that_does_nothing_at_all_is_hung_within_seconds() -> None:
    """Without CPU time and I/O while a completion waits, `watch.still` is long enough."""
    run = waiting(CPU_ONLY)
    idle = looks(*(Activity(9 + 0.02 * second, 1400 * second) for second in range(6)))
    assert run.replay(*idle)[-1] == "failed CancelProbe Terminate"
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is Cause.HUNG
    assert run.memory.end.fault.sentence == (
        "no completion for 16 s and the engine did nothing for 5 s"
    )


@pytest.mark.parametrize(
    "busy",
    [
        pytest.param([Activity(9 + 0.3 * n) for n in range(20)], id="cpu"),
        pytest.param([Activity(9, 1_000_000 * n) for n in range(20)], id="io"),
        pytest.param([Activity(9, 0, 0.1 * n) for n in range(20)], id="waits-for-cpu"),
    ],
)
def test_an_engine_that_burns_is_given_the_longer_limit(busy: list[Activity]) -> None:
    """With any sign of work the limit is `watch.stall`."""
    run = waiting(CPU_ONLY)
    run.replay(*looks(*busy))
    assert run.memory.phase == "degraded"
    run.pass_time(91)
    assert run.memory.phase == "stopping"


def test_an_engine_that_waits_for_a_disk_is_given_the_longer_limit() -> None:
    """Weights that are paged in from a slow disk may take longer than `watch.still`."""
    run = waiting(CPU_ONLY)
    run.replay(*(replace(look, blocked=True) for look in looks(*[Activity(9)] * 20)))
    assert run.memory.phase == "degraded"


def test_an_engine_that_is_not_asked_anything_may_do_nothing() -> None:
    """An idle engine stands still, and a completion that it has just got does not count yet."""
    run = ready(CPU_ONLY)
    run.replay(*(ActivityRead(11.0 + n, Activity(9)) for n in range(20)))
    run.pass_time(41)
    run.replay(*(ActivityRead(at, Activity(9)) for at in (41.0, 42.0, 47.9)))
    assert run.memory.phase == "serving"


def test_an_engine_that_does_not_get_to_run_is_never_hung() -> None:
    """Frozen, stopped by a debugger, or without the CPU time that it wants: degraded, no more."""
    for hindered, per_second, runnable in (
        ("its control group is frozen", 0.0, False),
        ("", 0.9, False),
        ("", 0.0, True),  # the kernel counts the delay only when it ends
    ):
        run = waiting(CPU_ONLY)
        activities = (Activity(9, 0, per_second * n) for n in range(100))
        seen = looks(*activities, hindered=hindered)
        run.replay(*(replace(look, runnable=runnable) for look in seen))
        assert run.memory.phase == "degraded"
        failed = ProbeFailed(150.5, ProbeFailure.UNANSWERED, "no answer")
        run.replay(failed)
        assert run.memory.vitals.hindered in view(run.memory).why
        assert run.memory.vitals.hindered


def test_a_gpu_that_works_or_cannot_tell_is_a_sign_of_work() -> None:
    """An engine on a GPU does nothing only where a survey has seen the GPU idle meanwhile."""
    idle = [Activity(9)] * 9
    for busy in (None, True):
        run = waiting()
        survey = replace(CLEAN, gpu_busy=busy)
        run.replay(*looks(*idle[:6]), SurveyTaken(56.5, survey, 56), *looks(*idle)[6:])
        assert run.memory.phase == "degraded"
    run = waiting()
    run.replay(*looks(*idle[:6]), SurveyTaken(56.5, replace(CLEAN, gpu_busy=False), 56))
    run.replay(*looks(*idle)[6:])
    assert run.memory.phase == "stopping"


def test_counters_without_an_answer_start_a_probe_at_once() -> None:
    """Suspicion does not wait for the next interval."""
    run = ready()
    run.replay(CountersRead(15, Counters(progress=(7.0,))))
    assert run.replay(CountersRead(21, None)) == ["- RunProbe"]


def test_waiting_for_a_hang_keeps_no_core_busy() -> None:
    """Where the minute of `unfinished` is over before `stall` is, nothing comes due in between."""
    run = ready(replace(POLICY, unfinished=20))
    run.replay(CountersRead(39, Counters(progress=(7.0,))))
    run.replay(
        *(ProbeFailed(at, ProbeFailure.UNANSWERED, "no answer") for at in (50, 60.2, 70.4, 80.6))
    )
    assert view(run.memory).reasons == (Reason.UNANSWERED,)
    run.pass_time(91)
    assert run.memory.phase == "stopping"


def test_errors_after_silence_keep_no_core_busy() -> None:
    """Once an engine answers with errors, it is their duration that counts."""
    run = ready()
    run.replay(ProbeFailed(50, ProbeFailure.UNANSWERED, "no answer"), CountersRead(50.1, None))
    run.replay(*(ProbeFailed(50 + k, ProbeFailure.ERROR, "answered by 500") for k in range(1, 62)))
    run.pass_time(112)
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is Cause.WRONG_ANSWER


WRONG: tuple[tuple[ProbeFailure, Reason, Cause], ...] = (
    (ProbeFailure.UNAUTHORIZED, Reason.UNAUTHORIZED, Cause.UNAUTHORIZED),
    (ProbeFailure.WRONG_MODEL, Reason.WRONG_MODEL, Cause.WRONG_MODEL),
    (ProbeFailure.NOT_OURS, Reason.NOT_OUR_SOCKET, Cause.NOT_OUR_SOCKET),
    (ProbeFailure.GARBAGE, Reason.WRONG_ANSWER, Cause.WRONG_ANSWER),
    (ProbeFailure.ERROR, Reason.UNANSWERED, Cause.WRONG_ANSWER),
    (ProbeFailure.REFUSED, Reason.UNANSWERED, Cause.NOT_LISTENING),
)


@pytest.mark.parametrize(("failure", "reason", "cause"), WRONG)
def test_what_passes_only_degrades_a_service_that_was_ready(
    failure: ProbeFailure, reason: Reason, cause: Cause
) -> None:
    """For less than `watch.failure_limit` it is degraded, then ready; longer, restarted by 75."""
    run = ready()
    run.replay(*(ProbeFailed(41 + k, failure, "as it is") for k in range(59)))
    assert view(run.memory).reasons == (reason,)
    assert view(run.memory).why == "as it is"
    assert run.replay(ProbePassed(99.5, FULL)) == ["ready"]
    run.replay(*(ProbeFailed(130 + k, failure, "as it is") for k in range(61)))
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is cause
    assert run.memory.end.fault.sentence == "as it is (for 60 s)"
    run.replay(EngineExited(192, Fault(Cause.ENGINE_EXIT, "exited")))
    run.replay(SurveyTaken(192.2, CLEAN, 192.1))
    assert run.code is ExitCode.TEMPFAIL


def test_changing_failures_end_a_service_as_one_that_lasts_does() -> None:
    """A refused key between timeouts and overload still ends the run after `failure_limit`."""
    kinds = (ProbeFailure.UNAUTHORIZED, ProbeFailure.UNAVAILABLE, ProbeFailure.UNANSWERED)
    run = ready()
    run.replay(*(ProbeFailed(40 + k, kinds[k % 3], "as it is") for k in range(61)))
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is Cause.UNAUTHORIZED


def test_load_is_no_fault_while_counters_move() -> None:
    """429 and 503 never end an engine that works; one that stands still ends after `stall`."""
    run = ready()
    for k in range(300):
        run.replay(
            ProbeFailed(40 + k, ProbeFailure.UNAVAILABLE, "returned 429"),
            CountersRead(40.5 + k, Counters(progress=(float(k),))),
        )
    assert view(run.memory).state is Published.DEGRADED
    run.replay(*(ProbeFailed(340 + k, ProbeFailure.UNAVAILABLE, "returned 429") for k in range(51)))
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.sentence == "returned 429 (only errors for 50 s)"


def test_a_refused_port_of_a_ready_service_is_no_hang() -> None:
    """Nothing waits for an answer where nothing listens, however short `stall` is."""
    run = ready(replace(POLICY, stall=5))
    run.replay(*(ProbeFailed(40 + k, ProbeFailure.REFUSED, "refused") for k in range(59)))
    assert view(run.memory).state is Published.DEGRADED


def test_counters_of_a_foreign_process_prove_nothing() -> None:
    """On a shared port a stranger's finished completions do not keep the service degraded."""
    run = ready()
    for k in range(61):
        run.replay(
            ProbeFailed(40 + k, ProbeFailure.NOT_OURS, "served by pid 9"),
            CountersRead(40.5 + k, Counters(progress=(float(k),), finished=float(k))),
        )
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is Cause.NOT_OUR_SOCKET


@pytest.mark.parametrize(
    ("cause", "once", "start"),
    [
        pytest.param(Cause.MODEL_OFFLINE, 75, 78, id="the-hub-is-away"),
        pytest.param(Cause.BAD_FLAGS, 75, 78, id="a-line-that-looks-like-bad-flags"),
        pytest.param(Cause.DISK_FULL, 75, 69, id="a-full-disk"),
        pytest.param(Cause.THREADS_EXHAUSTED, 75, 69, id="no-more-threads"),
        pytest.param(Cause.WRONG_ANSWER, 75, 69, id="the-same-once-more"),
        pytest.param(Cause.GPU_LOST, 69, 69, id="what-does-not-pass"),
    ],
)
def test_an_engine_that_has_served_is_restarted_before_it_is_given_up(
    cause: Cause, once: int, start: int
) -> None:
    """What a log blames for the end of a served engine is final only if the next start fails."""
    started = Started(0, hold_until=0, last_cause=cause, faults_left=5)
    exited = EngineExited(20, Fault(cause, "its last words"))
    for run, code in ((ready(started=started), once), (loading(started=started), start)):
        run.replay(exited, SurveyTaken(20.2, CLEAN, 20.1))
        assert run.code == code


def test_probes_rest_under_traffic_at_short_intervals() -> None:
    """Between two probes the counters are read twice, so that users' completions are noticed."""
    run = ready(replace(POLICY, interval=2, survey=1000))
    said: list[str] = []
    for finished in range(1, 41):
        counters = Counters(progress=(float(finished),), finished=finished)
        said += run.replay(CountersRead(run.memory.reading.next_at + 0.01, counters))
    assert run.memory.reading.next_at > 50
    assert "- RunProbe" not in said


def test_a_gpu_that_is_slowed_down_is_a_condition_when_that_lasts() -> None:
    """It comes with the second survey that finds it, and goes when as many have not."""
    hot, words = replace(CLEAN, slowdown="it is hot"), []
    run = ready(replace(POLICY, interval=1000))
    for at, survey in enumerate((hot, CLEAN, hot, hot, hot, CLEAN, hot, CLEAN, CLEAN, CLEAN), 11):
        run.replay(SurveyTaken(at, survey, at - 0.1))
        words.append("hot" if Reason.GPU_SLOWED_DOWN in view(run.memory).reasons else "-")
    assert words == ["-", "-", "-", "hot", "hot", "hot", "hot", "hot", "hot", "-"]


def test_requests_that_do_not_move_start_a_probe_at_once() -> None:
    """Running requests and frozen counters are a suspicion; one that runs and moves is none."""
    idle, busy = Counters(progress=(7.0,), running=0), Counters(progress=(7.0,), running=1)
    run = ready()
    run.replay(CountersRead(15, idle), CountersRead(20, busy))
    assert run.memory.probe.next_at == 40
    assert run.replay(CountersRead(25, busy)) == ["- RunProbe"]
    run = ready()
    run.replay(CountersRead(20, busy), CountersRead(25, replace(busy, progress=(8.0,))))
    assert run.memory.probe.next_at == 40


def test_a_users_finished_completion_is_as_good_as_our_own() -> None:
    """Real traffic puts the next probe off."""
    run = ready()
    run.replay(
        CountersRead(15, Counters(progress=(1.0,), finished=1)),
        CountersRead(35, Counters(progress=(2.0,), finished=2)),
    )
    assert run.memory.probe.next_at == 65


def test_our_own_completion_is_nobodys_traffic() -> None:
    """What the counters have grown by our own probe does not put the next one off."""
    run = ready()
    run.replay(CountersRead(11, Counters(progress=(1.0,), finished=1)))
    run.replay(ProbePassed(40.1, FULL), CountersRead(41, Counters(progress=(2.0,), finished=2)))
    assert run.memory.probe.next_at == 70.1
    run.replay(CountersRead(46, Counters(progress=(3.0,), finished=3)))
    assert run.memory.probe.next_at == 76


def test_counters_are_read_from_the_moment_that_a_probe_waits() -> None:
    """A hang is judged by what moved since the completion was sent, however short `stall` is."""
    run = ready(replace(POLICY, probe_deadline=1, stall=2))
    run.replay(CountersRead(39, Counters(progress=(1.0,))))
    run.pass_time(40.1)
    assert run.memory.probe.running
    assert run.memory.reading.running
    run.replay(CountersRead(40.1, Counters(progress=(1.0,))))
    run.pass_time(41.2)
    assert run.memory.reading.running


def test_a_hold_off_is_waited_for() -> None:
    """Nothing is launched before the hold-off is over, and then without delay."""
    run = Run(started=Started(0, hold_until=20))
    assert run.replay(*(SurveyTaken(at, CLEAN, at - 0.1) for at in range(1, 19))) == []
    run.pass_time(20.1)
    assert run.said == ["starting Launch", "- RunProbe"]


@pytest.mark.parametrize(
    ("survey", "cause", "code"),
    [
        (SurveyResult(port_holder=process(9)), Cause.PORT_BUSY, 69),
        (SurveyResult(foreign=(process(9, mib=20480),)), Cause.VRAM_BUSY, 69),
        (SurveyResult(locked_by="balanced"), Cause.VRAM_BUSY, 69),
        (SurveyResult(gpu=GpuView.ABSENT, gpu_note="no device"), Cause.DRIVER, 69),
        (SurveyResult(orphans=(process(9, stuck=True),)), Cause.UNKILLABLE, 69),
        (SurveyResult(orphans=(process(9),)), Cause.UNKILLABLE, 69),
    ],
)
def test_what_stays_in_the_way_is_named_and_waited_for_within_a_bound(
    survey: SurveyResult, cause: Cause, code: int
) -> None:
    """A launch that something prevents ends with 69 and names it, after a bounded wait."""
    run = Run()
    run.replay(SurveyTaken(1, survey, 0))
    run.replay(*(SurveyTaken(at, survey, at - 0.1) for at in range(2, 60)))
    assert run.memory.end.code is None
    run.pass_time(62)
    run.replay(SurveyTaken(62.1, replace(survey, orphans=()), 62))
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is cause
    assert run.code == code


def test_who_cannot_be_seen_is_to_be_looked_for() -> None:
    """Of a port's holder that hides, the remedy is how to find it."""
    run = Run()
    run.replay(SurveyTaken(1, SurveyResult(port_holder=replace(process(0), command="")), 0))
    assert run.memory.hold.blocked is not None
    assert run.memory.hold.blocked.remedy.endswith("`ss -ltnp`")


def test_a_small_stranger_is_allowed() -> None:
    """A desktop's few hundred MiB of VRAM do not keep an engine from its launch."""
    run = Run()
    survey = SurveyResult(foreign=(process(9, mib=400),), gpu=GpuView.PRESENT)
    assert run.replay(SurveyTaken(1, survey, 0)) == ["starting Launch"]


def test_a_wrong_model_is_believed_only_when_it_lasts() -> None:
    """Identity is refused for good after several failures over some seconds, and ends with 78."""
    run = loading()
    run.replay(ProbeFailed(2, ProbeFailure.WRONG_MODEL, 'serves "a", not "b"'))
    assert run.memory.phase == "loading"
    run.replay(
        *(ProbeFailed(at, ProbeFailure.WRONG_MODEL, 'serves "a", not "b"') for at in (4, 7.5))
    )
    run.replay(EngineExited(8, Fault(Cause.ENGINE_EXIT, "exited")), SurveyTaken(8.2, CLEAN, 8.1))
    assert run.code is ExitCode.CONFIG


def test_a_start_without_progress_is_given_up() -> None:
    """The deadline is on no progress: log lines push it out until the model is listed."""
    run = loading()
    run.replay(Progressed(90, Sign.LOG), Progressed(180, Sign.LOG))
    assert run.memory.phase == "loading"
    run.replay(ProbeFailed(181, ProbeFailure.UNANSWERED, "no answer", identified=True))
    run.replay(Progressed(250, Sign.LOG))
    run.pass_time(281)
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is Cause.START_STALLED


def test_a_start_that_is_given_up_says_what_kept_the_gate_shut() -> None:
    """A reason that waiting does not mend is the cause, however short `start.stall` is."""
    run = loading(replace(POLICY, start_stall=4))
    run.replay(ProbeFailed(2, ProbeFailure.UNANSWERED, "no answer to /v1/models within 10 s"))
    run.pass_time(6)
    assert run.memory.end.fault == Fault(
        Cause.START_STALLED,
        "no progress for 4 s while launched: no answer to /v1/models within 10 s",
        Cause.START_STALLED.remedies[0],
    )
    run = loading(replace(POLICY, start_stall=4))
    run.replay(ProbeFailed(2, ProbeFailure.WRONG_MODEL, 'serves "a", not "b"'))
    run.pass_time(6)
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is Cause.WRONG_MODEL


def test_a_start_has_an_overall_limit() -> None:
    """Progress for ever does not extend a start for ever."""
    run = loading()
    run.replay(*(Progressed(float(at), Sign.CPU) for at in range(50, 1000, 50)))
    run.pass_time(1002)
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is Cause.START_LIMIT


def test_a_stop_is_escalated_and_an_unkillable_engine_named() -> None:
    """TERM, TERM, KILL, and then 69: never an endless wait."""
    run = ready()
    run.replay(StopRequested(20, Cause.STOP_REQUESTED, "stopped by systemd"))
    run.said = []
    run.pass_time(60)
    assert run.said == ["- Terminate", "degraded Kill", "failed Exit(69)"]


def test_the_last_fault_of_the_budget_ends_with_69() -> None:
    """A fault that a restart may mend is not restarted once the budget is spent."""
    run = ready(started=Started(0, hold_until=0, faults_left=1, budget="5 faults in 60 min"))
    run.replay(
        EngineExited(20, Fault(Cause.ENGINE_SIGNAL, "killed by SIGSEGV")),
        SurveyTaken(20.2, CLEAN, 20.1),
    )
    assert run.code is ExitCode.UNAVAILABLE
    assert view(run.memory).cause is Cause.BUDGET_SPENT


@pytest.mark.parametrize(
    ("wsl", "last", "code"), [(False, None, 75), (False, Cause.CUDA_OOM, 69), (True, None, 69)]
)
def test_out_of_memory_is_retried_once_and_on_wsl_never(
    *, wsl: bool, last: Cause | None, code: int
) -> None:
    """Repeated out-of-memory starts take a WSL machine down, and nobody anywhere."""
    policy = replace(POLICY, on_wsl=wsl)
    run = loading(policy, Started(0, hold_until=0, last_cause=last, faults_left=5))
    run.replay(
        EngineExited(5, Fault(Cause.CUDA_OOM, "CUDA out of memory")), SurveyTaken(5.2, CLEAN, 5.1)
    )
    assert run.code == code


def test_a_clock_jump_asks_at_once_and_with_patience() -> None:
    """After a sleep nothing of before counts against the engine."""
    run = ready()
    run.replay(ProbeFailed(50, ProbeFailure.UNANSWERED, "no answer"))
    run.replay(ClockJumped(80, 3600))
    assert run.memory.probe.unanswered_since is None
    assert run.memory.probe.running


def test_what_does_not_survive_a_sleep_is_blamed_on_it() -> None:
    """Who has not answered since a sleep and then hangs or dies was killed by the sleep."""
    run = ready()
    run.replay(ClockJumped(50, 3600))
    run.replay(EngineExited(51, Fault(Cause.GPU_FAULT, "unspecified launch failure")))
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is Cause.SUSPEND
    assert run.memory.end.fault.sentence == (
        "the machine was suspended or paused for 3600 s, and since then: unspecified launch failure"
    )
    awake = ready()
    awake.replay(ClockJumped(50, 3600), ProbePassed(51, FULL))
    awake.replay(EngineExited(60, Fault(Cause.GPU_FAULT, "unspecified launch failure")))
    assert awake.memory.end.fault is not None
    assert awake.memory.end.fault.cause is Cause.GPU_FAULT


def test_a_pause_does_not_use_up_the_patience_with_a_start() -> None:
    """The time that a loading engine stood still with the machine is not held against it."""
    run = loading()
    run.replay(Progressed(50, Sign.LOG))
    run.replay(ClockJumped(149, 90))
    run.pass_time(200)
    assert run.memory.phase == "loading"


def test_a_signal_from_a_stranger_ends_the_run_with_a_restart() -> None:
    """A SIGTERM that the manager did not send is a fault which names its sender."""
    run = ready()
    said = run.replay(FaultSeen(20, Fault(Cause.OUTSIDE_KILL, "SIGTERM from pid 99 (bob, bash)")))
    assert said == ["failed CancelProbe Terminate"]
    run.replay(
        EngineExited(21, Fault(Cause.ENGINE_EXIT, "exited with 0")), SurveyTaken(21.2, CLEAN, 21.1)
    )
    assert run.code is ExitCode.TEMPFAIL


def test_silent_badness_degrades_and_restarts_where_the_profile_says_so() -> None:
    """A reason named in restart.on that lasts ends the run; any other only degrades it."""
    run = ready()
    run.replay(Observed(20, Reason.TOO_SLOW, present=True, sentence="decodes at 3 tokens/s"))
    assert view(run.memory).state is Published.DEGRADED
    run.replay(Observed(21, Reason.TOO_SLOW, present=False))
    assert view(run.memory).state is Published.READY
    run.replay(Observed(22, Reason.CPU_FALLBACK, present=True, sentence="holds no VRAM"))
    for at in range(30, 140, 5):
        run.replay(CountersRead(at, Counters(progress=(float(at),))))
    run.pass_time(143)
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is Cause.CPU_FALLBACK


def test_vram_that_nobody_owns_is_waited_for_and_said() -> None:
    """A run that cannot prove its VRAM back says so, within a bound."""
    run = ready()
    run.replay(EngineExited(20, Fault(Cause.ENGINE_EXIT, "exited with 1")))
    run.replay(
        *(
            SurveyTaken(20 + k, SurveyResult(unattributed_mib=9000), 20 + k - 0.1)
            for k in range(1, 29)
        )
    )
    run.pass_time(51)
    assert run.code is ExitCode.TEMPFAIL
    assert "9000 MiB" in run.memory.end.unsettled


def test_late_events_change_nothing() -> None:
    """Once a run is gone, nothing that still arrives matters."""
    run = ready()
    run.replay(
        StopRequested(20, Cause.STOP_REQUESTED, "stopped"),
        EngineExited(21, Fault(Cause.ENGINE_EXIT, "exited")),
        SurveyTaken(21.2, CLEAN, 21.1),
    )
    gone = run.memory
    run.replay(
        ProbePassed(22, FULL), FaultSeen(23, Fault(Cause.GPU_LOST, "Xid 79")), TimePassed(24)
    )
    assert run.memory == gone


def test_a_stop_in_the_moment_of_a_launch_that_fails_is_a_stop() -> None:
    """What never ran is not waited for, nor called unkillable."""
    run = Run()
    run.replay(
        SurveyTaken(1, CLEAN, 0), StopRequested(1, Cause.STOP_REQUESTED, "stopped by systemd")
    )
    run.replay(
        LaunchFailed(1, Fault(Cause.EXECUTABLE_MISSING, "no such file")), SurveyTaken(1.1, CLEAN, 1)
    )
    assert run.code is ExitCode.OK


def test_an_attempt_that_does_not_come_back_is_unanswered() -> None:
    """Being asked for ever is no better than being silent: it is tried again, and then hung."""
    run = ready(replace(POLICY, stall=30))
    run.pass_time(60.2)
    assert run.said == ["ready ReportReady", "- RunProbe", "degraded CancelProbe", "- RunProbe"]
    run.pass_time(71)
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is Cause.HUNG
    assert run.memory.end.fault.sentence.endswith(" s and the engine reports no progress")


def test_a_look_that_does_not_come_back_keeps_nobody_waiting_for_ever() -> None:
    """Where nobody can tell who holds the GPU, the run ends with 69 and says so."""
    run = Run()
    run.pass_time(200)
    assert run.code is ExitCode.UNAVAILABLE
    assert view(run.memory).why == "no survey of the GPU and the port for 70 s"


def test_what_is_left_and_cannot_be_seen_is_not_called_nothing() -> None:
    """The end of a run that no look could prove says that."""
    run = ready()
    run.replay(EngineExited(20, Fault(Cause.ENGINE_EXIT, "exited with 1")))
    run.pass_time(51)
    assert run.code is ExitCode.TEMPFAIL
    assert run.memory.end.unsettled == "no survey shows what is left of the engine"


def test_a_pause_does_not_make_an_engine_unkillable() -> None:
    """What stood still with the machine, our own bounds on an end included, is not held against it.

    Likewise a look around that has not come back yet.
    """
    run = ready()
    run.replay(StopRequested(20, Cause.STOP_REQUESTED, "stopped by systemd"))
    run.pass_time(41)
    assert run.memory.phase == "killing"
    run.replay(ClockJumped(49.9, 3600), EngineExited(55, Fault(Cause.ENGINE_SIGNAL, "killed")))
    run.replay(SurveyTaken(55.1, CLEAN, 55))
    assert run.code is ExitCode.OK
    holding = Run()
    holding.replay(ClockJumped(69, 60))
    holding.pass_time(75)
    assert holding.code is None


def test_the_manager_is_asked_for_patience_from_the_launch() -> None:
    """What a launch took beyond its order is no time that the start has had."""
    run = Run()
    run.replay(SurveyTaken(1, CLEAN, 0))
    _, actions = step(POLICY, run.memory, Launched(40, 4711))
    assert ExtendTimeout(100 + 20 + 30 + 30) in actions


def test_the_manager_is_asked_for_patience_after_a_pause() -> None:
    """A start that is given more time after a sleep has it from the manager, too."""
    run = loading()
    _, actions = step(POLICY, run.memory, ClockJumped(99, 3600))
    assert ExtendTimeout(100 + 20 + 30 + 30) in actions


def test_vram_of_nobody_keeps_an_engine_from_its_launch() -> None:
    """Memory that no process holds is waited for, and then said; a next run may find it free."""
    run = Run()
    run.replay(
        *(SurveyTaken(at, SurveyResult(unattributed_mib=9000), at - 0.1) for at in range(1, 95))
    )
    assert run.memory.end.fault is not None
    assert run.memory.end.fault.cause is Cause.VRAM_ORPHAN
    assert run.code is ExitCode.TEMPFAIL


def test_what_an_earlier_run_left_is_swept_while_the_service_goes_on() -> None:
    """An orphan found while serving is a reason to be degraded, until it is gone."""
    run = ready()
    assert run.replay(SurveyTaken(25, SurveyResult(orphans=(process(12),)), 25)) == [
        "degraded Sweep"
    ]
    assert view(run.memory).why == "orphan of an earlier run: pid 12 (alice, python)"
    assert run.replay(SurveyTaken(41, CLEAN, 40)) == ["- RunProbe", "ready"]
    run.replay(SurveyTaken(45, SurveyResult(unattributed_mib=9000), 45))
    assert view(run.memory).reasons == (Reason.VRAM_ORPHAN,)


def test_requests_that_are_finished_before_ready_are_progress() -> None:
    """A model that is listed and answers others, though not our probe yet, gets on."""
    run = loading()
    run.replay(
        ProbeFailed(5, ProbeFailure.UNANSWERED, "no answer", identified=True),
        CountersRead(6, Counters(progress=(1.0,), finished=1)),
        CountersRead(90, Counters(progress=(2.0,), finished=2)),
    )
    assert run.memory.load.progressed_at == 90


def test_the_policy_is_the_profiles() -> None:
    """Every bound that `step` works with is a figure of the profile."""
    built_in = profile(
        "max-context",
        start={"stall": 100, "limit": 1000, "gpu_wait": 60},
        probe={"deadline": 10},
        watch={
            "interval": 30,
            "stall": 50,
            "still": 5,
            "unfinished": 60,
            "survey": 15,
            "ail_limit": 120,
            "stranger_allowance": 1024,
        },
        stop={"grace": 20, "kill": 10, "settle": 30},
        restart={"on": ["cpu-fallback"]},
    )
    assert Policy.of(built_in) == POLICY
    assert Policy.of(built_in, on_wsl=True) == replace(POLICY, on_wsl=True)
