"""What a tunnel's service publishes: how the tunnel is, and why. Disk."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from servicekit.host import procfs
from servicekit.watchdog.engine import sweep

WAITING, CONNECTING, UP, DOWN, STOPPED = "waiting", "connecting", "up", "down", "stopped"
"""The phases; after the last two its service has ended."""


@dataclass(frozen=True, slots=True)
class State:
    """The published state, as its `state.json` holds it."""

    tunnel: str
    phase: str
    since: str
    """When it entered the phase, ISO 8601 in UTC."""
    pid: int
    """Of the service."""
    pid_started: int
    """Its start time in clock ticks since boot: whether it still lives."""
    ssh_pid: int = 0
    ssh_started: int = 0
    cause: str | None = None
    """Why it is not up, or was not when it was last tried."""
    why: str = ""
    remedy: str = ""
    faults: int = 0
    """Consecutive ones, up to now."""
    failed_at: float = 0.0
    """When the last of them was, on the monotonic clock of this boot."""
    code: int | None = None
    """Exit code, once the service has ended."""

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


def read_state(path: Path) -> State | None:
    """Read a state file; `None` where there is none."""
    try:
        return State.parse(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def sweep_ssh(path: Path) -> None:
    """End an ssh that outlived the service of a state file, as it does under Supervisor.

    It would hold the port for ever. Only a process of the file's owner is meant: whoever may write
    the file must not be able to have root kill something for him.
    """
    state = read_state(path)
    if state is None or state.is_alive or not state.ssh_pid:
        return
    stat = procfs.stat(state.ssh_pid)
    with suppress(OSError):
        owner = Path(f"/proc/{state.ssh_pid}").stat().st_uid
        if stat and stat.started == state.ssh_started and owner == path.stat().st_uid:
            sweep([stat])
