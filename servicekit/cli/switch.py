"""`switch`: replaces the running profile by another one, and returns to it on a failure."""

from __future__ import annotations

from typing import Annotated

import typer

from servicekit.cli.control import conclude, is_up, order, watch_start, watch_stop
from servicekit.cli.freshness import note_outdated
from servicekit.cli.install import start_at_boot
from servicekit.cli.options import Anyway, ForUser, ProfileName, session_of
from servicekit.cli.output import duration, note
from servicekit.cli.refusals import refuse_start
from servicekit.cli.session import Installed, Session
from servicekit.errors import UserError
from servicekit.profiles.model import Profile
from servicekit.service.host import rivals
from servicekit.watchdog.status import Status


def switch(
    ctx: typer.Context,
    profile: ProfileName,
    *,
    enable: Annotated[
        bool,
        typer.Option("--enable", help="Also start it at boot, instead of those that it excludes."),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0,
            metavar="SECONDS",
            help="Time limit until it is ready; by default that of the profile.",
        ),
    ] = None,
    anyway: Anyway = False,
    user: ForUser = False,
) -> None:
    """Stop the running service and start another one.

    The new service is checked while the old one serves. Then the old one and all its processes
    are stopped, and the new one is started and shown until it is ready. If its first start fails,
    the reason is shown, the old one is started again, and the exit code is 1. ^C ends the display,
    not the start.
    """
    session = session_of(ctx, user=user)
    new = session.installed(profile)
    recipe = session.installed_profile(profile)
    note_outdated(session, profile)
    refuse_start(session, new, recipe, anyway=anyway)
    others = _excluded(session, new, recipe)
    running = [one for one in others if one.manager.look([one.unit])[one.unit].is_up]
    for old in running:
        _stop(session, old, profile)
    now, passed = _start(session, new, running, limit=timeout)
    conclude(now, passed)
    if not is_up(now):
        if timeout is not None and passed > timeout:
            note(f'"{profile}" was not ready within {duration(timeout)}')
        _go_back(session, new, running)
        raise typer.Exit(1)
    if enable:
        start_at_boot(session, new, [one for one in others if one.manifest.enabled])


def _excluded(session: Session, new: Installed, recipe: Profile) -> list[Installed]:
    """Return the installed profiles that cannot run beside this one."""
    names = rivals(recipe, session.manifests(), new.manifest.gpus)
    return [session.installed(name) for name in names]


def _stop(session: Session, old: Installed, profile: str) -> None:
    """Stop a rival; raise `UserError` unless all its processes ended."""
    name = old.manifest.profile
    now = watch_stop(session, old, by=f"switch {profile}", lines=True)
    if now.state == "failed":
        raise UserError(
            f'"{name}" did not stop cleanly, so "{profile}" is not started: {now.why}',
            hint=now.remedy or f"`servicekit logs {name}` says more",
        )
    typer.echo(f"{name}: {now.state}: {now.why}")


def _start(
    session: Session, new: Installed, running: list[Installed], *, limit: float | None
) -> tuple[Status, float]:
    """Start it and watch its first try; return to the old one if the order fails."""
    try:
        order(session, new, by=f"switch {new.manifest.profile}")
    except UserError:
        _go_back(session, new, running)
        raise
    return watch_start(session, new, limit=limit, one_try=True)


def _go_back(session: Session, new: Installed, running: list[Installed]) -> None:
    """Stop the new service, and start the old ones again."""
    watch_stop(session, new, by=f"switch {new.manifest.profile}", lines=True)
    for old in running:
        typer.echo(f"{old.manifest.profile}: starting again")
        order(session, old)
        conclude(*watch_start(session, old))
