"""Results that look like progress and are none: each by a rule with its threshold. Pure.

Each rule looks at one thing and gives a sentence with the numbers that it stands on, or `None`.
Rules about pairs ask whether the second run fell into the trap that the first one stayed out of.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from servicekit.lab.bench.figures import number, spoken
from servicekit.lab.bench.values import DECODE, DONE, FIGURES
from servicekit.lab.compare.judgement import Difference, apparent, judge
from servicekit.lab.compare.matching import both

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from servicekit.lab.bench.values import BenchResult, Case, Figure
    from servicekit.lab.compare.judgement import Judgement

ACCEPTANCE_FINE: Final = 1.5
"""Tokens for each verification from which on a drafter does its work; below, decode is slow since
it does not, which is another story."""
COLLAPSED: Final = 0.5
"""Part of the decode speed to be expected below which it is lost. A draft graph that was left out
cost more than four fifths in the case that taught this (109 to 19 tokens/s)."""
POOL_SHORT: Final = 0.99
"""Part of the context asked for below which a pool is too small; engines round to whole pages."""
CORRECTNESS_LOST: Final = 0.01
"""Share of right answers that may be lost without a word: one in a hundred."""

CUT_OFF: Final = 0.01
"""Share of answers, beyond the other run's, that may not be finished without a word."""

Sides = tuple[str, str]
"""What the two runs are called."""


class Trap(NamedTuple):
    """One run that fell into one trap."""

    name: str
    run: str
    """What the run is called."""
    case: str | None
    """Where it shows; `None` for the whole run."""
    text: str

    @property
    def title(self) -> str:
        """The trap in a few words."""
        return TITLES[self.name]


def graph_lost(before: Case, now: Case, called: Sides) -> str | None:
    """Acceptance is fine, and decode collapsed: the drafter runs without its CUDA graph.

    What is to be expected is the other run's decode, and less by as much as this drafter yields
    less for each verification; one token where the other run has no drafter.
    """
    mine = now.engine.acceptance_length if now.engine else None
    theirs = before.engine.acceptance_length if before.engine else None
    was, became = before.statistics(DECODE), now.statistics(DECODE)
    if mine is None or mine < ACCEPTANCE_FINE or was is None or became is None:
        return None
    expected = was.median * min(1.0, mine / (theirs or 1.0))
    if became.median >= COLLAPSED * expected:
        return None
    fine = "" if theirs is None else f", {called[0]}'s {number(theirs, '')}"
    return (
        f"acceptance looks healthy ({number(mine, '')} tokens for each verification{fine}), but "
        f"decode is {spoken(became.median, 'tokens/s')}, less than half of the "
        f"{spoken(expected, 'tokens/s')} that {called[0]}'s decode lets expect"
    )


def answer_later(before: Case, now: Case, called: Sides) -> str | None:
    """Decode is faster, and the finished answer later, both by more than the spread.

    An answer that is cut off is never finished, which is later than any.
    """
    decode, done = apparent(DECODE, before, now), judge(DONE, before, now)
    if decode.verdict is not Difference.BETTER:
        return None
    faster = f"decode is faster ({_against(decode, DECODE, called)})"
    if done.now is None and done.before is not None:
        tokens = now.conditions.max_tokens
        return f"{faster}, but no answer is finished within {tokens:,} tokens, as {called[0]}'s are"
    if _unfinished(now) > _unfinished(before) + CUT_OFF:
        return (
            f"{faster}, but {now.cut_off} of {len(now.sound)} answers are not finished within "
            f"{now.conditions.max_tokens:,} tokens, of {called[0]}'s {before.cut_off} of "
            f"{len(before.sound)}"
        )
    if done.verdict is not Difference.WORSE:
        return None
    was, became = _length(before), _length(now)
    longer = f": its answers have {became:,} tokens, not {was:,}" if became > was else ""
    return f"{faster}, but its finished answer comes later ({_against(done, DONE, called)}){longer}"


def correctness_lost(before: Case, now: Case, called: Sides) -> str | None:
    """Something is faster by more than the spread, and fewer answers are right."""
    was, became = before.correctness, now.correctness
    # Rounded: 1 - 0.99 is a little more than 0.01 to a computer.
    if was is None or became is None or round(was - became, 9) <= CORRECTNESS_LOST:
        return None
    judged = [(apparent(figure, before, now), figure) for figure in FIGURES]
    faster = [each for each in judged if each[0].verdict is Difference.BETTER]
    if not faster:
        return None
    # Of decode before any other: that is what is usually tuned.
    most, figure = next((each for each in faster if each[1] is DECODE), faster[0])
    return (
        f"{spoken(became, '%')} of the answers are right, of {called[0]}'s {spoken(was, '%')}, "
        f"although {figure.label} is faster ({_against(most, figure, called)})"
    )


def pool_short(result: BenchResult) -> str | None:
    """The engine's KV pool holds fewer tokens than the profile asks for."""
    asked, has = result.pools.requested, result.pools.physical
    if asked is None or has is None or has >= POOL_SHORT * asked:
        return None
    return f"the KV pool holds {has:,} tokens, and {asked:,} were asked for"


PAIRS: Final[Mapping[str, Callable[[Case, Case, Sides], str | None]]] = {
    "drafter-graph-lost": graph_lost,
    "answer-later": answer_later,
    "correctness-lost": correctness_lost,
}
"""Rules about one case of two runs."""
TITLES: Final[Mapping[str, str]] = {
    "drafter-graph-lost": "drafter graph lost",
    "answer-later": "faster decode, later answer",
    "correctness-lost": "speed gained, correctness lost",
    "pool-short": "pool smaller than asked",
}


def traps(results: Sequence[BenchResult], called: Sequence[str]) -> tuple[Trap, ...]:
    """Find every trap: of each run by itself, and of each with the first, both ways round."""
    return tuple(_traps(results, called))


def _traps(results: Sequence[BenchResult], called: Sequence[str]) -> Iterator[Trap]:
    first, name = results[0], called[0]
    for result, own in zip(results, called, strict=True):
        if (text := pool_short(result)) is not None:
            yield Trap("pool-short", own, None, text)
        if result is first:
            continue
        for one, two in both(first, result):
            for before, now, sides in ((one, two, (name, own)), (two, one, (own, name))):
                for trap, rule in PAIRS.items():
                    if (text := rule(before, now, sides)) is not None:
                        yield Trap(trap, sides[1], now.name, text)


def _unfinished(case: Case) -> float:
    return case.cut_off / max(1, len(case.sound))


def _length(case: Case) -> int:
    """Tokens of an answer in the middle, thought included."""
    return round(median(each.completion_tokens or 0 for each in case.sound))


def _against(judgement: Judgement, figure: Figure, called: Sides) -> str:
    """Say both medians."""
    now, before = (spoken(each, figure.unit) for each in (judgement.now, judgement.before))
    return f"{now}, {called[0]}'s is {before}"
