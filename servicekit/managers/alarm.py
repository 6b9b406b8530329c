"""Sending the alert under Supervisor.

systemd starts a unit for a failed service. Supervisor would need an event listener that runs as
long as the service; instead the failing watchdog sends the alert itself, as its last act.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from servicekit.host.programs import NotRunError, run
from servicekit.managers import FINAL

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT: Final = 60.0  # seconds for the whole alert, as in systemd's unit
PROGRAM: Final = "SUPERVISOR_PROCESS_NAME"  # supervisord sets it to the program's name


def alarm(
    command: tuple[str, ...],
    profile: str,
    code: int,
    environ: Mapping[str, str],
    plan: tuple[str, ...] = (),
) -> None:
    """Send the alert for a watchdog that is about to exit with the final code `code`.

    `command` runs servicekit, and `plan` is the option that names the installed plan. Acts only in
    the program of `profile` under Supervisor, and not where a restart follows or the stop was
    requested. An alert that fails is ignored.
    """
    if environ.get(PROGRAM) != f"servicekit-{profile}" or code == 0 or code not in FINAL:
        return
    words = [*command, "alert", profile, "--exit-code", str(int(code)), *plan]
    with suppress(NotRunError):
        run(words, limit=LIMIT, environment=environ, capture=False)
