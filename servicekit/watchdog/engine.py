"""The engine's processes: launched, watched, counted and killed."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from servicekit.host import cgroups, procfs
from servicekit.host.child import Child, inherited
from servicekit.host.facts import Activity
from servicekit.watchdog.census import VARIABLE, sweep

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from servicekit.host.child import ExitStatus
    from servicekit.host.facts import Process
    from servicekit.host.procfs import Stat
    from servicekit.watchdog.adopted import AdoptedProcesses
    from servicekit.watchdog.census import Census, Marker

SHELL: Final = "/bin/sh"
PIPE_SIZE: Final = 1 << 20
"""Bytes of output that may wait in the pipe: the most that an ordinary user may set."""
_KILL_ROUNDS: Final = 5  # rounds of killing what was forked meanwhile
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def become_subreaper() -> None:
    """Become the parent of every descendant that loses its own, so that none escapes."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def stop_with(parent: int) -> None:
    """Set PR_SET_PDEATHSIG, so that we stop when `parent`, which is supervisord, dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option} failed")


class EngineProcess:
    """The leader of one engine, and everything that it started."""

    def __init__(
        self, leader: Child, output: int, marker: Marker, census: Census, group: Path | None
    ) -> None:
        self.leader = leader
        self.output = output  # where its stdout and stderr are read, without blocking
        self.marker = marker
        self.group = group  # its control group, where ours was delegated
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

        `delegated` is what `cgroups.delegated` gave: the engine joins a group of its own in it
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
        """Return its living processes, by pid.

        A zombie leader with a living thread is one of them. `processes` is a survey
        that was taken just now, where the caller has one.
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
        members = procfs.descendants(roots, processes)
        return {pid: processes[pid] for pid in members if processes[pid].alive}

    def hindrance(self, members: Iterable[Stat]) -> str:
        """Say what keeps its processes from running: a frozen control group, a debugger."""
        if self.group is not None and cgroups.is_frozen(self.group):
            return "the engine's control group is frozen"
        traced = next((member for member in members if member.state == "t"), None)
        return f"pid {traced.pid} ({traced.name}) is stopped by a debugger" if traced else ""

    def tree(self) -> tuple[Process, ...]:
        """Describe its living processes."""
        return tuple(map(self._census.describe, self.members().values()))

    def terminate(self) -> None:
        """Send SIGTERM: to the leader, and the second time to its whole process group.

        A leader drains its workers, which must live until then. SIGCONT follows, since a stopped
        process cannot end.
        """
        if self._asked_to_end:
            self._send_group(signal.SIGTERM)
        else:
            self.leader.send(signal.SIGTERM)
        self._asked_to_end = True
        self._send_group(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL to its process group, its control group and every process of its tree."""
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

        `members` are its living processes now.
        """
        spent = {}
        for member in members:
            key = member.pid, member.started
            spent[key] = now = Activity(
                member.cpu / procfs.TICKS, procfs.io_bytes(member.pid), procfs.run_delay(member.pid)
            )
            before = self._spent.get(key, Activity())
            self._activity = Activity(
                self._activity.cpu_seconds + max(0.0, now.cpu_seconds - before.cpu_seconds),
                self._activity.io_bytes + max(0, now.io_bytes - before.io_bytes),
                self._activity.run_delay + max(0.0, now.run_delay - before.run_delay),
            )
        self._spent = spent
        return self._activity

    def close(self) -> None:
        """Close pidfd and output; remove its control group if that is empty."""
        self.leader.close()
        if self.output >= 0:
            os.close(self.output)
            self.output = -1
        if self.group is not None:
            cgroups.remove(self.group)


def reap_adopted(
    census: Census, engine: EngineProcess | None, processes: Mapping[int, Stat] | None = None
) -> tuple[int, ...]:
    """Reap adopted processes that have died; return their pids.

    The live engine's leader is left to its own `poll`, and our helpers to theirs. `processes` is a
    survey that was taken just now, where the caller has one.
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
    roots = {pid for pid, other in markers.items() if other.same_service(marker)}
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


def _require_executable(program: str) -> None:
    """Raise what executing `program` would, before a shell turns it into an exit code."""
    if "/" in program and not os.access(program, os.X_OK):
        error = PermissionError if Path(program).exists() else FileNotFoundError
        raise error(f'"{program}" cannot be executed')
