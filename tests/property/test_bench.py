"""What holds of every benchmark: lengths come out, statistics stay among their samples."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from servicekit.lab.bench.figures import statistics
from servicekit.lab.ruler import LONG, SHORT, Length, Ruler


@given(
    frame=st.integers(5, 200),
    sentence=st.integers(4, 40),
    wanted=st.integers(256, 300_000),
    off=st.integers(-40, 40),
)
def test_a_length_that_was_off_is_mended_exactly(
    frame: int, sentence: int, wanted: int, off: int
) -> None:
    """Whatever a prompt was off by, the next one is as long as wanted.

    The tokens of a sentence are whole, as a tokenizer's are; a word is one token.
    """

    def tokens(length: Length) -> int:
        return frame + length.sentences * sentence + length.words

    short, long = (tokens(Length(each)) for each in (SHORT, LONG))
    ruler = Ruler.of(short, long)
    assert ruler is not None
    length = ruler.length(wanted)
    assert tokens(length) == wanted
    mended = ruler.mended(length, wanted=wanted, counted=wanted + off)
    assert tokens(mended) + off == wanted


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_statistics_are_among_their_samples(samples: list[float]) -> None:
    """Least, median, p99 and most are in this order; the first and the last two were measured."""
    found = statistics(tuple(samples))
    assert found is not None
    assert found.samples == len(samples)
    assert found.least <= found.median <= found.most
    assert found.median <= found.p99 <= found.most
    assert {found.least, found.p99, found.most} <= set(samples)
    assert sum(value > found.p99 for value in samples) <= 0.01 * len(samples)
