"""What can be seen of any service from outside: its engine's processes, and what they cost."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from servicekit.host import procfs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from servicekit.host.procfs import Stat

TOKEN: Final = "BENCHMARK"  # noqa: S105 - a variable's name
"""Environment variable by which everything that an engine starts is found again."""
ENGINE: Final = b"fake_engine.py"
ORPHAN: Final = b"fake-orphan"
FRESH: Final = 0.1
"""Seconds for which one look at all processes is good enough for everybody: that when one was
started is told by the kernel, to its tick of 10 ms, and not by when it was seen."""
YOUNG: Final = 5.0
"""Seconds of age up to which a process may still become another program."""


def boot_time() -> float:
    """Seconds since boot: the clock of processes' start times."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Processes:
    """Finds the living processes of each token."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = 0.0
        self._known: dict[tuple[int, int], tuple[str, bytes]] = {}
        self._found: dict[str, list[tuple[Stat, bytes]]] = {}

    def engines(self, token: str) -> list[Stat]:
        """The engines of `token`, newest last; there is one, where all is well."""
        return [stat for stat, command in self._of(token) if ENGINE in command]

    def orphans(self, token: str, before: float) -> list[Stat]:
        """What has detached itself from engines that were started before (seconds since boot)."""
        engines = {engine.pid for engine in self.engines(token)}
        return [
            stat
            for stat, command in self._of(token)
            if ORPHAN in command and stat.parent not in engines and started(stat) < before
        ]

    def _of(self, token: str) -> list[tuple[Stat, bytes]]:
        with self._lock:
            if time.monotonic() - self._at > FRESH:
                self._look()
                self._at = time.monotonic()
            return self._found.get(token, [])

    def _look(self) -> None:
        found: dict[str, list[tuple[Stat, bytes]]] = {}
        known: dict[tuple[int, int], tuple[str, bytes]] = {}
        settled = boot_time() - YOUNG
        for stat in sorted(procfs.snapshot().values(), key=lambda stat: stat.started):
            key = stat.pid, stat.started
            told = self._known.get(key) or _told(stat.pid)
            if told[0] or started(stat) < settled:
                known[key] = told
            if told[0] and stat.alive:
                found.setdefault(told[0], []).append((stat, told[1]))
        self._known, self._found = known, found


def _told(pid: int) -> tuple[str, bytes]:
    """Read a process's token, empty where it has none, and its command line."""
    with suppress(OSError):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        for entry in environment:
            name, _, value = entry.partition(b"=")
            if name == TOKEN.encode():
                return value.decode(), Path(f"/proc/{pid}/cmdline").read_bytes()
    return "", b""


def started(stat: Stat) -> float:
    """When a process was started, in seconds since boot."""
    return stat.started / procfs.TICKS


def memory(pids: Iterable[int]) -> tuple[float, float]:
    """Memory of processes in MiB: resident, and with shared pages divided among who shares them."""
    resident = divided = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        resident += kib["Rss"]
        divided += kib["Pss"]
    return resident / 1024, divided / 1024


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time that processes have used, with that of children they have waited for."""
    stats = (procfs.stat(pid) for pid in pids)
    return sum(stat.cpu for stat in stats if stat is not None) / procfs.TICKS


def below(root: int, without: Iterable[int] = ()) -> set[int]:
    """A process and its descendants; none of `without`, and nothing below those."""
    processes = procfs.snapshot()
    spared = procfs.descendants(without, processes)
    return procfs.descendants([root], processes) - spared
