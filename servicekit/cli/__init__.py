"""The command line: one function per verb, and the only place that prints and exits.

What every verb imports is paid by `--help`, so that modules here import only what they need to be
listed; each verb imports the rest when it runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typing_extensions import override

from servicekit.cli import (
    advice,
    alert,
    control,
    history,
    install,
    logs,
    probe,
    profiles,
    secret,
    status,
    watch,
)
from servicekit.cli.session import Session
from servicekit.errors import UserError

INTERRUPTED: Final = 130
"""Exit code after ^C: 128 and the number of SIGINT."""

HELP: Final = """\
Make a local model server a dependable service: back after boot, ready only when it answers.

\b
  servicekit list                    what can be served
  servicekit install long-context    make it a service that starts at boot
  servicekit start long-context      start it now, and watch it become ready
  servicekit status                  how everything is
"""

EPILOG: Final = """\
\b
Exit codes:
    0  done; for probe: healthy
    1  could not be done; for probe: not healthy
    2  the command line is wrong; for probe: cannot tell
   69  do not restart: the host or an operator must act
   75  a run ended by a fault, restart it (watch only)
   78  the configuration must change
  130  interrupted

\b
Files:
  /etc/servicekit/servicekit.toml      settings
  /etc/servicekit/profiles.d/*.toml    profiles of this site
  /var/lib/servicekit/PROFILE/         history of each profile
  with --user: ~/.config/servicekit and ~/.local/state/servicekit
"""


class _Verbs(TyperGroup):
    """All verbs; what goes wrong in any of them becomes one line and an exit code."""

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except UserError as error:
            for line in str(error).splitlines():
                typer.echo(f"servicekit: {line}", err=True)
            raise typer.Exit(error.code) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # Whoever read has enough. Python flushes once more at its end, and must find a sink.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        return result


app = typer.Typer(
    name="servicekit",
    cls=_Verbs,
    help=HELP,
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from servicekit import __version__

        typer.echo(f"servicekit {__version__}")
        raise typer.Exit


@app.callback()
def common(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Settings file to use instead of the usual."),
    ] = None,
    user: Annotated[
        bool, typer.Option("--user", help="Your own services instead of the system's.")
    ] = False,
    _show_version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Keep what the options before the verb say for the verb."""
    ctx.obj = Session(config, user=user)


for verb in (
    profiles.list_profiles,
    profiles.show,
    profiles.render,
    install.install,
    install.uninstall,
    install.diff,
    control.start,
    control.stop,
    control.restart,
    status.status,
    history.history,
    logs.logs,
    probe.probe,
    advice.check,
    advice.plan,
    advice.diagnose,
    watch.watch,
    alert.alert,
    profiles.schema,
):
    name = "list" if verb is profiles.list_profiles else verb.__name__
    app.command(name)(verb)


app.add_typer(secret.app)


def main() -> None:
    """Run the command line, as the console script does."""
    app(prog_name="servicekit")
