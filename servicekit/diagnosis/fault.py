"""Why a run ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servicekit.diagnosis.causes import Cause


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a run ends, with its evidence in one sentence and what would do."""

    cause: Cause
    sentence: str
    remedy: str = ""  # what would do; `{profile}` stands for the profile's name
