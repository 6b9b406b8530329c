"""Conditions that only the figures of an answering engine show. Pure.

`look` turns readings into `Observed` events; the profile says which of them end in a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from servicekit.profiles.vocabulary import Reason
from servicekit.watchdog.events import Observed

if TYPE_CHECKING:
    from servicekit.engines.base import Counters

DRAFTED_LEAST: Final = 200  # draft tokens over which an acceptance of zero is no accident
GENERATED_LEAST: Final = 32  # generated tokens over which a decode rate means something


@dataclass(frozen=True, slots=True)
class Window:
    """Figures gathered since something was last concluded from them."""

    first: Counters | None = None
    generated: float = 0.0
    """Tokens generated in the readings between which tokens were generated without a break."""
    seconds: float = 0.0
    last: Counters | None = None
    last_at: float = 0.0


def look(
    window: Window, counters: Counters, at: float, *, floor: float
) -> tuple[Window, list[Observed]]:
    """Take one reading at `at`; `floor` is the profile's decode floor in tokens/s, 0 for none."""
    last = window.last
    if last is None:
        return Window(first=counters, last=counters, last_at=at), []
    seen: list[Observed] = []
    window, slow = _rate(window, counters, at, floor)
    seen += slow
    drafted, accepted = _grown(window.first, counters)
    if drafted >= DRAFTED_LEAST:
        sentence = f"{drafted:.0f} draft tokens were proposed and none accepted"
        seen.append(Observed(at, Reason.ACCEPTANCE_ZERO, present=accepted <= 0, sentence=sentence))
        window = replace(window, first=counters)
    return replace(window, last=counters, last_at=at), seen


def _grown(first: Counters | None, now: Counters) -> tuple[float, float]:
    """Count what was drafted and accepted since; a figure that appears late was 0 before."""
    if first is None or None in {now.drafted, now.accepted}:
        return 0.0, 0.0
    return (now.drafted or 0.0) - (first.drafted or 0.0), (now.accepted or 0.0) - (
        first.accepted or 0.0
    )


def _rate(window: Window, now: Counters, at: float, floor: float) -> tuple[Window, list[Observed]]:
    """Compare the decode rate with the floor, over readings between which decoding never paused.

    An engine's own decoding seconds count. Otherwise there are tokens over time, which is only ever
    too low while requests come and go: that may clear the condition, but not set it.
    """
    last = window.last
    if floor <= 0 or last is None or now.generated is None or last.generated is None:
        return window, []
    grown = now.generated - last.generated
    begins = last.decode_seconds is None and now.decode_seconds is not None
    if grown <= 0 or begins:  # an engine may report its seconds only after its first request
        return replace(window, generated=0.0, seconds=0.0), []
    if now.decode_seconds is not None and last.decode_seconds is not None:
        seconds = now.decode_seconds - last.decode_seconds
    else:
        seconds = at - window.last_at
    window = replace(window, generated=window.generated + grown, seconds=window.seconds + seconds)
    if window.generated < GENERATED_LEAST or window.seconds <= 0:
        return window, []
    rate = window.generated / window.seconds
    fresh = replace(window, generated=0.0, seconds=0.0)
    if rate < floor and now.decode_seconds is None:
        return fresh, []
    sentence = f"decodes at {rate:.1f} tokens/s, below watch.decode_floor ({floor:g} tokens/s)"
    return fresh, [Observed(at, Reason.TOO_SLOW, present=rate < floor, sentence=sentence)]
