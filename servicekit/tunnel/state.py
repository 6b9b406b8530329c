"""The state that a tunnel's service publishes. Disk."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Self

from servicekit.host import procfs, untrusted

FORMAT: Final = 1  # of the state file
LARGEST: Final = 64 * 1024  # bytes; a state file has less than one KiB

# The phases; after the last two the service has ended.
WAITING, CONNECTING, UP, DOWN, STOPPED = "waiting", "connecting", "up", "down", "stopped"


@dataclass(frozen=True, slots=True)
class TunnelState:
    """The content of `state.json`."""

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
    format: int = FORMAT
    servicekit: str = "0.1.0"  # version of the service; 0.1.0 wrote none

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read a state file's text; `None` where it is invalid; unknown keys are ignored."""
        names = {field.name for field in fields(cls)}
        try:
            data = {name: value for name, value in untrusted.parse(text).items() if name in names}
            untrusted.refuse_misfit(data, _SCHEMA)
            return cls(**data)
        except (ValueError, TypeError):
            return None

    @property
    def is_alive(self) -> bool:
        return procfs.is_alive(self.pid, self.pid_started)


def _is_time(value: object) -> bool:
    return value == "" or bool(untrusted.moment(value))


_SCHEMA: Final = {
    **dict.fromkeys(("tunnel", "phase", "why", "remedy", "servicekit"), untrusted.is_text),
    **dict.fromkeys(("pid", "pid_started", "ssh_pid", "ssh_started", "format"), untrusted.is_count),
    "since": _is_time,
    "cause": untrusted.optional(untrusted.is_text),
    "faults": untrusted.is_count,
    "failed_at": untrusted.is_number,
    "code": untrusted.optional(untrusted.is_count),
}


def read_state(path: Path) -> TunnelState | None:
    try:
        return TunnelState.parse(untrusted.read(path, limit=LARGEST))
    except OSError:
        return None


def sweep_ssh(path: Path) -> None:
    """Kill an ssh that outlived its service and still holds the port.

    That happens under Supervisor only: systemd kills the whole control group. A file names a pid,
    so it is trusted only if no other account can have written it, and only a
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
    try:
        with untrusted.directory(path.parent) as within:
            opened = untrusted.open_at(within, path.name, limit=LARGEST)
            with os.fdopen(opened, encoding="utf-8", errors="replace") as file:
                owners = {os.fstat(within).st_uid, os.fstat(opened).st_uid}
                return TunnelState.parse(file.read()) if owners == {os.geteuid()} else None
    except OSError:
        return None
