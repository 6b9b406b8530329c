"""Progress of a download: a moving bar on a terminal, elsewhere lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from servicekit.cli.output import duration, note
from servicekit.models.download import ProgressListener
from servicekit.models.hub_cache import File
from servicekit.models.memory.units import short

if TYPE_CHECKING:
    from rich.progress import Progress

LONGEST_NAME: Final = 26
LINE_EVERY: Final = 10.0  # seconds between lines where there is no terminal


class Display(ProgressListener, Protocol):
    """Shows a transfer. All sizes are in bytes."""

    def stage(self, doing: str, size: int, done: int = 0) -> None:
        """Begin with `size` bytes; `done` of them are complete."""


@contextmanager
def display() -> Iterator[Display]:
    if not sys.stderr.isatty():
        yield _TransferLines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(12),
        DownloadColumn(binary_units=True),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Bar(progress)


class _Bar:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("querying the hub", total=None, speed="")

    def stage(self, doing: str, size: int, done: int = 0) -> None:
        self._progress.remove_task(self._task)
        # A new one, so that the speed is that of what is yet to come.
        self._task = self._progress.add_task(
            doing, total=size, completed=done, visible=bool(size), speed=""
        )

    def checking(self, file: File) -> None:
        self._describe(f"checking {_tail(file.name)}")

    def loading(self, file: File) -> None:
        self._describe(f"fetching {_tail(file.name)}")

    def moved(self, size: int) -> None:
        (task,) = self._progress.tasks
        speed = f"{short(round(task.speed))}/s" if task.speed else ""
        self._progress.update(self._task, advance=size, speed=speed)

    def broke_off(self) -> None:
        self._describe("connection lost; retrying")

    def _describe(self, what: str) -> None:
        self._progress.update(self._task, description=what)


def _tail(name: str) -> str:
    """Shorten a file's name to its end, so that the line fits."""
    return (
        name if len(name) <= LONGEST_NAME else f"\N{HORIZONTAL ELLIPSIS}{name[1 - LONGEST_NAME :]}"
    )


class _TransferLines:
    """Prints a line for each stage and file, and one every few seconds."""

    def __init__(self) -> None:
        self._size = self._done = self._before = 0
        self._began = self._printed = time.monotonic()

    def stage(self, doing: str, size: int, done: int = 0) -> None:
        self._size, self._done, self._before = size, done, done
        self._began = self._printed = time.monotonic()
        if size:
            note(f"{doing} {short(size)}" + (f", {short(done)} of them here" if done else ""))

    def checking(self, file: File) -> None:
        pass

    def loading(self, file: File) -> None:
        note(f"fetching {file.name} ({short(file.size)})")

    def moved(self, size: int) -> None:
        self._done += size
        now = time.monotonic()
        if now - self._printed >= LINE_EVERY:
            self._printed = now
            note(self._line(now - self._began))

    def broke_off(self) -> None:
        note("connection lost; retrying")

    def _line(self, passed: float) -> str:
        rate = (self._done - self._before) / passed
        line = f"{self._done / max(self._size, 1):.0%} of {short(self._size)}"
        if rate <= 0:
            return line
        left = duration((self._size - self._done) / rate)
        return f"{line}, {short(round(rate))}/s, about {left} left"
