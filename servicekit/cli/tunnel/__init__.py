"""`tunnel`: an engine's port on another host, over ssh."""

from __future__ import annotations

import typer

from servicekit.cli.options import ForUser, session_of
from servicekit.cli.tunnel.common import TunnelName
from servicekit.cli.tunnel.control import logs, restart, start, stop
from servicekit.cli.tunnel.install import install, uninstall
from servicekit.cli.tunnel.status import list_tunnels, status

app = typer.Typer(
    name="tunnel",
    help="Keep an engine's port reachable over ssh.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

for verb in (install, uninstall, start, stop, restart, status, logs):
    app.command()(verb)
app.command("list")(list_tunnels)


@app.command("run")
def run(ctx: typer.Context, name: TunnelName, *, user: ForUser = False) -> None:
    """Run a tunnel in the foreground.

    The service manager runs this. ^C stops it.
    """
    from servicekit.tunnel.runner import run as carry_out

    raise typer.Exit(carry_out(session_of(ctx, user=user).places, name))
