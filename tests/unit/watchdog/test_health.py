"""Silent badness, told by the figures that an engine gives of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from servicekit.engines.base import Counters
from servicekit.profiles.vocabulary import Reason
from servicekit.watchdog.health import Window, look

if TYPE_CHECKING:
    from servicekit.watchdog.events import Observed


def read(*readings: Counters, floor: float = 0.0, every: float = 5.0) -> list[Observed]:
    """Take readings one after the other, `every` seconds apart; return all that was concluded."""
    window, said = Window(), []
    for turn, counters in enumerate(readings):
        window, seen = look(window, counters, turn * every, floor=floor)
        said += seen
    return said


def told(*readings: Counters, floor: float = 0.0, every: float = 5.0) -> list[tuple[Reason, bool]]:
    """The same, as reasons and whether they hold."""
    return [(seen.reason, seen.present) for seen in read(*readings, floor=floor, every=every)]


def drafts(drafted: float | None, accepted: float | None) -> Counters:
    """Counters of a drafter."""
    return Counters(progress=(), drafted=drafted, accepted=accepted)


def decoding(generated: float | None, *, seconds: float | None = None) -> Counters:
    """Counters of an engine that decodes."""
    return Counters(progress=(), generated=generated, decode_seconds=seconds)


def test_one_reading_says_nothing() -> None:
    """What an engine did before it was watched is not held against it."""
    assert told(drafts(1000, 0)) == []


def test_a_drafter_of_which_nothing_is_accepted_is_noticed() -> None:
    """Hundreds of draft tokens without one accepted are no accident; an accepted one clears it."""
    assert read(drafts(0, 0), drafts(250, 0))[0].sentence == (
        "250 draft tokens were proposed and none accepted"
    )
    assert told(drafts(0, 0), drafts(199, 0)) == []
    assert told(drafts(0, 0), drafts(250, 0), drafts(500, 3)) == [
        (Reason.ACCEPTANCE_ZERO, True),
        (Reason.ACCEPTANCE_ZERO, False),
    ]


def test_few_drafts_are_gathered_until_they_mean_something() -> None:
    """A slow trickle of drafts is judged once there are enough of them."""
    assert told(drafts(0, 0), drafts(90, 0), drafts(180, 0), drafts(270, 0)) == [
        (Reason.ACCEPTANCE_ZERO, True)
    ]


@pytest.mark.parametrize(("drafted", "accepted"), [(None, 0.0), (500.0, None)])
def test_an_engine_that_does_not_count_drafts_is_not_judged(
    drafted: float | None, accepted: float | None
) -> None:
    """Without both figures there is no acceptance."""
    assert told(drafts(0, 0), drafts(drafted, accepted)) == []
    assert told(drafts(drafted, accepted), drafts(drafted, accepted)) == []


@pytest.mark.parametrize(("drafted", "accepted"), [(None, None), (None, 0.0), (0.0, None)])
def test_figures_that_appear_late_were_zero_before(
    drafted: float | None, accepted: float | None
) -> None:
    """A labelled counter is not reported before it counts for the first time."""
    late = drafts(drafted, accepted)
    assert told(late, drafts(500, 0)) == [(Reason.ACCEPTANCE_ZERO, True)]
    assert told(late, drafts(500, 3)) == [(Reason.ACCEPTANCE_ZERO, False)]


def test_decoding_below_the_floor_is_noticed_and_cleared() -> None:
    """An engine that counts its decoding seconds is taken at its word, whatever time passed."""
    slow = decoding(0, seconds=0), decoding(40, seconds=8)
    assert read(*slow, floor=20)[0].sentence == (
        "decodes at 5.0 tokens/s, below watch.decode_floor (20 tokens/s)"
    )
    assert told(*slow, decoding(140, seconds=10), floor=20) == [
        (Reason.TOO_SLOW, True),
        (Reason.TOO_SLOW, False),
    ]


def test_without_a_floor_no_speed_is_too_slow() -> None:
    """A profile that sets no floor is not judged by one."""
    assert told(decoding(0, seconds=0), decoding(40, seconds=8)) == []


def test_few_tokens_are_gathered_until_they_mean_something() -> None:
    """A rate is taken over enough tokens, and over readings between which nothing paused."""
    first, second = decoding(0, seconds=0), decoding(20, seconds=10)
    assert told(first, second, floor=20) == []
    assert told(first, second, decoding(40, seconds=20), floor=20) == [(Reason.TOO_SLOW, True)]
    assert told(first, second, second, decoding(40, seconds=20), floor=20) == []


def test_tokens_over_time_clear_but_never_accuse() -> None:
    """Time between readings holds pauses, too: an engine only ever looks slower than it is."""
    assert told(decoding(0), decoding(40), floor=20) == []
    assert told(decoding(0), decoding(400), floor=20) == [(Reason.TOO_SLOW, False)]


def test_seconds_count_from_when_they_are_told() -> None:
    """An engine that tells its seconds only after its first request is not judged by idle time."""
    assert told(decoding(0), decoding(40, seconds=1), floor=20, every=600) == []
    assert told(decoding(0), decoding(9, seconds=1), decoding(49, seconds=9), floor=20) == [
        (Reason.TOO_SLOW, True)
    ]


def test_no_time_is_no_rate() -> None:
    """Tokens without any time that they took are not judged, and kept for the next reading."""
    assert told(decoding(0, seconds=1), decoding(40, seconds=1), floor=20) == []


@pytest.mark.parametrize("missing", [0, 1])
def test_an_engine_that_does_not_count_tokens_is_not_judged(missing: int) -> None:
    """Without generated tokens there is no speed."""
    readings = [decoding(0, seconds=0), decoding(40, seconds=8)]
    readings[missing] = decoding(None, seconds=8)
    assert told(*readings, floor=20) == []
