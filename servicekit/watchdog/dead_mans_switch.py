"""Ends a watchdog whose loop no longer turns, where no manager does: Supervisor never looks.

The kernel counts, and its signal is one that this process does not handle: what keeps Python from
running, such as a pattern that never ends, does not keep it from dying. The next run finds the
engine that is left and ends it.
"""

from __future__ import annotations

import signal
from typing import Final

LIMIT: Final = 30.0  # seconds that a turn of the loop may take, as WatchdogSec= in the systemd unit


class DeadMansSwitch:
    """A timer that kills this process unless it is set again within `limit` seconds."""

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        self.rearm()

    def rearm(self) -> None:
        """Count from zero again."""
        signal.setitimer(signal.ITIMER_REAL, self._limit)

    def disarm(self) -> None:
        """Stop counting."""
        signal.setitimer(signal.ITIMER_REAL, 0.0)
