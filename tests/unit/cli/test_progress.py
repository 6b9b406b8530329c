"""What a person reads while a service starts or stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plans import profile

from servicekit.cli.progress import Countdown, progress
from servicekit.watchdog.status import Status

if TYPE_CHECKING:
    import pytest


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_countdown_is_that_of_the_phase() -> None:
    """Each phase has the limit that the profile gives it, from when it was entered."""
    clock, recipe = Clock(), profile("demo")
    countdown = Countdown(recipe, clock)
    loading = Status("demo", "starting", run="a", phase="loading", why="launched")
    assert countdown.left(loading) == recipe.start.limit
    clock.seconds += 100
    assert countdown.left(loading) == recipe.start.limit - 100
    waiting = Status("demo", "starting", run="b", phase="holding", why="waiting: the port is held")
    assert countdown.left(waiting) == recipe.start.gpu_wait
    clock.seconds += 1e6
    assert countdown.left(waiting) == 0
    stopping = Status("demo", "degraded", run="b", phase="stopping", why="stopping: requested")
    assert countdown.left(stopping) == recipe.stop.grace
    assert countdown.left(Status("demo", "starting")) is None
    assert Countdown(None).left(loading) is None


def test_each_line_of_a_start_says_how_long_it_may_last(capsys: pytest.CaptureFixture[str]) -> None:
    """The same line is not printed twice while only the time changes."""
    now = Status("demo", "starting", run="a", phase="loading", why="launched")
    with progress("demo", profile("demo"), expected=3) as show:
        show(now)
        show(now)
        show(Status("demo", "starting", why="its watchdog is about to start"))
        show(Status("demo", "ready", phase="serving", why="answering"))
    assert capsys.readouterr().out.splitlines() == [
        "demo: usually ready after 3.0 s",
        "demo: starting: launched (at most 5 min 0 s)",
        "demo: starting: its watchdog is about to start",
    ]
