"""Whose a process is, and what is left of earlier engines.

It is known by where the process comes from, strongest first: the control group of the engine, where
systemd delegated ours; descent from the leader, since the watchdog is the subreaper of whatever
detaches itself; the marker in its environment; what an earlier run wrote down while it was its
parent. A name decides nothing. A process is always meant by pid and start time, and checked again
before it is sent a signal.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from servicekit.host import procfs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from servicekit.host.facts import Process
    from servicekit.host.procfs import Stat

VARIABLE: Final = "SERVICEKIT_RUN"  # environment variable that carries the marker of a run
_SETTLED: Final = 5.0
"""Seconds of age after which a process without a marker is taken to stay so: it has executed."""


@dataclass(frozen=True, slots=True)
class Marker:
    """Whose a process is: of which run of which profile, kept where.

    `home` is the directory of the profile's ledger: two installations may each have a profile of
    the same name, and neither may sweep the other's engine.
    """

    profile: str
    run: str
    home: str

    @property
    def value(self) -> str:
        """What the variable is set to."""
        return f"{self.profile}:{self.run}:{self.home}"

    @classmethod
    def parse(cls, value: str) -> Self | None:
        """Read the variable's value; `None` when it is not one of ours."""
        pieces = value.split(":", 2)
        return cls(*pieces) if len(pieces) == 3 else None  # noqa: PLR2004 - profile, run, home

    def same_service(self, other: Marker) -> bool:
        """Whether both are runs of the same service."""
        return (self.profile, self.home) == (other.profile, other.home)


class Census:
    """The processes of this machine and their markers, which are read once.

    Make it before the first engine: a child that exists already belongs to no engine.
    """

    def __init__(self) -> None:
        self.memory = procfs.ProcessReader()
        self._markers: dict[tuple[int, int], Marker | None] = {}
        self._marked: tuple[Mapping[int, Stat], dict[int, Marker]] = {}, {}
        """The last processes whose markers were read, and those."""
        children = procfs.children(os.getpid(), self.look().values())
        self._before = {(child.pid, child.started) for child in children}

    def look(self) -> dict[int, Stat]:
        """Read every process, by pid."""
        return procfs.snapshot()

    def marked(self, processes: Mapping[int, Stat]) -> dict[int, Marker]:
        """Return the markers of those of `processes` that carry one that may be read.

        A zombie leader has no environment any more; while a thread of it lives, that has.
        """
        if processes is not self._marked[0]:
            self._marked = processes, self._read_markers(processes)
        return self._marked[1]

    def _read_markers(self, processes: Mapping[int, Stat]) -> dict[int, Marker]:
        known = {
            key: self._markers[key]
            for process in processes.values()
            if (key := (process.pid, process.started)) in self._markers
        }
        paths = {
            path: process
            for process in processes.values()
            if (process.pid, process.started) not in known
            for path in _environments(process)
        }
        contents = self.memory.read([*paths])
        # What may not be read is none of ours: an engine runs as the same account as we do.
        read: dict[tuple[int, int], Marker | None] = {}
        for path, process in paths.items():
            key = (process.pid, process.started)
            read[key] = read.get(key) or _marker_in(contents.get(path, b""))
        settled = (time.clock_gettime(time.CLOCK_BOOTTIME) - _SETTLED) * procfs.TICKS
        known |= {key: marker for key, marker in read.items() if marker or key[1] < settled}
        self._markers = known
        return {pid: marker for (pid, _), marker in known.items() if marker}

    def adopted(self, processes: Mapping[int, Stat]) -> set[int]:
        """Pick our children that engines left behind; our own helpers share our session."""
        session = os.getsid(0)
        return {
            child.pid
            for child in procfs.children(os.getpid(), processes.values())
            if child.session != session and (child.pid, child.started) not in self._before
        }

    def describe(self, process: Stat, mib: int | None = None) -> Process:
        """Describe a process so that a person can find it again."""
        return self.memory.describe(process, mib)


def _environments(process: Stat) -> Iterator[str]:
    if process.state not in "ZX":
        yield f"/proc/{process.pid}/environ"
    elif process.alive:
        for thread in procfs.threads(process.pid):
            yield f"/proc/{process.pid}/task/{thread}/environ"


def _marker_in(environment: bytes) -> Marker | None:
    name = f"{VARIABLE}=".encode()
    for entry in environment.split(b"\0"):
        if entry.startswith(name):
            return Marker.parse(entry[len(name) :].decode(errors="surrogateescape"))
    return None


def sweep(processes: Iterable[Stat | Process]) -> None:
    """SIGKILL each of `processes` that is still the one that was meant."""
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            pidfd = os.pidfd_open(process.pid)
            try:
                now = procfs.stat(process.pid)
                if now is not None and now.started == process.started:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)
