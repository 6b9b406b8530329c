"""What a person is told of a result: rows of figures, and what must be known to read them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from servicekit.lab.bench.figures import number, spoken
from servicekit.lab.bench.values import DECODE, FIGURES, PREFILL, TTFT, Figure, Prefix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.lab.bench.values import BenchResult, Case, EngineSide

HEADS: Final = ("CASE", "FIGURE", "MEDIAN", "P99", "LEAST", "MOST", "DEVIATION", "ENGINE'S OWN")
LENGTH_OFF: Final = 0.02
"""Part of a prompt's length by which the engine's count may differ from what the suite wants."""
WARMED: Final = 0.05
"""Part of a prompt from which on one that nobody knew was in the cache all the same."""
OTHERS: Final = 0.05
"""Part of all prompts from which on somebody else's are worth a word."""
PROBED: Final = 200
"""Tokens of prompts that the watchdog's own completions may have had read during a case."""
SAVES: Final = 0.1
"""Part of the TTFT from which on a warm prefix is worth having."""


def rows(result: BenchResult) -> list[tuple[str, ...]]:
    """Give the table under `HEADS`."""
    found: list[tuple[str, ...]] = []
    for case in result.cases:
        lines = list(_rows(case))
        found += [
            (case.name if first else "", *line)
            for first, line in zip(_first(), lines, strict=False)
        ]
    return found


def _first() -> Iterator[bool]:
    yield True
    while True:
        yield False


def _rows(case: Case) -> Iterator[tuple[str, ...]]:
    for figure in FIGURES:
        found = case.statistics(figure)
        own = _own(figure, case.engine)
        beside = "" if own is None else spoken(own, figure.unit)
        if found is not None:
            _, p99, *others = (number(value, figure.unit) for value in found[1:])
            # Of a rate, the largest values are the best ones: that is no bad case to be told of.
            values = ("" if figure.more_is_better else p99, *others)
            median = spoken(found.median, figure.unit)
            yield (figure.label, median, *values, beside)
        elif beside:
            yield (figure.label, "-", "", "", "", "", beside)
    if case.conditions.concurrency > 1 and case.throughput is not None:
        yield ("all together", spoken(case.throughput, "tokens/s"), "", "", "", "", "")
    if case.engine is not None and case.engine.acceptance_length is not None:
        rate = case.engine.acceptance
        part = "" if rate is None else f", {number(rate, '%')} % of the drafted"
        said = f"{number(case.engine.acceptance_length, 'tokens')} tokens a verification{part}"
        yield ("accepted", "", "", "", "", "", said)
    known = [sample for sample in case.samples if sample.correct is not None]
    if known:
        right = sum(sample.correct is True for sample in known)
        yield ("correct", f"{right} of {len(known)}", "", "", "", "", "")


def _own(figure: Figure, side: EngineSide | None) -> float | None:
    """Give the engine's own value of a figure."""
    if side is None:
        return None
    own = {TTFT.name: side.ttft, PREFILL.name: side.prefill, DECODE.name: side.decode}
    return own.get(figure.name)


def remarks(result: BenchResult) -> list[str]:
    """Say what must be known to read the figures, a sentence each."""
    return [*doubts(result), *_prefix(result)]


def doubts(result: BenchResult) -> list[str]:
    """Say why the figures are worth less than others; nothing where that is not known of any."""
    found = []
    if not result.complete:
        found.append("interrupted: it holds what was measured until then")
    if not result.verified:
        found.append(f"unverified: {result.standing}")
    if result.unmatched:
        found.append(f"not the suite's conditions: {', '.join(result.unmatched)}")
    if result.degraded:
        found.append(f"measured while degraded: {', '.join(result.degraded)}")
    found += [f"skipped: {why}" for why in result.skipped]
    for case in result.cases:
        found += [f"{case.name}: {said}" for said in _about(case)]
    return found


def _about(case: Case) -> Iterator[str]:
    wanted = case.conditions.prompt_tokens
    counted = [each.prompt_tokens for each in case.sound if each.prompt_tokens]
    if case.faults:
        yield f"{len(case.faults)} of {len(case.samples)} requests failed: {case.faults[0]}"
    if case.cut_off:
        yield f"{case.cut_off} of {len(case.sound)} answers were cut off before they were finished"
    if case.cut_short:
        yield (
            f"{case.cut_short} of {len(case.sound)} answers ended before the "
            f"{case.conditions.max_tokens} tokens that they were to have"
        )
    if case.in_one_piece:
        yield f"{case.in_one_piece} of {len(case.sound)} answers came in one piece: no decode rate"
    if wanted and len(counted) < len(case.sound):
        uncounted = len(case.sound) - len(counted)
        yield f"the engine did not count {uncounted} of {len(case.sound)} prompts"
    furthest = max(counted, key=lambda tokens: abs(tokens - wanted), default=wanted)
    if wanted and abs(furthest - wanted) > LENGTH_OFF * wanted:
        most = "up to " if furthest > wanted else "down to "
        yield f"prompts have {most}{furthest} tokens, not {wanted}"
    cached = sum(each.cached_tokens or 0 for each in case.sound)
    if wanted and case.conditions.prefix is Prefix.COLD and cached > WARMED * sum(counted):
        yield f"{cached} tokens of prompts that were to be new came from the cache"
    if case.foreign > OTHERS * (sum(counted) or 1) and case.foreign > wanted:
        who = "the watchdog or somebody else" if case.foreign <= PROBED else "somebody else"
        yield (
            f"{who} had {case.foreign:.0f} tokens of prompts read meanwhile: "
            "the figures are of a shared engine"
        )


def _prefix(result: BenchResult) -> Iterator[str]:
    """Say what a warm prefix saves, and what a timestamp loses of that."""
    ttft = {
        case.conditions.prefix: found.median
        for case in result.cases
        if (found := case.statistics(TTFT)) is not None and case.conditions.prompt_tokens
    }
    cold, warm = ttft.get(Prefix.COLD), ttft.get(Prefix.WARM)
    stamped = ttft.get(Prefix.STAMPED)
    if not cold or warm is None:
        return
    saved = cold - warm
    if saved < SAVES * cold:
        yield "a known prefix saves nothing here: see whether the engine's prefix cache is on"
        return
    times = f"{number(cold, 's')} to {number(warm, 's')} s"
    yield f"a known prefix takes the first token from {times}: {saved / cold:.1%} less"
    if stamped is not None:
        lost = (stamped - warm) / saved
        said = f"{number(stamped, 's')} s"
        if lost > SAVES:
            yield (
                f"a timestamp at its beginning loses {min(lost, 1.0):.0%} of that: {said} to the "
                "first token; put what changes behind what does not"
            )
        else:
            yield f"a timestamp at its beginning costs nothing here: {said} to the first token"
