"""Conditions: the reasons for being degraded, and what they and failed probes stand for. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from servicekit.diagnosis.causes import Cause
from servicekit.profiles.vocabulary import Reason
from servicekit.watchdog.events import ProbeFailure, RunPhase
from servicekit.watchdog.memory import Condition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.watchdog.memory import Memory

FAILURE_WINDOW: Final = 5.0  # seconds for which a fatal failure must last …
FAILURE_THRESHOLD: Final = 3
"""… and how many times in a row it must be seen, before it ends the run."""

# Failures that waiting does not cure, each with the cause by which it ends a start.
FATAL_WHILE_LOADING: Final[Mapping[ProbeFailure, Cause]] = {
    ProbeFailure.GARBAGE: Cause.WRONG_ANSWER,
    ProbeFailure.UNAUTHORIZED: Cause.UNAUTHORIZED,
    ProbeFailure.WRONG_MODEL: Cause.WRONG_MODEL,
    ProbeFailure.NOT_OURS: Cause.NOT_OUR_SOCKET,
    ProbeFailure.WRONG_ANSWER: Cause.WRONG_ANSWER,
    ProbeFailure.REPEATED: Cause.REPEATED_ANSWER,
    ProbeFailure.CPU_FALLBACK: Cause.CPU_FALLBACK,
    ProbeFailure.CONTEXT_TOO_SMALL: Cause.CONTEXT_TOO_SMALL,
}
# The same for a service that was ready: degraded, and restarted if it lasts `watch.failure_limit`.
FATAL_WHILE_SERVING: Final[Mapping[ProbeFailure, Cause]] = {
    ProbeFailure.REFUSED: Cause.NOT_LISTENING,
    ProbeFailure.ERROR: Cause.WRONG_ANSWER,
    ProbeFailure.GARBAGE: Cause.WRONG_ANSWER,
    ProbeFailure.UNAUTHORIZED: Cause.UNAUTHORIZED,
    ProbeFailure.WRONG_MODEL: Cause.WRONG_MODEL,
    ProbeFailure.NOT_OURS: Cause.NOT_OUR_SOCKET,
}
# The condition that a failure of a ready service is; every other one is `Reason.UNANSWERED`.
FAILURE_REASON: Final[Mapping[ProbeFailure, Reason]] = {
    ProbeFailure.GARBAGE: Reason.WRONG_ANSWER,
    ProbeFailure.UNAUTHORIZED: Reason.UNAUTHORIZED,
    ProbeFailure.WRONG_MODEL: Reason.WRONG_MODEL,
    ProbeFailure.NOT_OURS: Reason.NOT_OUR_SOCKET,
    ProbeFailure.WRONG_ANSWER: Reason.WRONG_ANSWER,
    ProbeFailure.REPEATED: Reason.REPEATED_ANSWER,
    ProbeFailure.CPU_FALLBACK: Reason.CPU_FALLBACK,
    ProbeFailure.CONTEXT_TOO_SMALL: Reason.CONTEXT_BELOW_REQUESTED,
}
CLEARED_BY_AN_ANSWER: Final = (
    Reason.UNANSWERED,
    Reason.UNAUTHORIZED,
    Reason.WRONG_MODEL,
    Reason.NOT_OUR_SOCKET,
    Reason.PROGRESS_WITHOUT_COMPLETION,
    Reason.WRONG_ANSWER,
    Reason.REPEATED_ANSWER,
    Reason.CPU_FALLBACK,
    Reason.WORKER_DIED,
)
REASON_CAUSE: Final[Mapping[Reason, Cause]] = {
    Reason.UNANSWERED: Cause.UNANSWERED,
    Reason.UNAUTHORIZED: Cause.UNAUTHORIZED,
    Reason.WRONG_MODEL: Cause.WRONG_MODEL,
    Reason.NOT_OUR_SOCKET: Cause.NOT_OUR_SOCKET,
    Reason.PROGRESS_WITHOUT_COMPLETION: Cause.PROGRESS_WITHOUT_COMPLETION,
    Reason.WRONG_ANSWER: Cause.WRONG_ANSWER,
    Reason.REPEATED_ANSWER: Cause.REPEATED_ANSWER,
    Reason.CPU_FALLBACK: Cause.CPU_FALLBACK,
    Reason.WORKER_DIED: Cause.WORKER_DIED,
    Reason.DRAFT_GRAPH_DISABLED: Cause.DRAFT_GRAPH_DISABLED,
    Reason.TOO_SLOW: Cause.TOO_SLOW,
    Reason.ACCEPTANCE_ZERO: Cause.ACCEPTANCE_ZERO,
    Reason.CONTEXT_BELOW_REQUESTED: Cause.CONTEXT_BELOW_REQUESTED,
    Reason.STRANGER_ON_GPU: Cause.STRANGER_ON_GPU,
    Reason.VRAM_ORPHAN: Cause.VRAM_ORPHAN,
    Reason.GPU_SLOWED_DOWN: Cause.GPU_SLOWED_DOWN,
}


def set_condition(memory: Memory, reason: Reason, at: float, sentence: str) -> Memory:
    """Note that `reason` holds, in these words, or without words that it does not hold.

    Serving and degraded follow from whether any reason is left.
    """
    held = next((one for one in memory.conditions if one.reason is reason), None)
    conditions = tuple(one for one in memory.conditions if one.reason is not reason)
    if sentence:
        conditions = (*conditions, Condition(reason, held.since if held else at, sentence))
        conditions = tuple(sorted(conditions, key=lambda one: one.since))
    memory = replace(memory, conditions=conditions)
    if memory.phase is RunPhase.SERVING and conditions:
        return replace(memory, phase=RunPhase.DEGRADED, since=at)
    if memory.phase is RunPhase.DEGRADED and not conditions:
        return replace(memory, phase=RunPhase.SERVING, since=at)
    return memory


def clear_conditions(memory: Memory, reasons: tuple[Reason, ...], at: float) -> Memory:
    """Note that none of `reasons` holds."""
    for reason in reasons:
        memory = set_condition(memory, reason, at, "")
    return memory
