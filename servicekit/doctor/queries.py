"""What an examination covers, and an answer or the reason why there is none."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from servicekit.doctor.view import Unseen
from servicekit.errors import UserError
from servicekit.host.bounded import NoReplyError, call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from servicekit.doctor.view import RefusedProfile
    from servicekit.host.bounded import Pending
    from servicekit.install.installation import Order
    from servicekit.managers import Manager
    from servicekit.places import Places
    from servicekit.service.manifest import Manifest

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DoctorRequest:
    """The profiles to examine, and where they are."""

    places: Places
    environ: Mapping[str, str]
    manager: Manager | None  # `None` where none runs or replies
    no_manager: str  # why there is none
    orders: tuple[Order, ...]  # the profiles, as they would be installed
    refused: tuple[RefusedProfile, ...]
    installed: Mapping[str, Manifest]
    # Of each installed profile the account; `None` is that of the manager.
    accounts: Mapping[str, str | None] = field(default_factory=dict)


def seen_or_not(pending: Pending[T]) -> T | Unseen:
    """Return the answer, or `Unseen` with the reason."""
    try:
        return pending.answer()
    except NoReplyError as error:
        return Unseen(str(error), error.remedy)
    except UserError as error:
        return Unseen(error.message, error.hint)


async def after(first: Pending[S], then: Callable[[S], T]) -> T:
    """Call `then`, which may block, with the answer to `first`."""
    answer = await asyncio.shield(first.task)
    return await call(lambda: then(answer))
