"""What the verbs for tunnels have in common."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servicekit.cli.session import Session

if TYPE_CHECKING:
    from servicekit.install.manifest import Manifest
    from servicekit.tunnel.state import State


def installed(mine: Session) -> dict[str, Manifest]:
    """Manifests of the installed tunnels, by name."""
    return dict(sorted(mine.tunnels().items()))


def manifest_of(mine: Session, name: str) -> Manifest:
    """What the install of `name` left; raises `UserError` where it is not installed."""
    from servicekit.errors import UserError

    found = installed(mine).get(name)
    if found is None:
        raise UserError(
            f'tunnel "{name}" is not installed',
            hint="`servicekit tunnel list` shows those that are",
        )
    return found


def published(mine: Session, name: str) -> State | None:
    """What the service of `name` published last; `None` where it never did."""
    from servicekit.tunnel.state import read_state
    from servicekit.tunnel.values import state_file

    return read_state(Path(state_file(mine.places, name)))


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
        metavar="[NAME]",
        help="Name of a tunnel; all of them without.",
        autocompletion=complete_tunnel,
    ),
]
