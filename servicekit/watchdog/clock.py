"""When something happened, by clocks that cannot be set: the boot's id, and the time since.

The wall clock can be set back or ahead by years, and is only shown.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

_LONGEST: Final = 1e11  # seconds; no host has been up for 3,000 years


class Dated(Protocol):
    """What carries the time of its writing."""

    @property
    def at(self) -> datetime:
        """Wall clock."""

    @property
    def boot_id(self) -> str:
        """The boot; empty where version 0.1 wrote it."""

    @property
    def boottime(self) -> float | None:
        """Seconds since the boot, suspends included; `None` where version 0.1 wrote it."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A time by all clocks."""

    at: datetime
    boot_id: str
    boottime: float | None = None


def now() -> Moment:
    """Read all clocks."""
    return Moment(datetime.now(UTC), boot_id(), boottime())


def boot_id() -> str:
    """Id of this boot of the (virtual) machine; empty where it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip().replace("-", "")
    except OSError:
        return ""


def pid_namespace() -> int | None:
    """Number of the namespace in which this process sees pids; `None` where that is hidden."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None


def boottime() -> float:
    """Seconds since this boot, suspends included."""
    return round(time.clock_gettime(time.CLOCK_BOOTTIME), 3)


def is_boottime(value: object) -> bool:
    """Whether it can be a time since a boot."""
    return isinstance(value, int | float) and value is not True and 0 <= value < _LONGEST


def seconds_between(earlier: Dated, later: Dated) -> float:
    """Seconds from one to the other: by the boot's clock within one boot, else by the wall's."""
    if earlier.boot_id == later.boot_id and None not in {earlier.boottime, later.boottime}:
        return (later.boottime or 0.0) - (earlier.boottime or 0.0)
    return (later.at - earlier.at).total_seconds()
