"""Results that look like progress but are not: one rule with a threshold for each trap. Pure.

A rule returns a sentence with the numbers behind it, or `None`. Rules about pairs check whether the
second run fell into a trap that the first one avoided.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from servicekit.lab.bench.figures import DECODE, DONE, FIGURES
from servicekit.lab.bench.formatting import number, with_unit
from servicekit.lab.compare.judgement import Difference, apparent, judge, judged
from servicekit.lab.compare.matching import both

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from servicekit.lab.bench.figures import Figure
    from servicekit.lab.bench.result import BenchResult, Case
    from servicekit.lab.compare.judgement import Judgement

# Tokens per verification from which a drafter works; below, decode is slow for that reason.
ACCEPTANCE_FINE: Final = 1.5
# Part of the expected decode speed below which it has collapsed. A lost draft graph cost more than
# four fifths in the case behind this rule (109 to 19 tokens/s).
COLLAPSED: Final = 0.5
POOL_SHORT: Final = 0.99  # part of the requested context; engines round to whole pages
CORRECTNESS_LOST: Final = 0.01  # part of right answers that may be lost unmentioned
CUT_OFF: Final = 0.01  # part of answers, beyond the other run's, that may be unfinished unmentioned


class Sides(NamedTuple):
    """The two runs."""

    before: str
    """The name of the run compared with."""
    now: str
    verdicts: int = 1
    """Of the whole comparison."""


class Trap(NamedTuple):
    """A run that fell into a trap."""

    name: str
    run: str
    case: str | None  # `None` for the whole run
    text: str

    @property
    def title(self) -> str:
        return TITLES[self.name]


def graph_lost(before: Case, now: Case, called: Sides) -> str | None:
    """Detect a collapsed decode despite good acceptance: the drafter runs without its CUDA graph.

    The expected speed is the other run's decode, scaled down if this drafter yields fewer tokens
    per verification; without a drafter, a verification yields one.
    """
    own = now.engine.acceptance_length if now.engine else None
    theirs = before.engine.acceptance_length if before.engine else None
    was, became = before.statistics(DECODE), now.statistics(DECODE)
    if own is None or own < ACCEPTANCE_FINE or was is None or became is None:
        return None
    expected = was.median * min(1.0, own / (theirs or 1.0))
    if became.median >= COLLAPSED * expected:
        return None
    fine = "" if theirs is None else f", {called.before}'s {number(theirs, '')}"
    return (
        f"acceptance looks healthy ({number(own, '')} tokens per verification{fine}), but "
        f"decode is {with_unit(became.median, 'tokens/s')}, less than half of the "
        f"{with_unit(expected, 'tokens/s')} expected from {called.before}"
    )


def answer_later(before: Case, now: Case, called: Sides) -> str | None:
    """Detect a faster decode with a later finished answer, or with answers never finished."""
    decode = apparent(DECODE, before, now, called.verdicts)
    done = judge(DONE, before, now, called.verdicts)
    if decode.verdict is not Difference.BETTER:
        return None
    faster = f"decode is faster ({_against(decode, DECODE, called)})"
    if done.now is None and done.before is not None:
        tokens = now.conditions.max_tokens
        return (
            f"{faster}, but no answer finishes within {tokens:,} tokens, unlike {called.before}'s"
        )
    if _unfinished(now) > _unfinished(before) + CUT_OFF:
        return (
            f"{faster}, but {now.cut_off} of {len(now.sound)} answers do not finish within "
            f"{now.conditions.max_tokens:,} tokens ({called.before}: {before.cut_off} of "
            f"{len(before.sound)})"
        )
    if done.verdict is not Difference.WORSE:
        return None
    was, became = _length(before), _length(now)
    longer = f"; answers have {became:,} tokens instead of {was:,}" if became > was else ""
    return f"{faster}, but the finished answer comes later ({_against(done, DONE, called)}){longer}"


def correctness_lost(before: Case, now: Case, called: Sides) -> str | None:
    """Detect a gain in speed with fewer right answers."""
    was, became = before.correctness, now.correctness
    # Rounded: 1 - 0.99 is a little more than 0.01 in floating point.
    if was is None or became is None or round(was - became, 9) <= CORRECTNESS_LOST:
        return None
    judged = [(apparent(figure, before, now, called.verdicts), figure) for figure in FIGURES]
    faster = [each for each in judged if each[0].verdict is Difference.BETTER]
    if not faster:
        return None
    # Decode comes first: it is what is usually tuned.
    most, figure = next((each for each in faster if each[1] is DECODE), faster[0])
    right = f"{with_unit(became, '%')} of the answers are right"
    return (
        f"{right} ({called.before}: {with_unit(was, '%')}), "
        f"although {figure.label} is faster ({_against(most, figure, called)})"
    )


def pool_short(result: BenchResult) -> str | None:
    """Detect a KV pool that holds fewer tokens than the profile requests."""
    asked, has = result.pools.requested, result.pools.physical
    if asked is None or has is None or has >= POOL_SHORT * asked:
        return None
    return f"the KV pool holds {has:,} of the {asked:,} tokens requested"


# Rules about one case of two runs.
PAIRS: Final[Mapping[str, Callable[[Case, Case, Sides], str | None]]] = {
    "drafter-graph-lost": graph_lost,
    "answer-later": answer_later,
    "correctness-lost": correctness_lost,
}
TITLES: Final[Mapping[str, str]] = {
    "drafter-graph-lost": "drafter graph lost",
    "answer-later": "faster decode, later answer",
    "correctness-lost": "speed gained, correctness lost",
    "pool-short": "pool smaller than requested",
}


def traps(results: Sequence[BenchResult], called: Sequence[str]) -> Iterator[Trap]:
    """Find the traps of each run alone, and of each run and the first against each other."""
    first, name, verdicts = results[0], called[0], judged(results)
    for result, own in zip(results, called, strict=True):
        if (text := pool_short(result)) is not None:
            yield Trap("pool-short", own, None, text)
        if result is first:
            continue
        for one, two in both(first, result):
            there, back = Sides(name, own, verdicts), Sides(own, name, verdicts)
            for before, now, sides in ((one, two, there), (two, one, back)):
                for trap, rule in PAIRS.items():
                    if (text := rule(before, now, sides)) is not None:
                        yield Trap(trap, sides.now, now.name, text)


def _unfinished(case: Case) -> float:
    return case.cut_off / max(1, len(case.sound))


def _length(case: Case) -> int:
    """Median tokens of an answer, reasoning included."""
    return round(median(each.completion_tokens or 0 for each in case.sound))


def _against(judgement: Judgement, figure: Figure, called: Sides) -> str:
    now, before = (with_unit(each, figure.unit) for each in (judgement.now, judgement.before))
    return f"{now}, {called.before}: {before}"
