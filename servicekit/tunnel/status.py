"""How a tunnel is: seen by looking through it, and not by ssh being alive.

What the service published says whether the forwarding stands. Whether an engine answers behind it
is asked each time, from this end to the other. Of a reverse tunnel, whose port is the server's, a
second ssh with the same key leads there and back.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from servicekit.errors import ExitCode
from servicekit.tunnel import state as phases
from servicekit.tunnel.link import Link
from servicekit.tunnel.outcome import SshOutput, TunnelCause, TunnelFault, late
from servicekit.tunnel.values import KEY, LOOPBACK, directory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from servicekit.install.manifest import Manifest
    from servicekit.managers import Seen
    from servicekit.places import Places
    from servicekit.profiles.model import Profile
    from servicekit.tunnel.state import TunnelState
    from servicekit.tunnel.values import Tunnel

# Seconds for the first line of an answer: a busy engine still lists its models.
ANSWER_WITHIN: Final = 10.0
LONGEST_LINE: Final = 1024  # bytes of that line


class TunnelStatus(StrEnum):
    """How a tunnel is: a closed list."""

    UP = "up"  # something answers through it
    ENGINE_DOWN = "engine-down"  # the tunnel stands, and nothing answers at its other end
    PORT_TAKEN = "port-taken"
    DOWN = "down"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class TunnelReport:
    """How one tunnel is. As JSON these are its keys."""

    name: str
    state: TunnelStatus
    why: str
    remedy: str = ""
    cause: str | None = None  # why it is down: one of the tunnel's causes
    since: str | None = None  # when its service entered the phase it is in, ISO 8601
    faults: int = 0  # consecutive attempts that ended in a fault
    to: str = ""
    way: str = ""
    url: str = ""
    served_name: str | None = None  # of the profile that answers through it, where one is known to
    manager: str | None = None
    # How the manager sees it, in systemd's words; `None` where it cannot be asked.
    manager_state: str | None = None
    enabled: bool | None = None
    drift: tuple[str, ...] = ()  # files that are not as the install left them

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ExpectedEngines:
    """Whom a tunnel may lead to: profiles with the port of its other end, and their API keys."""

    profiles: tuple[tuple[Profile, str | None], ...] = ()
    deep: bool = False  # ask for a completion, too


def conclude(
    tunnel: Tunnel, manifest: Manifest, seen: Seen | None, state: TunnelState | None
) -> TunnelReport:
    """Conclude how the tunnel is, as far as its service knows; `UP` is still to be looked through.

    `seen` is what the manager says, `None` if it is mute. Pure.
    """
    lives = state is not None and state.is_alive
    report = TunnelReport(
        name=tunnel.name,
        state=TunnelStatus.DOWN,
        why="its service has not been started yet",
        to=tunnel.to,
        way=tunnel.way,
        url=tunnel.url,
        manager=manifest.manager,
        manager_state=None if seen is None else seen.active,
        enabled=manifest.enabled if seen is None or seen.enabled is None else seen.enabled,
    )
    if state is not None:
        report = replace(report, since=state.since, faults=state.faults)
    is_up = seen is not None and seen.is_up
    if state is not None and state.code:
        going_on = state.code == ExitCode.TEMPFAIL and (lives or is_up)
        return _troubled(report, state, going_on=going_on)
    if state is not None and lives:
        match state.phase:
            case phases.UP:
                return replace(report, state=TunnelStatus.UP, why="the tunnel stands")
            case phases.CONNECTING:
                before = f" again; before: {state.why}" if state.why else ""
                why = f"it is connecting to {tunnel.to}{before}"
                return replace(report, why=why, cause=state.cause, remedy=state.remedy)
            case _:
                return _troubled(report, state, going_on=True)
    if is_up:
        return replace(report, why="its service is about to start")
    if seen is not None and seen.active == "failed":
        code = "" if seen.exit_code is None else f" (exit code {seen.exit_code})"
        return replace(report, why=seen.text or f"its service could not begin{code}")
    if state is not None:
        return replace(report, state=TunnelStatus.STOPPED, why="it was stopped")
    return replace(report, state=TunnelStatus.STOPPED)


def _troubled(report: TunnelReport, state: TunnelState, *, going_on: bool) -> TunnelReport:
    taken = state.cause == TunnelCause.PORT_TAKEN
    return replace(
        report,
        state=TunnelStatus.PORT_TAKEN if taken else TunnelStatus.DOWN,
        why=f"{state.why}; it is tried again" if going_on else state.why,
        remedy=state.remedy,
        cause=state.cause,
    )


async def look_through(
    report: TunnelReport, tunnel: Tunnel, places: Places, expected: ExpectedEngines
) -> TunnelReport:
    """See what answers through a tunnel that is said to be up."""
    if not tunnel.reverse:
        return await _look(report, tunnel, tunnel.local, expected)
    try:
        async with _back(tunnel, Path(directory(places, tunnel.name))) as port:
            return await _look(report, tunnel, port, expected)
    except PermissionError:
        return replace(
            report,
            why="it stands; looking through it from the server takes its key",
            remedy="run this as root",
        )
    except _NoWayBackError as error:
        return replace(
            report,
            why=f"it stands, and cannot be looked through: {error.trouble.why}",
            remedy=error.trouble.remedy,
        )


class _NoWayBackError(Exception):
    """There is no second way to the server."""

    def __init__(self, trouble: TunnelFault) -> None:
        super().__init__(trouble.why)
        self.trouble = trouble


@asynccontextmanager
async def _back(tunnel: Tunnel, home: Path) -> AsyncIterator[int]:
    """Lead a port of this host to the server's end of a reverse tunnel."""
    with (home / KEY).open("rb"):
        pass
    with socket.create_server((LOOPBACK, 0)) as free:
        port: int = free.getsockname()[1]
    there = replace(tunnel, reverse=False, local=port)
    link = await Link.start(there, home)
    listening = asyncio.create_task(_until_up(link, there))
    try:
        async with asyncio.timeout(there.up_within):
            trouble = await listening
        if trouble is not None:
            raise _NoWayBackError(trouble)
        # What it says from now on must be read, or it waits for us.
        rest = asyncio.create_task(_read_on(link))
        try:
            yield port
        finally:
            rest.cancel()
    except TimeoutError:
        raise _NoWayBackError(late(there)) from None
    finally:
        await link.stop()


async def _until_up(link: Link, tunnel: Tunnel) -> TunnelFault | None:
    reader = SshOutput(tunnel)
    async for line in link.lines():
        reader.hear(line)
        if reader.up:
            return None
    return reader.conclude(await link.ended())


async def _read_on(link: Link) -> None:
    async for _ in link.lines():
        pass


async def _look(
    report: TunnelReport, tunnel: Tunnel, port: int, expected: ExpectedEngines
) -> TunnelReport:
    """Ask at `port` of this host, from where the way leads to the engine."""
    at = "here" if tunnel.reverse else f"on {tunnel.host}"
    end = f"{LOOPBACK}:{tunnel.engine_port} {at}"
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            line = await _first_line(port)
    except TimeoutError:
        return replace(
            report,
            state=TunnelStatus.ENGINE_DOWN,
            why=f"the tunnel stands, and {end} does not answer within {ANSWER_WITHIN:g} s",
            remedy=f"the engine hangs, or the connection froze just now, which is noticed within "
            f"{tunnel.frozen_within} s",
        )
    except ConnectionRefusedError:
        why = f"nothing listens on port {port} of this host any more"
        return replace(report, state=TunnelStatus.DOWN, why=why)
    except OSError:
        line = b""
    if not line:
        return replace(
            report,
            state=TunnelStatus.ENGINE_DOWN,
            why=f"the tunnel stands, and nothing listens on {end}",
            remedy="start the engine there: `servicekit status` says why it is not up",
        )
    if not line.startswith(b"HTTP/"):
        why = f"the tunnel stands, and {end} does not speak HTTP"
        return replace(report, state=TunnelStatus.ENGINE_DOWN, why=why)
    said = line.split(None, 1)[-1].decode("ascii", "replace").strip()
    if not expected.profiles:
        why = f"{end} answers HTTP {said}; no profile with that port is known here"
        return replace(report, why=why)
    return await _identify(report, port, expected)


async def _first_line(port: int) -> bytes:
    """Give the first line of an answer to HTTP; nothing where the connection ends without one."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port, limit=LONGEST_LINE)
    try:
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return await reader.readline()
    except ValueError:  # a longer line than any of HTTP's
        return b"?"
    finally:
        writer.close()


async def _identify(report: TunnelReport, port: int, expected: ExpectedEngines) -> TunnelReport:
    """See whether one of the profiles that are known for the port is what answers."""
    from servicekit.watchdog.events import ProbeFailure
    from servicekit.watchdog.probe import NotReady, Prober

    missed = []
    for profile, api_key in expected.profiles:
        recipe = profile.model_copy(update={"host": LOOPBACK, "port": port})
        async with Prober(recipe, api_key=api_key) as prober:
            found = await (prober.gate() if expected.deep else prober.identity())
        if not isinstance(found, NotReady):
            did = (
                f"answered {found.completion.completion_tokens} tokens"
                if found is not None
                else "is listed"
            )
            name = profile.served_name
            return replace(report, why=f'"{name}" {did} through the tunnel', served_name=name)
        missed.append(found)
    # The reason that is nearest to an answer: a model that does not answer before another model.
    other = {ProbeFailure.WRONG_MODEL: 2, ProbeFailure.UNAUTHORIZED: 1}
    nearest = min(missed, key=lambda one: other.get(one.failure, 0))
    state = TunnelStatus.UP if nearest.failure in other else TunnelStatus.ENGINE_DOWN
    return replace(report, state=state, why=f"the tunnel stands; the engine: {nearest.sentence}")
