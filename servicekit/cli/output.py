"""Output for a person: plain and aligned everywhere, coloured on a terminal only."""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TextIO

from servicekit.places import Scope, spelt
from servicekit.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

_GREEN, _YELLOW, _RED, _MAGENTA, _CYAN, _GREY = 32, 33, 31, 35, 36, 90
# The colour of each word that has one, as terminals number them.
COLOURS: Final = {
    "ready": _GREEN,
    "up": _GREEN,
    "starting": _CYAN,
    "degraded": _YELLOW,
    "engine-down": _YELLOW,
    "failed": _RED,
    "down": _RED,
    "port-taken": _RED,
    "stopped": _GREY,
    "configured": _GREY,
    "create": _GREEN,
    "replace": _YELLOW,
    "remove": _RED,
    "drifted": _MAGENTA,
    "ok": _GREEN,
    "warn": _YELLOW,
    "fail": _RED,
    "skip": _GREY,
    "better": _GREEN,
    "worse": _RED,
    "no difference": _GREY,
    "cannot tell": _GREY,
}
LEAST: Final = 20  # characters that the last column of a table has on the narrowest terminal
MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR


_scope: ContextVar[Scope] = ContextVar("scope", default=Scope.SYSTEM)


def speak_of(scope: Scope) -> None:
    """Set the scope that commands in messages are spelt for."""
    _scope.set(scope)


def ours(text: str) -> str:
    """Return `text` with its commands spelt for this scope, such as with --user."""
    return spelt(text, _scope.get())


def note(text: str) -> None:
    """Print a note to stderr; a closed stderr is not an error."""
    complain("\n".join(printable(line) for line in ours(text).splitlines()))


def complain(text: str) -> None:
    """Print to stderr; if that fails, continue, since the exit code still reports."""
    try:
        print(f"servicekit: {text}", file=sys.stderr, flush=True)
    except OSError:  # a closed pipe, a terminal that is gone, a full disk
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Discard buffered output, which Python would flush once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def warn(text: str) -> None:
    note(f"warning: {text}")


def as_json(value: object) -> None:
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))


def coloured(stream: Any = None) -> bool:  # noqa: ANN401 - whatever stands in for stdout
    """Whether colours are wanted: on a terminal, unless NO_COLOR is set."""
    stream = stream or sys.stdout
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and not _is_dumb()


def _is_dumb() -> bool:
    return os.environ.get("TERM") == "dumb"


def paint(word: str, text: str | None = None) -> str:
    """Colour `text`, or `word` itself, with the colour of `word`."""
    text = word if text is None else text
    if word in COLOURS and coloured():
        return f"\x1b[{COLOURS[word]}m{text}\x1b[0m"
    return text


def say(text: str) -> None:
    """Print lines; on a terminal, what is too long continues below where its last column begins."""
    if sys.stdout.isatty():
        import shutil

        columns = shutil.get_terminal_size().columns
        text = "\n".join(folded(line, columns) for line in text.split("\n"))
    print(text)


def folded(line: str, columns: int) -> str:
    """Break `line` between words so that it fits; columns of a line are two spaces apart.

    Colours take no room: the last column must have none.
    """
    import re
    import textwrap

    plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
    if len(plain) <= columns:
        return line
    start = plain.rfind("  ", 0, columns // 2) + 2 if "  " in plain[: columns // 2] else 0
    indent = " " * (start or 2)
    if columns - len(indent) < LEAST:
        return line
    first, *rest = textwrap.wrap(
        plain[start:], columns - len(indent), break_long_words=False, break_on_hyphens=False
    )
    return "\n".join([line[: len(line) - len(plain) + start] + first, *(indent + r for r in rest)])


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, whole: bool = False) -> None:
    """Print columns, aligned and two spaces apart; a word that has a colour is painted.

    On a terminal, the last column is cut where the line would break, or with `whole` stands below
    its row. What a service's account wrote into its history cannot lead the terminal.
    """
    lines = [list(heads), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    columns = None
    if sys.stdout.isatty():
        import shutil

        columns = shutil.get_terminal_size().columns
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
        print("\n".join(["  ".join(cells).rstrip(), *below]))


def _indented(text: str, columns: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, max(LEAST, columns), initial_indent="  ", subsequent_indent="  ")


def duration(seconds: float | None) -> str:
    """Format seconds: `0.7 s`, `42 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if seconds < 10:  # noqa: PLR2004 - below it, tenths matter
        return f"{seconds:.1f} s"
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE} s"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


def local(at: datetime) -> str:
    """Format a time in the local zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
