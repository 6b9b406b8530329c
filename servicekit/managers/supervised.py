"""What a watchdog does under Supervisor that systemd does itself.

systemd restarts at once, and starts a unit that sends the alert for a failed service. supervisord
polls its programs once a second, notices an exit at one poll and restarts at the next; two things
wake it earlier: the end of a program's output, and a request. An alert would need an event listener
that runs as long as the service; instead the failing watchdog sends it, as its last act.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from servicekit.host.programs import NotRunError, run
from servicekit.managers import FINAL, SERVER_URL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.places import Places

END_LIMIT: Final = 5.0  # seconds that our own end may take
ALERT_LIMIT: Final = 60.0  # seconds for the whole alert, as in systemd's unit
PROGRAM: Final = "SUPERVISOR_PROCESS_NAME"  # supervisord sets it to the program's name


def request_fast_restart(places: Places, environment: Mapping[str, str]) -> None:
    """Make supervisord, if it runs us, notice our exit at once.

    A forked process holds our output open until we have ended and then sends a request. It exits
    within milliseconds after us, whether or not the request is permitted.
    """
    url = environment.get(SERVER_URL)
    if not url:
        return
    ourselves = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        try:
            _ask_at_the_end(places, url, ourselves)
        finally:
            os._exit(0)
    os.close(ourselves)


def lost_stop(places: Places, environment: Mapping[str, str]) -> bool:
    """Return whether supervisord is ending us; false where it cannot be asked.

    Its SIGTERM is lost if it comes between its fork and its exec: Python's handler runs in the
    child, and nothing is pending afterwards. To be asked once, when SIGTERM is received as it
    should be.
    """
    from servicekit.errors import UserError
    from servicekit.managers.supervisor import Supervisor

    url, unit = environment.get(SERVER_URL), environment.get(PROGRAM, "")
    try:
        return bool(url) and Supervisor(places, str(url)).stops(unit, os.getpid())
    except UserError:
        return False  # only root may use the socket


def _ask_at_the_end(places: Places, url: str, of: int) -> None:
    from servicekit.errors import UserError
    from servicekit.managers.supervisor import Supervisor

    try:
        supervisord = Supervisor(places, url)
        if select.select([of], [], [], END_LIMIT)[0]:
            supervisord.version()
    except UserError:
        return  # only root may use the socket


def send_alert(
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
        run(words, limit=ALERT_LIMIT, environment=environ, capture=False)
