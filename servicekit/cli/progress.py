"""The progress of a start or a stop, with how long it may still take at most."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from servicekit.cli.output import duration
from servicekit.profiles.vocabulary import LONGEST_HOLD_OFF

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servicekit.profiles.model import Profile
    from servicekit.watchdog.status import Status


class Countdown:
    """Knows how long each phase of a run may take by the profile's limits."""

    def __init__(self, recipe: Profile | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._recipe = recipe
        self._clock = clock
        self._of: tuple[str | None, str | None, bool] | None = None
        self._since = clock()

    def left(self, now: Status) -> float | None:
        """Seconds that the present phase may still take; `None` if that is not known."""
        of = (now.run, now.phase, now.why.startswith("waiting: "))
        if of != self._of:
            self._of, self._since = of, self._clock()
        bound = self._bound(now.phase, waiting=of[2])
        return None if bound is None else max(0.0, bound - (self._clock() - self._since))

    def _bound(self, phase: str | None, *, waiting: bool) -> float | None:
        if self._recipe is None or phase is None:
            return None
        start, stop = self._recipe.start, self._recipe.stop
        bounds = {
            "holding": start.gpu_wait if waiting else LONGEST_HOLD_OFF,
            "loading": start.limit,
            "stopping": stop.grace,
            "killing": stop.kill,
            "settling": stop.settle,
        }
        return bounds.get(phase)


@contextmanager
def progress(
    profile: str, recipe: Profile | None, expected: float | None = None, *, lines: bool = True
) -> Iterator[Callable[[Status], None]]:
    """Show a start or a stop: a moving line on a terminal, elsewhere with `lines` one a change.

    `expected` are the seconds that it usually takes.
    """
    countdown = Countdown(recipe)
    if not sys.stdout.isatty():
        shows = _Lines(profile, countdown, expected).show
        yield shows if lines else lambda _: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()]
    if expected is not None:
        columns += [BarColumn(24)]
    columns += [TextColumn("{task.fields[left]}")]
    with Progress(*columns, transient=True) as shown:
        task = shown.add_task(profile, total=expected, left="")

        def show(now: Status) -> None:
            passed = shown.tasks[0].elapsed or 0.0
            usual = "" if expected is None else _usual(expected, passed)
            bound = countdown.left(now)
            most = "" if bound is None else f"at most {duration(bound)}"
            what = f"{profile}: {now.state}: {now.why}"
            left = ", ".join(filter(None, (usual, most)))
            shown.update(task, description=what, completed=passed, left=left)

        yield show


def _usual(expected: float, passed: float) -> str:
    if passed < expected:
        return f"about {duration(expected - passed)} left"
    return f"longer than the usual {duration(expected)}"


class _Lines:
    """Prints a line for each change."""

    def __init__(self, profile: str, countdown: Countdown, expected: float | None) -> None:
        self._profile = profile
        self._countdown = countdown
        self._printed = ""
        if expected is not None:
            typer.echo(f"{profile}: usually ready after {duration(expected)}")

    def show(self, now: Status) -> None:
        """Print `now` if it changed; the verb prints the end."""
        line = f"{self._profile}: {now.state}: {now.why}"
        bound = self._countdown.left(now)
        if line != self._printed and now.state not in {"ready", "stopped"} and not now.at_rest:
            self._printed = line
            typer.echo(line if bound is None else f"{line} (at most {duration(bound)})")
