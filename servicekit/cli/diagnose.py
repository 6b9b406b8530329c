"""`diagnose`: why an engine failed, from its log."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from servicekit.cli.freshness import note_outdated
from servicekit.cli.options import AsJson, ForUser, complete_profile, session_of
from servicekit.cli.output import as_json, ours, say
from servicekit.cli.session import Session
from servicekit.diagnosis.lines import unwrapped
from servicekit.diagnosis.reader import LogReader
from servicekit.diagnosis.signatures import FILES
from servicekit.diagnosis.verdict import Diagnosis, render_text
from servicekit.diagnosis.verdict import as_json as in_json
from servicekit.diagnosis.verdict import diagnose as conclude
from servicekit.errors import UserError, reason
from servicekit.managers import LogQuery
from servicekit.managers.logstream import log_of
from servicekit.profiles.model import Profile
from servicekit.watchdog import history, ledger

READ_SIZE: Final = 1 << 20
PASTED: Final = 1 << 20
"""Bytes of a log that may have been copied from a terminal, with its line breaks."""
STDIN: Final = "-"


def diagnose(
    ctx: typer.Context,
    profile: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROFILE|-]",
            help="Profile whose last run to explain; - reads a log from standard input.",
            autocompletion=complete_profile,
        ),
    ] = None,
    *,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            metavar="LOG",
            help="Read this log instead, - for standard input; several are read in their order.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="NAME", help="Engine that wrote the log, if not obvious."),
    ] = None,
    json: AsJson = False,
    user: ForUser = False,
) -> None:
    """Explain from its log why an engine failed.

    Prints the cause, the log lines that show it, and what helps, in order. With a profile and
    --file, the remedies fit the profile's options.
    """
    files = file or []
    if profile == STDIN:
        profile, files = None, [*files, STDIN]
    if profile is None and not files:
        raise typer.BadParameter("give a profile, - or --file LOG")
    if engine is not None:
        _check_engine(engine)
    if files:
        recipe = None if profile is None else session_of(ctx, user=user).profile(profile)
        diagnosis = _diagnosed(_pieces(files), recipe, engine)
    else:
        diagnosis = _of_service(session_of(ctx, user=user), str(profile), engine)
    if json:
        as_json(in_json(diagnosis))
    else:
        say(ours(render_text(diagnosis)))


def _check_engine(name: str) -> None:
    if name not in FILES:
        raise typer.BadParameter(f'engine "{name}" must be one of {", ".join(FILES)}')


def _pieces(files: Iterable[str]) -> Iterator[bytes]:
    """Read logs in their order; a short one may have been wrapped by a terminal."""
    for name in files:
        with ExitStack() as stack:
            try:
                stream: BinaryIO = (
                    sys.stdin.buffer
                    if name == STDIN
                    else stack.enter_context(Path(name).open("rb"))
                )
                piece = stream.read(PASTED)
                rest = stream.read(READ_SIZE)
                yield piece if rest else unwrapped(piece)
                while rest:
                    yield rest
                    rest = stream.read(READ_SIZE)
            except OSError as error:
                raise UserError(f'cannot read log "{name}": {reason(error)}') from None
        yield b"\n"


def _diagnosed(
    pieces: Iterable[bytes], profile: Profile | None = None, engine: str | None = None
) -> Diagnosis:
    reader = LogReader(engine or (profile.engine.value if profile else "any"))
    for piece in pieces:
        reader.feed(piece)
    if profile is None:
        return conclude(reader)
    return conclude(reader, options=profile.options, profile=profile.name)


def _of_service(session: Session, name: str, engine: str | None) -> Diagnosis:
    service = session.installed(name)
    recipe = session.installed_profile(name)
    note_outdated(session, name)
    runs = history.runs(ledger.read(Path(session.places.ledger(name))))
    if not runs:
        raise UserError(f'"{name}" has not run yet', hint=f"`servicekit start {name}` starts it")
    with log_of(service.manager, service.unit, LogQuery(run=runs[-1].run)) as lines:
        return replace(_diagnosed(lines, recipe, engine), planned=service.manifest.planned)
