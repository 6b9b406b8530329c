"""Who listens on a service's port."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from servicekit.host import procfs
from servicekit.host.facts import Process
from servicekit.host.sockets import held_by, listeners, refused

if TYPE_CHECKING:
    from servicekit.watchdog.census import Census
    from servicekit.watchdog.engine import EngineProcess


@dataclass(frozen=True, slots=True)
class PortHolder:
    """Who would accept a connection to a port."""

    ours: bool | None
    """Whether every socket that may be reached is the engine's; `None` where that is hidden."""
    process: Process | None = None  # the first that is not the engine's

    @property
    def who(self) -> str:
        """Name that process."""
        return self.process.named if self.process else ""


def port_holder(
    host: str, port: int, engine: EngineProcess | None, census: Census
) -> PortHolder | None:
    """Find who listens on `host` and `port`; `None` if no process does.

    A refused connection is known at once, while the kernel's table of sockets takes milliseconds to
    read, which is too long for a probe that runs ten times per second.
    """
    listening = () if refused(host, port) else listeners(host, port)
    if not listening:
        return None
    members = engine.members() if engine is not None else {}
    unowned = [one for one in listening if held_by(one.inode, members) is None]
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
