"""Supervisor, through its XML-RPC interface: on its unix socket or on loopback."""

from __future__ import annotations

import base64
import grp
import http.client
import ipaddress
import os
import socket
import stat
import time
import xmlrpc.client
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from typing_extensions import override

from servicekit.errors import UserError
from servicekit.host import procfs
from servicekit.managers import FINAL, SERVER_URL, Seen
from servicekit.profiles.vocabulary import ManagerName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servicekit.managers import LogQuery
    from servicekit.places import Places

# seconds for one reply of supervisord, whose only loop also reads every program's output
ANSWER_LIMIT: Final = 20.0
POLL: Final = 0.05

# Seconds after which a program that still stops gets its SIGTERM again: supervisord loses one that
# it sends between its fork and its exec.
TERM_AGAIN: Final = 3.0

# Faults, as supervisor.xmlrpc.Faults numbers them.
SHUTDOWN_STATE: Final = 6
BAD_NAME: Final = 10
NOT_RUNNING: Final = 70
ALREADY_STARTED: Final = 60
ALREADY_ADDED: Final = 90
STILL_RUNNING: Final = 91
CANT_REREAD: Final = 92

_WAIT: Final = False  # do not hold the connection while a stop takes its time

# Supervisor's states in systemd's terms; for EXITED the exit code decides.
STATES: Final = {
    "STOPPED": "inactive",
    "STARTING": "activating",
    "RUNNING": "active",
    "BACKOFF": "activating",
    "STOPPING": "deactivating",
    "FATAL": "failed",
    "UNKNOWN": "failed",
}


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=ANSWER_LIMIT)
        self._path = path

    @override
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)  # `close` closes it, also if this fails
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _Transport(xmlrpc.client.Transport):
    def __init__(self, path: str | None, credentials: str) -> None:
        authorization = base64.b64encode(credentials.encode()).decode()
        headers = [("Authorization", f"Basic {authorization}")] if credentials else []
        super().__init__(headers=headers)
        self._path = path

    @override
    def make_connection(self, host: tuple[str, dict[str, str]] | str) -> http.client.HTTPConnection:
        connection = (
            http.client.HTTPConnection(str(host), timeout=ANSWER_LIMIT)
            if self._path is None
            else _UnixConnection(self._path)
        )
        self._connection = host, connection  # what `close` closes
        return connection


class Supervisor:
    """The supervisord at `unix://USER:PASSWORD@/PATH` or `http://USER:PASSWORD@127.0.0.1:PORT`."""

    name: Final = ManagerName.SUPERVISOR

    def __init__(self, places: Places, url: str, *, term_again: float = TERM_AGAIN) -> None:
        self._places, self._term_again = places, term_again
        parts = urlsplit(url)
        credentials, _, host = parts.netloc.rpartition("@")
        self._where = parts.path if parts.scheme == "unix" else f"{parts.scheme}://{host}"
        if parts.scheme == "unix" and parts.path:
            transport = _Transport(unquote(parts.path), unquote(credentials))
            server = "http://localhost/RPC2"
        elif parts.scheme == "http" and _is_loopback(parts.hostname):
            transport = _Transport(None, unquote(credentials))
            server = f"http://{host}/RPC2"
        else:
            raise UserError(
                f'{SERVER_URL} must be a socket "unix:///run/supervisor.sock" or a loopback '
                f'address "http://127.0.0.1:9001", not "{self._where}"'
            )
        self._server = xmlrpc.client.ServerProxy(server, transport=transport)

    def version(self) -> str:
        return str(self._call("getSupervisorVersion"))

    def reload(self, unit: str = "") -> None:
        """Reread the configuration and remove programs of ours that are no longer in it.

        A new program is added by `start`, since adding it starts it.
        """
        added, _, removed = self._differences()
        if unit and unit not in added and not self._look(unit).loaded:
            raise self._not_included()
        for name in removed:
            if name.startswith("servicekit-"):
                self._call("removeProcessGroup", name, unless=frozenset({STILL_RUNNING, BAD_NAME}))

    def start(self, unit: str) -> None:
        """Start with the present configuration."""
        added, changed, _ = self._differences()
        if unit in changed:
            self.stop(unit, limit=ANSWER_LIMIT)
            self._call("removeProcessGroup", unit)
        if unit in added or unit in changed:
            self._call("addProcessGroup", unit, unless=frozenset({ALREADY_ADDED}))
        elif not self._look(unit).loaded:
            raise self._not_included()
        self._call("startProcess", unit, _WAIT, unless=frozenset({ALREADY_STARTED}))

    def stop(self, unit: str, *, limit: float) -> None:
        """Stop and wait; a program that is unknown or not running counts as stopped."""
        began = time.monotonic()
        again = False
        while self._look(unit).is_up:
            # Repeated: a program between two starts is "not running" for an instant.
            gone = frozenset({NOT_RUNNING, BAD_NAME})
            self._call("stopProcess", unit, _WAIT, unless=gone)
            passed = time.monotonic() - began
            if not again and passed > self._term_again:
                again = True
                self._call("signalProcess", unit, "TERM", unless=gone)
            if passed > limit:
                raise UserError(
                    f'Supervisor did not stop "{unit}" within {limit:g} s',
                    hint="see its log: `servicekit logs`",
                )
            time.sleep(POLL)

    def stops(self, unit: str, pid: int) -> bool:
        """Return whether supervisord is ending `pid`, which is `unit`'s, or itself with it all."""
        known = self._call("getAllProcessInfo", unless=frozenset({SHUTDOWN_STATE}))
        return known is None or any(
            (info["name"], info["pid"], info["statename"]) == (unit, pid, "STOPPING")
            for info in known
        )

    def look(self, units: Sequence[str]) -> dict[str, Seen]:
        if not units:
            return {}
        known = {info["name"]: _seen(info) for info in self._call("getAllProcessInfo")}
        unknown = Seen("inactive", loaded=False)
        return {unit: known.get(unit, unknown) for unit in units}

    def log_command(self, unit: str, query: LogQuery) -> tuple[str, ...]:
        """Return a `tail` of Supervisor's log file; `logfile.matching` filters its lines."""
        path = str(self._places.log_file(unit.removeprefix("servicekit-")))
        lines = "+1" if query.lines is None else str(query.lines)
        # By name: Supervisor rotates the file.
        follow = ("--follow=name", "--retry") if query.follow else ()
        return ("tail", f"--lines={lines}", *follow, path)

    def _not_included(self) -> UserError:
        return UserError(
            f'supervisord ({self._where}) does not include "{self._places.supervisor}"',
            hint=f"add [include] files = {self._places.supervisor}/*.conf to its configuration",
        )

    def _look(self, unit: str) -> Seen:
        return self.look([unit])[unit]

    def _differences(self) -> tuple[list[str], list[str], list[str]]:
        ((added, changed, removed),) = self._call("reloadConfig")
        return added, changed, removed

    def _call(self, method: str, *arguments: object, unless: frozenset[int] = frozenset()) -> Any:  # noqa: ANN401 - XML-RPC
        try:
            return getattr(self._server.supervisor, method)(*arguments)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode in unless:
                return None
            raise self._refusal(method, arguments, fault) from None
        except xmlrpc.client.ProtocolError as error:
            if error.errcode == http.HTTPStatus.UNAUTHORIZED:
                raise UserError(
                    f"supervisord ({self._where}) requires a user name and a password",
                    hint=f"set {SERVER_URL}=unix://USER:PASSWORD@/PATH",
                ) from None
            raise UserError(
                f"supervisord ({self._where}) answered {error.errcode} {error.errmsg}"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise UserError(
                f"supervisord ({self._where}) cannot be reached: {reason.lower()}",
                hint=_who_may(self._where)
                if isinstance(error, PermissionError)
                else "check that it is running",
            ) from None
        finally:
            self._server("close")()

    def _refusal(
        self, method: str, arguments: Sequence[object], fault: xmlrpc.client.Fault
    ) -> UserError:
        what = " ".join([method, *(str(a) for a in arguments if isinstance(a, str))])
        if fault.faultCode == CANT_REREAD:
            return UserError(
                f"supervisord ({self._where}) cannot read its configuration: {fault.faultString}"
            )
        return UserError(f"supervisord ({self._where}) refused {what}: {fault.faultString}")


def _who_may(socket: str) -> str:
    """Say who may use a socket, and how to get access."""
    try:
        about = Path(socket).stat()
    except OSError:  # its directory is closed
        return "run as root"
    owner, me = procfs.account(about.st_uid), procfs.account(os.geteuid())
    as_owner = "run as root" if about.st_uid == 0 else f'run as "{owner}"'
    if about.st_mode & stat.S_IWGRP:
        group = _group(about.st_gid)
        return (
            f'its socket belongs to group "{group}": {as_owner}, or add "{me}" to the group '
            f"(`usermod -aG {group} {me}`) and log in again"
        )
    return (
        f'only "{owner}" may use its socket: {as_owner}, or set chmod=0770 and '
        f"chown={owner}:GROUP in [unix_http_server], with a group of yours"
    )


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def _seen(info: dict[str, Any]) -> Seen:
    state, code = info["statename"], info["exitstatus"]
    if state == "EXITED":
        active = "activating" if code not in FINAL else "failed" if code else "inactive"
    else:
        active = STATES[state]
    return Seen(
        active=active,
        pid=info["pid"] or None,
        text="" if state == "RUNNING" else info["description"],
        exit_code=code if state == "EXITED" else None,
    )
