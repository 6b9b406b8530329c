"""`logs`: shows the lines of the engine, its watchdog and the manager."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from servicekit.cli.options import ForUser, ProfileName, session_of
from servicekit.cli.output import note
from servicekit.diagnosis.causes import Cause
from servicekit.errors import UserError, reason
from servicekit.managers import LogQuery, Manager
from servicekit.managers.logstream import log_of, shown
from servicekit.places import Scope
from servicekit.profiles.vocabulary import ManagerName
from servicekit.text import did_you_mean, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

JOURNALS: Final = (Path("/var/log/journal"), Path("/run/log/journal"))
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Follow the log.")]
Lines = Annotated[
    int | None,
    typer.Option(
        "--lines", "-n", min=1, metavar="N", help="Number of newest lines to show; 100 by default."
    ),
]
Since = Annotated[
    str, typer.Option("--since", metavar="TIME", help='Such as "-1h" or "2026-01-31 12:00".')
]
Priority = Annotated[str, typer.Option("--priority", "-p", metavar="LEVEL", help='Such as "err".')]


def logs(
    ctx: typer.Context,
    profile: ProfileName,
    *,
    follow: Follow = False,
    lines: Lines = None,
    since: Since = "",
    priority: Priority = "",
    run: Annotated[
        str,
        typer.Option("--run", metavar="ID", help="Show one run, by its id in `history --json`."),
    ] = "",
    cause: Annotated[
        str,
        typer.Option(
            "--cause", metavar="CAUSE", help='Show only events with this cause, such as "hung".'
        ),
    ] = "",
    user: ForUser = False,
) -> None:
    """Show the log of a service.

    Under systemd this runs journalctl, without the lines that servicekit's own probes cause:
    `-p debug` shows them. Under Supervisor it reads the log file, in which only
    servicekit's own lines have a time: --since starts at the first line that may be new enough.
    """
    if cause and cause not in set(Cause):
        raise UserError(f'there is no cause "{cause}"{did_you_mean(cause, Cause)}')
    session = session_of(ctx, user=user)
    service = session.installed(profile)
    query = query_of(
        follow=follow, lines=lines, since=since, priority=priority, run=run, cause=cause
    )
    if service.manager.name is ManagerName.SYSTEMD and session.scope is Scope.USER:
        refuse_hidden(os.getuid())
    if service.manager.name is ManagerName.SYSTEMD and not query.priority:
        query = replace(query, priority="info")  # without the lines that our own probes cause
    show(service.manager, service.unit, query)


def refuse_hidden(uid: int, roots: Sequence[Path] = JOURNALS) -> None:
    """Refuse a journal that the user cannot read: journalctl would print nothing.

    journald splits the journal by user only on disk; one in memory belongs to root.
    """
    files = [file for root in roots for file in root.glob("*/*.journal")]
    own = [file for file in files if file.name == f"user-{uid}.journal"]
    if files and not own and not any(os.access(file, os.R_OK) for file in files):
        raise UserError(
            "the journal of your services cannot be read: it is kept in memory, for root only",
            hint="keep it on disk: `mkdir /var/log/journal` and `systemctl restart "
            "systemd-journald` as root; or `usermod -aG systemd-journal` your account, and log in "
            "again",
        )


def query_of(
    *, follow: bool, lines: int | None, since: str, priority: str, run: str = "", cause: str = ""
) -> LogQuery:
    narrowed = bool(since or run or cause)
    return LogQuery(
        follow=follow,
        lines=lines if lines is not None or narrowed else LogQuery().lines,
        since=since,
        priority=priority,
        run=run,
        cause=cause,
    )


def show(manager: Manager, unit: str, query: LogQuery) -> None:
    narrowed = query.since or query.priority or query.run or query.cause
    if manager.name is ManagerName.SUPERVISOR and narrowed:
        if query.follow:
            raise UserError("--follow cannot be combined with filters on a Supervisor log")
        _pick(manager, unit, query)
        return
    if manager.name is ManagerName.SUPERVISOR:
        for line in shown(manager, unit, query):
            typer.echo(line)
        return
    command = manager.log_command(unit, query)
    try:
        os.execvp(command[0], command)  # noqa: S606 - becomes it: its paging, its ^C, its exit code
    except OSError as error:
        raise UserError(f'cannot run "{command[0]}": {reason(error)}') from None


def _pick(manager: Manager, unit: str, query: LogQuery) -> None:
    matched = False
    with log_of(manager, unit, query) as wanted:
        for line in wanted if query.lines is None else deque(wanted, query.lines):
            typer.echo(plain(line.decode(errors="replace").rstrip("\n")))
            matched = True
    if not matched:
        note("no matching log lines")
