"""An answer, or why there is none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from servicekit.doctor.view import Unseen
from servicekit.host.bounded import NoReplyError, call

if TYPE_CHECKING:
    from collections.abc import Callable

    from servicekit.host.bounded import Pending

S = TypeVar("S")
T = TypeVar("T")


def seen_or_not(pending: Pending[T]) -> T | Unseen:
    """Return the answer, or `Unseen` with the reason."""
    try:
        return pending.answer()
    except NoReplyError as error:
        return Unseen(str(error), error.remedy)


async def after(first: Pending[S], then: Callable[[S], T]) -> T:
    """Call `then`, which may block, with the answer to `first`."""
    answer = await asyncio.shield(first.task)
    return await call(lambda: then(answer))
