"""What a person reads: plain and aligned everywhere, coloured on a terminal only."""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TextIO

import typer

from servicekit.places import Scope, spelt
from servicekit.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

COLOURS: Final = {
    "ready": "green",
    "up": "green",
    "starting": "cyan",
    "degraded": "yellow",
    "engine-down": "yellow",
    "failed": "red",
    "down": "red",
    "port-taken": "red",
    "stopped": "bright_black",
    "configured": "bright_black",
    "create": "green",
    "replace": "yellow",
    "remove": "red",
    "drifted": "magenta",
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
    "skip": "bright_black",
    "better": "green",
    "worse": "red",
    "no difference": "bright_black",
    "cannot tell": "bright_black",
}
"""Colour of each word that has one."""

LEAST: Final = 20
"""Characters that the last column of a table has on the narrowest terminal."""
MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR


_scope: ContextVar[Scope] = ContextVar("scope", default=Scope.SYSTEM)


def speak_of(scope: Scope) -> None:
    """Let this run of the command line be about the services of `scope`."""
    _scope.set(scope)


def ours(text: str) -> str:
    """`text`, with the commands in it spelt for the services that this run is about."""
    return spelt(text, _scope.get())


def note(text: str) -> None:
    """Tell something beside the result, which is not lost where nobody can be told."""
    lines = [printable(line) for line in ours(text).splitlines()]
    # A pipe that is closed, a terminal that is gone, a log on a full disk.
    try:
        typer.echo("servicekit: " + "\n".join(lines), err=True)
    except OSError:
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Let what is still to be written go nowhere: Python flushes once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def warn(text: str) -> None:
    """Tell what will probably go wrong, one line."""
    note(f"warning: {text}")


def as_json(value: object) -> None:
    """Print a result for a program."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def coloured(stream: Any = None) -> bool:  # noqa: ANN401 - whatever stands in for stdout
    """Whether colours are wanted: on a terminal, unless NO_COLOR says otherwise."""
    stream = stream or sys.stdout
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and not _is_dumb()


def _is_dumb() -> bool:
    return os.environ.get("TERM") == "dumb"


def paint(word: str, text: str | None = None) -> str:
    """`text`, or `word` itself, in the colour of `word`."""
    text = word if text is None else text
    if word in COLOURS and coloured():
        return typer.style(text, fg=COLOURS[word])
    return text


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, whole: bool = False) -> None:
    """Print columns, aligned and two spaces apart; a word that has a colour is painted.

    On a terminal, the last column is cut where the line would break, or with `whole` stands below
    its row. What a service's account wrote into its history cannot lead the terminal.
    """
    lines = [list(heads), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in lines:
        below: list[str] = []
        if columns is not None:
            room = max(LEAST, columns - sum(widths[:-1]) - 2 * len(widths[1:]))
            if len(line[-1]) > room and whole:
                below, line[-1] = _indented(line[-1], columns), ""
            elif len(line[-1]) > room:
                line[-1] = f"{line[-1][: room - 3]}..."
        cells = [
            paint(cell, cell.ljust(width) if column < len(heads) - 1 else cell)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        typer.echo("\n".join(["  ".join(cells).rstrip(), *below]))


def _indented(text: str, columns: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, max(LEAST, columns), initial_indent="  ", subsequent_indent="  ")


def duration(seconds: float | None) -> str:
    """Seconds as a person says them: `0.7 s`, `42 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if seconds < 10:  # noqa: PLR2004 - below it, tenths are worth telling
        return f"{seconds:.1f} s"
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE} s"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


def local(at: datetime) -> str:
    """A time on the clock of whoever reads it."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
