"""The status of a service: what its watchdog published, valid only while that watchdog lives.

A watchdog that was killed leaves a `state.json` that says "ready". So a state counts only while the
process that wrote it lives, known by pid and start time; without one, manager and ledger decide.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from servicekit import __version__
from servicekit.errors import ExitCode, UserError
from servicekit.host import procfs
from servicekit.service.installed import pool_drift
from servicekit.text import printable
from servicekit.watchdog import clock, publish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servicekit.managers import Seen
    from servicekit.places import Places
    from servicekit.service.manifest import Manifest
    from servicekit.watchdog.clock import Moment
    from servicekit.watchdog.history import RunSummary
    from servicekit.watchdog.ledger import Record
    from servicekit.watchdog.publish import State

CONTEXT: Final = ("requested", "declared", "physical", "effective")
BEGIN_WITHIN: Final = 15.0  # seconds in which a watchdog has written its first state
UNKNOWN: Final = "unknown"  # never published: the state cannot be read here

# The last record of a run, as the state that it would have published.
_PUBLISHED: Final = {
    "started": "starting",
    "launched": "starting",
    "phase": "starting",
    "ready": "ready",
    "degraded": "degraded",
    "recovered": "ready",
}


# Exit codes of systemd itself, which could not start the watchdog, with what helps.
_NOT_BEGUN: Final = {
    200: (
        "its working directory cannot be entered",
        "`servicekit install {profile}` makes the directories",
    ),
    203: (
        "the program servicekit cannot be run: it or its interpreter is missing or not executable",
        "install servicekit again where it was, then `servicekit install {profile}`",
    ),
    217: (
        "the account of the service does not exist",
        "`servicekit install {profile}` creates it",
    ),
    226: (
        "its sandbox cannot be set up: a path of the profile is missing, or the host forbids it",
        "`servicekit check {profile}` names missing paths; see `systemctl status` for the step",
    ),
    243: (
        "a secret of the service is missing or cannot be read",
        "`servicekit secret list {profile}` shows which; `servicekit secret set` stores it",
    ),
}


@dataclass(frozen=True, slots=True)
class Status:
    """One profile, as `status --json` prints it."""

    profile: str
    state: str  # one of the six published words, or `unknown`
    since: str | None = None  # when it entered that state, ISO 8601
    run: str | None = None
    pid: int | None = None  # the watchdog's process, while it lives
    engine_pid: int | None = None
    cause: str | None = None
    reason: str | None = None
    context: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(CONTEXT))  # tokens
    figures: dict[str, float] = field(default_factory=dict)
    """What the engine's boot log says about memory (GiB), tokens and requests."""
    planned: dict[str, float] = field(default_factory=dict)
    """What the memory plan of the install said of the same (GiB)."""
    ready_seconds: float | None = None
    starting_seconds: float | None = None  # seconds since the launch, while it starts
    eta_seconds: float | None = None
    """Seconds that a start usually takes from the launch to ready; `None` without a past one."""
    restarts: int = 0
    phase: str | None = None
    why: str = ""
    remedy: str = ""
    reasons: tuple[str, ...] = ()
    engine: str | None = None
    model: str | None = None
    served_name: str | None = None
    url: str | None = None
    manager: str | None = None
    manager_state: str | None = None
    """How the manager sees it, in systemd's words; `None` where it cannot be asked."""
    enabled: bool | None = None
    kv_precision_accepted: str | None = None
    """Why the profile keeps its KV cache below FP8; `None` where it does not."""
    pool_drift: str = ""
    """How the pool differs from the memory plan's, in one sentence; empty where it does not."""
    drift: tuple[str, ...] = ()  # files that are not as the install left them
    since_seconds: float | None = None
    """Seconds in that state; `None` if only the wall clock is known."""
    overruled: tuple[str, ...] = ()  # errors that `--anyway` overruled at the last install or start
    trusted: tuple[str, ...] = ()
    """Weakenings of the service's protection that its install accepted."""
    outdated: str = ""
    """How profile or settings differ from what is installed, in one sentence; empty if not."""
    servicekit: str | None = None  # version of the watchdog that runs

    @property
    def upgrade(self) -> str:
        """How to run the version that is installed, where another one runs; else empty."""
        if self.servicekit in {None, __version__}:
            return ""
        return (
            f"runs {self.servicekit}, installed is {__version__}: "
            f"`servicekit restart {self.profile}`"
        )

    @property
    def at_rest(self) -> bool:
        """Whether the manager will do nothing more with it of its own accord."""
        return self.manager_state in {"inactive", "failed"}

    @property
    def is_settled(self) -> bool:
        """Whether it stays as it is unless something happens: neither starting nor stopping."""
        on_the_way = {"holding", "loading", "stopping", "killing", "settling"}
        return self.state != "starting" and self.phase not in on_the_way

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        return asdict(self)


def status_of(manifest: Manifest, places: Places, seen: Seen | None) -> Status:
    """Return the status of an installed profile; `seen` is its manager's, `None` if unknown."""
    name = manifest.profile
    state: State | None = None
    unreadable: UserError | None = None
    try:
        state = publish.read_state(Path(places.state_file(name)))
    except UserError as error:
        unreadable = error
    here = clock.now()
    believed = state is not None and is_believed(state, seen)
    if state is not None and believed is not False:
        since = _seconds_since(state.since_boottime, here)
        status = replace(_published_by(state), since_seconds=since)
        if state.state == "starting":
            passed = _seconds_since(state.launched_boottime, here)
            status = replace(status, starting_seconds=passed)
        if believed is None:
            status = _unsure(status, state)
    else:
        # Only for a watchdog that has ended: the ledger's module takes long to load.
        from servicekit.watchdog import ledger

        records: tuple[Record, ...] = ()
        try:
            records = ledger.read(Path(places.ledger(name)))
        except UserError as error:
            unreadable = error
        status = conclude(name, state, seen, records, now=here, has_begun=_has_begun(seen))
    if unreadable is not None:
        status = replace(status, why=unreadable.message, remedy=unreadable.hint)
    enabled = manifest.enabled if seen is None or seen.enabled is None else seen.enabled
    return replace(
        status,
        profile=name,
        manager=manifest.manager,
        manager_state=None if seen is None else seen.active,
        enabled=enabled,
        kv_precision_accepted=manifest.kv_precision_accepted,
        pool_drift=pool_drift(manifest.kv_tokens, status.context["physical"]),
        planned=dict(manifest.planned),
        overruled=manifest.overruled,
        trusted=manifest.trusted or (),
    )


def is_believed(state: State, seen: Seen | None) -> bool | None:
    """Whether the process that published `state` lives; `None` if that is unknown.

    It must be the manager's main process: the service's account writes the file and can name any
    process in it. Where the manager cannot be asked, a process that lives is enough. Of a process
    that is hidden from this account (hidepid, ProtectProc=), or that lives in another pid
    namespace, only the manager knows.
    """
    if seen is not None and seen.pid != state.pid:
        return False
    elsewhere = state.pid_namespace not in {None, clock.pid_namespace()}
    if not elsewhere and not is_hidden(state.pid):
        return procfs.is_alive(state.pid, state.pid_started)
    return None if seen is None else seen.is_up


def _has_begun(seen: Seen | None) -> bool:
    """Whether the manager's process has run for long enough to have written something."""
    stat = None if seen is None or seen.pid is None else procfs.stat(seen.pid)
    return stat is not None and clock.boottime() - stat.started / procfs.TICKS > BEGIN_WITHIN


def is_hidden(pid: int) -> bool:
    """Whether there is a process `pid` that /proc does not show to this account."""
    if procfs.stat(pid) is not None:
        return False
    try:
        os.kill(pid, 0)  # sends nothing
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def conclude(
    profile: str,
    last: State | None,
    seen: Seen | None,
    records: Sequence[Record],
    *,
    now: Moment | None = None,
    has_begun: bool = False,
) -> Status:
    """Conclude how `profile` is, of which no living watchdog has published a state. Pure.

    `last` is the state that was published last, if that is still there; `has_begun` says that the
    manager's process has had the time to write one.
    """
    from servicekit.watchdog import history

    run = next(reversed(history.runs(records)), None)
    if seen is not None and seen.active in {"active", "activating", "reloading"}:
        status = _unpublished(profile, seen, records, has_begun=has_begun)
        return status or _between(profile, seen, run)
    if last is not None and last.state not in {"stopped", "failed"}:
        last = None
    if last is not None and (last.code is None or not _is_newest(last, records, now)):
        last = None
    ended = last.code if last is not None else run.code if run is not None else None
    if seen is not None and seen.active == "failed":
        code = ended if seen.exit_code is None else seen.exit_code
        if ended is not None and code != ended:
            # A later watchdog than the last that published: that state is out of date.
            return _could_not_begin(profile, seen)
    if ended == ExitCode.TEMPFAIL and seen is not None and seen.active == "inactive":
        return _stopped_between(profile, last, run)
    if last is not None:
        # Published by its watchdog when no process was left.
        return replace(_published_by(last), pid=None, engine_pid=None, servicekit=None)
    if run is None:
        return _never_ran(profile, seen)
    at = (run.ended or records[-1].at).isoformat(timespec="milliseconds")
    if run.code == ExitCode.OK or (seen is not None and seen.active == "inactive"):
        state, why = "stopped", run.sentence or "stopped"
    else:
        state, why = "failed", run.sentence or "the watchdog exited without recording a cause"
    cause = run.cause.value if run.cause is not None else None
    return Status(profile, state, since=at, run=run.run, cause=cause, why=why)


def _published_by(state: State) -> Status:
    host = f"[{state.host}]" if ":" in state.host else state.host
    at = f"http://{host}:{state.port}/v1" if state.port else None
    return Status(
        profile=state.profile,
        state=state.state,
        since=state.since,
        run=state.run,
        pid=state.pid,
        engine_pid=state.engine_pid,
        cause=state.cause,
        reason=state.reason,
        context={name: (state.context or {}).get(name) for name in CONTEXT},
        figures=dict(state.figures or {}),
        ready_seconds=state.ready_seconds,
        eta_seconds=state.eta,
        restarts=state.restarts,
        phase=state.phase,
        why=state.why,
        remedy=state.remedy,
        reasons=state.reasons,
        engine=state.engine or None,
        model=state.model or None,
        served_name=state.served_name or None,
        url=at,
        servicekit=state.servicekit,
    )


def _is_newest(last: State, records: Sequence[Record], now: Moment | None) -> bool:
    """Whether no later run than that of `last` has written to the ledger.

    On a full disk the run that published it could not.
    """
    newest = next((record for record in reversed(records) if record.run), None)
    if newest is None or newest.run == last.run:
        return True
    if newest.boottime is None or last.boottime is None:
        return False
    if newest.boot_id == last.boot_id:
        return last.boottime > newest.boottime
    if now is not None and now.boot_id in {newest.boot_id, last.boot_id}:
        return last.boot_id == now.boot_id
    return datetime.fromisoformat(last.since) > newest.at


def _unpublished(
    profile: str, seen: Seen, records: Sequence[Record], *, has_begun: bool
) -> Status | None:
    """Return the status of a run without a state file, from its ledger if that could be written.

    `None` where there may not have been time to write one.
    """
    newest = next((record for record in reversed(records) if record.run), None)
    own = [] if newest is None else [each for each in records if each.run == newest.run]
    is_own = any(seen.pid and each.fields.get("pid") == seen.pid for each in own)
    if newest is not None and is_own and (state := _PUBLISHED.get(newest.kind)):
        return Status(
            profile,
            state,
            since=newest.at.isoformat(timespec="milliseconds"),
            run=newest.run,
            pid=seen.pid,
            why=newest.sentence or seen.text or "its watchdog has not published a state yet",
            restarts=seen.restarts or 0,
        )
    if seen.active != "active" or seen.pid is None or not (seen.text or has_begun):
        return None
    return Status(
        profile,
        UNKNOWN,
        pid=seen.pid,
        why="cannot tell: it could write neither state nor history; its manager says: "
        f"{seen.text or seen.active}",
        remedy="free space where its state and its history are; it writes them again by itself",
        restarts=seen.restarts or 0,
    )


def _unsure(status: Status, state: State) -> Status:
    """Say that the process behind `state` can be seen neither by us nor by the manager."""
    return replace(
        status,
        state=UNKNOWN,
        why=f"cannot tell: it was {state.state}, and whether its watchdog (pid {state.pid}) still "
        "runs is hidden from this account, or in another container",
        remedy="run it as root, on the host or in the container of the service",
    )


def _seconds_since(boottime: float | None, now: Moment) -> float | None:
    """Seconds since a living watchdog's `boottime`; `None` if only the wall clock is known."""
    # Its writer lives, so this is that boot, whatever id a sandbox or a container shows for it.
    if boottime is None or now.boottime is None:
        return None
    return max(0.0, now.boottime - boottime)


def _between(profile: str, seen: Seen, run: RunSummary | None) -> Status:
    """Between two watchdogs, or before the first one has published."""
    why = "its watchdog is about to start"
    cause = None
    if run is not None and run.code != ExitCode.OK and run.cause is not None:
        why = f"starting again after: {run.sentence or run.cause.value}"
        cause = run.cause.value
    return Status(
        profile,
        "starting",
        pid=seen.pid,
        cause=cause,
        why=why,
        restarts=seen.restarts or 0,
    )


def _stopped_between(profile: str, last: State | None, run: RunSummary | None) -> Status:
    """Return the status of a service that was stopped before its next start."""
    why, cause, at, of = "", None, None, None
    if last is not None:
        why, cause, at, of = last.why, last.cause, last.since, last.run
    elif run is not None:
        why, cause, of = run.sentence, run.cause, run.run
        at = run.ended.isoformat(timespec="milliseconds") if run.ended else None
    sentence = f"stopped before its next start, after: {why}" if why else "stopped"
    return Status(profile, "stopped", since=at, run=of, cause=cause, why=sentence)


def _never_ran(profile: str, seen: Seen | None) -> Status:
    if seen is not None and seen.active == "failed":
        return _could_not_begin(profile, seen)
    return Status(profile, "configured", why="it has not been started yet")


def _could_not_begin(profile: str, seen: Seen) -> Status:
    if seen.exit_code in _NOT_BEGUN:
        why, remedy = _NOT_BEGUN[seen.exit_code]
        remedy = remedy.replace("{profile}", profile)
        why = f"{why} (systemd's exit code {seen.exit_code})"
        return Status(profile, "failed", why=why, remedy=remedy, restarts=seen.restarts or 0)
    code = "" if seen.exit_code is None else f" (exit code {seen.exit_code})"
    why = printable(seen.text) or f"its watchdog could not begin{code}"
    remedy = f"`servicekit logs {profile}` shows its log"
    return Status(profile, "failed", why=why, remedy=remedy, restarts=seen.restarts or 0)
