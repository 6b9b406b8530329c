"""The verification status of a profile, for `status`, `show` and `bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from servicekit.errors import UserError
from servicekit.lab.verify.status import FOLDER, NOT_VERIFIED, UNKNOWN

if TYPE_CHECKING:
    from servicekit.cli.session import Session
    from servicekit.lab.verify.status import VerificationStatus


def verification_status_of(session: Session, profile: str) -> VerificationStatus:
    state = Path(session.places.state, profile)
    try:
        (state / FOLDER).stat()
        return _compared(session, profile, state)
    except FileNotFoundError:  # most profiles have no verification: nothing is loaded for them
        return NOT_VERIFIED
    except (OSError, UserError):
        return UNKNOWN


def _compared(session: Session, profile: str, state: Path) -> VerificationStatus:
    import asyncio

    from servicekit.cli.forecast import plan_of
    from servicekit.lab.verify.binding import fingerprint
    from servicekit.lab.verify.gates import GATES
    from servicekit.lab.verify.record import last_of, read, verification_status

    gates = tuple(GATES)
    last = last_of(read(state), gates)
    if last is None:
        return NOT_VERIFIED
    now = asyncio.run(fingerprint(plan_of(session, session.profile(profile))))
    return verification_status(last, now, gates)
