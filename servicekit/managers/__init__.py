"""systemd and Supervisor behind one protocol: told of changes, ordered, asked what they see."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from servicekit.errors import UserError
from servicekit.profiles.vocabulary import ManagerName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from servicekit.places import Places

# Exists if and only if systemd is PID 1: how `sd_booted(3)` tells, too.
SYSTEMD_RUNS: Final = Path("/run/systemd/system")
SUPERVISOR_SOCKETS: Final = (
    Path("/run/supervisor.sock"),
    Path("/var/run/supervisor.sock"),
    Path("/tmp/supervisor.sock"),  # noqa: S108 - where Supervisor's own sample puts it
)
# Set by supervisord for what it starts; anybody may set it to name a supervisord.
SERVER_URL: Final = "SUPERVISOR_SERVER_URL"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a manager says about one service. Both managers' words become systemd's."""

    active: str  # `active`, `activating`, `deactivating`, `inactive`, `failed`
    loaded: bool = True  # whether the manager knows the service at all
    pid: int | None = None  # the watchdog's process
    text: str = ""  # what the manager shows beside the state
    # Restarts by the manager since it was last started by hand; `None` where it does not
    # count.
    restarts: int | None = None
    run: str = ""  # run id, where the manager gives one
    enabled: bool | None = None  # whether it starts at boot; `None` where the manager does not say
    # Exit code of the last watchdog that ended, where the manager says.
    exit_code: int | None = None

    @property
    def is_up(self) -> bool:
        """Whether a watchdog runs or is about to."""
        return self.active in {"active", "activating", "deactivating", "reloading"}


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which lines of a service's log are wanted."""

    follow: bool = False
    lines: int | None = 100
    since: str = ""  # A time that `journalctl --since` takes
    priority: str = ""  # A level that `journalctl --priority` takes, such as `err`
    run: str = ""
    cause: str = ""
    bare: bool = False  # only what was written, without the journal's own columns


class Manager(Protocol):
    """One service manager."""

    @property
    def name(self) -> ManagerName:
        """Which manager."""

    def reload(self, unit: str = "") -> None:
        """Tell it that its configuration changed. Starts and stops nothing.

        Raises `UserError` where it cannot be told, or does not know `unit` afterwards.
        """

    def start(self, unit: str) -> None:
        """Order a start and return at once; earlier failures are forgiven."""

    def stop(self, unit: str, *, limit: float) -> None:
        """Order a stop and wait until the service is down, `limit` seconds at most."""

    def restart(self, unit: str, *, limit: float) -> None:
        """Order a restart; return once the old service is down and the new one is on its way."""

    def look(self, units: Sequence[str]) -> dict[str, Seen]:
        """See how each of `units` is."""

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

    Raises `UserError` if that one, or any, does not run.
    `socket` names Supervisor's socket or URL where the settings do.
    """
    url = supervisor_url(environment, socket=socket)
    if name is ManagerName.SYSTEMD or (name is None and SYSTEMD_RUNS.is_dir() and not socket):
        if not SYSTEMD_RUNS.is_dir():
            raise UserError(
                "systemd does not run here",
                hint="name the manager that does with --manager supervisor, "
                "or write the files only, with --root DIR",
            )
        from servicekit.managers.systemd import Systemd

        return Systemd(places)
    if url is not None:
        # Its protocol takes a while to load, which who has systemd need not wait for.
        from servicekit.managers.supervisor import Supervisor

        return Supervisor(places, url)
    looked = ", ".join(map(str, SUPERVISOR_SOCKETS))
    if name is ManagerName.SUPERVISOR:
        raise UserError(
            f"no supervisord answers here: there is no socket at {looked}",
            hint=f"start it, or name its socket in {SERVER_URL} or in the settings",
        )
    raise UserError(
        f"neither systemd ({SYSTEMD_RUNS}) nor Supervisor ({looked}) runs here",
        hint="start one of them, name the socket of a supervisord of your own as supervisor_socket "
        "in the settings, or write the files only, with --root DIR",
    )


def supervisor_url(environment: Mapping[str, str], *, socket: str = "") -> str | None:
    """Find supervisord: as the settings say, as the environment says, else at its usual sockets."""
    named = socket or environment.get(SERVER_URL, "")
    if named:
        return named if "://" in named else f"unix://{named}"
    found = next((path for path in SUPERVISOR_SOCKETS if path.is_socket()), None)
    return f"unix://{found}" if found is not None else None
