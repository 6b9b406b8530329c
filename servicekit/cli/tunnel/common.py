"""What the verbs for tunnels have in common."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from servicekit.cli.output import duration, ours, paint
from servicekit.cli.session import Session

if TYPE_CHECKING:
    from servicekit.managers import Manager, Seen
    from servicekit.service.manifest import Manifest
    from servicekit.tunnel.state import TunnelState

LOOK_EVERY: Final = 0.1  # seconds
UP_WITHIN: Final = 5.0  # seconds for a manager to act on an order to start


def installed(session: Session) -> dict[str, Manifest]:
    return dict(sorted(session.tunnels().items()))


def manifest_of(session: Session, name: str) -> Manifest:
    """Return the manifest of tunnel `name`; raise `UserError` where it is not installed."""
    from servicekit.errors import UserError

    manifest = installed(session).get(name)
    if manifest is None:
        raise UserError(
            f'tunnel "{name}" is not installed', hint="see `servicekit tunnel list` for their names"
        )
    return manifest


def published(session: Session, name: str) -> TunnelState | None:
    from servicekit.tunnel.state import read_state
    from servicekit.tunnel.values import state_file

    return read_state(Path(state_file(session.places, name)))


class TunnelService(NamedTuple):
    """The service of a tunnel, and the manager that runs it."""

    session: Session
    name: str
    manager: Manager

    @property
    def unit(self) -> str:
        from servicekit.install.installer import tunnel_id

        return tunnel_id(self.name).unit

    @property
    def is_up(self) -> bool:
        """Whether its port forwarding is up, by the process that the manager runs."""
        state = published(self.session, self.name)
        if state is None or state.phase != "up" or not state.is_alive:
            return False
        return self.seen().pid == state.pid

    def seen(self) -> Seen:
        return self.manager.look([self.unit])[self.unit]

    def stop(self) -> None:
        from servicekit.tunnel.installation import STOP_LIMIT

        self.manager.stop(self.unit, limit=STOP_LIMIT)

    def start_anew(self, *, wait: bool = True) -> None:
        """Start or restart it, without a hold-off for earlier faults."""
        from servicekit.install.rootfs import Tree
        from servicekit.tunnel.installation import forget

        self.stop()
        forget(Tree(), self.session.places, self.name)
        self.manager.start(self.unit)
        if wait:
            self._follow()

    def _follow(self) -> None:
        """Wait until it is up; exit with 1 where it fails."""
        began = time.monotonic()
        while True:
            passed = time.monotonic() - began
            state = published(self.session, self.name)
            if self.is_up:
                typer.echo(f"{self.name}: {paint('up')} after {duration(passed)}")
                return
            if state is not None and state.code:
                typer.echo(f"{self.name}: {paint('down')}: {state.why}")
                if state.remedy:
                    typer.echo(f"  remedy: {ours(state.remedy)}")
                if state.faults:
                    typer.echo("  the service keeps retrying")
                raise typer.Exit(1)
            if passed > UP_WITHIN and not self.seen().is_up:
                typer.echo(f"{self.name}: {paint('down')}: the service did not start")
                log = ours(f"`servicekit tunnel logs {self.name}`")
                typer.echo(f"  remedy: see {log}")
                raise typer.Exit(1)
            time.sleep(LOOK_EVERY)


def complete_tunnel(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of installed tunnels, for the shell's completion; none where they cannot be read."""
    from servicekit.errors import UserError

    root = ctx.find_root().params
    try:
        names = installed(Session(root.get("config"), user=bool(root.get("user"))))
    except (UserError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete)]


TunnelName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of a tunnel.", autocompletion=complete_tunnel),
]
SomeTunnel = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]", help="Name of a tunnel; default: all.", autocompletion=complete_tunnel
    ),
]
