"""A row of the fault matrix as a value: what is injected, and what is to become of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from faults.stage import Stage

BARE, SUPERVISORD, SYSTEMD = "bare", "supervisord", "systemd"
MANAGERS = (BARE, SUPERVISORD, SYSTEMD)
"""What runs the watchdog: the test itself as its parent, or a real service manager."""


@dataclass(frozen=True)
class Ready:
    """It is ready, and stays so: nothing is degraded, nothing is killed."""

    hold: float = 0.0
    """Seconds after the injection that it is watched for."""


@dataclass(frozen=True)
class Degraded:
    """It is degraded for a reason, and goes on serving."""

    reason: str
    within: float
    """Seconds from the injection."""
    says: str = ""
    """Regular expression that is found in what it says of why."""
    hold: float = 0.0
    """Seconds that it is watched for after that: it must not be killed."""
    recovers: bool = False
    """It is ready again after that, within the row's patience."""


@dataclass(frozen=True)
class Failed:
    """The run ends by a fault."""

    cause: str
    code: int | None
    """Of the run's end: 75 restart me, 69 and 78 do not, `None` where it could not end itself."""
    within: float
    """Seconds from the injection to the fault."""
    says: str = ""
    again: str = ""
    """Of a run that is restarted: the cause that the next run ends by; none when it is ready."""


@dataclass(frozen=True)
class Stopped:
    """It is stopped, by `cause`, with nothing left, within `within` seconds."""

    within: float
    cause: str = "stop-requested"
    says: str = ""


Expected = Ready | Degraded | Failed | Stopped


@dataclass(frozen=True)
class Row:
    """One fault."""

    name: str
    injected: str
    """What is done, in words, for the table."""
    expect: Expected
    engine: str = "openai"
    script: Mapping[str, Any] = field(default_factory=dict)
    """What the fake engine plays from its start (see `fake_engine.py`)."""
    act: Callable[[Stage], None] | None = None
    """What is done once it is ready; without, the fault is there from the start."""
    loading: Callable[[Stage], None] | None = None
    """What is done while it loads."""
    before: Callable[[Stage], None] | None = None
    """What is done before the service is started."""
    check: Callable[[Stage], str] | None = None
    """What else must hold at the end: says what does not."""
    profile: Mapping[str, Any] = field(default_factory=dict)
    """Keys laid over those that all rows have."""
    gpu: bool = False
    """It has a GPU, whose driver is a fake one too."""
    vram: int = 20000
    """MiB that the engine holds of it."""
    real: bool = False
    """Its engine is a real one, llama.cpp's, which cannot be told what to play."""
    unwritten: bool = False
    """Its history is not written at first: that it is ready must be heard."""
    alone: str = ""
    """It has a manager of its own, which ends or crashes: systemd takes its machine for this.

    Where the test is the manager, it is played when no other row is.
    """
    launcher: tuple[str, ...] = ()
    """What the watchdog is started by, where the test itself is its manager."""
    managers: tuple[str, ...] = MANAGERS
    """Under what it can be run."""
    quick: tuple[str, ...] = (BARE,)
    """Under what it is run in `make test`."""


@dataclass
class Outcome:
    """What became of a row under one manager; the columns of the table."""

    row: Row
    manager: str
    detected: float | None = None
    """Seconds from the injection to what was expected."""
    shown: str = ""
    """State, with the cause or reason."""
    view: str = ""
    """The manager's own words at that time."""
    restarted: str = ""
    renewed: float | None = None
    """Seconds from the fault to the next engine's process."""
    left: str = ""
    """What was still there when it was over."""
    wrong: list[str] = field(default_factory=list)
    """Where it was not as expected."""
