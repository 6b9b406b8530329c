"""Checks of the machine itself: its clocks, its shared memory. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from servicekit.doctor.answer import Answer, Checks, ok, seen, skip, warn
from servicekit.doctor.view import HostView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servicekit.doctor.view import SharedFile

GROUP: Final = "machine"
CHECKS: Final = Checks[HostView]()

STEP: Final = 5.0  # seconds; a smaller step of the wall clock is normal NTP correction
NAMED: Final = 3  # files that are listed by name


@CHECKS.add("clock", "clocks")
def clock(host: HostView) -> Answer:
    """The host was not suspended since boot, and its wall clock was not set."""
    clock = seen(host.clock)
    suspended, stepped = clock.suspended, clock.stepped
    if suspended >= 1:
        return warn(
            f"the host was suspended for {_duration(suspended)} since boot; CUDA may not "
            "survive that",
            "`systemctl mask sleep.target suspend.target hibernate.target` as root",
        )
    if stepped is not None and abs(stepped) > STEP:
        way = "ahead" if stepped > 0 else "back"
        return warn(
            f"the wall clock was set {way} by {_duration(abs(stepped))} since boot",
            "disable sleep in Windows" if host.wsl is not None
            else "once after a boot this is harmless; otherwise do not pause the virtual machine",
        )  # fmt: skip
    known = "" if stepped is None else "; its wall clock was not set"
    return ok(f"the host was not suspended since boot{known}")


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes > 1 else f"{seconds:.0f} s"


@CHECKS.add("shared-memory", "shared memory")
def shared_memory(host: HostView) -> Answer:
    """No engine left shared memory behind: it takes memory, and can fail the next start."""
    shared = seen(host.shared)
    left = [file for file in shared if file.used is False]
    if left:
        names = " ".join(f"/dev/shm/{file.name}" for file in left[:NAMED])  # noqa: S108 - for the remedy
        more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
        return warn(f"{_counted(left)} left by engines that have ended", f"`rm {names}`{more}")
    unknown = [file for file in shared if file.used is None]
    if unknown:
        return skip(f"{_counted(unknown)}, run as root to see whether they are in use")
    if shared:
        return ok(f"{_counted(shared)} of running engines")
    return ok("no engine has files in /dev/shm")


def _counted(files: Sequence[SharedFile]) -> str:
    size = sum(file.size for file in files) / (1 << 20)
    return f"{len(files)} file{'s' * (len(files) > 1)} in /dev/shm ({size:.0f} MiB)"
