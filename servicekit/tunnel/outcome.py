"""What the output of ssh means: up, or a fault and whether a retry can help. Pure.

ssh exits with 255 for every fault, so that only its messages distinguish a host that is down from
one whose key has changed. OpenSSH does not translate them; each rule is anchored to the start of
its line. A fault that no rule matches is retried.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from servicekit.errors import ExitCode
from servicekit.text import printable
from servicekit.tunnel.values import SHOW_HOST_KEY

if TYPE_CHECKING:
    from servicekit.host.child import ExitStatus
    from servicekit.tunnel.values import Tunnel

LONGEST_LINE: Final = 300  # characters; the server wrote some of these lines


class TunnelCause(StrEnum):
    """Why a tunnel is not up: a closed list."""

    HOST_KEY = "host-key"
    DENIED = "denied"
    KEY = "key"
    REFUSED = "forward-refused"
    SSH = "ssh"  # ssh cannot run, or the two sides have no protocol in common
    PORT_TAKEN = "port-taken"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TunnelFault:
    """Why a tunnel is not up, and what helps."""

    cause: TunnelCause
    why: str
    remedy: str = ""

    @property
    def code(self) -> ExitCode:
        return ExitCode.CONFIG if self.cause in _FINAL else ExitCode.TEMPFAIL


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


_DEBUG: Final = "debug1: "
# Noise of this log level.
_CHATTER: Final = re.compile(
    r"debug\d: |Authenticated to |Transferred: |Bytes per second: |@@@|\s*$"
)
_SERVER_KEY: Final = re.compile(r"debug1: Server host key: \S+ (SHA256:\S+)$")
_REVERSE_UP: Final = re.compile(r"debug1: remote forward success for: ")
_SESSION: Final = "debug1: Entering interactive session."
_SERVER_REFUSED: Final = re.compile(
    r"debug1: Remote: (?:port forwarding refused|Server has disabled port forwarding)"
)
_REVERSE_FAILED: Final = re.compile(r"Error: remote port forwarding failed for listen port ")
_LOCAL_TAKEN: Final = re.compile(r"bind \[[^]]*\]:\d+: Address already in use")
_UNANSWERED: Final = re.compile(r"Timeout, server .* not responding")

# A retry does not help: somebody must change something on one of the two hosts.
_FINAL: Final = {
    TunnelCause.HOST_KEY: _any_of(
        r"@\s+WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!",
        r"No \S+ host key is known for ",
        r"Host key verification failed",
    ),
    TunnelCause.KEY: _any_of(
        r"Load key ", r"no such identity: ", r"Permissions \d+ for .* are too open"
    ),
    TunnelCause.DENIED: _any_of(
        r"\S+@\S+: Permission denied \(",
        r"Received disconnect from .*: Too many authentication failures",
    ),
    TunnelCause.REFUSED: _any_of(r"channel \d+: open failed: administratively prohibited"),
    TunnelCause.SSH: _any_of(
        r"command-line:? line \d+: ",
        r"Unable to negotiate with ",
        r"No user exists for uid ",
    ),
}
# Network or server faults: unreachable before the tunnel is up, lost afterwards.
_CUT: Final = _any_of(
    r"ssh: connect to host ",
    r"ssh: Could not resolve hostname ",
    r"Connection to \S+ (?:closed|port \d+ timed out)",
    r"Connection (?:closed|reset) by ",
    r"Connection timed out during banner exchange",
    r"(?:kex|ssh)_exchange_identification: ",
    r"client_loop: send disconnect: ",
    r"Read from remote host ",
    r"Timeout, server ",
    r"Received disconnect from ",
)


class SshOutput:
    """Follows the output of one ssh."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self._server_key = ""
        self._refused = False
        self._last = ""
        self.up = False  # whether the port forwarding is up
        # The first fault since it was up, or since the start.
        self.trouble: TunnelFault | None = None

    def hear(self, line: str) -> str:
        """Read the next line; return what of it is for the log: no noise, no repetition."""
        line = printable(line.rstrip())[:LONGEST_LINE]
        if self.trouble is None:
            self.trouble = self._trouble(line)
        self._follow(line)
        # A client that retries every second makes ssh repeat itself every second.
        message = re.sub(r"^channel \d+: ", "", line)
        news = "" if _CHATTER.match(line) or message == self._last else line
        self._last = message if news else self._last
        return news

    def conclude(self, status: ExitStatus) -> TunnelFault:
        if self.trouble is not None:
            return self.trouble
        message = f': "{self._last}"' if self._last else ""
        return TunnelFault(TunnelCause.UNKNOWN, f"ssh ended with {status.named}{message}")

    def _follow(self, line: str) -> None:
        if match := _SERVER_KEY.match(line):
            self._server_key = match[1]
        elif _SERVER_REFUSED.match(line):
            self._refused = True
        elif _REVERSE_UP.match(line) or (line == _SESSION and not self._tunnel.reverse):
            # A forward tunnel listens before ssh prints this line; a reverse one once the server
            # has confirmed. What the server printed before does not matter.
            self.up, self.trouble = True, None

    def _trouble(self, line: str) -> TunnelFault | None:
        if line.startswith(_DEBUG):
            return None
        if _REVERSE_FAILED.match(line):
            return self._refusal() if self._refused else self._taken(self._tunnel.host)
        if _LOCAL_TAKEN.match(line):
            return self._taken("this host")
        for cause, pattern in _FINAL.items():
            if pattern.match(line):
                return self._final(cause, line)
        return self._cut(line) if _CUT.match(line) else None

    def _final(self, cause: TunnelCause, line: str) -> TunnelFault:
        tunnel = self._tunnel
        match cause:
            case TunnelCause.HOST_KEY:
                return TunnelFault(
                    cause,
                    f'the host key of "{tunnel.host}" is not the pinned one, '
                    f"but {self._server_key or 'of another type'}",
                    f"compare on the server ({SHOW_HOST_KEY}); if it is the same, pin it: "
                    f"`servicekit tunnel install {tunnel.name} "
                    f"--fingerprint {self._server_key or 'SHA256:…'}`",
                )
            case TunnelCause.DENIED:
                return TunnelFault(
                    cause,
                    f'"{tunnel.host}" rejects the tunnel\'s key for account "{tunnel.user}"',
                    f"add the line that `servicekit tunnel install {tunnel.name}` prints to "
                    f"~/.ssh/authorized_keys of {tunnel.user} there",
                )
            case TunnelCause.REFUSED:
                return self._refusal()
            case TunnelCause.KEY:
                return unusable_key(tunnel, line)
            case _:
                return TunnelFault(
                    cause, f"ssh failed: {line}", "check the versions of ssh on both hosts"
                )

    def _refusal(self) -> TunnelFault:
        tunnel = self._tunnel
        what = "listen on" if tunnel.reverse else "connect to"
        port = f"127.0.0.1:{tunnel.remote}"
        return TunnelFault(
            TunnelCause.REFUSED,
            f'"{tunnel.host}" does not permit the tunnel to {what} {port}',
            f"add the line that `servicekit tunnel install {tunnel.name}` prints to its "
            "authorized_keys, and check its sshd_config for AllowTcpForwarding no",
        )

    def _taken(self, where: str) -> TunnelFault:
        tunnel = self._tunnel
        port = tunnel.remote if tunnel.reverse else tunnel.local
        remedy = (
            "stop what uses it; for a frozen connection, set ClientAliveInterval and "
            "ClientAliveCountMax in its sshd_config"
            if tunnel.reverse
            else f"stop what uses it, or `servicekit tunnel install {tunnel.name} --local PORT`"
        )
        return TunnelFault(TunnelCause.PORT_TAKEN, f"port {port} on {where} is in use", remedy)

    def _cut(self, line: str) -> TunnelFault:
        host = self._tunnel.host
        if not self.up:
            reason = re.sub(r"^ssh: (?:connect to host \S+ port|Could not resolve) ", "", line)
            return TunnelFault(TunnelCause.UNREACHABLE, f'"{host}" cannot be reached: {reason}')
        if _UNANSWERED.match(line):
            seconds = self._tunnel.frozen_within
            return TunnelFault(TunnelCause.LOST, f'"{host}" did not respond for {seconds} s')
        return TunnelFault(TunnelCause.LOST, f'the connection to "{host}" was cut: {line}')


def unusable_key(tunnel: Tunnel, reason: str) -> TunnelFault:
    return TunnelFault(
        TunnelCause.KEY,
        f"the tunnel's key cannot be used: {reason}",
        f"remove its file and run `servicekit tunnel install {tunnel.name}` for a new one",
    )


def late(tunnel: Tunnel) -> TunnelFault:
    why = f'"{tunnel.host}" did not finish the login within {tunnel.up_within} s'
    return TunnelFault(TunnelCause.UNREACHABLE, why)
