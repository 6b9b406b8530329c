"""What is published of a run: one of six words, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

from servicekit.errors import ExitCode
from servicekit.watchdog.events import RunPhase

if TYPE_CHECKING:
    from servicekit.diagnosis.causes import Cause
    from servicekit.profiles.vocabulary import Reason
    from servicekit.watchdog.memory import Memory


class Published(StrEnum):
    """The six words that anyone outside ever sees."""

    CONFIGURED = "configured"
    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class View:
    """What is published of a run at one moment."""

    state: Published
    phase: RunPhase
    why: str
    cause: Cause | None = None
    reasons: tuple[Reason, ...] = ()
    remedy: str = ""


def view(memory: Memory) -> View:
    """Map a run's memory to what is published: total, and never without a reason."""
    phase, end = memory.phase, memory.end
    fault = end.fault or end.stop
    cause, remedy = (fault.cause, fault.remedy) if fault else (None, "")
    sentence = fault.sentence if fault else ""
    match phase:
        case RunPhase.HOLDING:
            blocked = memory.hold.blocked
            why = f"waiting: {blocked.sentence}" if blocked else "holding off before the launch"
            return View(Published.STARTING, phase, why)
        case RunPhase.LOADING:
            return View(Published.STARTING, phase, memory.load.boot or "launched")
        case RunPhase.SERVING:
            return View(Published.READY, phase, "answering")
        case RunPhase.DEGRADED:
            why = "; ".join(condition.sentence for condition in memory.conditions)
            reasons = tuple(condition.reason for condition in memory.conditions)
            return View(Published.DEGRADED, phase, why, reasons=reasons)
        case RunPhase.STOPPING | RunPhase.KILLING | RunPhase.SETTLING:
            state = Published.DEGRADED if end.stop else Published.FAILED
            why = f"{phase}: {sentence}" + (f"; {end.unsettled}" if end.unsettled else "")
            return View(state, phase, why, cause, remedy=remedy)
        case RunPhase.GONE:
            state = Published.STOPPED if end.code is ExitCode.OK else Published.FAILED
            return View(state, phase, sentence, cause, remedy=remedy)
        case _:
            assert_never(phase)
