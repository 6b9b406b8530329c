"""`logs`: what the engine and its watchdog said."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from servicekit.cli.session import ForUser, ProfileName, session

if TYPE_CHECKING:
    from servicekit.cli.session import Installed


def logs(
    ctx: typer.Context,
    profile: ProfileName,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on showing lines.")] = False,
    lines: Annotated[
        int | None,
        typer.Option("--lines", "-n", min=1, metavar="N", help="Newest lines to show; 100."),
    ] = None,
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help='Such as "-1h" or "2026-01-31 12:00".')
    ] = "",
    priority: Annotated[
        str, typer.Option("--priority", "-p", metavar="LEVEL", help='Such as "err".')
    ] = "",
    run: Annotated[
        str, typer.Option("--run", metavar="ID", help="Of one run, as `history --json` names it.")
    ] = "",
    cause: Annotated[
        str, typer.Option("--cause", metavar="CAUSE", help='Only what names a cause, as "hung".')
    ] = "",
    user: ForUser = False,
) -> None:
    """Show what engine, watchdog and manager said.

    This is journalctl under systemd, and the log file under Supervisor, which has no --since and no
    --priority.
    """
    from servicekit.errors import UserError
    from servicekit.managers import LogQuery
    from servicekit.values import ManagerName

    found = session(ctx, user=user).installed(profile)
    narrowed = bool(since or run or cause)
    plain_file = found.manager.name is ManagerName.SUPERVISOR
    if plain_file and (run or cause) and not (since or priority):
        if follow:
            raise UserError("--run and --cause show what was, and --follow what comes")
        _pick(found, run, cause, lines)
        return
    query = LogQuery(
        follow=follow,
        lines=lines if lines is not None or narrowed else LogQuery().lines,
        since=since,
        priority=priority,
        run=run,
        cause=cause,
    )
    command = found.manager.log_command(found.unit, query)
    try:
        os.execvp(command[0], command)  # noqa: S606 - becomes it: its paging, its ^C, its exit code
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise UserError(f'"{command[0]}" cannot be run: {reason}') from None


def _pick(found: Installed, run: str, cause: str, newest: int | None) -> None:
    """Show a run's lines, or those that name a cause, from a file of many runs."""
    from collections import deque

    from servicekit.managers.logstream import log_of

    mark = f" cause={cause} ".encode()
    with log_of(found.manager, found.unit, run) as lines:
        wanted = (line for line in lines if not cause or mark in line)
        for line in wanted if newest is None else deque(wanted, newest):
            typer.echo(line, nl=False)
