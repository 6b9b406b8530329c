"""A tunnel as a value: every check, what ssh is asked for, what the server must allow. Pure.

Both ends are loopback, always. Forward, the port of an engine on the server becomes one of this
host; in reverse, the port of an engine here becomes one of the server.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from servicekit.errors import ExitCode, UserError
from servicekit.profiles.findings import Finding, texts
from servicekit.profiles.vocabulary import NAME
from servicekit.text import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import PurePosixPath

    from servicekit.places import Places
    from servicekit.profiles.findings import Lines
    from servicekit.profiles.trusted_toml import Document

LOOPBACK: Final = "127.0.0.1"
SSH: Final = "ssh"

# Names below a tunnel's own directory, in which ssh runs: none of its options needs a path that its
# parser would have to be quoted for.
FILE: Final = "tunnel.toml"
KEY: Final = "key"
PUBLIC_KEY: Final = "key.pub"
KNOWN_HOSTS: Final = "known_hosts"

UNPRIVILEGED: Final = 1024
LAST_PORT: Final = 65535
LONGEST_HOST: Final = 253  # characters of a host's name in the DNS
LOGIN_WITHIN: Final = 20  # seconds for login and forwarding, for which ssh has no limit

NAME_WORDS: Final = "a name has up to 48 of a-z, 0-9 and, after the first, dashes"

HOLD_OFF: Final = 5.0
LONGEST_HOLD_OFF: Final = 60.0
# Seconds after which a tunnel that was up has been healthy: faults before it no longer count.
STEADY: Final = 30.0

_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_HOST: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")
_FINGERPRINT: Final = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_KEY_TYPES: Final = re.compile(
    r"ssh-ed25519|ecdsa-sha2-nistp(?:256|384|521)|ssh-rsa|sk-(?:ssh-ed25519|ecdsa-sha2-nistp256)@openssh\.com"
)


class TunnelError(UserError):
    """An invalid tunnel; `findings` holds every reason."""

    def __init__(self, where: str, findings: Sequence[Finding], lines: Lines) -> None:
        reasons = texts(findings, lines)
        super().__init__("\n".join(f"{where}: {text}" for text in reasons), code=ExitCode.CONFIG)
        self.findings = tuple(findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel:
    """One valid tunnel; raises `TunnelError` with all findings otherwise."""

    name: str
    user: str  # account on the server
    host: str  # the server: a name or an address
    ssh_port: int = 22
    local: int = 18000  # port on this host
    remote: int = 18000  # port on the server
    reverse: bool = False  # the engine is on this host and the server gets the port
    # Seconds of silence after which the server is asked whether it is there.
    alive_interval: int = 15
    alive_count: int = 3  # unanswered keepalive requests before the connection is given up
    connect_timeout: int = 10  # seconds for the connection and key exchange

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if findings := list(_findings(values)):
            raise TunnelError(f'tunnel "{shown(str(self.name))}"', findings, {})

    @classmethod
    def parse(cls, document: Document, *, name: str, where: str) -> Self:
        """Make a tunnel from its file `where`; raise `TunnelError` with all findings."""
        known = ("to", *(f.name for f in fields(cls) if f.name not in {"name", "user", "host"}))
        data = document.data
        findings = [
            *document.findings,
            *(
                Finding((key,), f"unknown key{did_you_mean(key, known)}")
                for key in data
                if key not in known
            ),
        ]
        values = {key: value for key, value in data.items() if key in known and key != "to"}
        user, host = "nobody", "nowhere"  # so that the rest is checked, too
        try:
            user, host = address(data.get("to", ""))
        except ValueError as error:
            findings.append(Finding(("to",), str(error)))
        try:
            tunnel = cls(name=name, user=user, host=host, **values)
        except TunnelError as error:
            findings += error.findings
        else:
            if not findings:
                return tunnel
        raise TunnelError(where, findings, document.lines)

    def data(self) -> dict[str, Any]:
        """Content of its file, which `parse` reads back."""
        settings: dict[str, Any] = {"to": self.to}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in {"name", "user", "host"} and (
                value != field.default or field.name in {"local", "remote"}
            ):
                settings[field.name] = value
        return settings

    @property
    def unit(self) -> str:
        return f"servicekit-{self.label}"

    @property
    def label(self) -> str:
        return label(self.name)

    @property
    def to(self) -> str:
        return f"{self.user}@{self.host}"

    @property
    def url(self) -> str:
        """URL of the engine at the tunnel's entrance."""
        return f"http://{LOOPBACK}:{self.remote if self.reverse else self.local}/v1"

    @property
    def engine_port(self) -> int:
        """Port of the engine, on whichever host it is."""
        return self.local if self.reverse else self.remote

    @property
    def way(self) -> str:
        here, there = f"{LOOPBACK}:{self.local} here", f"{LOOPBACK}:{self.remote} on {self.host}"
        return f"{there} -> {here}" if self.reverse else f"{here} -> {there}"

    @property
    def frozen_within(self) -> int:
        """Seconds until a frozen connection is given up."""
        return self.alive_interval * self.alive_count

    @property
    def up_within(self) -> int:
        """Seconds for a tunnel to be up."""
        return self.connect_timeout + LOGIN_WITHIN

    def argv(self) -> tuple[str, ...]:
        """Return ssh's command line, to be run in the tunnel's own directory."""
        here, there = f"{LOOPBACK}:{self.local}", f"{LOOPBACK}:{self.remote}"
        forward = ("-R", f"{there}:{here}") if self.reverse else ("-L", f"{here}:{there}")
        options = tuple(word for option in self._options() for word in ("-o", option))
        # No configuration, command, terminal or input; no options after the dashes.
        fixed = (SSH, "-F", "/dev/null", "-N", "-T", "-n", *options, *forward)
        return (*fixed, "-l", self.user, "-p", str(self.ssh_port), "--", self.host)

    def _options(self) -> Iterator[str]:
        # Nobody can answer a prompt.
        yield "BatchMode=yes"
        # At this level ssh reports when a forwarding is up, and why the server refuses one.
        yield "LogLevel=DEBUG1"
        # Only the pinned key, found by the tunnel's name whatever the server's address is.
        yield "StrictHostKeyChecking=yes"
        yield f"HostKeyAlias={self.name}"
        yield f"UserKnownHostsFile={KNOWN_HOSTS}"
        yield "GlobalKnownHostsFile=/dev/null"
        yield "CheckHostIP=no"
        yield "UpdateHostKeys=no"
        # Only the tunnel's own key; `-i` would fall back to the account's keys if it is missing.
        yield f"IdentityFile={KEY}"
        yield "IdentitiesOnly=yes"
        yield "IdentityAgent=none"
        yield "PreferredAuthentications=publickey"
        # Otherwise ssh keeps running without the forwarding.
        yield "ExitOnForwardFailure=yes"
        yield f"ConnectTimeout={self.connect_timeout}"
        # Keepalives inside the encrypted connection cannot be answered by a router.
        yield f"ServerAliveInterval={self.alive_interval}"
        yield f"ServerAliveCountMax={self.alive_count}"
        yield "TCPKeepAlive=no"
        # A connection of its own, which ends with this process.
        yield "ControlMaster=no"
        yield "ControlPath=none"

    def authorized_key(self, public_key: str) -> str:
        """Return the line for `authorized_keys` on the server, which permits only this tunnel.

        Without any `permitlisten`, everything may listen: port 1 stands for nothing.
        """
        there = f"{LOOPBACK}:{self.remote}"
        listen = there if self.reverse else f"{LOOPBACK}:1"
        allowed = ("restrict", "port-forwarding", 'command="/bin/false"')
        bounds = (f'permitopen="{there}"', f'permitlisten="{listen}"')
        return f"{','.join((*allowed, *bounds))} {public_key.strip()}"


SHOW_HOST_KEY: Final = "`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`"
# For sshd_config on the server of a reverse tunnel.
SERVER_ADVICE: Final = """\
# Without these, a frozen connection keeps its port on the server for hours.
ClientAliveInterval 15
ClientAliveCountMax 3"""


def label(name: str) -> str:
    """Name a tunnel among profiles."""
    return f"tunnel@{name}"


def directory(places: Places, name: str) -> PurePosixPath:
    """Directory of a tunnel's file, key and pinned host keys."""
    return places.manifests.with_name("tunnels") / name


def state_file(places: Places, name: str) -> PurePosixPath:
    return places.state_file(label(name))


def checked_name(name: str) -> str:
    """Return a valid name, before it becomes part of a path; raise `UserError` otherwise."""
    if not re.fullmatch(NAME, name):
        raise UserError(f'tunnel "{shown(name)}": {NAME_WORDS}', code=ExitCode.CONFIG)
    return name


def address(to: object) -> tuple[str, str]:
    """Split `user@host`; raise `ValueError` with the text of a finding."""
    if not isinstance(to, str) or not to:
        raise ValueError("must be user@host")
    user, at, host = to.rpartition("@")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not at:
        raise ValueError(f'must be user@host, not "{shown(to)}": the account is missing')
    for name, check in (("user", _user), ("host", _host)):
        wrong = check(user if name == "user" else host)
        if wrong:
            raise ValueError(f'must be user@host, not "{shown(to)}": the {name} {wrong}')
    return user, host


def _user(user: str) -> str:
    good = _USER.fullmatch(user)
    return "" if good else "has up to 64 letters, digits and, after the first, dots or dashes"


def _host(host: str) -> str:
    if ":" in host:
        try:
            address = ipaddress.IPv6Address(host)
        except ValueError:
            return "is not an IPv6 address; use --ssh-port for a port"
        return "must not have a zone" if address.scope_id else ""
    good = len(host) <= LONGEST_HOST and _HOST.fullmatch(host)
    return "" if good else "must be a name or an address"


def _findings(values: Mapping[str, Any]) -> Iterator[Finding]:
    if not isinstance(values["name"], str) or not re.fullmatch(NAME, values["name"]):
        yield Finding((), NAME_WORDS)
    for key, check in (("user", _user), ("host", _host)):
        wrong = check(values[key]) if isinstance(values[key], str) else "must be text"
        if wrong:
            yield Finding((key,), wrong)
    if type(values["reverse"]) is not bool:
        yield Finding(("reverse",), "must be true or false")
    seconds = (1, 3600)
    # On the server of a reverse tunnel, an unprivileged account listens.
    bounds = {
        "ssh_port": (1, LAST_PORT),
        "local": (UNPRIVILEGED, LAST_PORT),
        "remote": (UNPRIVILEGED if values["reverse"] is True else 1, LAST_PORT),
        "alive_interval": seconds,
        "alive_count": (1, 100),
        "connect_timeout": seconds,
    }
    for key, (least, most) in bounds.items():
        value = values[key]
        if type(value) is not int:
            yield Finding((key,), "must be a whole number")
        elif not least <= value <= most:
            yield Finding((key,), f"must be from {least} to {most}, not {value}")


def hold_off(faults: int) -> float:
    """Seconds to wait after so many consecutive faults."""
    if faults < 1:
        return 0.0
    return float(min(LONGEST_HOLD_OFF, HOLD_OFF * 2 ** min(faults - 1, 10)))


class HostKey(NamedTuple):
    """A public key of a server."""

    type: str
    blob: str  # base64, as `known_hosts` has it

    @property
    def fingerprint(self) -> str:
        """As ssh prints it: `SHA256:` and 43 characters."""
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def host_keys(text: str) -> tuple[HostKey, ...]:
    """Read the keys of `known_hosts` or ssh-keyscan's output, sorted; ignore other lines."""
    keys = set()
    for line in text.splitlines():
        match line.split():
            case [where, kind, blob, *_] if not where.startswith("#") and _is_key(kind, blob):
                keys.add(HostKey(kind, blob))
            case _:
                pass
    return tuple(sorted(keys))


def _is_key(kind: str, blob: str) -> bool:
    try:
        return bool(_KEY_TYPES.fullmatch(kind) and base64.b64decode(blob, validate=True))
    except ValueError:
        return False


def known_hosts(name: str, keys: Iterable[HostKey]) -> str:
    return "".join(f"{name} {key.type} {key.blob}\n" for key in keys)


def checked_fingerprint(fingerprint: str) -> str:
    """Return a fingerprint as ssh prints it, or raise `UserError`."""
    bare = fingerprint.strip().rstrip("=")
    if not _FINGERPRINT.fullmatch(bare):
        raise UserError(
            f'"{shown(fingerprint)}" is not a fingerprint of a host key',
            hint="give SHA256: and 43 characters, as `ssh-keygen -lf FILE` prints it",
        )
    return bare


def matching(keys: Sequence[HostKey], fingerprint: str, host: str) -> tuple[HostKey, ...]:
    """Return the key with this fingerprint; raise `UserError` where the server has none."""
    picked = tuple(key for key in keys if key.fingerprint == fingerprint)
    if not picked:
        showed = ", ".join(key.fingerprint for key in keys)
        raise UserError(
            f'"{host}" has no host key {fingerprint}, only {showed}',
            hint=f"compare on the server: {SHOW_HOST_KEY}",
            code=ExitCode.CONFIG,
        )
    return picked
