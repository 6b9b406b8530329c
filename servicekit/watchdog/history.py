"""Runs, read back from the ledger."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from servicekit.diagnosis.causes import Cause
from servicekit.watchdog.clock import seconds_between
from servicekit.watchdog.events import STEADY
from servicekit.watchdog.ledger import (
    BOOTS_COMPARED,
    CHAIN_ENDS,
    HOLD_OFFS,
    UNCOUNTED,
    Kind,
    Record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from servicekit.diagnosis.fault import Fault
    from servicekit.profiles.model import Restart
    from servicekit.watchdog.clock import Dated


FIRST_ANSWER: Final = "waiting for the first answer"  # the boot phase of an engine that listens
IMPORTS: Final = "launch and imports"  # what an engine does before its log shows a boot phase
UNSEEN: Final = "launch and loading"  # the same of one whose log shows none before it listens
DEATHS_OF_THE_HOST: Final = frozenset({Cause.POWER_LOSS, Cause.IDLE_KILL})
# Causes of runs that were cut off: the next run writes them.
CUT_OFF: Final = DEATHS_OF_THE_HOST | {Cause.WATCHDOG_KILLED}


@dataclass(frozen=True, slots=True)
class Holdoff:
    """What the runs before allow the next one."""

    delay_seconds: float = 0.0  # how long the launch is to wait from now
    faults_left: int = 1  # faults that the budget still allows, the coming run's included
    last_cause: Cause | None = None  # why the run before failed, where this one follows it
    last_sentence: str = ""
    faults: int = 0  # faults in a row
    restarts: int = 0  # runs since an operator last started the service
    host_deaths: int = 0
    """How often in a row the host went down while the model loaded or had just become ready."""


def holdoff(records: Iterable[Record], now: Dated, policy: Restart) -> Holdoff:
    """Conclude how long a run that begins now holds off.

    Faults in a row count until one run was ready for `policy.healthy` seconds, an operator started
    the service (`reset`), or a run ended in a way that only an operator's start follows. A run
    has one fault, its first. Time is that in which the host was up: clocks may be wrong by years.
    """
    records = tuple(records)
    age = _ages(records, now)
    deaths = _host_deaths(records)
    faults: list[Record] = []
    ready: dict[str, Record] = {}
    failed: set[str] = set()
    restarts = 0
    for record in records:
        if _up_for(ready.get(record.run), record) >= policy.healthy:
            faults = [fault for fault in faults if fault.run == record.run]
        if record.kind is Kind.STARTED:
            restarts += 1
        elif record.kind is Kind.READY:
            ready.setdefault(record.run, record)
        elif record.kind is Kind.RESET:
            faults, restarts = [], 0
        elif record.kind in {Kind.FAULT, Kind.GONE}:
            if record.kind is Kind.FAULT and record.run not in failed:
                failed.add(record.run)
                faults += [] if record.cause in UNCOUNTED else [record]
            if record.kind is Kind.GONE and record.fields.get("code") in CHAIN_ENDS:
                faults, restarts = [], 0
    recent = [fault for fault in faults if age(fault) <= policy.window]
    left = max(0, policy.budget - len(recent))
    if not faults:
        return Holdoff(faults_left=left, restarts=restarts, host_deaths=deaths)
    last = faults[-1]
    delay = HOLD_OFFS[min(len(faults), len(HOLD_OFFS) - 1)]
    waited = max(0.0, age(last))  # a clock set back makes no longer wait
    return Holdoff(
        max(0.0, delay - waited),
        left,
        last.cause,
        last.sentence,
        faults=len(faults),
        restarts=restarts,
        host_deaths=deaths,
    )


def _up_for(ready: Record | None, record: Record) -> float:
    """Seconds for which a run had been ready when it wrote `record`; 0 where another wrote it."""
    if ready is None or ready.boot_id != record.boot_id or record.cause in CUT_OFF:
        return 0.0
    return seconds_between(ready, record)


def _ages(records: Sequence[Record], now: Dated) -> Callable[[Dated], float]:
    """Return what says how many seconds the host has been up since a record.

    That is at least the time that passed. Only for records of version 0.1 it is the wall clock's.
    """
    before: dict[str, float] = {}
    lasted: dict[str, float] = {}
    for one in (*records, now):
        if one.boottime is not None:
            before.setdefault(one.boot_id, sum(lasted.values()))
            lasted[one.boot_id] = max(one.boottime, lasted.get(one.boot_id, 0.0))

    def age(one: Dated) -> float:
        if one.boottime is None or now.boottime is None:
            return seconds_between(one, now)
        return before[now.boot_id] + now.boottime - before[one.boot_id] - one.boottime

    return age


def _host_deaths(records: Iterable[Record]) -> int:
    """Count how often in a row the host went down under the load of a start.

    Each time an engine was launched, and had not been ready for `STEADY` seconds. Only an
    operator's start, or a run that outlasted this, begins anew: the boots in between do not.
    """
    deaths: set[str] = set()
    launched: set[str] = set()
    steady: set[str] = set()
    ready: dict[str, Record] = {}
    for record in records:
        run, began = record.run, ready.get(record.run)
        if record.kind is Kind.LAUNCHED:
            launched.add(run)
        elif record.kind is Kind.READY:
            ready.setdefault(run, record)
            if record.boottime is None:  # of version 0.1, which did not write how long it lasted
                steady.add(run)
        lasted = _up_for(began, record) >= STEADY
        if record.kind is Kind.RESET or lasted or (began and record.kind is Kind.GONE):
            deaths.clear()
            steady.add(run)
        if record.kind is Kind.FAULT and record.cause in DEATHS_OF_THE_HOST and run not in steady:
            deaths |= {run} & launched
    return len(deaths)


def unfinished(
    records: Sequence[Record], *, boot_id: str, pid1_started: int, on_wsl: bool
) -> tuple[str, Fault] | None:
    """Find the previous run where it has no ending, and how it must have ended; else `None`.

    A virtual machine that was stopped has another boot id; a container, or a WSL distribution that
    was restarted within its virtual machine, has the same one, and a later first process.
    """
    from servicekit.diagnosis.fault import Fault  # many classes, which `status` does not need

    run = next((record.run for record in reversed(records) if record.run), None)
    of_run = [record for record in records if record.run == run]
    if run is None or any(record.kind in {Kind.GONE, Kind.FAULT} for record in of_run):
        return None
    last = of_run[-1]
    seen = f"last record at {last.at.isoformat(timespec='seconds')}"
    stop = next((record for record in of_run if record.kind is Kind.STOPPING), None)
    if stop is not None and stop.cause is not None:
        return run, Fault(stop.cause, f"cut off while it was stopping, {seen}")
    began = next((r.fields.get("pid1_started") for r in of_run if r.kind is Kind.STARTED), None)
    if last.boot_id == boot_id and began in {pid1_started, None}:
        cause, what = Cause.WATCHDOG_KILLED, "the watchdog was killed"
    elif last.boot_id == boot_id and not on_wsl:
        cause, what = Cause.WATCHDOG_KILLED, "the container was killed"
    elif on_wsl:
        cause, what = Cause.IDLE_KILL, "WSL stopped the virtual machine or the distribution"
    else:
        cause, what = Cause.POWER_LOSS, "the host went down without a shutdown"
    return run, Fault(cause, f"{what}; {seen}", cause.remedies[0])


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run, summed up from its records."""

    run: str
    began: datetime
    ended: datetime | None = None  # `None` while it lasts, or when it was cut off
    code: int | None = None
    cause: Cause | None = None
    sentence: str = ""
    ready_seconds: float | None = None  # from the launch to ready; `None` when it never was
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds from the launch to the first boot phase, and in each that was left, by name."""


def runs(records: Iterable[Record]) -> tuple[RunSummary, ...]:
    """Sum each run up, oldest first."""
    of_run: dict[str, list[Record]] = {}
    for record in records:
        if record.run:
            of_run.setdefault(record.run, []).append(record)
    return tuple(_summed(run, entries) for run, entries in of_run.items())


def last_fault(records: Sequence[Record], current: str | None) -> Record | None:
    """Return the last fault that the service has recovered from since an operator started it.

    That is the end of a run before `current`, or a degradation of that run.
    """
    fault, recovered = None, False
    for record in reversed(records):
        if record.kind is Kind.RESET:
            break
        recovered = recovered or (record.kind is Kind.RECOVERED and record.run == current)
        ended = record.kind is Kind.FAULT and record.run != current
        if (ended and record.cause not in UNCOUNTED) or (
            record.kind is Kind.DEGRADED and recovered
        ):
            fault = record
            break
    return fault


def _summed(run: str, entries: Sequence[Record]) -> RunSummary:
    first: dict[Kind, Record] = {}
    for record in entries:
        first.setdefault(record.kind, record)
    gone, why = first.get(Kind.GONE), first.get(Kind.FAULT) or first.get(Kind.STOPPING)
    launched, ready = first.get(Kind.LAUNCHED), first.get(Kind.READY)
    boot = [one for one in entries if one.kind in {Kind.LAUNCHED, Kind.PHASE, Kind.READY}]
    phases: dict[str, float] = {}
    for entered, left in pairwise(boot):
        if entered.kind is not Kind.READY:
            name = str(entered.fields.get("boot", ""))
            if entered.kind is Kind.LAUNCHED:
                seen = left.fields.get("boot", FIRST_ANSWER) != FIRST_ANSWER
                name = IMPORTS if seen else UNSEEN
            phases[name] = phases.get(name, 0.0) + _seconds(entered, left)
    return RunSummary(
        run=run,
        began=entries[0].at,
        ended=gone.at if gone else None,
        code=gone.fields.get("code") if gone else None,
        cause=why.cause if why else None,
        sentence=why.sentence if why else "",
        ready_seconds=_seconds(launched, ready) if launched and ready else None,
        phases=phases,
    )


def _seconds(begin: Record, end: Record) -> float:
    return max(0.0, seconds_between(begin, end))


def eta(records: Iterable[Record]) -> float | None:
    """Seconds that a start is expected to take from launch to ready; `None` without a past one."""
    past = [run.ready_seconds for run in runs(records) if run.ready_seconds is not None]
    return _median(past[-BOOTS_COMPARED:])


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """How long the last start spent in one boot phase, and what is usual."""

    name: str
    seconds: float
    usual: float | None  # median of the starts before; `None` where none of them had this phase

    @property
    def slow(self) -> bool:
        """Whether it stands out: twice as long as usual, and by more than a second."""
        longer = self.seconds - (self.usual if self.usual is not None else self.seconds)
        return longer > max(1.0, self.usual or 0.0)


def phase_times(records: Iterable[Record]) -> tuple[PhaseTime, ...]:
    """Compare the phases of the last start that became ready with those before it."""
    past = [run.phases for run in runs(records) if run.ready_seconds is not None]
    if not past:
        return ()
    *before, last = past[-BOOTS_COMPARED - 1 :]
    usual = {name: [phases[name] for phases in before if name in phases] for name in last}
    return tuple(PhaseTime(name, seconds, _median(usual[name])) for name, seconds in last.items())


def baselines(records: Iterable[Record], boot_id: str) -> dict[str, int]:
    """MiB in use on each GPU without a process of ours: the least recorded since this boot."""
    least: dict[str, int] = {}
    for record in records:
        baseline = record.fields.get("baseline")
        if record.boot_id == boot_id and isinstance(baseline, dict):
            for gpu, mib in baseline.items():
                least[gpu] = min(mib, least.get(gpu, mib))
    return least


def _median(seconds: Sequence[float]) -> float | None:
    # `statistics` takes as long to load as all of this module.
    ordered = sorted(seconds)
    half = len(ordered) // 2
    return (ordered[half] + ordered[~half]) / 2 if ordered else None
