"""`wsl`: prints the Windows settings that keep services under WSL2 running."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from servicekit.cli.output import note
from servicekit.doctor.wsl import conf, wanted
from servicekit.doctor.wsl.rendering import Rendered, render_conf, render_task, steps
from servicekit.doctor.wsl.task import WITH_WINDOW, WITHOUT_WINDOW
from servicekit.doctor.wsl.wanted import ALL
from servicekit.doctor.wsl.windows import WSL_CONF, Windows, windows, windows_path
from servicekit.doctor.wsl.windows import distribution as this_distribution
from servicekit.errors import UserError, reason
from servicekit.host.bounded import NoReplyError
from servicekit.text import did_you_mean, shown

WslConfig = Annotated[
    Path | None,
    typer.Option(
        "--wslconfig",
        metavar="FILE",
        help="The .wslconfig to merge; by default yours in Windows.",
    ),
]

app = typer.Typer(
    name="wsl",
    help="Configure WSL2 to keep services running.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def wsl() -> None:
    """Configure WSL2 to keep services running."""


@app.command("render")
def render(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write the files into DIR.")
    ] = None,
    wslconfig: WslConfig = None,
    wsl_conf: Annotated[
        Path | None,
        typer.Option(
            "--wsl-conf", metavar="FILE", help="The wsl.conf to merge; by default /etc/wsl.conf."
        ),
    ] = None,
    distribution: Annotated[
        str | None,
        typer.Option("--distribution", metavar="NAME", help="Distribution; by default this one."),
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(
            "--account", metavar="NAME", help=r"Windows account as COMPUTER\name; by default yours."
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", metavar="KEY", help="Leave this key unchanged, such as networkingMode."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace differing files in DIR.")] = False,
) -> None:
    """Print the files that keep WSL running.

    These are .wslconfig and wsl.conf, merged with what is there so that comments and other keys
    stay, and a task for Windows that starts the distribution at logon. Neither Windows nor /etc is
    touched: what puts the files in place is printed.
    """
    kept = _kept(keep or ())
    own_conf = _read(wsl_conf or WSL_CONF, must=wsl_conf is not None)
    host = windows(conf.read(conf.decode(own_conf)[0]))
    with _or("give its path with --wslconfig FILE"):
        config_file = wslconfig or host.home() / wanted.WSLCONFIG
    with _or("give it with --distribution NAME"):
        name = distribution or asyncio.run(this_distribution(os.environ))
    with _or("give it with --account NAME"):
        owner = account or asyncio.run(host.account())
    files = (
        render_conf(wanted.WSLCONFIG, _read(config_file, must=wslconfig is not None), keep=kept),
        render_conf(wanted.WSL_CONF, own_conf, keep=kept),
        render_task(name, owner, _client(host)),
    )
    folder = PurePosixPath(os.path.realpath(out) if out is not None else "DIR")
    if out is None:
        _print(files)
    else:
        _write(out, files, force=force)
    in_windows = windows_path(folder, PurePosixPath(host.root), name) if out is not None else "DIR"
    typer.echo("\n".join(steps(name, str(folder), in_windows)), err=out is None)


def _kept(keys: Iterable[str]) -> set[str]:
    """Check the keys to keep; return them in lower case."""
    known = {wanted.key.name.lower(): wanted.key.name for wanted in ALL}
    for key in keys:
        if key.lower() not in known:
            meant = did_you_mean(key, known.values())
            raise UserError(f'--keep: no key "{shown(key)}" would be changed{meant}')
    return {key.lower() for key in keys}


def _read(file: Path, *, must: bool) -> bytes:
    """Read a file; it may be missing unless it was named."""
    try:
        return file.read_bytes()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not must:
            return b""
        raise UserError(f'"{file}" cannot be read: {reason(error)}') from None


@contextmanager
def _or(hint: str) -> Iterator[None]:
    """Raise a question that Windows does not answer as a `UserError` with `hint`."""
    try:
        yield
    except NoReplyError as error:
        raise UserError(str(error), hint=hint) from None


def _client(host: Windows) -> str:
    """Choose WSL's client for the task: without a window if Windows has it."""
    if host.drive.is_dir() and not host.has_client_without_window():
        note("this WSL has no wslg.exe: the task will show a console window")
        return WITH_WINDOW
    return WITHOUT_WINDOW


def _print(files: Iterable[Rendered]) -> None:
    for file in files:
        _print_changes(file)
        typer.echo(f"# ==> {file.name}")
        typer.echo(file.text, nl=not file.text.endswith("\n"))


def _print_changes(file: Rendered) -> None:
    for change in file.changes:
        note(f"{file.name}: {change}")


def _write(out: Path, files: Iterable[Rendered], *, force: bool) -> None:
    """Write the files into `out`, or none if one would be replaced."""
    files = tuple(files)
    try:
        out.mkdir(parents=True, exist_ok=True)
        there = {file.name: (out / file.name) for file in files if (out / file.name).exists()}
        others = [
            str(path)
            for file in files
            if (path := there.get(file.name)) is not None and path.read_bytes() != file.data
        ]
        if others and not force:
            listed = " and ".join(f'"{path}"' for path in others)
            raise UserError(
                f"{listed} would be replaced", hint="choose another DIR, or use --force"
            )
        for file in files:
            _print_changes(file)
            (out / file.name).write_bytes(file.data)
            typer.echo(out / file.name)
    except OSError as error:
        raise UserError(f'cannot write "{error.filename}": {reason(error)}') from None
