"""The command line in full, by the command-line library. Each verb's module is loaded when used."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command
from typing_extensions import override

from servicekit.cli.failures import failures
from servicekit.cli.session import Session
from servicekit.cli.verbs import OPTIONS, SUMMARY, VERBS, help_text
from servicekit.text import did_you_mean

HELP_NAMES: Final = {"help_option_names": ["-h", "--help"]}


class _Verbs(TyperGroup):
    @override
    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        verb = VERBS[cmd_name]
        function = getattr(import_module(f"servicekit.cli.{verb.module}"), verb.function)
        if isinstance(function, typer.Typer):
            return get_command(function)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(cmd_name, context_settings=HELP_NAMES)(function)
        return get_command(alone)

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = not args or args[0] in VERBS or args[0].startswith("-")
        if not known and not ctx.resilient_parsing:  # which is how a shell asks for completions
            ctx.fail(f'no command "{args[0]}"{did_you_mean(args[0], VERBS)}')
        return super().resolve_command(ctx, args)

    @override
    def get_help(self, ctx: Any) -> str:
        return help_text()

    @override
    def invoke(self, ctx: Any) -> Any:
        with failures():
            return super().invoke(ctx)

    @override
    def main(self, *args: Any, **kwargs: Any) -> Any:
        with failures():  # those of the help and of completion
            return super().main(*args, **kwargs)


app = typer.Typer(
    name="servicekit",
    cls=_Verbs,
    help=SUMMARY,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=HELP_NAMES,
)


def _version(wanted: bool) -> None:
    if wanted:
        from servicekit import __version__

        print(f"servicekit {__version__}")
        raise typer.Exit


@app.callback()
def common(
    ctx: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help=OPTIONS["--config FILE"])
    ] = None,
    user: Annotated[bool, typer.Option("--user", help=OPTIONS["--user"])] = False,
    _show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help=OPTIONS["--version"])
    ] = False,
) -> None:
    """Store the options that precede the verb."""
    ctx.obj = Session(config, user=user)
