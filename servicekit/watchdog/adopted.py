"""Adopted processes, recorded from run to run. Disk.

Where no control group holds an engine together, a process that has left its session and cleared its
environment is known as ours only because it became our child. That is lost when the watchdog is
killed. So each such process is recorded while it lives, by pid and start time, for the next run
to end it. Healthy engines leave none, and then there is no file.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from servicekit import __version__
from servicekit.host import untrusted
from servicekit.host.files import replace

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from servicekit.host.procfs import Stat

FORMAT: Final = 1  # of the file
ProcessKey: TypeAlias = tuple[int, int]
"""Pid, and start time in ticks since boot: what no other process has before the next boot."""


class AdoptedProcesses:
    """The processes that a service's runs have recorded in the file at `path`.

    `boot_id` and `pid1_started` name the machine, and the container on it, to which pids and start
    times belong: a record of another one means no process here.
    """

    def __init__(self, path: Path, *, boot_id: str, pid1_started: int) -> None:
        self._path = path
        with suppress(OSError):  # the name that version 0.1 gave it
            path.with_name("kin.json").rename(path)
        self._of = {"boot_id": boot_id, "pid1_started": pid1_started}
        self.known = self._written = self._read()  # those of earlier runs, alive or dead

    def _read(self) -> frozenset[ProcessKey]:
        try:
            record = untrusted.parse(untrusted.read(self._path))
            pairs = record["processes"]
            if not isinstance(pairs, list) or not all(map(_is_key, pairs)):
                return frozenset()
            keys = frozenset((pid, started) for pid, started in pairs)
            here = {name: record[name] for name in self._of} == self._of
        except (OSError, ValueError, KeyError):
            return frozenset()
        return keys if here else frozenset()

    def among(self, processes: Iterable[Stat]) -> set[int]:
        """Pick the pids of those of `processes` that earlier runs have recorded."""
        return {
            process.pid for process in processes if (process.pid, process.started) in self.known
        }

    def remember(self, processes: Iterable[Stat]) -> None:
        """Record `processes` where they have changed.

        A file is replaced as a whole. It need not reach the disk, since no process outlives the
        machine; one that cannot be written is tried again the next time.
        """
        keys = frozenset((process.pid, process.started) for process in processes)
        if keys == self._written:
            return
        with suppress(OSError):
            if keys:
                version = {"format": FORMAT, "servicekit": __version__}
                text = json.dumps({**version, **self._of, "processes": sorted(keys)})
                replace(self._path, f"{text}\n")
            else:
                self._path.unlink(missing_ok=True)
            self._written = keys


def _is_key(value: object) -> bool:
    # A pid and a start time.
    return isinstance(value, list) and len(value) == 2 and all(map(untrusted.is_count, value))  # noqa: PLR2004
