"""systemd, through `systemctl`: its command line is the interface that every version keeps."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Final

from servicekit.errors import UserError
from servicekit.managers import Seen
from servicekit.places import Scope
from servicekit.profiles.vocabulary import ManagerName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servicekit.managers import LogQuery
    from servicekit.places import Places

# Seconds for an answer to anything but a stop; a `daemon-reload` of a busy host takes some.
ANSWER_LIMIT: Final = 60.0
PROPERTIES: Final = (
    "Id",
    "LoadState",
    "ActiveState",
    "Job",
    "MainPID",
    "StatusText",
    "NRestarts",
    "InvocationID",
    "UnitFileState",
    "ExecMainStatus",
)
SYSTEMD: Final = "SYSLOG_IDENTIFIER=systemd"

_DENIED: Final = ("authentication required", "Access denied", "Permission denied")
_NO_BUS: Final = ("Failed to connect to bus", "No medium found")


class Systemd:
    """The system's manager or, for places of a user, that user's own."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._scope = ("--user",) if places.scope is Scope.USER else ()

    @property
    def name(self) -> ManagerName:
        """Which manager."""
        return ManagerName.SYSTEMD

    def version(self) -> int:
        """Tell which systemd it is; 0 where it does not say so in its usual words."""
        words = self._order("--version").split()
        return int(words[1]) if words[1:] and words[1].isdecimal() else 0

    def reload(self, unit: str = "") -> None:
        """Let it read its units again."""
        self._order("daemon-reload")
        if unit and not self.look([unit])[unit].loaded:
            raise UserError(
                f'systemd does not find "{unit}.service" in "{self._places.units}"',
                hint="let the units' place be one that `systemctl show -p UnitPath` names",
            )

    def start(self, unit: str) -> None:
        """Order a start; a start limit that was hit is forgiven."""
        # A unit that never failed has nothing to reset, and an unknown one is named by the start.
        self._run("reset-failed", f"{unit}.service")
        self._order("start", "--no-block", f"{unit}.service")

    def stop(self, unit: str, *, limit: float) -> None:
        """Stop and wait, as `systemctl stop` does."""
        self._order("stop", f"{unit}.service", limit=limit)

    def restart(self, unit: str, *, limit: float) -> None:
        """Stop, wait, start."""
        self.stop(unit, limit=limit)
        self.start(unit)

    def look(self, units: Sequence[str]) -> dict[str, Seen]:
        """Ask for all units in one call."""
        if not units:
            return {}
        names = [f"{unit}.service" for unit in units]
        text = self._order("show", f"--property={','.join(PROPERTIES)}", *names)
        # An empty line stands between two units.
        return dict(zip(units, map(_seen, text.strip("\n").split("\n\n")), strict=True))

    def log_command(self, unit: str, query: LogQuery) -> tuple[str, ...]:
        """Return a `journalctl` of the unit: the engine's lines, ours, and systemd's about it."""
        option = "--user-unit" if self._scope else "--unit"
        fields = [f"SERVICEKIT_CAUSE={query.cause}"] if query.cause else []
        fields += [f"_SYSTEMD_INVOCATION_ID={query.run.replace('-', '')}"] if query.run else []
        return (
            "journalctl",
            f"{option}={unit}.service",
            *(("--follow",) if query.follow else ("--no-pager",)),
            *(("--output=cat",) if query.bare else ()),
            *(() if query.lines is None else (f"--lines={query.lines}",)),
            *((f"--since={query.since}",) if query.since else ()),
            *((f"--priority={query.priority}",) if query.priority else ()),
            *fields,
        )

    def _order(self, *words: str, limit: float = ANSWER_LIMIT) -> str:
        done = self._run(*words, limit=limit)
        if done.returncode:
            raise _refusal(words, done.stderr)
        return done.stdout

    def _run(self, *words: str, limit: float = ANSWER_LIMIT) -> subprocess.CompletedProcess[str]:
        command = ("systemctl", *self._scope, "--no-ask-password", "--no-pager", *words)
        try:
            return subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=limit
            )
        except FileNotFoundError:
            raise UserError('systemd runs here, but "systemctl" is not on PATH') from None
        except subprocess.TimeoutExpired:
            raise UserError(
                f'"systemctl {" ".join(words)}" did not come back within {limit:g} s',
                hint="`systemctl list-jobs` shows what it waits for",
            ) from None


def _refusal(words: Sequence[str], stderr: str) -> UserError:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    # Hints that follow, such as "See system logs …", are not the reason.
    reason = next((line for line in lines if not line.startswith(("See ", "Hint:"))), "no reason")
    hint = ""
    if any(word in stderr for word in _NO_BUS):
        hint = "log in as that user (`machinectl shell USER@`), so that its own systemd runs"
    elif any(word in stderr for word in _DENIED):
        hint = "run it as root, or with --user for services of your own"
    return UserError(f'"systemctl {" ".join(words)}": {reason.rstrip(".")}', hint=hint)


def _seen(block: str) -> Seen:
    said = dict(line.partition("=")[::2] for line in block.splitlines())
    pid, status = int(said.get("MainPID") or 0), said.get("ExecMainStatus", "")
    active = said["ActiveState"]
    if active in {"inactive", "failed"} and said.get("Job", "0") not in {"", "0"}:
        active = "activating"  # its start waits for another unit, such as a rival that stops
    return Seen(
        active=active,
        loaded=said["LoadState"] != "not-found",
        pid=pid or None,
        text=said.get("StatusText", ""),
        restarts=int(said.get("NRestarts") or 0),
        run=said.get("InvocationID", ""),
        enabled=said.get("UnitFileState") in {"enabled", "enabled-runtime"},
        exit_code=int(status) if status.isdecimal() else None,
    )
