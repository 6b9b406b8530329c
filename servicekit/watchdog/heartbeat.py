"""A request to a URL of the operator's while the service is ready.

Whoever receives it notices its absence: that a host died, which nothing on it can report.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from servicekit.log import Priority

if TYPE_CHECKING:
    from collections.abc import Callable

    from servicekit.profiles.model import Watch

LOOK: Final = 1.0  # seconds between looks whether the service is ready


async def beat(
    watch: Watch,
    ready: Callable[[], bool],
    say: Callable[[str, Priority], object],
    *,
    look: float = LOOK,
) -> None:
    """GET the heartbeat URL of a profile while `ready`; `say` why it fails, once in a row."""
    url, failed = watch.heartbeat, False
    while url is not None:
        if not ready():
            await asyncio.sleep(look)
            continue
        from servicekit.watchdog.probe import get  # only where an engine is probed anyway

        why = await get(url)
        if why and not failed:
            say(f"cannot send the heartbeat: {why}", Priority.WARNING)
        failed = bool(why)
        await asyncio.sleep(watch.heartbeat_interval)
