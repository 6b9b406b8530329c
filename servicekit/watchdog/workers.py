"""The processes that an engine had when it became ready, beside its leader: each by a pidfd."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from servicekit.host import procfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from servicekit.host.facts import Process
    from servicekit.host.procfs import ProcessReader, Stat

HELPER: Final = b"multiprocessing.resource_tracker"
"""In the command line of a process of Python's own, which works for no request."""


class Workers:
    """Calls `exited` with each worker that ends; `memory` reads their command lines."""

    def __init__(self, memory: ProcessReader, exited: Callable[[Process], None]) -> None:
        self._memory = memory
        self._exited = exited
        self._pidfds: set[int] = set()
        self._had_any = False
        self._helpers: set[tuple[int, int]] = set()

    def watch(self, members: Iterable[Stat]) -> None:
        """Watch each of `members` that still lives and works."""
        for member in members:
            path = f"/proc/{member.pid}/cmdline"
            if HELPER in self._memory.read([path]).get(path, b""):
                self._helpers.add((member.pid, member.started))
                continue
            self._had_any = True
            with suppress(OSError):  # it has ended, or no descriptor is free
                pidfd = os.pidfd_open(member.pid)
                self._pidfds.add(pidfd)
                now = procfs.stat(member.pid)
                if now is None or now.started != member.started:
                    self._drop(pidfd)
                    continue
                process = self._memory.describe(member)
                asyncio.get_running_loop().add_reader(pidfd, self._readable, pidfd, process)

    def _readable(self, pidfd: int, process: Process) -> None:
        self._drop(pidfd)
        self._exited(process)

    def _drop(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        self._pidfds.discard(pidfd)
        os.close(pidfd)

    def left_alone(self, leader: int, members: Iterable[Stat]) -> bool:
        """Return whether of an engine that had workers only the leader is left."""
        helpers = self._helpers
        others = (each for each in members if each.pid != leader)
        return self._had_any and all((each.pid, each.started) in helpers for each in others)

    def close(self) -> None:
        """Watch none of them any more."""
        for pidfd in tuple(self._pidfds):
            self._drop(pidfd)
