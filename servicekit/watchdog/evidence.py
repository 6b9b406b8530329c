"""Evidence for how a run ends: who sent a signal, whether the host goes down, what ran out.

Everything here only reads, cheaply or within a limit, and "cannot tell" is an answer.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from servicekit.diagnosis.causes import Cause
from servicekit.host import procfs
from servicekit.host.bounded import NoReplyError, output

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

WATCHED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # signals whose sender matters
_SI_USER: Final = 0
"""`si_code` of a signal that a process sent; negative codes are other ways of sending."""
NOLOGIN_LIMIT: Final = 0.5
"""Seconds within which a shutdown that has reached us has also ended logins."""
LOOK_AGAIN: Final = 0.02
STOPPING_LIMIT: Final = 2.0
"""Seconds that the service manager may take to say whether it is shutting down."""


@dataclass(frozen=True, slots=True)
class Received:
    """A signal that was received, and what the kernel knows about its sender."""

    number: int
    code: int
    pid: int  # the sender; 0 for the kernel itself, and for a process outside our pid namespace
    uid: int
    command: str = ""  # the sender's command line, where it could still be read

    @property
    def from_kernel(self) -> bool:
        """Whether a terminal was the reason: its interrupt key, or its end."""
        return self.code > _SI_USER

    @property
    def named(self) -> str:
        """Name signal and sender: `SIGTERM from pid 812 (alice, kill 700)`."""
        name = signal.Signals(self.number).name
        if self.from_kernel:
            return f"{name} from the terminal"
        if self.pid == 0:
            return f"{name} from outside the container"
        known = f", {self.command}" if self.command else ""
        return f"{name} from pid {self.pid} ({procfs.account(self.uid)}{known})"


def cause_of(received: Received, managers: Collection[int]) -> Cause:
    """Return whether a signal asks us to stop; `managers` are pid 1 and our parents, then and now.

    A sender outside our pid namespace is who started the container: as good as a manager.
    """
    if received.from_kernel:
        hangup = received.number == signal.SIGHUP
        return Cause.SESSION_END if hangup else Cause.STOP_REQUESTED
    return Cause.STOP_REQUESTED if received.pid in {0, *managers} else Cause.OUTSIDE_KILL


def requester(received: Received, environment: Mapping[str, str]) -> str:
    """Name who asks for a stop: the service manager that runs us, or else the signal's sender."""
    if received.from_kernel or received.pid not in {0, 1, os.getppid()}:
        return received.named
    if "SUPERVISOR_ENABLED" in environment:
        return "Supervisor"
    return "systemd" if "INVOCATION_ID" in environment and received.pid else received.named


class SignalWatch:
    """Waits for `WATCHED` in a thread of its own: only `sigwaitinfo` reports who sent them.

    Make it in the main thread and before any other thread: the signals are blocked from then on,
    in this thread and in those that it will start. The sender's command line is read at once, since
    `kill` is gone a moment later. `deliver` is called in the watching thread.
    """

    def __init__(self, deliver: Callable[[Received], object]) -> None:
        self._deliver = deliver
        self._ended = False
        signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        self._memory = procfs.ProcessReader()
        self._thread = threading.Thread(target=self._wait, name="signals", daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        while True:
            info = signal.sigwaitinfo(WATCHED)
            if self._ended:
                return
            command = ""
            if info.si_code <= _SI_USER and (sender := procfs.stat(info.si_pid)):
                command = self._memory.command(sender)
            self._deliver(Received(info.si_signo, info.si_code, info.si_pid, info.si_uid, command))

    def close(self) -> None:
        """Stop watching; the signals stay blocked, so that a late one cannot cut our end short."""
        self._ended = True
        if self._thread.ident is not None and self._thread.is_alive():
            signal.pthread_kill(self._thread.ident, WATCHED[0])
        self._thread.join()


def _is_there(path: str) -> bool:
    return Path(path).exists()


async def going_down(
    *,
    user_manager: bool = False,
    limit: float = STOPPING_LIMIT,
    is_there: Callable[[str], bool] = _is_there,
) -> Cause | None:
    """Ask systemd whether the host shuts down, or the user's session ends; `None` for neither."""
    if not is_there("/run/systemd/system"):
        return None
    state = await _state_of(limit)
    # In a shutdown the bus ends together with us. Logins are refused then, but also for some
    # minutes before a scheduled one, so that this alone says nothing.
    if state == "stopping" or (not state and await _comes("/run/nologin", NOLOGIN_LIMIT, is_there)):
        return Cause.HOST_SHUTDOWN
    if user_manager and await _state_of(limit, "--user") == "stopping":
        return Cause.SESSION_END
    return None


async def _comes(path: str, limit: float, is_there: Callable[[str], bool]) -> bool:
    """Wait for a file that may be made at this very moment."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit):
            while not is_there(path):  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(LOOK_AGAIN)
    return is_there(path)


async def _state_of(limit: float, *options: str) -> str:
    """Return systemd's own state, "" when it does not know it or does not answer in time."""
    try:
        reply = await output(["systemctl", *options, "is-system-running"], limit=limit)
    except NoReplyError:
        return ""
    word = reply.strip()
    return "" if word in {"unknown", "offline"} else word  # the bus is going, or gone


def pid1_started() -> int:
    """Start time of the first process: a restarted container or WSL distribution has a new one."""
    first = procfs.stat(1)
    return first.started if first else 0


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def on_wsl(text: Callable[[str], str] = _text) -> bool:
    """Whether this is a WSL distribution."""
    release = text("/proc/sys/kernel/osrelease").lower()
    return "microsoft" in release or text("/run/systemd/container") == "wsl"


@dataclass(frozen=True, slots=True)
class OomKills:
    """How many processes the OOM killer has killed so far; `None` where that is not reported."""

    group: int | None  # in our service's control group
    host: int | None


def oom_kills(group: Path | None) -> OomKills:
    """Read the kernel's counters; `group` is our unit's cgroup v2 directory where there is one."""
    counters = [group / "memory.events"] if group is not None else []
    counters += [path / "memory.oom_control" for path in _memory_group_v1()]
    texts = (_text(str(path)) for path in counters)
    in_group = next((found for text in texts if (found := _counter(text)) is not None), None)
    return OomKills(in_group, _counter(_text("/proc/vmstat")))


def _memory_group_v1() -> Iterator[Path]:
    for line in _text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield Path("/sys/fs/cgroup/memory") / path.lstrip("/")


def _counter(text: str) -> int | None:
    match = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class OomProof:
    """The OOM killer has killed something."""

    sentence: str
    own: bool  # whether it was a process of this service: else it may have been anybody's


def oom_evidence(before: OomKills, after: OomKills) -> OomProof | None:
    """Conclude from the counters; `None` when they prove nothing.

    A group counts every process of it that was killed, be it for the host's memory or for its own.
    """
    if before.group is not None and after.group is not None:
        own = OomProof("the OOM killer killed a process in this service's control group", own=True)
        return own if after.group > before.group else None
    if before.host is not None and after.host is not None and after.host > before.host:
        return OomProof("the OOM killer killed a process on this host at that time", own=False)
    return None
