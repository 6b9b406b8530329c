"""What a tunnel's service publishes: how the tunnel is, and why. Disk."""

from __future__ import annotations

import json
import os
import signal
import stat
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from servicekit.host import procfs, untrusted

LARGEST: Final = 64 * 1024  # bytes; a state file has less than one KiB

# The phases; after the last two its service has ended.
WAITING, CONNECTING, UP, DOWN, STOPPED = "waiting", "connecting", "up", "down", "stopped"


@dataclass(frozen=True, slots=True)
class TunnelState:
    """The published state, as its `state.json` holds it."""

    tunnel: str
    phase: str
    since: str  # when it entered the phase, ISO 8601 in UTC
    pid: int  # of the service
    pid_started: int  # its start time in clock ticks since boot: whether it still lives
    ssh_pid: int = 0
    ssh_started: int = 0
    cause: str | None = None  # why it is not up, or was not when it was last tried
    why: str = ""
    remedy: str = ""
    faults: int = 0  # consecutive ones, up to now
    failed_at: float = 0.0  # when the last of them was, on the monotonic clock of this boot
    code: int | None = None  # exit code, once the service has ended

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read a state file's text; `None` where it is none, unknown keys are passed over."""
        names = {field.name for field in fields(cls)}
        try:
            data: dict[str, Any] = json.loads(text)
            return cls(**{name: value for name, value in data.items() if name in names})
        except (ValueError, TypeError, AttributeError):
            return None

    @property
    def is_alive(self) -> bool:
        """Whether the service that published this still runs."""
        stat = procfs.stat(self.pid)
        return stat is not None and stat.started == self.pid_started and stat.alive


def read_state(path: Path) -> TunnelState | None:
    """Read a state file; `None` where there is none."""
    try:
        return TunnelState.parse(untrusted.read(path))
    except OSError:
        return None


def sweep_ssh(path: Path) -> None:
    """Kill an ssh that outlived its service and still holds the port.

    That happens under Supervisor only: systemd kills the whole control group. A file names a pid,
    so it is believed only where nobody but the calling account can have written it, and only a
    process of that account is killed. Root never acts on a file of the tunnel's account.
    """
    state = _own_state(path)
    if state is None or state.is_alive or not state.ssh_pid:
        return
    with suppress(OSError):
        pidfd = os.pidfd_open(state.ssh_pid)
        try:
            # While the descriptor is open, the pid belongs to no other process.
            process = procfs.stat(state.ssh_pid)
            owner = Path(f"/proc/{state.ssh_pid}").stat().st_uid
            if process and process.started == state.ssh_started and owner == os.geteuid():
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def _own_state(path: Path) -> TunnelState | None:
    """Read a state file that the calling account wrote, below a directory of its own."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with ExitStack() as opened:
        try:
            folder = os.open(path.parent, flags | os.O_DIRECTORY)
            opened.callback(os.close, folder)
            file = os.open(path.name, flags, dir_fd=folder)
            opened.callback(os.close, file)
        except OSError:
            return None
        about = os.fstat(file)
        mine = os.fstat(folder).st_uid == about.st_uid == os.geteuid()
        if not mine or not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
            return None
        return TunnelState.parse(os.read(file, LARGEST).decode(errors="replace"))
