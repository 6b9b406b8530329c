"""`tunnel start`, `stop`, `restart` and `logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from servicekit.cli.logs import Follow, Lines, Priority, Since, show
from servicekit.cli.options import ForUser, session_of
from servicekit.cli.output import note, paint
from servicekit.cli.tunnel.common import TunnelName, TunnelService, manifest_of

if TYPE_CHECKING:
    from servicekit.cli.session import Session

NoWaitUntilUp = Annotated[
    bool, typer.Option("--no-wait", help="Return without waiting until it is up.")
]


def _service(session: Session, name: str) -> TunnelService:
    return TunnelService(session, name, session.manager(manifest_of(session, name).manager))


def start(
    ctx: typer.Context, name: TunnelName, *, no_wait: NoWaitUntilUp = False, user: ForUser = False
) -> None:
    """Start a tunnel and wait until it is up.

    If it fails, prints why and exits with 1. Earlier faults cause no hold-off.
    """
    service = _service(session_of(ctx, user=user), name)
    if service.is_up:
        note(f'"{name}" is up already')
    else:
        service.start_anew(wait=not no_wait)


def stop(ctx: typer.Context, name: TunnelName, *, user: ForUser = False) -> None:
    """Stop a tunnel and wait until its ssh has ended.

    It starts again at the next boot.
    """
    _service(session_of(ctx, user=user), name).stop()
    typer.echo(f"{name}: {paint('stopped')}")


def restart(
    ctx: typer.Context, name: TunnelName, *, no_wait: NoWaitUntilUp = False, user: ForUser = False
) -> None:
    """Stop a tunnel and start it again, as `start` does."""
    _service(session_of(ctx, user=user), name).start_anew(wait=not no_wait)


def logs(
    ctx: typer.Context,
    name: TunnelName,
    *,
    follow: Follow = False,
    lines: Lines = None,
    since: Since = "",
    priority: Priority = "",
    user: ForUser = False,
) -> None:
    """Show the log of a tunnel and its ssh."""
    from servicekit.cli.logs import query_of

    service = _service(session_of(ctx, user=user), name)
    query = query_of(follow=follow, lines=lines, since=since, priority=priority)
    show(service.manager, service.unit, query)
