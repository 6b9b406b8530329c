"""Xid events of the NVIDIA driver, from the kernel's log."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_KERNEL_RECORD: Final = 8192  # bytes of the kernel's longest record of one message


class Recovery(StrEnum):
    """What brings a GPU back after an Xid, as NVIDIA's catalog has it."""

    NONE = "none"
    RESTART_APP = "restart the program"
    RESET = "reset the GPU"
    REBOOT = "reboot the host"


RECOVERY: Final[Mapping[int, Recovery]] = {
    **dict.fromkeys((8, 11, 13, 25, 31, 32, 39, 40, 41, 68, 69, 94), Recovery.RESTART_APP),
    **dict.fromkeys(
        (46, 62, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158), Recovery.RESET
    ),
    79: Recovery.REBOOT,
}
"""By Xid; one that is not listed needs nothing, or only accompanies another one."""


@dataclass(frozen=True, slots=True)
class Xid:
    """One report."""

    code: int
    gpu: str  # UUID, or the PCI address as the kernel's log has it
    pid: int | None = None  # the process that it is about, where the kernel's log names one
    text: str = ""

    @property
    def recovery(self) -> Recovery:
        """What brings the GPU back."""
        return RECOVERY.get(self.code, Recovery.NONE)

    @property
    def named(self) -> str:
        """Name it: `Xid 79 on GPU 0000:03:00: GPU has fallen off the bus`."""
        return f"Xid {self.code} on GPU {self.gpu}" + (f": {self.text}" if self.text else "")


_XID: Final = re.compile(
    r"NVRM: Xid \(PCI:(?P<gpu>[0-9a-fA-F:.]+)\): (?P<code>\d+),?(?P<rest>.*)", re.DOTALL
)


_PID: Final = re.compile(r"pid='?(\d+)'?")


def xid_in(message: str) -> Xid | None:
    """Find an Xid in a message of the kernel's log."""
    match = _XID.search(message)
    if not match:
        return None
    pid = _PID.search(match["rest"])
    text = re.sub(r"^\s*pid=\S+ name=\S+\s*", "", match["rest"]).strip()
    return Xid(int(match["code"]), match["gpu"], int(pid[1]) if pid else None, text)


class KernelWatch:
    """Receives Xids from the kernel's log, from now on, within the running event loop."""

    def __init__(self, deliver: Callable[[Xid], object], *, log: str = "/dev/kmsg") -> None:
        """Open it; raise `OSError` where it may not be read."""
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._log = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._log, 0, os.SEEK_END)
        self._loop.add_reader(self._log, self._readable)

    def _readable(self) -> None:
        """Read one message; there may be more, and then this is called again."""
        # A broken pipe reports messages that were overwritten before we read them.
        with suppress(BlockingIOError, BrokenPipeError):
            record = os.read(self._log, _KERNEL_RECORD).decode(errors="replace")
            if xid := xid_in(record.partition(";")[2].partition("\n")[0]):
                self._deliver(xid)

    def close(self) -> None:
        """Stop reading."""
        self._loop.remove_reader(self._log)
        os.close(self._log)


def same_address(one: str, other: str) -> bool:
    """Return whether two PCI addresses are of one device, as 0000:03:00 and 00000000:03:00.0 do."""
    return _address(one) == _address(other)


def _address(text: str) -> list[int]:
    return [int(part, 16) for part in re.split(r"[:.]", text)[:3]]
