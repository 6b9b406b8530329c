"""`start`, `stop` and `restart`: give orders to the manager and show their progress."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from servicekit.cli.freshness import note_outdated
from servicekit.cli.options import Anyway, ForUser, ProfileName, session_of
from servicekit.cli.output import duration, note, ours, paint
from servicekit.cli.progress import progress
from servicekit.cli.session import Installed, Session
from servicekit.errors import UserError, reason
from servicekit.host import procfs
from servicekit.install.rootfs import Tree
from servicekit.profiles.vocabulary import ManagerName
from servicekit.service.host import rivals
from servicekit.service.unit import start_seconds
from servicekit.watchdog import history, ledger
from servicekit.watchdog.operator_orders import announce_stop, order_reset
from servicekit.watchdog.status import Status

if TYPE_CHECKING:
    from servicekit.profiles.model import Profile

LOOK: Final = 0.1  # seconds between looks at a service that is starting
NO_LOGIN: Final = 2**32 - 1  # what the kernel reports without a login
UP_WITHIN: Final = 5.0  # seconds within which a manager must have taken up an order to start

NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Return without waiting until it is ready.")
]


def start(
    ctx: typer.Context,
    profile: ProfileName,
    *,
    no_wait: NoWait = False,
    anyway: Anyway = False,
    user: ForUser = False,
) -> None:
    """Start a service and wait until it is ready.

    It runs as it was installed. If it does not become ready, the reason is shown and the exit code
    is 1. The restart count is reset. A profile that cannot run here is refused with all reasons.
    ^C ends the display, not the service.
    """
    session = session_of(ctx, user=user)
    service = session.installed(profile)
    note_outdated(session, profile)
    if not _runs(session.look(service)):
        refuse_start(session, service, anyway=anyway)
    order(session, service)
    if not no_wait:
        follow(session, service)


def stop(ctx: typer.Context, profile: ProfileName, *, user: ForUser = False) -> None:
    """Stop a service and all its processes."""
    session = session_of(ctx, user=user)
    service = session.installed(profile)
    before = session.look(service)
    now = watch_stop(session, service, by=f"stop {profile}")
    if before.at_rest and now.at_rest:
        note(f'"{profile}" was not running')
    typer.echo(f"{profile}: {paint(now.state)}: {now.why}")
    if now.state == "failed" and not before.at_rest:
        raise typer.Exit(1)


def order(session: Session, service: Installed, *, by: str = "", again: bool = False) -> None:
    """Start or restart a service for command `by`, with the restart count reset."""
    profile = service.manifest.profile
    by = by or f"start {profile}"
    if not again and _runs(session.look(service)):
        note(f'"{profile}" is already running')
        return
    if again:
        watch_stop(session, service, by=by)
    try:
        order_reset(Path(session.places.reset(profile)))
    except OSError as error:
        note(f"cannot reset the restart count: {reason(error)}")
    if service.manager.name is ManagerName.SUPERVISOR:
        _make_directories(session, service)
    _note_rivals(session, service, by)
    _note_missing(session, profile)
    service.manager.start(service.unit)


def _runs(now: Status) -> bool:
    """Whether its watchdog is running and not stopping."""
    return now.state in {"ready", "degraded", "starting"} and now.pid is not None


def _recipe(session: Session, profile: str) -> Profile | None:
    """Read the installed profile; `None` if it is refused, which the watchdog will report."""
    try:
        return session.installed_profile(profile)
    except UserError:
        return None


def refuse_start(
    session: Session, service: Installed, *, anyway: bool = False, known: Collection[str] = ()
) -> None:
    """Refuse a start that cannot work before anything is stopped; ignore `known` errors."""
    recipe = _recipe(session, service.manifest.profile)
    if recipe is not None and session.settings_error() is None:
        from servicekit.cli import refusals

        refusals.refuse_start(session, service, recipe, anyway=anyway, known=known)


def _note_missing(session: Session, profile: str) -> None:
    from servicekit.cli.fetch import note_missing

    recipe = _recipe(session, profile)
    if recipe is not None:
        note_missing(recipe, session.places)


def running_rivals(session: Session, service: Installed) -> list[str]:
    """Name the running services that cannot run beside this one."""
    recipe = _recipe(session, service.manifest.profile)
    names = rivals(recipe, session.manifests(), service.manifest.gpus) if recipe is not None else ()
    units = {f"servicekit-{name}": name for name in names}
    seen = service.manager.look(list(units))
    return [name for unit, name in units.items() if seen[unit].is_up]


def _note_rivals(session: Session, service: Installed, by: str) -> None:
    """Print which services a start stops or waits for: only systemd stops them."""
    profile = service.manifest.profile
    for name in running_rivals(session, service):
        if service.manager.name is ManagerName.SYSTEMD:
            note(f'stopping "{name}", which uses the same GPU or port as "{profile}"')
            announce(session, name, by)
        else:
            note(
                f'"{profile}" waits for "{name}", which uses the same GPU or port; '
                f"`servicekit switch {profile}` replaces it"
            )


def announce(session: Session, name: str, by: str) -> None:
    """Leave for the watchdog of `name` which command stops it, and who ran that."""
    with suppress(OSError):  # it then names the manager
        announce_stop(Path(session.places.stop_note(name)), f"`servicekit {by}` ({_operator()})")


def _operator() -> str:
    """Name the person behind this command: who called sudo or logged in."""
    if user := os.environ.get("SUDO_USER"):
        return user
    with suppress(OSError, ValueError):
        login = int(Path("/proc/self/loginuid").read_text(encoding="ascii"))
        if login != NO_LOGIN:
            return procfs.account(login)
    return procfs.account(os.getuid())


def _make_directories(session: Session, service: Installed) -> None:
    """Create directories that a reboot removed, such as those below /run."""
    from servicekit.cli.orders import installed_account
    from servicekit.install.installation import directories, make_directories

    manifest = service.manifest
    name, manager = manifest.profile, manifest.manager
    user = installed_account(session, manifest)
    make_directories(directories(session.places, name, manager, user), Tree())


def follow(session: Session, service: Installed) -> None:
    """Show a start until it is ready; exit with 1 if it fails. Without a viewer it continues."""
    name = service.manifest.profile
    try:
        now, passed = watch_start(session, service)
    except KeyboardInterrupt:
        status, stop = f"`servicekit status {name}`", f"`servicekit stop {name}`"
        note(f"the start continues: {status} shows it, and {stop} ends it")
        raise
    conclude(now, passed)
    if not is_up(now):
        raise typer.Exit(1)


def is_up(now: Status) -> bool:
    """Whether it serves, even if degraded."""
    return now.state in {"ready", "degraded"} and now.is_settled and now.pid is not None


def watch_start(
    session: Session, service: Installed, *, limit: float | None = None, one_try: bool = False
) -> tuple[Status, float]:
    """Show a start until it is up or over; return status and seconds.

    `limit` bounds the whole start; without it each run has the time in which its watchdog must end
    the start. With `one_try` it is over with the first fault, not when the watchdog has tried often
    enough.
    """
    profile = service.manifest.profile
    recipe = _recipe(session, profile)
    longest = inf if recipe is None else start_seconds(recipe)
    run, run_began = None, 0.0
    expected = history.eta(ledger.read(Path(session.places.ledger(profile))))
    began = time.monotonic()
    was_up = False
    with progress(profile, recipe, expected) as show:
        while True:
            now = session.look(service)
            passed = time.monotonic() - began
            show(now)
            was_up = was_up or not now.at_rest
            if now.run != run:
                run, run_began = now.run, passed
            overdue = passed - run_began > longest if limit is None else passed > limit
            if is_up(now) or overdue:
                break
            if now.at_rest and (was_up or passed > UP_WITHIN):
                break
            if one_try and now.pid and (now.state == "failed" or now.restarts):
                now = _first_try(session, now)
                break
            time.sleep(LOOK)
    return now, passed


def _first_try(session: Session, now: Status) -> Status:
    """Return how the last run ended; the next may already have begun."""
    if now.state == "failed":
        return now
    past = history.runs(ledger.read(Path(session.places.ledger(now.profile))))
    why = next((run.sentence for run in reversed(past) if run.code and run.sentence), now.why)
    return replace(now, state="failed", why=why)


def watch_stop(session: Session, service: Installed, *, by: str, lines: bool = False) -> Status:
    """Stop a service for command `by`, and return its status.

    A terminal shows the progress; elsewhere it is only printed with `lines`.
    """
    profile = service.manifest.profile
    recipe = _recipe(session, profile)
    announce(session, profile, by)
    # A manager of its own for the order: this one goes on looking meanwhile.
    stopper = session.manager(service.manifest.manager)
    with ThreadPoolExecutor(1) as orders, progress(profile, recipe, lines=lines) as show:
        stopping = orders.submit(stopper.stop, service.unit, limit=session.stop_limit(profile))
        while not stopping.done():
            show(session.look(service))
            wait([stopping], LOOK)
        stopping.result()
    return session.look(service)


def conclude(now: Status, passed: float) -> None:
    """Print the result of a start after `passed` seconds, with the remedy if it failed."""
    if is_up(now):
        context = now.context.get("effective")
        tokens = f", {context} tokens of context" if context else ""
        typer.echo(
            f"{now.profile}: {paint(now.state)} after {duration(passed)}: "
            f"{now.served_name} at {now.url}{tokens}"
        )
        if now.state == "degraded":
            typer.echo(f"  why:    {now.why}")
        return
    typer.echo(f"{now.profile}: {paint(now.state)} after {duration(passed)}: {now.why}")
    if now.remedy:
        typer.echo(f"  remedy: {ours(now.remedy)}")
    typer.echo(f"  log:    {ours(f'`servicekit logs {now.profile}`').strip('`')}")
