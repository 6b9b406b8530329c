"""What an examination is asked to cover."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.doctor.view import RefusedProfile
    from servicekit.install.installation import Order
    from servicekit.install.manifest import Manifest
    from servicekit.managers import Manager
    from servicekit.places import Places


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
