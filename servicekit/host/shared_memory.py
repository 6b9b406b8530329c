"""Files in shared memory that an engine's processes use, and leave behind when they are killed.

Nothing else removes such a file before the next boot, and one after the other they turn a crash
into a crash loop. No name says whose a file is: it is ours when a process of ours was seen to use
it, and it is younger than that process. A model that somebody keeps in memory was there before.
"""

from __future__ import annotations

import os
import re
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from servicekit.host import procfs

if TYPE_CHECKING:
    from collections.abc import Iterable

DIRECTORY: Final = "/dev/shm"  # noqa: S108 - where the kernel and libc keep it
_MAPPED: Final = re.compile(rb" (\d+) +(%b/[^/\n]+)$" % DIRECTORY.encode(), re.MULTILINE)
"""Inode and name at the end of a line of /proc/PID/maps."""


class SharedMemory:
    """Remembers which files of one engine are in shared memory."""

    def __init__(self, memory: procfs.ProcessReader) -> None:
        self._memory = memory
        self._older: set[int] = set()  # inodes of what was there before the engine
        self._ours: dict[str, int] = {}  # inodes by path

    def begin(self) -> None:
        """Note what is there before an engine is launched: it belongs to others."""
        with suppress(OSError), os.scandir(DIRECTORY) as entries:
            self._older = {entry.inode() for entry in entries}

    def look(self, pids: Iterable[int]) -> None:
        """Note the files that `pids` use and that are younger than the process that uses them."""
        for process in filter(None, map(procfs.stat, pids)):
            # Both clocks count the same seconds, and neither stands still in a sleep.
            since_boot = time.clock_gettime(time.CLOCK_BOOTTIME) - process.started / procfs.TICKS
            began = time.clock_gettime(time.CLOCK_REALTIME) - since_boot
            for path, inode in used_by([process.pid], self._memory).items():
                with suppress(OSError):
                    file = os.lstat(path)
                    ours = stat.S_ISREG(file.st_mode) and file.st_uid == os.geteuid()
                    if ours and file.st_ino == inode not in self._older and file.st_ctime >= began:
                        self._ours[path] = inode

    def clear(self) -> tuple[str, ...]:
        """Remove the noted files that no process uses; return their paths."""
        there = {path: inode for path, inode in self._ours.items() if _inode(path) == inode}
        self._ours = {}
        used = used_by(procfs.pids(), self._memory) if there else {}
        removed = []
        for path, inode in there.items():
            if used.get(path) != inode:
                with suppress(OSError):
                    os.unlink(path)  # noqa: PTH108 - a path of the kernel's, never worked on
                    removed.append(path)
        return tuple(removed)


def used_by(pids: Iterable[int], memory: procfs.ProcessReader) -> dict[str, int]:
    """Find the files in shared memory that `pids` have open or mapped: inodes by path."""
    pids = [*pids]
    links = {link for pid in pids for link in procfs.links(pid)}
    used = {path: _inode(path) for path in links if os.path.dirname(path) == DIRECTORY}  # noqa: PTH120 - a path of the kernel's
    maps = memory.read([f"/proc/{pid}/maps" for pid in pids])
    for inode, path in (match for text in maps.values() for match in _MAPPED.findall(text)):
        used[os.fsdecode(path)] = int(inode)
    return used


def _inode(path: str) -> int:
    """Inode of a path; 0 where it is gone, or was removed while it is in use."""
    try:
        return os.lstat(path).st_ino
    except OSError:
        return 0
