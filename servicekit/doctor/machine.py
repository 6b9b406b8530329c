"""Checks of the machine itself: its clocks, its shared memory. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from servicekit.doctor.answer import Answer, Inquiry, ok, skip, warn
from servicekit.doctor.view import HostView, Unseen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servicekit.doctor.view import SharedFile

GROUP: Final = "machine"

STEP: Final = 5.0
"""Seconds by which the wall clock must have been set for it to be worth telling: NTP moves it by
less at a time, once it is right."""
NAMED: Final = 3
"""Files that are named; of more, the number is told."""


def clock(host: HostView) -> Answer:
    """The host did not sleep, and its wall clock was not set."""
    if isinstance(host.clock, Unseen):
        return skip(host.clock.why)
    suspended, stepped = host.clock.suspended, host.clock.stepped
    if suspended >= 1:
        return warn(
            f"the host slept for {_duration(suspended)} since the boot, which CUDA may not survive",
            "`systemctl mask sleep.target suspend.target hibernate.target` as root",
        )
    if stepped is not None and abs(stepped) > STEP:
        way = "ahead" if stepped > 0 else "back"
        return warn(
            f"the wall clock was set {way} by {_duration(abs(stepped))} since the boot",
            "keep the PC from sleeping" if host.wsl is not None
            else "harmless once after a boot; else keep the virtual machine from being paused",
        )  # fmt: skip
    known = "" if stepped is None else ", and its wall clock was not set"
    return ok(f"the host did not sleep since the boot{known}")


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes > 1 else f"{seconds:.0f} s"


def shared_memory(host: HostView) -> Answer:
    """No engine that is gone left its shared memory behind."""
    if isinstance(host.shared, Unseen):
        return skip(host.shared.why)
    left = [file for file in host.shared if file.used is False]
    if left:
        names = " ".join(f"/dev/shm/{file.name}" for file in left[:NAMED])  # noqa: S108 - for the remedy
        more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
        return warn(f"{_told(left)} left behind by engines that are gone", f"`rm {names}`{more}")
    unknown = [file for file in host.shared if file.used is None]
    if unknown:
        return skip(f"{_told(unknown)}, and only root can tell whether they are in use")
    if host.shared:
        return ok(f"{_told(host.shared)} of engines that run")
    return ok("nothing of an engine in /dev/shm")


def _told(files: Sequence[SharedFile]) -> str:
    size = sum(file.size for file in files) / (1 << 20)
    return f"{len(files)} file{'s' * (len(files) > 1)} in /dev/shm ({size:.0f} MiB)"


INQUIRIES: Final = (
    Inquiry(
        "clock",
        "clocks",
        "The host did not sleep since the boot, and its wall clock made no jump.",
        clock,
    ),
    Inquiry(
        "shared-memory",
        "shared memory",
        "Nothing in /dev/shm belongs to an engine that is gone: it costs memory, and some engines "
        "fail over it at their next start.",
        shared_memory,
    ),
)
