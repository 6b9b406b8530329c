"""Being started again at once by a Supervisor, which by itself is in no hurry.

It looks at its programs once a second, finds at one look that one has ended, and starts it again at
the next: a second or two. Whatever wakes it makes it look: the end of a program's output, and
anything that it is asked.
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
    """Have the supervisord that runs us, if one does, look at us as soon as we have ended.

    We leave a process behind that holds our output open until then, and then asks something. It
    ends within milliseconds of us, whether it may ask or not.
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


def _ask_at_the_end(places: Places, url: str, of: int) -> None:
    from servicekit.errors import UserError
    from servicekit.managers.supervisor import Supervisor

    try:
        supervisord = Supervisor(places, url)
        if select.select([of], [], [], LIMIT)[0]:
            supervisord.version()
    except UserError:
        return  # of a socket that is only root's
