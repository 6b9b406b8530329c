"""The service of a tunnel: it runs one ssh and ends with it.

The manager starts it again, except after exit code 78: then somebody must change something first.
Only the published state survives between two runs. The hold-off is the service's own, so that it is
the same under every manager.

The watchdog's loop and `step` do not run it: their phases are about proving an engine ready, GPU
memory, a process tree that must be gone, and a restart budget. A tunnel has one process, is retried
for ever, and holds off at most a minute. It shares the notifier, the state file and the log.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from servicekit import __version__
from servicekit.errors import ExitCode, UserError, reason
from servicekit.host import procfs
from servicekit.log import Priority, open_events
from servicekit.profiles import trusted_toml
from servicekit.tunnel.link import Link
from servicekit.tunnel.outcome import SshOutput, TunnelCause, TunnelFault, late, unusable_key
from servicekit.tunnel.state import (
    CONNECTING,
    DOWN,
    STOPPED,
    UP,
    WAITING,
    TunnelState,
    read_state,
    sweep_ssh,
)
from servicekit.tunnel.values import (
    FILE,
    KEY,
    LOOPBACK,
    STEADY,
    Tunnel,
    checked_name,
    directory,
    hold_off,
    state_file,
)
from servicekit.watchdog.publish import Notifier, write_state

if TYPE_CHECKING:
    from servicekit.log import Events
    from servicekit.places import Places


def load(places: Places, name: str) -> Tunnel:
    """Read an installed tunnel; raise `UserError` where there is none or its file is invalid."""
    file = Path(directory(places, checked_name(name)) / FILE)
    try:
        document = trusted_toml.read(file, trusted_toml.owners(places.scope))
    except FileNotFoundError:
        raise UserError(
            f'tunnel "{name}" is not installed',
            hint=f"install it with `servicekit tunnel install {name} --to USER@HOST`",
            code=ExitCode.CONFIG,
        ) from None
    return Tunnel.parse(document, name=name, where=str(file))


def run(places: Places, name: str) -> ExitCode:
    """Run a tunnel until it fails or is stopped; return the exit code for the manager."""
    tunnel = load(places, name)
    events = open_events({"tunnel": name}, os.environ)
    notifier = Notifier()
    try:
        return asyncio.run(TunnelRun(tunnel, places, events, notifier).run())
    finally:
        notifier.close()
        events.close(1.0)


class TunnelRun:
    """One run."""

    def __init__(self, tunnel: Tunnel, places: Places, events: Events, notifier: Notifier) -> None:
        self._tunnel = tunnel
        self._home = Path(directory(places, tunnel.name))
        self._file = Path(state_file(places, tunnel.name))
        self._events = events
        self._notifier = notifier
        self._up_since: float | None = None
        self._faults = 0
        me = procfs.stat(os.getpid())
        self._blank = TunnelState(
            tunnel=tunnel.name,
            phase=WAITING,
            since="",
            pid=os.getpid(),
            pid_started=me.started if me else 0,
            servicekit=__version__,
        )
        self._state = self._blank

    async def run(self) -> ExitCode:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: task.cancel() if task else None)
        try:
            await self._hold_off()
            trouble = await self._connect()
        except asyncio.CancelledError:
            self._publish(replace(self._blank, phase=STOPPED, code=ExitCode.OK))
            self._events.event("stopped", Priority.INFO, state=STOPPED)
            return ExitCode.OK
        return self._fail(trouble)

    async def _hold_off(self) -> None:
        sweep_ssh(self._file)
        before = read_state(self._file)
        if before is None or not before.faults:
            return
        self._faults = before.faults
        self._state = replace(
            self._blank,
            cause=before.cause,
            why=before.why,
            remedy=before.remedy,
            faults=before.faults,
            failed_at=before.failed_at,
        )
        since = time.monotonic() - before.failed_at
        left = hold_off(before.faults) - since
        # If the clock is behind the fault's time, the fault was before a reboot.
        if left > 0 <= since:
            self._publish(self._state)
            self._notifier.status(f"retrying in {left:.0f} s: {before.why}")
            await asyncio.sleep(left)

    async def _connect(self) -> TunnelFault:
        tunnel = self._tunnel
        try:
            (self._home / KEY).read_bytes()
        except OSError as error:
            return unusable_key(tunnel, f'"{error.filename}": {reason(error)}')
        try:
            link = await Link.start(tunnel, self._home)
        except OSError as error:
            return TunnelFault(
                TunnelCause.SSH, f"cannot start ssh: {reason(error)}", "install the OpenSSH client"
            )
        self._notifier.status(f"connecting to {tunnel.to}")
        ssh = link.child
        connecting = replace(self._state, phase=CONNECTING)
        self._publish(replace(connecting, ssh_pid=ssh.pid, ssh_started=ssh.started))
        try:
            return await self._listen(link, SshOutput(tunnel))
        except TimeoutError:
            return late(tunnel)
        finally:
            await link.stop()

    async def _listen(self, link: Link, reader: SshOutput) -> TunnelFault:
        async with asyncio.timeout(self._tunnel.up_within) as bound:
            async for line in link.lines():
                if news := reader.hear(line):
                    self._events.engine(news)
                if reader.up and self._up_since is None:
                    bound.reschedule(None)
                    await self._become_up()
                if reader.up and reader.trouble is not None:
                    # The server refuses the forwarding, but ssh would stay.
                    return reader.trouble
            return reader.conclude(await link.ended())

    async def _become_up(self) -> None:
        tunnel = self._tunnel
        self._up_since = time.monotonic()
        self._publish(replace(self._state, phase=UP, faults=0, cause=None, why="", remedy=""))
        self._notifier.ready(f"up: {tunnel.way}")
        self._events.event(f"up: {tunnel.way}", Priority.NOTICE, state=UP)
        if not tunnel.reverse:
            # Only a connection shows whether the server permits it.
            with suppress(OSError):
                _, writer = await asyncio.open_connection(LOOPBACK, tunnel.local)
                writer.close()

    def _fail(self, trouble: TunnelFault) -> ExitCode:
        now = time.monotonic()
        steady = self._up_since is not None and now - self._up_since >= STEADY
        again = trouble.code is ExitCode.TEMPFAIL
        # After a final fault, the next start is an operator's and need not wait.
        faults = (1 if steady else self._faults + 1) if again else 0
        wait = f"; retrying in {hold_off(faults):.0f} s" if again else ""
        self._publish(
            replace(
                self._blank,
                phase=DOWN,
                cause=trouble.cause,
                why=trouble.why,
                remedy=trouble.remedy,
                faults=faults,
                failed_at=now,
                code=trouble.code,
            )
        )
        self._notifier.status(f"{trouble.why}{wait}")
        remedy = f"; {trouble.remedy}" if trouble.remedy else ""
        self._events.event(
            f"{trouble.why}{wait}{remedy}",
            Priority.WARNING if again else Priority.ERROR,
            state=DOWN,
            cause=trouble.cause,
        )
        return trouble.code

    def _publish(self, state: TunnelState) -> None:
        """Write the state file; the tunnel works without it, too."""
        since = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._state = replace(state, since=since)
        with suppress(OSError):
            write_state(self._file, self._state)
