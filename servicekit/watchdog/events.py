"""The watchdog's values: phases, policy, events and orders. `state` decides by them.

Times are seconds of `CLOCK_MONOTONIC`, memory is MiB.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from servicekit.host.facts import GpuView, Process

if TYPE_CHECKING:
    from servicekit.diagnosis.causes import Cause
    from servicekit.diagnosis.fault import Fault
    from servicekit.engines.base import Contexts, Counters
    from servicekit.errors import ExitCode
    from servicekit.host.facts import Activity
    from servicekit.profiles.model import Profile
    from servicekit.profiles.vocabulary import Reason


# Seconds after it became ready within which the load of an engine may take its host down.
STEADY: Final = 120.0
# Deaths of the host under load, in a row, after which only an operator starts the service.
HOST_DEATHS: Final = 3


class RunPhase(StrEnum):
    """Where a run is: only ever forward, but between serving and degraded."""

    HOLDING = "holding"
    LOADING = "loading"
    SERVING = "serving"
    DEGRADED = "degraded"
    STOPPING = "stopping"
    KILLING = "killing"
    SETTLING = "settling"
    GONE = "gone"


class ProbeFailure(StrEnum):
    """How a readiness probe failed."""

    REFUSED = "refused"  # nothing listens on the port
    UNAVAILABLE = "unavailable"  # it replies that it is not ready (503)
    UNANSWERED = "unanswered"  # the deadline passed
    ERROR = "error"  # it replies with an error (5xx)
    GARBAGE = "garbage"  # the reply does not follow the protocol
    UNAUTHORIZED = "unauthorized"
    WRONG_MODEL = "wrong-model"
    NOT_OURS = "not-ours"  # the socket belongs to a process that is not of this run
    WRONG_ANSWER = "wrong-answer"
    REPEATED = "repeated-answer"
    CPU_FALLBACK = "cpu-fallback"
    CONTEXT_TOO_SMALL = "context-too-small"


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of a profile and its host, in seconds and MiB."""

    start_stall: float
    start_limit: float
    gpu_wait: float
    probe_deadline: float
    interval: float
    stall: float
    still: float
    failure_limit: float
    unfinished: float
    survey: float
    condition_limit: float
    grace: float
    kill: float
    settle: float
    restart_on: frozenset[Reason]
    foreign_allowance: int
    uses_gpu: bool
    on_wsl: bool = False

    @classmethod
    def of(cls, profile: Profile, *, on_wsl: bool = False) -> Policy:
        """Return the policy of `profile`."""
        return cls(
            start_stall=profile.start.stall,
            start_limit=profile.start.limit,
            gpu_wait=profile.start.gpu_wait,
            probe_deadline=profile.probe.deadline,
            interval=profile.watch.interval,
            stall=profile.watch.stall,
            still=profile.watch.still,
            failure_limit=profile.watch.failure_limit,
            unfinished=profile.watch.unfinished,
            survey=profile.watch.survey,
            condition_limit=profile.watch.ail_limit,
            grace=profile.stop.grace,
            kill=profile.stop.kill,
            settle=profile.stop.settle,
            restart_on=frozenset(profile.restart.on),
            foreign_allowance=profile.watch.stranger_allowance,
            uses_gpu=bool(profile.gpus),
            on_wsl=on_wsl,
        )


@dataclass(frozen=True, slots=True)
class SurveyResult:
    """Who holds what this run needs."""

    orphans: tuple[Process, ...] = ()
    """Ours, but not of the live engine: of an earlier run, or what the engine left behind."""
    foreign: tuple[Process, ...] = ()
    """Hold VRAM on our GPUs and are not ours. Never touched."""
    port_holder: Process | None = None
    """Listens on our port and is no orphan. Not surveyed while an engine lives."""
    locked_by: str = ""  # another profile of servicekit that holds the lock on one of our GPUs
    gpu: GpuView = GpuView.NOT_USED
    gpu_note: str = ""
    unattributed_mib: int = 0
    """VRAM in use above this run's baseline that no living process accounts for."""
    gpu_busy: bool | None = None
    """Whether one of our GPUs is at work; `None` where the driver does not report it."""
    slowdown: str = ""  # why a GPU of ours runs below its clocks, in words
    engine_mib: int | None = None  # VRAM that the engine's tree holds, where the driver reports it


class LaunchFailedError(Exception):
    """The engine could not be started at all."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.sentence)
        self.fault = fault


# Events: happenings, each with its time.


@dataclass(frozen=True, slots=True)
class Started:
    """The run began; `hold_until` and the rest is what the ledger says about the runs before."""

    at: float
    hold_until: float
    last_cause: Cause | None = None  # cause of the previous run's fault, when this run follows it
    faults_left: int = 1
    """Faults that the restart budget still allows, this run's included; 0: it is spent."""
    budget: str = ""  # the budget in words, such as `5 faults in 60 min`
    last_sentence: str = ""  # what is known of the last of those faults
    host_deaths: int = 0  # how often in a row the host went down under the load of a start


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The loop woke at a time that `wake_at` asked for."""

    at: float


@dataclass(frozen=True, slots=True)
class SurveyTaken:
    """A `TakeSurvey` came back; `asked_at` is when it was ordered."""

    at: float
    survey: SurveyResult
    asked_at: float


@dataclass(frozen=True, slots=True)
class Launched:
    """The engine's leader exists."""

    at: float
    pid: int


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """The engine could not be started at all."""

    at: float
    fault: Fault


class Sign(StrEnum):
    """What shows that a start makes progress."""

    PHASE = "phase"
    LOG = "log"
    CPU = "cpu"
    IO = "io"
    VRAM = "vram"
    DOWNLOAD = "download"
    COUNTERS = "counters"


@dataclass(frozen=True, slots=True)
class Progressed:
    """The loading engine did something; `boot` names its boot phase when that changed."""

    at: float
    sign: Sign
    boot: str = ""


@dataclass(frozen=True, slots=True)
class ProbePassed:
    """Identity, ownership and a bounded completion: the engine answers."""

    at: float
    contexts: Contexts


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """A readiness probe failed; `identified` says that the right model was listed."""

    at: float
    failure: ProbeFailure
    sentence: str
    identified: bool = False
    remedy: str = ""  # what helps against this failure; empty for the first remedy of its cause


@dataclass(frozen=True, slots=True)
class CountersRead:
    """A `ReadCounters` came back; `None` when the metrics could not be read."""

    at: float
    counters: Counters | None


@dataclass(frozen=True, slots=True)
class Observed:
    """A condition was seen (or seen to be over) in logs, metrics or figures."""

    at: float
    reason: Reason
    present: bool
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class ActivityRead:
    """What the engine's processes have done so far: while it ends, or a completion waits."""

    at: float
    activity: Activity
    alone: bool = False  # of an engine that had workers only the leader is left
    blocked: bool = False
    """A thread is in uninterruptible sleep: it waits for a disk, or for the driver."""
    runnable: bool = False  # a thread runs, or wants to: until it runs, the kernel counts no delay
    hindered: str = ""  # what keeps it from running, in words


@dataclass(frozen=True, slots=True)
class EngineExited:
    """The engine's leader is dead and reaped; `fault` is what its log and status say of why."""

    at: float
    fault: Fault


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A process that the engine had when it became ready is dead; `fault` names it, and why."""

    at: float
    fault: Fault


@dataclass(frozen=True, slots=True)
class FaultSeen:
    """Something outside the engine ends this run: a fatal Xid, a signal from a foreign process."""

    at: float
    fault: Fault


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The manager, the terminal or a host shutdown asks for an end."""

    at: float
    cause: Cause
    sentence: str


@dataclass(frozen=True, slots=True)
class ClockJumped:
    """The machine was suspended, or the watchdog was not scheduled, for `seconds`."""

    at: float
    seconds: float


Event: TypeAlias = (
    Started
    | TimePassed
    | SurveyTaken
    | Launched
    | LaunchFailed
    | Progressed
    | ProbePassed
    | ProbeFailed
    | CountersRead
    | Observed
    | ActivityRead
    | EngineExited
    | WorkerExited
    | FaultSeen
    | StopRequested
    | ClockJumped
)


# Actions: orders, performed by the loop.


@dataclass(frozen=True, slots=True)
class TakeSurvey:
    """Survey orphans, GPU and port; answer with `SurveyTaken`. Never more than one at a time."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """SIGKILL these orphans, each checked again by its marker and start time."""

    processes: tuple[Process, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the engine; answer with `Launched` or `LaunchFailed`."""


@dataclass(frozen=True, slots=True)
class RunProbe:
    """Run the readiness probe within its deadline; answer with `ProbePassed` or `ProbeFailed`."""


@dataclass(frozen=True, slots=True)
class CancelProbe:
    """Drop the probe under way, if there is one; it answers nothing."""


@dataclass(frozen=True, slots=True)
class ReadCounters:
    """Read the engine's metrics; answer with `CountersRead`."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM to the engine."""


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL to the engine's whole tree, group and cgroup."""


@dataclass(frozen=True, slots=True)
class ReportReady:
    """Send READY=1 to the manager: once in a run."""


@dataclass(frozen=True, slots=True)
class ExtendTimeout:
    """Ask the manager to wait at least this many seconds from now."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Exit:
    """End the run with this code."""

    code: ExitCode


Action: TypeAlias = (
    TakeSurvey
    | Sweep
    | Launch
    | RunProbe
    | CancelProbe
    | ReadCounters
    | Terminate
    | Kill
    | ReportReady
    | ExtendTimeout
    | Exit
)
Actions: TypeAlias = tuple[Action, ...]
