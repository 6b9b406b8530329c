"""The published state of a run: sd_notify for the service manager, `state.json` for everyone."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Final, Self

from servicekit.errors import ExitCode, UserError, reason
from servicekit.host import untrusted
from servicekit.host.files import replace
from servicekit.watchdog import clock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from _typeshed import DataclassInstance

SEND_LIMIT: Final = 1.0
"""Seconds that the manager's socket may take to accept a message; it takes microseconds."""
STATUS_LENGTH: Final = 1000
"""Characters of a status line; a datagram of more than 4096 bytes would be dropped as a whole."""

FORMAT: Final = 1
"""Version of the state file's layout."""
MOST: Final = 2**31
"""Tokens beyond which a count is none."""
WORDS: Final = frozenset({"configured", "starting", "ready", "degraded", "failed", "stopped"})
"""The states that are ever published."""
LAST_PORT: Final = 65535
LARGEST: Final = 256 << 10
"""Bytes of a state file; one of ours has some two KiB."""

_TYPOGRAPHY: Final = {
    ord("\N{EN DASH}"): "-",
    ord("\N{EM DASH}"): "-",
    ord("\N{RIGHTWARDS ARROW}"): "->",
    ord("\N{LEFT DOUBLE QUOTATION MARK}"): '"',
    ord("\N{RIGHT DOUBLE QUOTATION MARK}"): '"',
    ord("\N{LEFT SINGLE QUOTATION MARK}"): "'",
    ord("\N{RIGHT SINGLE QUOTATION MARK}"): "'",
}
"""Signs that Unicode does not decompose into ASCII, unlike accents and the ellipsis."""


def ascii_line(text: str, length: int = STATUS_LENGTH) -> str:
    """Spell `text` as one line of printable ASCII, cut to `length` characters.

    The notify protocol takes one line, and a client that meets a character which it cannot encode
    loses the whole message, READY=1 with it.
    """
    line = " ".join(text.split())
    if not line.isascii():
        from unicodedata import combining, normalize

        spelt = normalize("NFKD", line.translate(_TYPOGRAPHY))
        line = "".join(character for character in spelt if not combining(character))
        line = line.encode("ascii", "replace").decode("ascii")
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= length else f"{line[: length - 3]}..."


class NotifyError(UserError):
    """The service manager asked to be notified and cannot be."""

    def __init__(self, what: str, error: Exception) -> None:
        super().__init__(
            f"cannot notify the service manager{what}: {error}",
            hint="check that NOTIFY_SOCKET is the manager's socket",
            code=ExitCode.TEMPFAIL,
        )


class Notifier:
    """Speaks to the service manager; without NOTIFY_SOCKET nothing is sent.

    Only a lost READY=1 is an error: the manager would wait for it and then kill a healthy service.
    """

    def __init__(self) -> None:
        """Connect; raise `NotifyError` where a manager is named but cannot be reached."""
        self._notifier = None
        self._status = ""
        self.lost = 0
        """Messages that the manager did not accept."""
        if os.environ.get("NOTIFY_SOCKET"):
            from sdnotify import SystemdNotifier

            try:
                self._notifier = SystemdNotifier(debug=True)
            except OSError as error:
                raise NotifyError("", error) from None
            self._notifier.socket.settimeout(SEND_LIMIT)
        self.interval = _watchdog_interval(os.environ)
        """Seconds within which `keep_alive` must be called; `None` without a watchdog timer."""

    def ready(self, status: str) -> None:
        """Send READY=1; raise `NotifyError` where that is lost."""
        self._status = ascii_line(status)
        try:
            self._send(f"READY=1\nSTATUS={self._status}")
        except OSError as error:
            raise NotifyError(" that the service is ready", error) from None

    def status(self, status: str) -> None:
        """Send a new status line."""
        line = ascii_line(status)
        if line != self._status:
            self._status = line
            self._try(f"STATUS={line}")

    def stopping(self) -> None:
        """Send STOPPING=1: a ready service whose engine ends is not `active` any more."""
        self._try("STOPPING=1")

    def extend(self, seconds: float) -> None:
        """Ask the manager to wait for at least `seconds` from now before it gives up."""
        self._try(f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")

    def keep_alive(self) -> None:
        """Send WATCHDOG=1."""
        if self.interval is not None:
            self._try("WATCHDOG=1")

    def close(self) -> None:
        """Close the socket."""
        if self._notifier is not None:
            self._notifier.socket.close()

    def _try(self, message: str) -> None:
        try:
            self._send(message)
        except OSError:
            self.lost += 1

    def _send(self, message: str) -> None:
        if self._notifier is not None:
            self._notifier.notify(message)


def _watchdog_interval(environment: Mapping[str, str]) -> float | None:
    """Give half of what the manager's watchdog allows, as its manual recommends."""
    allowed = environment.get("WATCHDOG_USEC", "")
    meant_for = environment.get("WATCHDOG_PID", str(os.getpid()))
    if not allowed.isdecimal() or int(allowed) == 0 or meant_for != str(os.getpid()):
        return None
    return int(allowed) / 2_000_000


@dataclass(frozen=True, slots=True)
class State:
    """The published state of a profile, as `state.json` holds it. Times are ISO 8601 in UTC."""

    profile: str
    state: str
    """One of the six published words."""
    phase: str
    since: str
    """When `state` was entered."""
    updated: str
    run: str
    pid: int
    """The watchdog's."""
    pid_started: int
    """Its start time in clock ticks since boot: whether it still lives."""
    engine_pid: int | None = None
    cause: str | None = None
    reason: str | None = None
    """Why it is degraded: the first of `reasons`."""
    reasons: tuple[str, ...] = ()
    why: str = ""
    remedy: str = ""
    context: Mapping[str, int | None] | None = None
    """Tokens: requested, declared, physical, effective."""
    figures: Mapping[str, float] | None = None
    """What the engine's boot log says about memory (GiB), tokens and requests."""
    ready_seconds: float | None = None
    """From the launch to ready, in this run."""
    launched_boottime: float | None = None
    """When the engine was launched, as `boottime`."""
    eta: float | None = None
    """Seconds that a start usually takes from the launch to ready."""
    restarts: int = 0
    """Runs since an operator last started it."""
    code: int | None = None
    """Exit code, once the run is over."""
    engine: str = ""
    model: str = ""
    served_name: str = ""
    host: str = ""
    port: int | None = None
    boot_id: str = ""
    """The boot in which it was written; 0.1.0 wrote none of these four."""
    boottime: float | None = None
    """Seconds from that boot to `updated`, suspends included."""
    since_boottime: float | None = None
    """The same to `since`."""
    pid_namespace: int | None = None
    """The namespace in which `pid` counts."""
    bugs: int = 0
    """Bugs in reporting that the watchdog has caught in this run."""
    bug: str = ""
    """The first of them."""
    format: int = FORMAT
    servicekit: str = "0.1.0"
    """Version of the watchdog; 0.1.0 wrote none."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a state file's text; raise `ValueError` where it is none. Unknown keys are left."""
        names = {one.name for one in fields(cls)}
        known = {name: value for name, value in untrusted.parse(text).items() if name in names}
        untrusted.refuse_misfit(known, _SCHEMA)
        untrusted.moment(known.get("since"))
        known["reasons"] = tuple(known.get("reasons", ()))
        if known.get("phase") == "ailing":  # as version 0.1 calls it
            known["phase"] = "degraded"
        try:
            return cls(**known)
        except TypeError:
            raise ValueError("a value is missing from it") from None


def _is_time(value: object) -> bool:
    return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None


def _is_tokens(value: object) -> bool:
    return isinstance(value, int) and untrusted.is_count(value) and value <= MOST


def _is_loopback(value: object) -> bool:
    """Whether it is an address of loopback, the only ones that are ever served; or none at all."""
    return isinstance(value, str) and (
        value in {"", "localhost", "::1"} or re.fullmatch(r"127(\.\d{1,3}){3}", value) is not None
    )


_SCHEMA: Final = {
    **dict.fromkeys(("profile", "phase", "updated", "run"), untrusted.is_text),
    "state": lambda value: isinstance(value, str) and value in WORDS,
    **dict.fromkeys(
        ("why", "remedy", "engine", "model", "served_name", "bug", "servicekit"), untrusted.is_text
    ),
    **dict.fromkeys(("pid", "pid_started", "restarts", "bugs", "format"), untrusted.is_count),
    **dict.fromkeys(("engine_pid", "code"), untrusted.optional(untrusted.is_count)),
    **dict.fromkeys(("cause", "reason"), untrusted.optional(untrusted.is_text)),
    "since": _is_time,
    "reasons": untrusted.is_texts,
    "context": untrusted.optional(untrusted.each(untrusted.optional(_is_tokens))),
    "figures": untrusted.optional(untrusted.each(untrusted.is_number)),
    "boot_id": untrusted.is_text,
    "pid_namespace": untrusted.optional(untrusted.is_count),
    **dict.fromkeys(("ready_seconds", "eta"), untrusted.optional(untrusted.is_number)),
    **dict.fromkeys(
        ("boottime", "since_boottime", "launched_boottime"), untrusted.optional(clock.is_boottime)
    ),
    "host": _is_loopback,
    "port": untrusted.optional(lambda value: _is_tokens(value) and value in range(LAST_PORT + 1)),
}
# What each value of a state file must be, so that readers need no checks of their own.


def write_state(path: Path, state: DataclassInstance) -> None:
    """Replace `path` at once, readable for everyone: `servicekit status` is.

    Where the new state cannot be written the old one is removed: it is no longer true.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        replace(path, f"{json.dumps(asdict(state), indent=2)}\n", mode=0o644)
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise


def read_state(path: Path) -> State | None:
    """Read a state file; `None` where there is none. Raise `UserError` where it is unusable."""
    try:
        return State.parse(untrusted.read(path, limit=LARGEST))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise UserError(
            f'state file "{path}" cannot be read: {reason(error)}',
            hint="restart the service: its watchdog writes a new one",
        ) from None
