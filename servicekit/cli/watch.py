"""`watch`: the daemon itself."""

from __future__ import annotations

import typer

from servicekit.cli.session import ForUser, ProfileName, session


def watch(ctx: typer.Context, profile: ProfileName, *, user: ForUser = False) -> None:
    """Run an engine under its watchdog, in the foreground.

    This is what the service manager runs. By hand, ^C stops it.
    """
    from servicekit.watchdog.daemon import watch as run

    mine = session(ctx, user=user)
    raise typer.Exit(run(profile, mine.settings, mine.places))
