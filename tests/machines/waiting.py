"""Waiting on a condition with a named limit: the only way a test waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Seen = TypeVar("Seen")

LOOK_AGAIN = 0.02
"""Seconds between two looks: short beside every limit, long beside a look."""


def wait_until(condition: Callable[[], Seen], limit: float, what: str) -> Seen:
    """Give the first true value of `condition`; fail, naming `what`, after `limit` seconds.

    The failure tells the last value seen, so `condition` may well return evidence, not a bool.
    """
    deadline = time.monotonic() + limit
    while not (seen := condition()):
        if time.monotonic() > deadline:
            message = f"not within {limit:g} s: {what}; last seen: {seen!r}"
            raise AssertionError(message)
        time.sleep(LOOK_AGAIN)
    return seen
