"""systemd and Supervisor behind one protocol."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from servicekit.errors import UserError
from servicekit.profiles.vocabulary import ManagerName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from servicekit.places import Places

# Exists if and only if systemd is PID 1, as `sd_booted(3)` tests.
SYSTEMD_RUNS: Final = Path("/run/systemd/system")
SUPERVISOR_SOCKETS: Final = (
    Path("/run/supervisor.sock"),
    Path("/var/run/supervisor.sock"),
    Path("/tmp/supervisor.sock"),  # noqa: S108 - where Supervisor's own sample puts it
)
# supervisord sets it for its programs; a user may set it to choose a supervisord.
SERVER_URL: Final = "SUPERVISOR_SERVER_URL"
# Exit codes after which Supervisor starts a watchdog no more: `exitcodes=` as we write it.
FINAL: Final = frozenset({0, 69, 78})


@dataclass(frozen=True, slots=True)
class Seen:
    """State of one service, in systemd's terms for both managers."""

    active: str  # `active`, `activating`, `deactivating`, `inactive`, `failed`
    loaded: bool = True  # whether the manager knows the service at all
    pid: int | None = None  # the watchdog's process
    text: str = ""  # text beside the state
    # Restarts since an operator started it; `None` where the manager does not count.
    restarts: int | None = None
    run: str = ""  # run id, where the manager has one
    enabled: bool | None = None  # whether it starts at boot; `None` where the manager does not say
    # Exit code of the last watchdog that ended, where the manager says.
    exit_code: int | None = None

    @property
    def is_up(self) -> bool:
        """Whether a watchdog runs or is about to."""
        return self.active in {"active", "activating", "deactivating", "reloading"}


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which lines of a service's log to show."""

    follow: bool = False
    lines: int | None = 100
    since: str = ""  # as for `journalctl --since`
    priority: str = ""  # as for `journalctl --priority`, such as `err`
    run: str = ""
    cause: str = ""
    bare: bool = False  # without the journal's own columns


class Manager(Protocol):
    """One service manager."""

    @property
    def name(self) -> ManagerName:
        """Which manager."""

    def reload(self, unit: str = "") -> None:
        """Reload the configuration; starts and stops nothing.

        Raises `UserError` where that fails, or `unit` is unknown afterwards.
        """

    def start(self, unit: str) -> None:
        """Start without waiting; resets earlier failures."""

    def stop(self, unit: str, *, limit: float) -> None:
        """Stop and wait, at most `limit` seconds."""

    def look(self, units: Sequence[str]) -> dict[str, Seen]:
        """Return the state of each of `units`."""

    def log_command(self, unit: str, query: LogQuery) -> tuple[str, ...]:
        """Return the command that shows the service's log."""


def find_manager(
    places: Places,
    environment: Mapping[str, str],
    *,
    name: ManagerName | None = None,
    socket: str = "",
) -> Manager:
    """Return the manager of this host, or the one called `name`.

    `socket` is Supervisor's socket or URL from the settings. Raises `UserError` if none runs.
    """
    url = supervisor_url(environment, socket=socket)
    if name is ManagerName.SYSTEMD or (name is None and SYSTEMD_RUNS.is_dir() and not socket):
        if not SYSTEMD_RUNS.is_dir():
            raise UserError(
                "systemd does not run here",
                hint="choose --manager supervisor, or write only the files, with --root DIR",
            )
        from servicekit.managers.systemd import Systemd

        return Systemd(places)
    if url is not None:
        # Imported late: its protocol takes a while to load.
        from servicekit.managers.supervisor import Supervisor

        return Supervisor(places, url)
    looked = ", ".join(map(str, SUPERVISOR_SOCKETS))
    if name is ManagerName.SUPERVISOR:
        raise UserError(
            f"supervisord does not run here: there is no socket at {looked}",
            hint=f"start it, or set {SERVER_URL} or supervisor_socket in the settings",
        )
    raise UserError(
        f"neither systemd ({SYSTEMD_RUNS}) nor Supervisor ({looked}) runs here",
        hint="start one of them, set supervisor_socket in the settings, or write only the files, "
        "with --root DIR",
    )


def supervisor_url(environment: Mapping[str, str], *, socket: str = "") -> str | None:
    """Find supervisord: by the settings, the environment, or its usual sockets."""
    named = socket or environment.get(SERVER_URL, "")
    if named:
        return named if "://" in named else f"unix://{named}"
    usual = next((path for path in SUPERVISOR_SOCKETS if path.is_socket()), None)
    return f"unix://{usual}" if usual is not None else None
