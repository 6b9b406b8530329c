"""Processes in /proc: who they are, by pid and start time, and what they hold.

One read of /proc/PID/stat answers most questions at once (state, parent, session, start time in
ticks, threads), and still does for a zombie leader whose threads live on. The rest of a
process is read with care: its command line and environment lie in its own memory, and a thread that
is stuck in a driver with the memory map locked makes every reader of them wait with it. psutil
would wait, too, so it answers only what cannot block: memory and mounts.
"""

from __future__ import annotations

import os
import pwd
import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from servicekit.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from servicekit.host.facts import Process


TICKS: Final = os.sysconf("SC_CLK_TCK")  # ticks per second of start times and CPU times
READ_LIMIT: Final = 0.5
"""Seconds that the memory of one process may take to be read; a healthy one takes microseconds."""
COMMAND_LENGTH: Final = 120  # characters of a command line that are shown

LONGEST_COMMAND: Final = 4096  # bytes of a command line that are looked at
_SECRET: Final = re.compile(r"key|token|secret|password|passwd|credential", re.IGNORECASE)


class Stat(NamedTuple):
    """One line of /proc/PID/stat: a tuple, since a survey of a busy host makes thousands."""

    pid: int
    name: str
    state: str  # one letter: `R`, `S`, `D` (uninterruptible), `Z` (zombie), `T` (stopped) …
    parent: int
    group: int
    session: int
    threads: int
    started: int  # ticks since boot
    cpu: int  # ticks of CPU time, its own and that of the children it has waited for

    @property
    def alive(self) -> bool:
        """Whether any of it still runs: a zombie leader may have threads that do."""
        return self.state not in "ZX" or self.threads > 1


def without_secrets(line: str) -> str:
    """Return a command line without the values of what its options call a key, token or password.

    Each word is looked at once, so that a command line made to be slow is not.
    """
    shown: list[str] = []
    hide_next = False
    for word in line.split(" "):
        name = _SECRET.search(word)
        end = word.find("=", name.end()) + 1 if name else 0
        if hide_next and word:
            shown.append("...")
            hide_next = False
        elif 0 < end < len(word):
            shown.append(f"{word[:end]}...")
        else:
            shown.append(word)
            hide_next = hide_next or name is not None
    return " ".join(shown)


def stat(pid: int) -> Stat | None:
    """Read one process; `None` when there is none (any more)."""
    return _stat(f"/proc/{pid}/stat")


def is_alive(pid: int, started: int) -> bool:
    """Whether the process `pid` that began at `started` (ticks since boot) still lives."""
    process = stat(pid)
    return process is not None and process.started == started and process.alive


def _stat(path: str) -> Stat | None:
    try:
        line = _read(path)
    except OSError:
        return None
    head, _, tail = line.rpartition(b")")
    pid, _, name = head.partition(b" (")
    rest = tail.split()
    return Stat(
        pid=int(pid),
        name=name.decode(errors="replace"),
        state=rest[0].decode(),
        parent=int(rest[1]),
        group=int(rest[2]),
        session=int(rest[3]),
        threads=int(rest[17]),
        started=int(rest[19]),
        cpu=sum(map(int, rest[11:15])),
    )


def _read(path: str) -> bytes:
    """Read a small file of /proc in a third of the time that a file object takes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        pieces = []
        while piece := os.read(descriptor, 1 << 16):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def snapshot() -> dict[int, Stat]:
    """Read every process of this pid namespace, by pid."""
    stats = (stat(pid) for pid in pids())
    return {seen.pid: seen for seen in stats if seen is not None}


def pids() -> Iterator[int]:
    """Name every process of this pid namespace."""
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208 - ten times faster than iterdir


def threads(pid: int) -> tuple[int, ...]:
    """Name the threads of a process, its leader among them."""
    try:
        return tuple(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - as above
    except OSError:
        return ()


def stuck(process: Stat) -> bool:
    """Return whether a thread of it is in uninterruptible sleep, where no signal reaches it."""
    return process.state == "D" or "D" in thread_states(process.pid)


def thread_states(pid: int) -> frozenset[str]:
    """Return the states of its threads, as the kernel names them."""
    stats = (_stat(f"/proc/{pid}/task/{thread}/stat") for thread in threads(pid))
    return frozenset(seen.state for seen in stats if seen is not None)


def children(parent: int, among: Iterable[Stat]) -> Iterator[Stat]:
    """Pick the direct children of `parent`."""
    return (process for process in among if process.parent == parent)


def descendants(roots: Iterable[int], among: Mapping[int, Stat]) -> set[int]:
    """Pick every process below `roots`, and those of `roots` that are there themselves."""
    below: dict[int, list[int]] = {}
    for process in among.values():
        below.setdefault(process.parent, []).append(process.pid)
    pids: set[int] = set()
    look = [pid for pid in roots if pid in among]
    while look:
        pid = look.pop()
        if pid not in pids:
            pids.add(pid)
            look.extend(below.get(pid, ()))
    return pids


def links(pid: int) -> Iterator[str]:
    """Yield what the open files of a process point to, such as `socket:[4711]` or `/dev/nvidia0`.

    A leader that is a zombie shows none of its own, while its threads still hold them.
    """
    listed = False
    for link in _links(f"/proc/{pid}/fd"):
        listed = True
        yield link
    if not listed:
        for thread in threads(pid):
            yield from _links(f"/proc/{pid}/task/{thread}/fd")


def _links(directory: str) -> Iterator[str]:
    with suppress(OSError):
        for name in os.listdir(directory):  # noqa: PTH208 - as above
            with suppress(OSError):
                yield os.readlink(f"{directory}/{name}")  # noqa: PTH115 - as above


def io_bytes(pid: int) -> int:
    """Bytes that a process has read and written, from disk or not; 0 where that may not be read."""
    try:
        lines = _read(f"/proc/{pid}/io").split()
    except OSError:
        return 0
    figures = dict(zip(lines[::2], map(int, lines[1::2]), strict=True))
    # Model files are mapped: what page faults read is in read_bytes alone.
    return figures[b"rchar:"] + figures[b"wchar:"] + figures[b"read_bytes:"]


def run_delay(pid: int) -> float:
    """Seconds that the threads of a process wanted a CPU and did not get one."""
    waited = 0
    for thread in threads(pid):
        with suppress(OSError):  # it has ended, or the kernel does not count
            waited += int(_read(f"/proc/{pid}/task/{thread}/schedstat").split()[1])
    return waited / 1e9


def user(pid: int) -> str:
    """Name the account that a process runs as; its number where it has no name."""
    try:
        status = _read(f"/proc/{pid}/status")
    except OSError:
        return "?"
    return account(int(status.partition(b"\nUid:")[2].split(None, 1)[0]))


def account(uid: int) -> str:
    """Name an account; its number where it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


class ProcessReader:
    """Reads command lines and environments without making the caller wait for long.

    A daemon thread reads; when it does not come back, the process that it waits for is not read
    again, and the thread is left behind: its wait ends with that process or with ours.
    """

    def __init__(self) -> None:
        self._unreadable: set[str] = set()

    def read(self, paths: Sequence[str]) -> dict[str, bytes]:
        """Read files below /proc; one that cannot be read is left out."""
        contents: dict[str, bytes] = {}
        left = [path for path in paths if path not in self._unreadable]
        while left:
            unread = self._read(left, contents)
            if unread is None:
                break
            self._unreadable.add(left[unread])
            left = left[unread + 1 :]
        return contents

    @staticmethod
    def _read(paths: Sequence[str], contents: dict[str, bytes]) -> int | None:
        """Read `paths` in order; return the index of the one that does not come back."""
        done = 0

        def read_all() -> None:
            nonlocal done
            for path in paths:
                with suppress(OSError):
                    contents[path] = _read(path)
                done += 1

        reader = threading.Thread(target=read_all, name="proc", daemon=True)
        reader.start()
        while reader.is_alive():
            before = done
            reader.join(READ_LIMIT)
            if reader.is_alive() and done == before:
                return done
        return None

    def command(self, process: Stat) -> str:
        """Return a process's command line, short and without what looks secret."""
        path = f"/proc/{process.pid}/cmdline"
        words = self.read([path]).get(path, b"")[:LONGEST_COMMAND]
        words = words.rstrip(b"\0").replace(b"\0", b" ")
        line = " ".join(words.decode(errors="replace").split())
        if not line:
            return printable(f"[{process.name}]")
        # A process may call itself whatever it likes, and a terminal will show it.
        line = printable(without_secrets(line))
        return line if len(line) <= COMMAND_LENGTH else f"{line[: COMMAND_LENGTH - 3]}..."

    def describe(self, process: Stat, mib: int | None = None) -> Process:
        """Describe a process so that a person can find it again."""
        from servicekit.host.facts import Process

        return Process(
            pid=process.pid,
            started=process.started,
            user=user(process.pid),
            command=self.command(process),
            mib=mib,
            stuck=stuck(process),
        )
