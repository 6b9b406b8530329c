"""The state of a tunnel, from a request through it and not from a running ssh.

The published state says whether the port forwarding is up. Whether an engine answers is tested
each time, from this end to the other; for a reverse tunnel, by a second ssh with the same key that
leads to the server's port and back.
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

    from servicekit.managers import Seen
    from servicekit.places import Places
    from servicekit.profiles.model import Profile
    from servicekit.service.manifest import Manifest
    from servicekit.tunnel.state import TunnelState
    from servicekit.tunnel.values import Tunnel

# Seconds for the first line of an answer: a busy engine still lists its models.
ANSWER_WITHIN: Final = 10.0
LONGEST_LINE: Final = 1024  # bytes of that line


class TunnelStatus(StrEnum):
    """State of a tunnel: a closed list."""

    UP = "up"  # something answers through it
    ENGINE_DOWN = "engine-down"  # the tunnel is up, but nothing answers at its other end
    PORT_TAKEN = "port-taken"
    DOWN = "down"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class TunnelReport:
    """The status of one tunnel, with the keys of its JSON."""

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
    # What the manager reports, in systemd's terms; `None` where it does not reply.
    manager_state: str | None = None
    enabled: bool | None = None
    drift: tuple[str, ...] = ()  # files that were changed since the install

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ExpectedEngines:
    """Profiles with the port of the tunnel's other end, and their API keys."""

    profiles: tuple[tuple[Profile, str | None], ...] = ()
    deep: bool = False  # request a completion, too


def conclude(
    tunnel: Tunnel, manifest: Manifest, seen: Seen | None, state: TunnelState | None
) -> TunnelReport:
    """Conclude the status from what the service published; `UP` still needs a request through it.

    `seen` is what the manager reports, `None` if it does not reply. Pure.
    """
    lives = state is not None and state.is_alive and _is_of(seen, state)
    report = TunnelReport(
        name=tunnel.name,
        state=TunnelStatus.DOWN,
        why="its service was never started",
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
                return replace(report, state=TunnelStatus.UP, why="the tunnel is up")
            case phases.CONNECTING:
                before = f" again after: {state.why}" if state.why else ""
                why = f"connecting to {tunnel.to}{before}"
                return replace(report, why=why, cause=state.cause, remedy=state.remedy)
            case _:
                return _troubled(report, state, going_on=True)
    if is_up:
        return replace(report, why="its service is about to start")
    if seen is not None and seen.active == "failed":
        code = "" if seen.exit_code is None else f" (exit code {seen.exit_code})"
        return replace(report, why=seen.text or f"its service did not start{code}")
    if state is not None:
        return replace(report, state=TunnelStatus.STOPPED, why="it was stopped")
    return replace(report, state=TunnelStatus.STOPPED)


def _is_of(seen: Seen | None, state: TunnelState) -> bool:
    """Whether the manager runs the process that the state names; true where it does not reply."""
    return seen is None or (seen.is_up and seen.pid in {None, state.pid})


def _troubled(report: TunnelReport, state: TunnelState, *, going_on: bool) -> TunnelReport:
    taken = state.cause == TunnelCause.PORT_TAKEN
    return replace(
        report,
        state=TunnelStatus.PORT_TAKEN if taken else TunnelStatus.DOWN,
        why=f"{state.why}; retrying" if going_on else state.why,
        remedy=state.remedy,
        cause=state.cause,
    )


async def look_through(
    report: TunnelReport, tunnel: Tunnel, places: Places, expected: ExpectedEngines
) -> TunnelReport:
    """Send a request through a tunnel that is up."""
    if not tunnel.reverse:
        return await _look(report, tunnel, tunnel.local, expected)
    try:
        async with _back(tunnel, Path(directory(places, tunnel.name))) as port:
            return await _look(report, tunnel, port, expected)
    except PermissionError:
        return replace(
            report,
            why="the tunnel is up; testing it from the server needs its key",
            remedy="run as root",
        )
    except _NoWayBackError as error:
        return replace(
            report,
            why=f"the tunnel is up, but cannot be tested: {error.trouble.why}",
            remedy=error.trouble.remedy,
        )


class _NoWayBackError(Exception):
    """The second ssh to the server failed."""

    def __init__(self, trouble: TunnelFault) -> None:
        super().__init__(trouble.why)
        self.trouble = trouble


@asynccontextmanager
async def _back(tunnel: Tunnel, home: Path) -> AsyncIterator[int]:
    """Forward a port of this host to the server's end of a reverse tunnel."""
    with (home / KEY).open("rb"):
        pass
    with socket.create_server((LOOPBACK, 0)) as free:
        port: int = free.getsockname()[1]
    there = replace(tunnel, reverse=False, local=port)
    link = await Link.start(there, home)
    try:
        async with asyncio.timeout(there.up_within):
            trouble = await _until_up(link, there)
        if trouble is not None:
            raise _NoWayBackError(trouble)
        # ssh blocks if its output is not read.
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
    """Send a request to `port` of this host, which leads to the engine."""
    at = "here" if tunnel.reverse else f"on {tunnel.host}"
    end = f"{LOOPBACK}:{tunnel.engine_port} {at}"
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            line = await _first_line(port)
    except TimeoutError:
        return replace(
            report,
            state=TunnelStatus.ENGINE_DOWN,
            why=f"the tunnel is up, but {end} did not answer within {ANSWER_WITHIN:g} s",
            remedy=f"check the engine there; a frozen connection is noticed within "
            f"{tunnel.frozen_within} s",
        )
    except ConnectionRefusedError:
        why = f"nothing listens on port {port} of this host"
        return replace(report, state=TunnelStatus.DOWN, why=why)
    except OSError:
        line = b""
    if not line:
        return replace(
            report,
            state=TunnelStatus.ENGINE_DOWN,
            why=f"the tunnel is up, but nothing listens on {end}",
            remedy="start the engine there; `servicekit status` shows its state",
        )
    if not line.startswith(b"HTTP/"):
        why = f"the tunnel is up, but {end} does not speak HTTP"
        return replace(report, state=TunnelStatus.ENGINE_DOWN, why=why)
    reply = line.split(None, 1)[-1].decode("ascii", "replace").strip()
    if not expected.profiles:
        why = f"{end} answers HTTP {reply}; no profile here has that port"
        return replace(report, why=why)
    return await _identify(report, port, expected)


async def _first_line(port: int) -> bytes:
    """Return the first line of the HTTP response; empty where the connection ends without one."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port, limit=LONGEST_LINE)
    try:
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return await reader.readline()
    except ValueError:  # longer than any status line of HTTP
        return b"?"
    finally:
        writer.close()


async def _identify(report: TunnelReport, port: int, expected: ExpectedEngines) -> TunnelReport:
    """Test whether one of the expected profiles answers."""
    from servicekit.watchdog.events import ProbeFailure
    from servicekit.watchdog.probe import NotReady, Prober

    failures = []
    for profile, api_key in expected.profiles:
        recipe = profile.model_copy(update={"host": LOOPBACK, "port": port})
        async with Prober(recipe, api_key=api_key) as prober:
            result = await (prober.readiness() if expected.deep else prober.identity())
        if not isinstance(result, NotReady):
            did = (
                f"answered {result.completion.completion_tokens} tokens"
                if result is not None
                else "is listed"
            )
            name = profile.served_name
            return replace(report, why=f'"{name}" {did} through the tunnel', served_name=name)
        failures.append(result)
    # Report the failure that is nearest to an answer.
    other = {ProbeFailure.WRONG_MODEL: 2, ProbeFailure.UNAUTHORIZED: 1}
    nearest = min(failures, key=lambda one: other.get(one.failure, 0))
    state = TunnelStatus.UP if nearest.failure in other else TunnelStatus.ENGINE_DOWN
    return replace(report, state=state, why=f"the tunnel is up; the engine: {nearest.sentence}")
