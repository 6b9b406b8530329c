"""Who holds which GPU, and how much of it.

A child process (`gpu_child`) queries the driver, since a call into it may never return. While one
has not, no second child is started and none is killed: a process that is torn out of a call can
take the driver down with it. The child is ignored until it replies.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from servicekit.host.child import Child, inherited
from servicekit.host.facts import GpuView
from servicekit.host.xid import KernelWatch, Xid

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Callable,
        Iterable,
        Mapping,
        Sequence,
    )


LOOK_LIMIT: Final = 5.0
"""Seconds that the driver may take to answer; a driver that must wake the card takes about two."""
ASK_AGAIN: Final = 10.0  # seconds before a child that died is replaced
CHILD: Final = (sys.executable, "-P", str(Path(__file__).with_name("gpu_child.py")))
"""`-P`: our modules are named like some of the standard library, and must not stand before it."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or a slice of one, as the driver reports it; figures in MiB."""

    uuid: str
    name: str
    pci: str
    used: int | None  # `None` where GPU and CPU share their memory
    total: int | None
    processes: Mapping[int, int | None]
    """MiB by pid, as the driver numbers processes; `None` where it does not report it (WSL)."""
    capability: str | None = None  # compute capability, such as "12.0"
    persistence: bool | None = None
    """Whether the driver stays initialised while no process uses it; `None` without such a mode."""
    utilisation: int | None = None  # percent of the last moments in which it was at work
    slowed_by: str = ""  # why it runs below its clocks, where that is not ordinary
    celsius: int | None = None

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Read the child's reply."""
        processes = {int(process["pid"]): process["mib"] for process in data["processes"]}
        return cls(**{**data, "processes": processes})


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What one query of the GPUs returned."""

    view: GpuView
    note: str = ""  # why it is not `PRESENT`, in one sentence
    devices: tuple[Device, ...] = ()
    driver: str = ""
    cuda: str = ""
    """The newest CUDA that the driver can serve, such as "13.0"; "" where it does not say."""


class Gpus:
    """Queries the driver about some GPUs, by index or UUID, from within one event loop.

    Without names it queries every GPU.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = CHILD,
        limit: float = LOOK_LIMIT,
        ask_again: float = ASK_AGAIN,
    ) -> None:
        self.names = tuple(names)
        self.lost = ""
        """Why the GPU is lost, once that is known from elsewhere: every later query says so."""
        self._command = command
        self._environment = inherited(os.environ if environment is None else environment)
        self._limit = limit
        self._ask_again = ask_again
        self._talk: _Talk | None = None
        self._reply: asyncio.Future[dict[str, Any]] | None = None
        self._asked_at = 0.0
        self._count = 0
        self._start_at = 0.0

    async def look(self) -> GpuReading:
        """Query once; never takes longer than the limit, whatever the driver does."""
        if self.lost:
            return GpuReading(GpuView.LOST, self.lost)
        if self._reply is None or self._reply.done():  # an answer that came late is an old one
            try:
                self._ask()
            except OSError as error:
                return GpuReading(GpuView.ABSENT, f"cannot query the NVIDIA driver: {error}")
        if self._reply is None:
            return GpuReading(
                GpuView.ABSENT, "the process that queries the NVIDIA driver keeps exiting"
            )
        try:
            async with asyncio.timeout(self._limit):
                reply = await asyncio.shield(self._reply)
        except TimeoutError:
            waited = time.monotonic() - self._asked_at
            return GpuReading(
                GpuView.UNRESPONSIVE,
                f"a call into the NVIDIA driver has not returned for {waited:.0f} s",
            )
        return _understood(reply)

    def _ask(self) -> None:
        now = time.monotonic()
        if self._talk is None or self._talk.ended:
            self._reply = None
            if now < self._start_at:
                return
            self._start_at = now + self._ask_again
            self._talk = _Talk(self._command, self._environment, self._heard)
        self._count += 1
        self._asked_at = now
        self._reply = asyncio.get_running_loop().create_future()
        self._talk.say({"id": self._count, "gpus": self.names})

    def _heard(self, reply: dict[str, Any]) -> None:
        current = reply.get("id", self._count) == self._count
        if current and self._reply is not None and not self._reply.done():
            self._reply.set_result(reply)

    def close(self) -> None:
        """Leave the child alone: it ends by itself, unless a call into the driver keeps it."""
        if self._talk is not None:
            self._talk.close()


def _understood(reply: Mapping[str, Any]) -> GpuReading:
    if "error" in reply:
        view = GpuView.LOST if reply.get("lost") else GpuView.ABSENT
        return GpuReading(view, str(reply["error"]))
    try:
        devices = tuple(map(Device.parse, reply["devices"]))
        driver, cuda = str(reply["driver"]), str(reply["cuda"])
    except (KeyError, TypeError, ValueError) as error:
        # A child of another version: servicekit was updated under a service that runs.
        return GpuReading(
            GpuView.ABSENT,
            f"cannot parse the reply of the process that queries the driver: {error}",
        )
    return GpuReading(GpuView.PRESENT, devices=devices, driver=driver, cuda=cuda)


class XidWatch:
    """Receives Xids from the driver itself, where the kernel's log may not be read.

    One child for the whole run. Where the driver has no such events (WSL), or there is no driver,
    it ends and nothing is received.
    """

    def __init__(
        self,
        names: Sequence[str],
        deliver: Callable[[Xid], object],
        *,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = CHILD,
    ) -> None:
        self._deliver = deliver
        self._talk = _Talk(
            (*command, "events", *names),
            inherited(os.environ if environment is None else environment),
            self._heard,
        )

    def _heard(self, event: dict[str, Any]) -> None:
        if "xid" in event:
            self._deliver(Xid(int(event["xid"]), str(event["gpu"])))

    def close(self) -> None:
        """Close the connection to the child."""
        self._talk.close()


class _Talk:
    """Lines of JSON with one child, within the running event loop."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        hear: Callable[[dict[str, Any]], None],
    ) -> None:
        self.ended = False
        self._hear = hear
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        child_in, self._in = os.pipe2(os.O_CLOEXEC)
        self._out, child_out = os.pipe2(os.O_CLOEXEC)
        try:
            self._child = Child.spawn(command, environment, stdin=child_in, stdout=child_out)
        except OSError:
            os.close(self._in)
            os.close(self._out)
            raise
        finally:
            os.close(child_in)
            os.close(child_out)
        self._loop.add_reader(self._out, self._readable)

    def say(self, request: Mapping[str, Any]) -> None:
        """Write a request: far smaller than a pipe, so it never waits."""
        with suppress(BrokenPipeError):  # the end of its output shows it
            os.write(self._in, json.dumps(request).encode() + b"\n")

    def _readable(self) -> None:
        data = os.read(self._out, 1 << 16)
        if not data:
            self.close()
            status = self._child.poll()
            how = f": {status.named}" if status else ""
            self._hear({"error": f"the process that queries the NVIDIA driver exited{how}"})
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            with suppress(ValueError):
                self._hear(json.loads(line))

    def close(self) -> None:
        """End the talk; the child ends when it next looks at its stdin."""
        if not self.ended:
            self.ended = True
            self._loop.remove_reader(self._out)
            os.close(self._in)
            os.close(self._out)


# Xids: what the driver reports of a GPU's faults.


async def xids(names: Sequence[str]) -> AsyncGenerator[Xid, None]:
    """Yield each Xid from now on: of any GPU from the kernel's log, else of `names` from NVML."""
    heard: asyncio.Queue[Xid] = asyncio.Queue()
    watch: KernelWatch | XidWatch
    try:
        watch = KernelWatch(heard.put_nowait)
    except OSError:
        watch = XidWatch(names, heard.put_nowait)
    try:
        while True:
            yield await heard.get()
    finally:
        watch.close()


# One profile per GPU.


class Lock:
    """Locks GPUs for one profile, as long as the process lives.

    It is a name in the abstract socket namespace: the kernel frees it with its process, it needs no
    directory that services of different accounts could all write to, and no sandbox hides it.
    """

    def __init__(self, profile: str) -> None:
        self._profile = profile
        self._held: dict[str, tuple[socket.socket, socket.socket]] = {}

    def take(self, gpus: Iterable[str]) -> str:
        """Lock `gpus`, named by UUID; return the profile that already holds one of them, or ""."""
        for gpu in gpus:
            if gpu not in self._held:
                lock, name = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in "12")
                try:
                    lock.bind(f"\0{_lock_name(gpu)}")
                    name.bind(f"\0{_lock_name(gpu)}/{self._profile}")
                except OSError:
                    lock.close()
                    name.close()
                    return _lock_holder(gpu)
                self._held[gpu] = lock, name
        return ""

    def release(self) -> None:
        """Release all GPUs."""
        for sockets in self._held.values():
            for one in sockets:
                one.close()
        self._held.clear()


def _lock_name(gpu: str) -> str:
    return f"servicekit/gpu/{gpu}"


def _lock_holder(gpu: str) -> str:
    """Find the name that the holder left beside its lock."""
    start = f"@{_lock_name(gpu)}/"
    for line in Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines():
        name = line.rpartition(" ")[2]
        if name.startswith(start):
            return name.removeprefix(start)
    return "another profile"
