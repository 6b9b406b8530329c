"""The engine's processes: launched, watched, counted, killed, and what is left of earlier ones.

Whose a process is, is known by where it comes from, strongest first: the control group of the
engine, where systemd delegated ours; descent from the leader, since the watchdog is the subreaper
of whatever detaches itself; the marker in its environment; what an earlier run wrote down while it
was its parent. A name decides nothing. A process is always meant by pid and start time, and looked
at again before it is sent a signal.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from servicekit.host import cgroups, procfs
from servicekit.host.child import Child, inherited
from servicekit.host.facts import Process
from servicekit.host.sockets import _refused, held_by, listeners
from servicekit.watchdog.events import Sign

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from servicekit.host.child import ExitStatus
    from servicekit.host.procfs import Stat
    from servicekit.watchdog.adopted import AdoptedProcesses

VARIABLE: Final = "SERVICEKIT_RUN"
"""Environment variable that carries the marker of a run."""
SHELL: Final = "/bin/sh"
PIPE_SIZE: Final = 1 << 20
"""Bytes of output that an engine may be ahead of us: the most that an ordinary user may ask for."""
LINE_LENGTH: Final = 16 * 1024
"""Bytes after which a line of output is broken."""
_SETTLED: Final = 5.0
"""Seconds of age after which a process without a marker is taken to stay so: it has executed."""
_KILL_ROUNDS: Final = 5
"""Looks for processes that were forked while we were killing."""
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def become_subreaper() -> None:
    """Become the parent of every descendant that loses its own, so that none escapes us."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def stop_with(parent: int) -> None:
    """Be sent a SIGTERM when `parent`, which started us, ends: nobody else would stop us then."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option} failed")


def delegated_cgroup() -> Path | None:
    """Take over our unit's control group, where systemd delegated it; else `None`."""
    return cgroups.delegated()


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
        """Tell whether both are runs of one and the same service."""
        return (self.profile, self.home) == (other.profile, other.home)


@dataclass(frozen=True, slots=True)
class Activity:
    """What an engine's processes have done so far."""

    cpu_seconds: float = 0.0
    io_bytes: int = 0


BUSY_CPU: Final = 0.1
"""Part of one core that is work; less is a heartbeat."""
BUSY_IO: Final = 1 << 20
"""Bytes per second that are work; less is a heartbeat."""


def signs(before: Activity, now: Activity, seconds: float) -> tuple[Sign, ...]:
    """Tell what shows that an engine got on in the `seconds` between two looks."""
    cpu = now.cpu_seconds - before.cpu_seconds
    io = now.io_bytes - before.io_bytes
    return tuple(
        sign
        for sign, busy in (
            (Sign.CPU, cpu >= BUSY_CPU * seconds),
            (Sign.IO, io >= BUSY_IO * seconds),
        )
        if busy
    )


def download_bytes(cache: Path) -> int:
    """Add up the bytes of files that Hugging Face's client is downloading below `cache` (HF_HOME).

    It grows while a file comes in and falls when one is complete: any change is progress.
    """
    total = 0
    for file in cache.glob("hub/*/blobs/*.incomplete"):
        with suppress(OSError):
            total += file.stat().st_blocks * 512
    return total


class LineSplitter:
    """Cuts an engine's output into lines; progress bars, which return instead, make lines too."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes; return the lines that they complete, without their ends."""
        *whole, self._rest = (
            (self._rest + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        )
        while len(self._rest) > LINE_LENGTH:
            whole.append(self._rest[:LINE_LENGTH])
            self._rest = self._rest[LINE_LENGTH:]
        return [line.decode(errors="replace") for line in whole if line]

    def end(self) -> list[str]:
        """Return what is left as the last line."""
        return self.feed(b"\n")


class Census:
    """Who runs on this machine, and whose marker each carries; remembers markers once read.

    Make it before the first engine: a child that is there already is none of an engine's.
    """

    def __init__(self) -> None:
        self.memory = procfs.ProcessReader()
        self._markers: dict[tuple[int, int], Marker | None] = {}
        self._marked: tuple[Mapping[int, Stat], dict[int, Marker]] = {}, {}
        """The last look whose markers were wanted, and those."""
        children = procfs.children(os.getpid(), self.look().values())
        self._before = {(child.pid, child.started) for child in children}

    def look(self) -> dict[int, Stat]:
        """Read every process anew, by pid."""
        return procfs.snapshot()

    def marked(self, processes: Mapping[int, Stat]) -> dict[int, Marker]:
        """Give the marker of each of `processes` that carries one that may be read.

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
        """Pick our children that engines left to us; our own helpers share our session."""
        session = os.getsid(0)
        return {
            child.pid
            for child in procfs.children(os.getpid(), processes.values())
            if child.session != session and (child.pid, child.started) not in self._before
        }

    def describe(self, process: Stat, mib: int | None = None) -> Process:
        """Give a process as a person must be able to find it again."""
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


class EngineProcess:
    """The leader of one engine, and the way to everything that it started."""

    def __init__(
        self, leader: Child, output: int, marker: Marker, census: Census, group: Path | None
    ) -> None:
        self.leader = leader
        self.output = output
        """Where its stdout and stderr are read, without blocking."""
        self.marker = marker
        self.group = group
        """Its control group, where ours was delegated."""
        self._census = census
        self._spent: dict[tuple[int, int], Activity] = {}
        self._activity = Activity()
        self._asked_to_end = False

    @classmethod
    def launch(
        cls,
        argv: Sequence[str],
        environment: Mapping[str, str],
        marker: Marker,
        *,
        census: Census,
        delegated: Path | None = None,
    ) -> Self:
        """Start an engine in a session of its own; raise `OSError` where it cannot be.

        `delegated` is what `delegated_cgroup` gave: the engine joins a group of its own in it
        before it executes. To be called from the main thread.
        """
        variables = inherited(environment)
        variables[VARIABLE] = marker.value
        # Engines give their processes titles; without this the title overwrites the environment,
        # and the marker with it.
        variables.setdefault("SPT_NOENV", "1")
        group = None
        words = [*argv]
        if delegated is not None:
            _require_executable(argv[0])
            group = cgroups.make_engine(delegated, marker.run)
            join = 'echo 0 >"$0"; exec "$@"'
            words = [SHELL, "-c", join, str(group / "cgroup.procs"), *argv]
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            os.set_blocking(reading, False)
            with suppress(OSError):
                fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
            leader = Child.spawn(words, variables, stdout=writing, stderr=writing, session=True)
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        return cls(leader, reading, marker, census, group)

    @property
    def pid(self) -> int:
        """Pid of the leader."""
        return self.leader.pid

    @property
    def pidfd(self) -> int:
        """Becomes readable when the leader is dead."""
        return self.leader.pidfd

    def poll(self) -> ExitStatus | None:
        """Reap the leader if it is dead; return its status from then on."""
        return self.leader.poll()

    def members(self, processes: Mapping[int, Stat] | None = None) -> dict[int, Stat]:
        """Find its living processes, by pid: one look, without reading their memory if possible.

        A zombie leader of which a thread still lives is one of them. `processes` is a look that
        was taken just now, where the caller has one.
        """
        processes = self._census.look() if processes is None else processes
        roots = self._census.adopted(processes)
        leader = processes.get(self.pid)
        if leader is not None and leader.started == self.leader.started:
            roots.add(self.pid)
        if self.group is not None:
            roots |= cgroups.members(self.group)
        roots |= {
            pid
            for pid, marker in self._census.marked(processes).items()
            if marker == self.marker and processes[pid].session != os.getsid(0)
        }
        found = procfs.descendants(roots, processes)
        return {pid: processes[pid] for pid in found if processes[pid].alive}

    def tree(self) -> tuple[Process, ...]:
        """Name its living processes."""
        return tuple(map(self._census.describe, self.members().values()))

    def terminate(self) -> None:
        """Ask it to end: the leader, and when asked again its whole process group.

        A leader drains what its workers are doing, for which they must not be ended first. What was
        stopped is let go on, since it could not end otherwise.
        """
        if self._asked_to_end:
            self._send_group(signal.SIGTERM)
        else:
            self.leader.send(signal.SIGTERM)
        self._asked_to_end = True
        self._send_group(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL its group, its control group and every other process of it."""
        self._send_group(signal.SIGKILL)
        if self.group is not None:
            cgroups.kill(self.group)
        killed: set[tuple[int, int]] = set()
        for _ in range(_KILL_ROUNDS):
            members = self.members().values()
            new = [member for member in members if (member.pid, member.started) not in killed]
            if not new:
                break
            sweep(new)
            killed |= {(member.pid, member.started) for member in new}

    def _send_group(self, number: int) -> None:
        # Until the leader is reaped its pid, and so the number of its group, cannot be another's.
        if self.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def activity(self, members: Iterable[Stat]) -> Activity:
        """Add up what its processes have done so far: figures that only ever grow.

        `members` are its living processes, looked at just now.
        """
        spent = {}
        for member in members:
            key = member.pid, member.started
            spent[key] = now = Activity(member.cpu / procfs.TICKS, procfs.io_bytes(member.pid))
            before = self._spent.get(key, Activity())
            self._activity = Activity(
                self._activity.cpu_seconds + max(0.0, now.cpu_seconds - before.cpu_seconds),
                self._activity.io_bytes + max(0, now.io_bytes - before.io_bytes),
            )
        self._spent = spent
        return self._activity

    def close(self) -> None:
        """Let go of the leader and of its output; remove its control group if that is empty."""
        self.leader.close()
        if self.output >= 0:
            os.close(self.output)
            self.output = -1
        if self.group is not None:
            cgroups.remove(self.group)


def _require_executable(program: str) -> None:
    """Raise what executing `program` would, before a shell turns it into an exit code."""
    if "/" in program and not os.access(program, os.X_OK):
        error = PermissionError if Path(program).exists() else FileNotFoundError
        raise error(f'"{program}" cannot be executed')


def reap_adopted(
    census: Census, engine: EngineProcess | None, processes: Mapping[int, Stat] | None = None
) -> tuple[int, ...]:
    """Reap what engines left to us and has died since; return the pids.

    The live engine's leader is left to its own `poll`, and our helpers to theirs. `processes` is a
    look that was taken just now, where the caller has one.
    """
    processes = census.look() if processes is None else processes
    reaped = []
    for pid in census.adopted(processes) - ({engine.pid} if engine is not None else set()):
        with suppress(ChildProcessError):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None:
                reaped.append(pid)
    return tuple(reaped)


def orphans(
    marker: Marker,
    *,
    census: Census,
    live: EngineProcess | None = None,
    delegated: Path | None = None,
    adopted: AdoptedProcesses | None = None,
    processes: Mapping[int, Stat] | None = None,
) -> tuple[Process, ...]:
    """Find what runs of this service left behind: of earlier ones and, without `live`, of this one.

    They carry a marker of this service, or are in an engine's group of our unit, or were left to
    us, or were written down by an earlier run (`adopted`), or descend from one of these. A process
    that carries another's marker is never among them. `processes` is a survey that was taken just
    now, where the caller has one.
    """
    processes = census.look() if processes is None else processes
    markers = census.marked(processes)
    roots = {pid for pid, found in markers.items() if found.same_service(marker)}
    for group in cgroups.engines(delegated) if delegated is not None else ():
        roots |= cgroups.members(group)
    roots |= census.adopted(processes)
    roots |= adopted.among(processes.values()) if adopted is not None else set()
    ours = procfs.descendants(roots, processes) - (
        live.members(processes).keys() if live else set()
    )
    session = os.getsid(0)
    return tuple(
        census.describe(processes[pid])
        for pid in sorted(ours)
        if processes[pid].alive
        and processes[pid].session != session
        and (pid not in markers or markers[pid].same_service(marker))
    )


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


# Sockets.


@dataclass(frozen=True, slots=True)
class PortHolder:
    """Who would answer a connection to a port."""

    ours: bool | None
    """Whether every socket that may be reached is the engine's; `None` when that is hidden."""
    process: Process | None = None
    """The first that is not the engine's."""

    @property
    def who(self) -> str:
        """Name that process."""
        return self.process.named if self.process else ""


def port_holder(
    host: str, port: int, engine: EngineProcess | None, census: Census
) -> PortHolder | None:
    """Find who listens on `host` and `port`; `None` when nobody does.

    A connection that is refused answers at once, while the kernel's table of sockets takes
    milliseconds to read, which is too much for a question that is asked ten times per second.
    """
    found = () if _refused(host, port) else listeners(host, port)
    if not found:
        return None
    members = engine.members() if engine is not None else {}
    unowned = [one for one in found if held_by(one.inode, members) is None]
    if not unowned:
        return PortHolder(ours=True)
    first = unowned[0]
    pid = held_by(first.inode, procfs.pids())
    process = procfs.stat(pid) if pid is not None else None
    if process is not None:
        return PortHolder(ours=False, process=census.describe(process))
    hidden = Process(pid=0, started=0, user=procfs.account(first.uid), command="")
    # A process of another account cannot be of our engine, even where its files are hidden.
    ours = None if members and first.uid == os.geteuid() else False
    return PortHolder(ours=ours, process=hidden)
