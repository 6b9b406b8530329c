"""The command line: one function per verb, and the only place that prints and exits.

Every verb has a module, loaded when it is used: what one verb needs is not paid by another, and
`--help` loads none at all.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command
from typing_extensions import override

from servicekit.cli.output import drop, ours
from servicekit.cli.session import Session
from servicekit.errors import UserError
from servicekit.text import did_you_mean, printable


class Verb(NamedTuple):
    """Where a verb is, and its line in `--help`: the first sentence of what it says of itself."""

    module: str
    function: str
    summary: str


VERBS: Final = {
    "list": Verb("profiles", "list_profiles", "List the profiles there are."),
    "show": Verb("profiles", "show", "Show a profile as it takes effect."),
    "check": Verb("advice", "check", "Check a profile against the engine's own options."),
    "plan": Verb("advice", "plan", "Show what a profile does with the GPU's memory."),
    "fetch": Verb("fetch", "fetch", "Fetch the weights of a profile from the hub."),
    "render": Verb("profiles", "render", "Print the files that an install would write."),
    "install": Verb("install", "install", "Make a profile a service that starts at boot."),
    "uninstall": Verb("install", "uninstall", "Stop a service and remove what its install wrote."),
    "diff": Verb("install", "diff", "Show what an install would change."),
    "secret": Verb("secret", "app", "Keep the values of a profile's secrets."),
    "start": Verb("control", "start", "Start a service and show how it becomes ready."),
    "stop": Verb("control", "stop", "Stop a service and wait until nothing is left of it."),
    "restart": Verb("control", "restart", "Stop a service and start it anew."),
    "switch": Verb("switch", "switch", "Let a profile take the place of the one that runs."),
    "status": Verb("status", "status", "Show how the installed services are, or one in full."),
    "history": Verb("history", "history", "Show a profile's runs: when, how long, why they ended."),
    "logs": Verb("logs", "logs", "Show what engine, watchdog and manager said."),
    "diagnose": Verb("advice", "diagnose", "Explain from its log why an engine failed."),
    "verify": Verb("verify", "verify", "Ask a served model what a profile must pass to count."),
    "bench": Verb("bench", "bench", "Measure a verified profile by a versioned suite."),
    "compare": Verb("compare", "compare", "Compare benchmarks that match, and name the traps."),
    "probe": Verb("probe", "probe", "Tell in one line whether a service is healthy."),
    "doctor": Verb("doctor", "doctor", "Look for what keeps services from running well here."),
    "wsl": Verb("wsl", "app", "Make WSL2 keep services running."),
    "tunnel": Verb("tunnel", "app", "Keep an engine's port reachable over ssh."),
    "watch": Verb("watch", "watch", "Run an engine under its watchdog, in the foreground."),
    "alert": Verb("alert", "alert", "Tell whoever the settings name how a service is."),
    "schema": Verb("profiles", "schema", "Print the JSON schema of profile files."),
}

HELP_NAMES: Final = {"help_option_names": ["-h", "--help"]}
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
    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        verb = VERBS[cmd_name]
        found = getattr(import_module(f"servicekit.cli.{verb.module}"), verb.function)
        if isinstance(found, typer.Typer):
            return get_command(found)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(cmd_name, context_settings=HELP_NAMES)(found)
        return get_command(alone)

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = not args or args[0] in VERBS or args[0].startswith("-")
        if not known and not ctx.resilient_parsing:  # which is how a shell asks for completions
            ctx.fail(f'there is no verb "{args[0]}"{did_you_mean(args[0], VERBS)}')
        return super().resolve_command(ctx, args)

    @override
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.summary) for name, verb in VERBS.items()])

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except UserError as error:
            for line in str(error).splitlines():
                _complain(printable(ours(line)))
            raise typer.Exit(error.code) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # whoever read has enough
            drop(sys.stdout)
            raise typer.Exit(1) from None
        return result

    @override
    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            _complain(_refusal(error))
            drop(sys.stdout)
            sys.exit(1)


def _refusal(error: OSError) -> str:
    """Say what the system refused, where no verb knew to say more."""
    reason = (error.strerror or type(error).__name__).lower()
    if error.filename is not None:
        return f'"{error.filename}" cannot be used: {reason}'
    if isinstance(error, FileNotFoundError):
        return "the current directory is gone; change to one that exists"
    return f"the output cannot be written: {reason}"


def _complain(line: str) -> None:
    """Say what went wrong; where that cannot be written, the exit code still tells."""
    try:
        typer.echo(f"servicekit: {line}", err=True)
    except OSError:
        drop(sys.stderr)


app = typer.Typer(
    name="servicekit",
    cls=_Verbs,
    help=HELP,
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=HELP_NAMES,
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


def _complete_streams() -> None:
    """Open what we were started without: any file opened later would be taken for it.

    What the locale's encoding lacks is spelt out.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest that is free, so this very one
            os.set_inheritable(opened, True)
            setattr(sys, name, os.fdopen(opened, "w" if descriptor else "r"))
        elif descriptor and isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main() -> None:
    """Run the command line, as the console script does."""
    _complete_streams()
    app(prog_name="servicekit")
