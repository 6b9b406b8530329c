"""One child process: started without a fork of this one, watched through a pidfd, reaped by itself.

`posix_spawn` gives the child an unblocked signal mask, default dispositions and a session of its
own without running Python between fork and exec, which is unsafe beside threads.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from servicekit.host import procfs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FORWARDED: Final = (
    "NOTIFY_SOCKET",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PIDFDID",
)
"""Variables that speak to the main process of a service, and to no other."""

STDERR: Final = 2


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without what only the service's main process may have."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _FORWARDED and not name.startswith("WATCHDOG_")
    }


def _inheritable() -> list[int]:
    """List what we were given open ourselves, beyond the three streams: not ours to hand on."""
    descriptors = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are all that is needed
        with suppress(OSError):  # the directory's own, closed by now
            if int(name) > STDERR and os.get_inheritable(int(name)):
                descriptors.append(int(name))
    return descriptors


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: by itself with a code, or by a signal."""

    code: int | None = None
    signal: int | None = None
    dumped: bool = False  # it left a core dump

    @property
    def named(self) -> str:
        """Name it: `exit code 1`, `SIGKILL`, `SIGABRT (core dumped)`."""
        if self.signal is None:
            return "an exit code that is lost" if self.code is None else f"exit code {self.code}"
        try:
            name = signal.Signals(self.signal).name
        except ValueError:
            name = f"signal {self.signal}"
        return f"{name} (core dumped)" if self.dumped else name


class Child:
    """A process that we started. Its pid stays its own until `poll` has returned its status."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)  # becomes readable when the process is dead
        seen = procfs.stat(pid)
        self.started = seen.started if seen else 0  # start time in clock ticks since boot
        self.status: ExitStatus | None = None

    @classmethod
    def spawn(
        cls,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        session: bool = False,
    ) -> Self:
        """Start `argv`; raise `OSError` where it cannot be executed.

        A stream that is not given is /dev/null for stdin and ours for the others. `session` makes
        it the leader of a new session. Call it from the main thread: a child's parent-death signal,
        where it sets one, follows the thread that made it.
        """
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            streams = (null if stdin is None else stdin, stdout, stderr)
            actions: list[tuple[int, int, int] | tuple[int, int]] = [
                (os.POSIX_SPAWN_DUP2, given, wanted)
                for wanted, given in enumerate(streams)
                if given is not None
            ]
            actions += [(os.POSIX_SPAWN_CLOSE, leaked) for leaked in _inheritable()]
            pid = os.posix_spawnp(
                argv[0],
                [*argv],
                environment,
                file_actions=actions,
                setsid=session,
                setsigmask=(),
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
        finally:
            os.close(null)
        return cls(pid)

    def poll(self) -> ExitStatus | None:
        """Reap it if it is dead; return its status from then on."""
        if self.status is None:
            try:
                ended = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
            except ChildProcessError:  # somebody else reaped it: dead, and how is lost
                self.status = ExitStatus()
                return self.status
            if ended is not None:
                self.status = (
                    ExitStatus(code=ended.si_status)
                    if ended.si_code == os.CLD_EXITED
                    else ExitStatus(signal=ended.si_status, dumped=ended.si_code == os.CLD_DUMPED)
                )
        return self.status

    def send(self, number: int) -> None:
        """Send it a signal; nothing happens when it is dead."""
        if self.status is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def close(self) -> None:
        """Close its pidfd, dead or alive."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
