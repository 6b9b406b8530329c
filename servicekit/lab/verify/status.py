"""Whether a profile is verified: all that `status` needs of verifications where there is none."""

from __future__ import annotations

from typing import Final, NamedTuple

# Below the state directory of a profile.
FOLDER: Final = "verifications"


class VerificationStatus(NamedTuple):
    """Whether a profile is verified as it is now, and the same in words."""

    verified: bool
    text: str


NOT_VERIFIED: Final = VerificationStatus(verified=False, text="not verified")
UNKNOWN: Final = VerificationStatus(verified=False, text="cannot tell")
