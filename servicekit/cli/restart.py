"""`restart`: stop a service and start it again, from its current profile where asked."""

from __future__ import annotations

from typing import Annotated

import typer

from servicekit.cli.control import NoWait, follow, order, refuse_start
from servicekit.cli.freshness import note_outdated
from servicekit.cli.install import install_again
from servicekit.cli.options import Anyway, ForUser, ProfileName, session_of


def restart(
    ctx: typer.Context,
    profile: ProfileName,
    *,
    install: Annotated[
        bool, typer.Option("--install", help="Install the profile as it is now before the restart.")
    ] = False,
    no_wait: NoWait = False,
    anyway: Anyway = False,
    user: ForUser = False,
) -> None:
    """Stop a service and start it again.

    It runs as it was installed; --install installs the profile again first. The start is shown as
    by `start`.
    """
    session = session_of(ctx, user=user)
    service = session.installed(profile)
    if install:
        install_again(session, service, anyway=anyway)
    else:
        note_outdated(session, profile)
    refuse_start(session, session.installed(profile), anyway=anyway)
    order(session, service, by=f"restart {profile}", again=True)
    if not no_wait:
        follow(session, service)
