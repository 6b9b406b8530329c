"""`tunnel start`, `stop`, `restart` and `logs`: orders to the manager, and what becomes of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from servicekit.cli.logs import Follow, Lines, Priority, Since, show
from servicekit.cli.options import ForUser, session
from servicekit.cli.output import duration, note, ours, paint
from servicekit.cli.tunnel.common import TunnelName, manifest_of, published

if TYPE_CHECKING:
    from servicekit.cli.session import Session
    from servicekit.managers import Manager

LOOK: Final = 0.1
"""Seconds between looks at a tunnel that is starting."""
UP_WITHIN: Final = 5.0
"""Seconds within which a manager must have taken up an order to start."""

NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Order it and return, without waiting until it is up.")
]


class Service(NamedTuple):
    """The service of a tunnel, and who runs it."""

    mine: Session
    name: str
    manager: Manager

    @property
    def unit(self) -> str:
        """What the manager calls it."""
        from servicekit.tunnel.values import label

        return f"servicekit-{label(self.name)}"

    @property
    def is_up(self) -> bool:
        """Whether its forwarding stands."""
        state = published(self.mine, self.name)
        return state is not None and state.phase == "up" and state.is_alive

    def stop(self) -> None:
        """Stop it, and wait until it is."""
        from servicekit.tunnel.installation import STOP_LIMIT

        self.manager.stop(self.unit, limit=STOP_LIMIT)

    def start_anew(self, *, wait: bool = True) -> None:
        """Start it, whether or not it runs, and see what becomes of it."""
        from servicekit.install.rootfs import Tree
        from servicekit.tunnel.installation import forget

        self.stop()
        # Earlier faults are forgiven: whoever starts it has mended them.
        forget(Tree(), self.mine.places, self.name)
        self.manager.start(self.unit)
        if wait:
            self._follow()

    def _follow(self) -> None:
        began = time.monotonic()
        while True:
            passed = time.monotonic() - began
            state = published(self.mine, self.name)
            if self.is_up:
                typer.echo(f"{self.name}: {paint('up')} after {duration(passed)}")
                return
            if state is not None and state.code:
                typer.echo(f"{self.name}: {paint('down')}: {state.why}")
                if state.remedy:
                    typer.echo(f"  remedy: {ours(state.remedy)}")
                if state.faults:
                    typer.echo("  it is tried again, for ever")
                raise typer.Exit(1)
            seen = self.manager.look([self.unit])[self.unit]
            if passed > UP_WITHIN and not seen.is_up:
                typer.echo(f"{self.name}: {paint('down')}: its service could not begin")
                raise typer.Exit(1)
            time.sleep(LOOK)


def _service(mine: Session, name: str) -> Service:
    return Service(mine, name, mine.manager(manifest_of(mine, name).manager))


def start(
    ctx: typer.Context, name: TunnelName, *, no_wait: NoWait = False, user: ForUser = False
) -> None:
    """Start a tunnel and wait until it is up.

    Where that fails, it is said why, and the exit code is 1. Earlier faults are forgiven, and it
    does not hold off.
    """
    found = _service(session(ctx, user=user), name)
    if found.is_up:
        note(f'"{name}" is up already')
    else:
        found.start_anew(wait=not no_wait)


def stop(ctx: typer.Context, name: TunnelName, *, user: ForUser = False) -> None:
    """Stop a tunnel and wait until its ssh has ended.

    It is started again at the next boot.
    """
    found = _service(session(ctx, user=user), name)
    found.stop()
    typer.echo(f"{name}: {paint('stopped')}")


def restart(
    ctx: typer.Context, name: TunnelName, *, no_wait: NoWait = False, user: ForUser = False
) -> None:
    """Stop a tunnel and start it anew, as by `start`."""
    _service(session(ctx, user=user), name).start_anew(wait=not no_wait)


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
    """Show what a tunnel and its ssh said."""
    from servicekit.cli.logs import query_of

    found = _service(session(ctx, user=user), name)
    query = query_of(follow=follow, lines=lines, since=since, priority=priority)
    show(found.manager, found.unit, query)
