"""Values about processes and GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Process:
    """A process, described so that a person can find it again."""

    pid: int  # 0 for one that cannot be seen: of another account, or outside the container
    started: int
    """Start time in clock ticks since boot (field 22 of /proc/PID/stat): defeats reuse of pids."""
    user: str
    command: str
    mib: int | None = None  # VRAM it holds, where the driver reports it
    stuck: bool = False
    """In uninterruptible sleep, or a zombie leader whose threads are: no signal reaches it."""

    @property
    def named(self) -> str:
        """Name it: `pid 812 (alice, python train.py, 20480 MiB)`."""
        who = f"pid {self.pid}" if self.pid else "a process that is not visible from here"
        held = "" if self.mib is None else f"{self.mib} MiB"
        known = ", ".join(filter(None, (self.user, self.command, held)))
        return f"{who} ({known})" if known else who


@dataclass(frozen=True, slots=True)
class Activity:
    """What an engine's processes have done so far."""

    cpu_seconds: float = 0.0
    io_bytes: int = 0
    run_delay: float = 0.0  # seconds that they wanted a CPU and did not get one


class GpuView(StrEnum):
    """State of the profile's GPUs."""

    NOT_USED = "not-used"
    PRESENT = "present"
    ABSENT = "absent"  # no device, or the driver is not up (yet)
    UNRESPONSIVE = "unresponsive"  # a driver call did not return within its deadline
    LOST = "lost"  # the kernel or the driver says that only a reset or a reboot brings it back
