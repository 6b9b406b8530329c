"""`compare`: compares benchmark results on the terminal, as JSON and as an HTML page."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from errno import ELOOP
from pathlib import Path
from typing import Annotated, Final

import typer

from servicekit.cli.options import AsJson, ForUser, complete_profile, session_of
from servicekit.cli.output import as_json, note, paint, table
from servicekit.cli.session import Session
from servicekit.errors import UserError, reason
from servicekit.host.files import replace
from servicekit.lab.bench.formatting import percent, spread, worst
from servicekit.lab.bench.store import names
from servicekit.lab.compare.choice import chosen
from servicekit.lab.compare.comparison import ComparedCase, Comparison, compared
from servicekit.lab.compare.words import conditions_in_words, run_in_words, suite_in_words
from servicekit.text import printable

WIDTH: Final = 100  # columns where there is no terminal
INDENT: Final = "   "
HEADS: Final = ("FIGURE", "RUN", "MEDIAN", "P99", "SAMPLES", "AGAINST A", "")


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names of runs and profiles for shell completion; none if they cannot be read."""
    root = ctx.find_root().params
    session = Session(root.get("config"), user=bool(root.get("user")))
    try:
        runs = list(names(Path(session.places.state)))
    except (OSError, UserError):
        runs = []
    known = [*complete_profile(ctx, incomplete), *reversed(runs)]
    return [name for name in known if name.startswith(incomplete)]


def compare(
    ctx: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="A B...",
            help="Runs as `bench --list` shows them, profiles, or files from another machine.",
            autocompletion=_complete,
        ),
    ],
    *,
    suite: Annotated[
        str | None,
        typer.Option("--suite", metavar="NAME", help="Suite to compare; by default that of A."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write an HTML report with charts.", dir_okay=False
        ),
    ] = None,
    json: AsJson = False,
    user: ForUser = False,
) -> None:
    """Compare benchmark results.

    PROFILE means its latest complete run of the suite, PROFILE~1 the one before that. Every run is
    compared with the first. Only like is compared with like: the same suite and version, context,
    concurrency, KV precision and prefix; otherwise one line names the difference, and the exit code
    is 1. A difference within the spread of the samples counts as none. Results that only look like
    progress are reported as traps: a lost draft graph, a faster decode with a later first answer, a
    smaller pool than requested, speed at the cost of wrong answers.
    """
    if html is not None:
        from servicekit.lab.compare.drawing import check_drawing

        check_drawing()  # fail before the result is printed
    session = session_of(ctx, user=user)
    states = Path(session.places.state)
    results = chosen(runs, suite, states, session.catalog.names())
    comparison = compared(results)
    if json:
        as_json(comparison.as_json())
    else:
        _print(comparison)
    if html is not None:
        from servicekit.lab.compare.report import page

        made = datetime.now(UTC).isoformat(" ", timespec="seconds").replace("+00:00", " UTC")
        _write(html, page(comparison, at=made))
        note(f"the report is {html}")


def _print(comparison: Comparison) -> None:
    typer.echo(printable(f"suite {suite_in_words(comparison.suite)}"))
    for run in comparison.runs:
        words = run_in_words(run)
        typer.echo()
        typer.echo(f"{words.letter}  {printable(words.name)}")
        for line in (f"{words.engine}, {words.host}", words.model, f"KV pool {words.pool}"):
            _paragraph(line)
        if words.verified:
            _paragraph(words.verified)
        for mark in words.marks:
            _paragraph(mark, "warn")
    for section in comparison.sections:
        typer.echo()
        _paragraph(f"{section.case}: {conditions_in_words(section.conditions)}", indent="")
        table(HEADS, _rows(section))
    if comparison.traps or comparison.notes:
        typer.echo()
    for trap in comparison.traps:
        where = trap.run if trap.case is None else f"{trap.run}, {trap.case}"
        _paragraph(f"trap: {where}: {trap.title}: {trap.text}", "fail", indent="")
    for text in comparison.notes:
        _paragraph(f"note: {text}", indent="")


def _paragraph(text: str, colour: str = "", indent: str = INDENT) -> None:
    """Print a sentence, wrapped to the terminal's width."""
    width = shutil.get_terminal_size((WIDTH, 0)).columns
    for line in textwrap.wrap(
        printable(text),
        width,
        initial_indent=indent,
        subsequent_indent=INDENT,
        break_on_hyphens=False,
    ):
        typer.echo(paint(colour, line))


def _rows(section: ComparedCase) -> Iterator[tuple[str, ...]]:
    for row in section.rows:
        figure = row.figure
        for index, value in enumerate(row.values):
            statistics, judgement = value.statistics, value.judgement
            yield (
                "" if index else f"{figure.label}, {figure.unit}",
                value.run,
                spread(value.value, statistics, figure.unit),
                worst(figure, statistics),
                f"{statistics.samples:,}" if statistics else "",
                judgement.verdict.value if judgement else "",
                percent(value.change),
            )


def _write(path: Path, text: str) -> None:
    """Write the report atomically, replacing an existing file."""
    try:
        target = _resolved(path)
        if target.exists() and not target.is_file():
            raise UserError(f'"{path}" is not a regular file')
        replace(target, text)
    except OSError as error:
        raise UserError(f'cannot write the report to "{path}": {reason(error)}') from None


def _resolved(path: Path) -> Path:
    """Follow links; raise `OSError` for a circle."""
    try:
        target = path.resolve()
    except RuntimeError:  # what Python before 3.13 makes of a circle
        target = path
    if target.is_symlink():
        raise OSError(ELOOP, os.strerror(ELOOP), str(path))
    return target
