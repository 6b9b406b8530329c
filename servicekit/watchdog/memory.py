"""All that a run remembers between two events, in small groups. Only values, built by `step`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from servicekit.watchdog.events import RunPhase, Started

if TYPE_CHECKING:
    from servicekit.diagnosis.fault import Fault
    from servicekit.engines.base import Contexts, Counters
    from servicekit.errors import ExitCode
    from servicekit.profiles.vocabulary import Reason
    from servicekit.watchdog.events import ActivityRead, ProbeFailure, WorkerExited

NOT_STARTED: Final = Started(0.0, hold_until=0.0)


@dataclass(frozen=True, slots=True)
class Condition:
    """One reason for being degraded, since when, and in words."""

    reason: Reason
    since: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Task:
    """Work that recurs: whether it is under way, and when it is due next."""

    running: bool = False
    next_at: float = 0.0

    @property
    def due(self) -> float | None:
        """When to begin it; `None` while it is under way."""
        return None if self.running else self.next_at


@dataclass(frozen=True, slots=True)
class Hold:
    """What keeps the launch waiting."""

    clear: bool = False  # the last survey found nothing in the way
    blocked: Fault | None = None
    blocked_since: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """How far the start is."""

    launched_at: float = 0.0
    progressed_at: float = 0.0
    boot: str = ""  # the boot phase that the engine's log named last
    identified: bool = False
    """The right model was listed: from here only real work counts as progress."""


@dataclass(frozen=True, slots=True)
class Probing(Task):
    """The readiness probe: the attempt under way, and what the last ones came to."""

    sent_at: float = 0.0
    failure: ProbeFailure | None = None
    sentence: str = ""  # the last failure, in words
    failures: int = 0  # failures of the same kind in a row
    failing_since: float = 0.0
    unanswered_since: float | None = None
    """When the first completion was sent that is still without an answer."""
    error_since: float | None = None
    wrong_since: float | None = None
    """When a ready service first failed in a way that ends it after `watch.failure_limit`."""
    wrong: int = 0  # how many times it has since then
    finished_at: float = 0.0  # when a completion, ours or a user's, was last known to finish


@dataclass(frozen=True, slots=True)
class CounterReading(Task):
    """The engine's counters: the reading under way, and the last one."""

    counters: Counters | None = None
    moved_at: float = 0.0
    frozen_since: float | None = None
    """Since when requests run and no counter moves."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """Whether the engine's processes do anything, while a completion waits."""

    last: ActivityRead | None = None
    still: ActivityRead | None = None  # since when they do nothing
    gpu_idle_at: float = 0.0  # when a survey last found the GPU idle
    slowdowns: int = 0  # surveys that found the GPU slowed down, less the later ones that did not
    hindered: str = ""  # what keeps them from running, in words
    hindered_at: float = 0.0


@dataclass(frozen=True, slots=True)
class End:
    """How the run ends."""

    fault: Fault | None = None
    stop: Fault | None = None  # the request to stop, when there was one
    sigterms_sent: int = 0
    grace: float = 0.0
    idle: ActivityRead | None = None  # since when a leader without its workers does nothing
    unsettled: str = ""  # what is still there of the engine, while settling
    orphaned: bool = False  # whether processes are among it
    code: ExitCode | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """All that a run remembers."""

    phase: RunPhase = RunPhase.HOLDING
    since: float = 0.0  # when the phase was entered
    started: Started = NOT_STARTED
    """The run's first event: what the ledger says about the runs before."""
    alive: bool = False  # an engine was ordered and its end has not been seen
    served: bool = False  # it was ready in this run
    hold: Hold = Hold()
    load: Load = Load()
    probe: Probing = Probing()
    reading: CounterReading = CounterReading()
    vitals: Vitals = Vitals()
    survey: Task = Task()
    contexts: Contexts | None = None
    conditions: tuple[Condition, ...] = ()  # what makes it degraded, oldest first
    lost: WorkerExited | None = None
    """The process whose death made it degraded last, be it now or before it answered again."""
    first_lost: WorkerExited | None = None
    """The first of the engine's processes that died lately, whether or not it answered since."""
    suspended: str = ""
    """The suspend of the machine, in words, since which the engine has not answered."""
    end: End = End()

    @property
    def waits_since(self) -> float | None:
        """When the completion was sent that has no answer yet."""
        probe = self.probe
        if probe.unanswered_since is None:
            return probe.sent_at if probe.running else None
        return probe.unanswered_since

    def holds(self, reason: Reason) -> bool:
        """Return whether it is degraded for this reason."""
        return any(one.reason is reason for one in self.conditions)

    @property
    def began(self) -> bool:
        """Whether the run's first event was taken."""
        return self.started is not NOT_STARTED
