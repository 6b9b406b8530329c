"""Giving the alert where the service manager has no way to: Supervisor.

systemd starts a unit for a service that stays failed. Supervisor would need a listener of its own,
a process that waits for as long as the service lives; so the watchdog that fails gives the alert
itself, as the last that it does.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Final

from servicekit.managers.supervisor import FINAL

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT: Final = 60.0  # seconds that all of an alert may take: as in its unit under systemd
# Set by supervisord to the name of the program that it started.
PROGRAM: Final = "SUPERVISOR_PROCESS_NAME"


def alarm(command: tuple[str, ...], profile: str, code: int, environ: Mapping[str, str]) -> None:
    """Give the alert for a watchdog that is about to end with `code` for good.

    `command` runs servicekit. Does nothing but in the program of `profile` under Supervisor, and
    nothing where a restart follows, or where the end was asked for. A watchdog fails whether or not
    somebody could be told.
    """
    if environ.get(PROGRAM) != f"servicekit-{profile}" or code == 0 or code not in FINAL:
        return
    words = [*command, "alert", profile, "--exit-code", str(int(code))]
    try:
        subprocess.run(words, env=dict(environ), timeout=LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
