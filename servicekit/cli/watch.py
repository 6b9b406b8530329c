"""`watch`: the daemon itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from servicekit.cli.options import ForUser, ProfileName, session
from servicekit.errors import ExitCode
from servicekit.host.apart import Apart

if TYPE_CHECKING:
    from servicekit.cli.session import Session
    from servicekit.places import Places
    from servicekit.profiles.model import Profile


def watch(ctx: typer.Context, profile: ProfileName, *, user: ForUser = False) -> None:
    """Run an engine under its watchdog, in the foreground.

    This is what the service manager runs. By hand, ^C stops it.
    """
    from servicekit.errors import UserError
    from servicekit.managers.alarm import alarm

    mine = session(ctx, user=user)
    try:
        code = _watch(mine, profile)
    except UserError as error:
        alarm(mine.own_command(), profile, error.code, os.environ)
        raise
    alarm(mine.own_command(), profile, code, os.environ)
    raise typer.Exit(code)


def _watch(mine: Session, profile: str) -> ExitCode:
    # What checks settings and profiles is a third of all our memory, and done in a moment.
    reading = Apart(lambda: _read(mine, profile))
    from servicekit.watchdog.daemon import watch as run

    recipe, places = reading.result()
    code = run(recipe, places)
    if code is ExitCode.TEMPFAIL:
        from servicekit.managers.haste import hasten

        hasten(places, os.environ)
    return code


def _read(mine: Session, name: str) -> tuple[Profile, Places]:
    """Read the profile as the environment's tunables make it."""
    from servicekit.profiles.model import plain
    from servicekit.service.plan import apply_tunables

    return plain(apply_tunables(mine.profile(name), os.environ)), mine.places
