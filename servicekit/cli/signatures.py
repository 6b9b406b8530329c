"""Command lines, for the library, of the verbs that also run without it."""

from __future__ import annotations

from typing import Annotated

import typer

from servicekit.cli.options import AsJson, ForUser, PlanFile, ProfileName, SomeProfile, session_of


def status(
    ctx: typer.Context, profile: SomeProfile = None, *, json: AsJson = False, user: ForUser = False
) -> None:
    """Show the status of all services or of one.

    \b
    The states:
      configured  installed, not started yet
      starting    loading, or waiting for the next restart; it does not answer yet
      ready       the right model gave a real answer
      degraded    it answers, but a condition needs attention
      failed      not running, because of a fault
      stopped     not running, as requested

    With --json one object, or a list of them without PROFILE.
    """  # noqa: D301 - the character itself keeps the lines apart
    from servicekit.cli.status import status as show

    show(session_of(ctx, user=user), profile, json=json)


def probe(
    ctx: typer.Context,
    profile: ProfileName,
    *,
    live: Annotated[
        bool, typer.Option("--live", help="Is the right model listed? Requests no completion.")
    ] = False,
    ready: Annotated[
        bool, typer.Option("--ready", help="Does its watchdog report it ready? The default.")
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Does it complete a request now, within the deadline?")
    ] = False,
    user: ForUser = False,
) -> None:
    """Check whether a service is healthy.

    Exit code 0: healthy. 1: not healthy. 2: cannot tell, because the profile, its API key or its
    watchdog cannot be read. Without a watchdog, --ready works as --deep.
    """
    from servicekit.cli.probe import Question
    from servicekit.cli.probe import probe as run

    if live + ready + deep > 1:
        raise typer.BadParameter("--live, --ready and --deep exclude each other")
    question = Question.LIVE if live else Question.DEEP if deep else Question.READY
    raise typer.Exit(run(session_of(ctx, user=user), profile, question))


def watch(
    ctx: typer.Context, profile: ProfileName, *, plan: PlanFile = None, user: ForUser = False
) -> None:
    """Run an engine under its watchdog (for the manager).

    The service manager runs this command, with the profile as it was installed. ^C stops it.
    """
    from servicekit.cli.watch import watch as run

    raise typer.Exit(run(session_of(ctx, user=user), profile, plan))
