"""`check`, `plan`, `diagnose`: what can be known before a start, and after a failed one."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from servicekit.cli.forecast import USUAL_GPU, budget_of, memory_of, plan_of
from servicekit.cli.freshness import note_outdated
from servicekit.cli.options import AsJson, ForUser, ProfileName, complete_profile, session
from servicekit.cli.output import as_json, coloured, ours
from servicekit.watchdog import history

if TYPE_CHECKING:
    from collections.abc import Iterable

    from servicekit.cli.session import Session
    from servicekit.diagnosis.verdict import Diagnosis
    from servicekit.profiles.model import Profile

READ_SIZE: Final = 1 << 20


def check(
    ctx: typer.Context,
    profile: ProfileName,
    *,
    ask: Annotated[
        bool,
        typer.Option("--ask", help="Ask the engine itself for its options; takes up to a minute."),
    ] = False,
    json: AsJson = False,
    user: ForUser = False,
) -> None:
    """Check a profile against its engine's options.

    Every option must exist in the engine's version with a legal value, the versions must be those
    that the profile requires, and nothing may be known against the combination. Exit code 1 where
    something stands against a start.
    """
    from servicekit.cli.refusals import report_of

    mine = session(ctx, user=user)
    report = report_of(plan_of(mine, mine.profile(profile)), ask=ask)
    if json:
        as_json(report.json())
    else:
        typer.echo(report.text())
    raise typer.Exit(0 if report.ok else 1)


def plan(
    ctx: typer.Context,
    profile: ProfileName,
    *,
    gpu_memory: Annotated[
        str | None,
        typer.Option("--gpu-memory", metavar="SIZE", help=f'Usable memory, such as "{USUAL_GPU}".'),
    ] = None,
    length: Annotated[
        int,
        typer.Option("--length", min=1, metavar="TOKENS", help="Tokens of an average request."),
    ] = 5120,
    json: AsJson = False,
    user: ForUser = False,
) -> None:
    """Show how a profile uses the GPU memory.

    Nothing is started. Without --gpu-memory the profile's GPU is asked. Exit code 1 where it does
    not fit.
    """
    from servicekit.models.memory.outcome import Fit
    from servicekit.models.memory.rendering import budget_json, render_budget
    from servicekit.models.memory.units import parse_size

    mine = session(ctx, user=user)
    concrete = plan_of(mine, mine.profile(profile))
    size = parse_size(gpu_memory) if gpu_memory is not None else memory_of(concrete.profile)
    budget = budget_of(concrete, size, average_length=length)
    if json:
        as_json(budget_json(budget))
    else:
        width = shutil.get_terminal_size().columns
        typer.echo(render_budget(budget, width=width, color=coloured()), nl=False)
    raise typer.Exit(1 if budget.verdict is Fit.DOES_NOT_FIT else 0)


def diagnose(
    ctx: typer.Context,
    profile: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROFILE|-]",
            help="Whose last run to explain; - reads a log from standard input.",
            autocompletion=complete_profile,
        ),
    ] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="LOG", help="Read this log instead.")
    ] = None,
    json: AsJson = False,
    user: ForUser = False,
) -> None:
    """Explain from its log why an engine failed.

    It names the cause, what in the log says so, and what would help, in order.
    """
    from servicekit.diagnosis.verdict import as_json as in_json
    from servicekit.diagnosis.verdict import render_text
    from servicekit.errors import UserError

    if (file is None) == (profile is None):
        raise typer.BadParameter("give a profile, - or --file LOG, one of them")
    if file is not None:
        try:
            with file.open("rb") as stream:
                found = _diagnosed(iter(lambda: stream.read(READ_SIZE), b""))
        except OSError as error:
            reason = (error.strerror or "").lower()
            raise UserError(f'log "{file}" cannot be read: {reason}') from None
    elif profile == "-":
        found = _diagnosed(iter(lambda: sys.stdin.buffer.read(READ_SIZE), b""))
    else:
        found = _of_service(session(ctx, user=user), str(profile))
    if json:
        as_json(in_json(found))
    else:
        typer.echo(ours(render_text(found)))


def _diagnosed(pieces: Iterable[bytes], profile: Profile | None = None) -> Diagnosis:
    from servicekit.diagnosis.reader import LogReader
    from servicekit.diagnosis.verdict import diagnose as conclude

    reader = LogReader() if profile is None else LogReader(profile.engine.value)
    for piece in pieces:
        reader.feed(piece)
    if profile is None:
        return conclude(reader)
    return conclude(reader, options=profile.options, profile=profile.name)


def _of_service(mine: Session, name: str) -> Diagnosis:
    from servicekit.errors import UserError
    from servicekit.managers import LogQuery
    from servicekit.managers.logstream import log_of
    from servicekit.watchdog import ledger

    found = mine.installed(name)
    recipe = mine.installed_profile(name)
    note_outdated(mine, name)
    runs = history.runs(ledger.read(Path(mine.places.ledger(name))))
    if not runs:
        raise UserError(f'"{name}" has not run yet', hint=f"`servicekit start {name}` starts it")
    with log_of(found.manager, found.unit, LogQuery(run=runs[-1].run)) as lines:
        return _diagnosed(lines, recipe)
