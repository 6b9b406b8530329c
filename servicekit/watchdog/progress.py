"""Signs that a loading engine makes progress: CPU time, bytes read and written, downloads."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from servicekit.watchdog.events import Sign

if TYPE_CHECKING:
    from pathlib import Path

    from servicekit.host.facts import Activity


BUSY_CPU: Final = 0.1  # part of one core that is work; less is a heartbeat
BUSY_IO: Final = 1 << 20  # bytes per second that are work; less is a heartbeat
STILL_CPU: Final = 0.05
"""Part of one core below which an engine does nothing: idle ones take 0.02, working ones 0.88."""
STARVED: Final = 0.5
"""Part of one core that an engine must miss, and not get, for it not to have had its chance."""
STILL_IO: Final = 1 << 16
"""Bytes per second below which it reads and writes nothing: an answer to a question is 1.4 kB."""


def stands_still(before: Activity, now: Activity, seconds: float) -> bool:
    """Return whether an engine did nothing, and could have, in the `seconds` between two looks."""
    cpu = now.cpu_seconds - before.cpu_seconds + now.run_delay - before.run_delay
    io = now.io_bytes - before.io_bytes
    return cpu <= STILL_CPU * seconds and io <= STILL_IO * seconds


def starved(before: Activity, now: Activity, seconds: float) -> bool:
    """Return whether an engine wanted to run, and did not get the CPU, between two looks.

    More spinning threads than cores wait, too, but together use whole cores.
    """
    cpu = now.cpu_seconds - before.cpu_seconds
    return now.run_delay - before.run_delay >= STARVED * seconds and cpu < STARVED * seconds


def signs(before: Activity, now: Activity, seconds: float) -> tuple[Sign, ...]:
    """Return the signs of progress in the `seconds` between two readings."""
    cpu = now.cpu_seconds - before.cpu_seconds
    io = now.io_bytes - before.io_bytes
    return tuple(
        sign
        for sign, busy in (
            (Sign.CPU, cpu >= BUSY_CPU * seconds),
            (Sign.IO, io >= BUSY_IO * seconds),
        )
        if busy
    )


def download_bytes(cache: Path) -> int:
    """Add up the bytes of files that Hugging Face's client is downloading below `cache` (HF_HOME).

    It grows while a file comes in and falls when one is complete: any change is progress.
    """
    total = 0
    for file in cache.glob("hub/*/blobs/*.incomplete"):
        with suppress(OSError):
            total += file.stat().st_blocks * 512
    return total
