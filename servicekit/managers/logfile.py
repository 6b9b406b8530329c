"""Filters the lines of a plain log file, as journalctl does for the journal. Pure.

servicekit's own lines have a time, level and run; an engine's lines take their time from the lines
around them and their level from their own text.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING, Final

from servicekit.errors import UserError
from servicekit.log import Priorities

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from servicekit.managers import LogQuery

# One of servicekit's own lines, as `servicekit.log` writes them without a journal.
OURS: Final = re.compile(
    rb'(?:time=|{"time": ")(?P<time>[^\s"]+)(?: level=|", "level": ")(?P<level>\w+)'
    rb'.* (?:run=|tunnel=|"run": |"tunnel": )\S+$'
)
# What `journalctl --priority` takes, by number.
LEVELS: Final = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
OUR_LEVELS: Final = {"critical": 2, "error": 3, "warning": 4, "notice": 5, "info": 6, "debug": 7}
UNITS: Final = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), timedelta(seconds=1)),
    **dict.fromkeys(("m", "min", "minute", "minutes"), timedelta(minutes=1)),
    **dict.fromkeys(("h", "hr", "hour", "hours"), timedelta(hours=1)),
    **dict.fromkeys(("d", "day", "days"), timedelta(days=1)),
    **dict.fromkeys(("w", "week", "weeks"), timedelta(weeks=1)),
}
_TERM: Final = r"(\d{1,9})\s*([a-z]+)\s*"
_SPAN: Final = re.compile(rf"(?:-\s*(?P<before>(?:{_TERM})+)|(?P<past>(?:{_TERM})+)\bago)")


def matching(lines: Iterable[bytes], query: LogQuery, now: datetime) -> Iterable[bytes]:
    """Return all lines that match `query`, oldest first; `now` is the reader's clock.

    Raises `UserError` for an invalid time or level.
    """
    if query.since:
        lines = _since(lines, moment(query.since, now))
    if query.run:
        lines = of_run(lines, query.run)
    if query.priority:
        lines = _as_grave_as(lines, _level(query.priority))
    if query.cause:
        marks = (f" cause={query.cause} ".encode(), f'"cause": "{query.cause}"'.encode())
        lines = (line for line in lines if any(mark in line for mark in marks))
    return lines


def of_run(lines: Iterable[bytes], run: str) -> Iterator[bytes]:
    """Return the lines of one run: from its watchdog's first line to that of another run.

    A watchdog logs its run id before the engine starts.
    """
    marks = (f" run={run}".encode(), f'"run": "{run}'.encode())
    begun = False
    for line in lines:
        of_it = any(mark in line for mark in marks)
        if begun and OURS.match(line) and not of_it:
            return
        begun = begun or of_it
        if begun:
            yield line


def moment(text: str, now: datetime) -> datetime:
    """Parse a time as `journalctl --since` does; raise `UserError` for an invalid one."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    words = {"now": now, "today": midnight, "yesterday": midnight - timedelta(days=1)}
    if text in words:
        return words[text]
    if span := _SPAN.fullmatch(text.strip()):
        terms = re.findall(_TERM, span["before"] or span["past"])
        if all(unit in UNITS for _, unit in terms):
            return now - sum((int(n) * UNITS[unit] for n, unit in terms), timedelta())
    try:
        if ":" in text and "-" not in text:
            return datetime.combine(now.date(), time.fromisoformat(text), now.tzinfo)
        at = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise UserError(
            f'"{text}" is not a valid time',
            hint='use "-1h", "90 min ago", "yesterday", "12:00" or "2026-01-31 12:00"',
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=now.tzinfo)


def _level(text: str) -> int:
    if text in LEVELS:
        return LEVELS.index(text)
    if text.isdecimal() and int(text) < len(LEVELS):
        return int(text)
    raise UserError(f'"{text}" is not a valid level', hint=f"use {', '.join(LEVELS)} or a number")


def _since(lines: Iterable[bytes], begin: datetime) -> Iterator[bytes]:
    """Drop every line that is followed by one of our lines from before `begin`."""
    waiting: list[bytes] | None = []
    for line in lines:
        if waiting is not None and (ours := OURS.match(line)):
            if _at(ours["time"]) < begin:
                waiting = []
                continue
            yield from waiting
            waiting = None
        if waiting is None:
            yield line
        else:
            waiting.append(line)
    yield from waiting or ()


def _at(text: bytes) -> datetime:
    try:
        at = datetime.fromisoformat(text.decode(errors="replace"))
    except ValueError:
        return datetime.max.replace(tzinfo=UTC)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _as_grave_as(lines: Iterable[bytes], most: int) -> Iterator[bytes]:
    priorities = Priorities()
    for line in lines:
        ours = OURS.match(line)
        level = OUR_LEVELS.get(ours["level"].decode()) if ours else None
        if level is None:
            level = priorities.of(line.decode(errors="replace").rstrip("\n"))
        if level <= most:
            yield line
