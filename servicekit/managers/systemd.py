"""systemd, through `systemctl`, whose command line is stable across versions."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from servicekit.errors import UserError
from servicekit.host.programs import Finished, NotRunError, run
from servicekit.managers import Seen
from servicekit.places import Scope
from servicekit.profiles.vocabulary import ManagerName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servicekit.managers import LogQuery
    from servicekit.places import Places

# seconds for any command but a stop; `daemon-reload` on a busy host takes some
ANSWER_LIMIT: Final = 60.0
PROPERTIES: Final = (
    "LoadState,ActiveState,Job,MainPID,StatusText,NRestarts,InvocationID,UnitFileState,"
    "ExecMainStatus"
)

_DENIED: Final = ("authentication required", "Access denied", "Permission denied")
_NO_BUS: Final = ("Failed to connect to bus", "No medium found")


class Systemd:
    """The system manager or, for the places of a user, the user manager."""

    name: Final = ManagerName.SYSTEMD

    def __init__(self, places: Places) -> None:
        self._places = places
        self._scope = ("--user",) if places.scope is Scope.USER else ()

    def version(self) -> int:
        """Return systemd's version; 0 where it cannot be parsed."""
        words = self._order("--version").split()
        return int(words[1]) if words[1:] and words[1].isdecimal() else 0

    def reload(self, unit: str = "") -> None:
        self._order("daemon-reload")
        if not self._scope:  # or `journalctl -x` does not know, or still knows, our explanations
            with suppress(NotRunError):
                run(("journalctl", "--update-catalog"), limit=ANSWER_LIMIT)
        if unit and not self.look([unit])[unit].loaded:
            raise UserError(
                f'systemd does not find "{unit}.service" in "{self._places.units}"',
                hint="set [places] units to a directory that `systemctl show -p UnitPath` lists",
            )

    def start(self, unit: str) -> None:
        """Start without waiting; resets a start limit that was hit."""
        # Fails for a unit that never failed; the start reports an unknown one.
        self._run("reset-failed", f"{unit}.service")
        self._order("start", "--no-block", f"{unit}.service")

    def stop(self, unit: str, *, limit: float) -> None:
        self._order("stop", f"{unit}.service", limit=limit)

    def look(self, units: Sequence[str]) -> dict[str, Seen]:
        if not units:
            return {}
        names = [f"{unit}.service" for unit in units]
        text = self._order("show", f"--property={PROPERTIES}", *names)
        # An empty line separates units.
        return dict(zip(units, map(_seen, text.strip("\n").split("\n\n")), strict=True))

    def log_command(self, unit: str, query: LogQuery) -> tuple[str, ...]:
        """Return a `journalctl` of the unit: the engine's lines, ours, and systemd's."""
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
        if done.failed:
            raise _refusal(words, done.stderr)
        return done.stdout

    def _run(self, *words: str, limit: float = ANSWER_LIMIT) -> Finished:
        command = ("systemctl", *self._scope, "--no-ask-password", "--no-pager", *words)
        try:
            return run(command, limit=limit)
        except NotRunError as error:
            if error.missing:
                raise UserError('systemd runs here, but "systemctl" is not on PATH') from None
            raise UserError(
                f'"systemctl {" ".join(words)}" {error}',
                hint="see `systemctl list-jobs` for what it waits for",
            ) from None


def _refusal(words: Sequence[str], stderr: str) -> UserError:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    # Skip hints such as "See system logs …".
    reason = next(
        (line for line in lines if not line.startswith(("See ", "Hint:"))), "no reason given"
    )
    hint = ""
    if any(word in stderr for word in _NO_BUS):
        hint = "log in as that user (`machinectl shell USER@`), so that its user manager runs"
    elif any(word in stderr for word in _DENIED):
        hint = "run as root, or with --user for your own services"
    return UserError(f'"systemctl {" ".join(words)}": {reason.rstrip(".")}', hint=hint)


def _seen(block: str) -> Seen:
    properties = dict(line.partition("=")[::2] for line in block.splitlines())
    pid, status = int(properties.get("MainPID") or 0), properties.get("ExecMainStatus", "")
    active = properties["ActiveState"]
    if active in {"inactive", "failed"} and properties.get("Job", "0") not in {"", "0"}:
        active = "activating"  # its start waits for another unit, such as a rival's stop
    return Seen(
        active=active,
        loaded=properties["LoadState"] != "not-found",
        pid=pid or None,
        text=properties.get("StatusText", ""),
        restarts=int(properties.get("NRestarts") or 0),
        run=properties.get("InvocationID", ""),
        enabled=properties.get("UnitFileState") in {"enabled", "enabled-runtime"},
        exit_code=int(status) if status.isdecimal() else None,
    )
