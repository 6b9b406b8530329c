"""What a watchdog asks supervisord: for a fast restart, and whether it missed a SIGTERM.

supervisord polls its programs once a second, notices an exit at one poll and restarts at the next.
Two things wake it earlier: the end of a program's output, and a request.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING, Final

from servicekit.managers import SERVER_URL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.places import Places

LIMIT: Final = 5.0  # seconds that our own end may take


def hasten(places: Places, environment: Mapping[str, str]) -> None:
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

    url, unit = environment.get(SERVER_URL), environment.get("SUPERVISOR_PROCESS_NAME", "")
    try:
        return bool(url) and Supervisor(places, str(url)).stops(unit, os.getpid())
    except UserError:
        return False  # only root may use the socket


def _ask_at_the_end(places: Places, url: str, of: int) -> None:
    from servicekit.errors import UserError
    from servicekit.managers.supervisor import Supervisor

    try:
        supervisord = Supervisor(places, url)
        if select.select([of], [], [], LIMIT)[0]:
            supervisord.version()
    except UserError:
        return  # only root may use the socket
