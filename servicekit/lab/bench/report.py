"""A result as rows of figures, with remarks on how to read them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from servicekit.lab.bench.figures import DECODE, FIGURES, PREFILL, TTFT, Figure
from servicekit.lab.bench.formatting import number, with_unit
from servicekit.lab.bench.samples import Prefix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.lab.bench.result import BenchResult, Case
    from servicekit.lab.bench.samples import EngineSide

HEADS: Final = ("CASE", "FIGURE", "MEDIAN", "P99", "LEAST", "MOST", "DEVIATION", "ENGINE'S OWN")
LENGTH_OFF: Final = 0.02  # part of a prompt's length by which the engine's count may differ
WARMED: Final = 0.05  # part of a cold prompt that may come from the cache unmentioned
OTHERS: Final = 0.05  # part of all prompts that may be other clients' unmentioned
PROBED: Final = 200  # prompt tokens of the watchdog's own completions during a case, at most
SAVES: Final = 0.1  # part of the TTFT that a warm prefix must save to count


def rows(result: BenchResult) -> list[tuple[str, ...]]:
    return [
        (case.name if index == 0 else "", *row)
        for case in result.cases
        for index, row in enumerate(_rows(case))
    ]


def _rows(case: Case) -> Iterator[tuple[str, ...]]:
    for figure in FIGURES:
        stats = case.statistics(figure)
        own = _own(figure, case.engine)
        beside = "" if own is None else with_unit(own, figure.unit)
        if stats is not None:
            _, p99, *others = (number(value, figure.unit) for value in stats[1:])
            # The largest values of a rate are its best ones, so its p99 says nothing.
            values = ("" if figure.more_is_better else p99, *others)
            yield (figure.label, with_unit(stats.median, figure.unit), *values, beside)
        elif beside:
            yield (figure.label, "-", "", "", "", "", beside)
    if case.conditions.concurrency > 1 and case.throughput is not None:
        yield ("all together", with_unit(case.throughput, "tokens/s"), "", "", "", "", "")
    if case.engine is not None and case.engine.acceptance_length is not None:
        rate = case.engine.acceptance
        part = "" if rate is None else f", {number(rate, '%')} % of drafted tokens"
        length = number(case.engine.acceptance_length, "tokens")
        yield ("accepted", "", "", "", "", "", f"{length} tokens per verification{part}")
    known = [sample for sample in case.samples if sample.correct is not None]
    if known:
        right = sum(sample.correct is True for sample in known)
        yield ("correct", f"{right} of {len(known)}", "", "", "", "", "")


def _own(figure: Figure, side: EngineSide | None) -> float | None:
    if side is None:
        return None
    own = {TTFT.name: side.ttft, PREFILL.name: side.prefill, DECODE.name: side.decode}
    return own.get(figure.name)


def remarks(result: BenchResult) -> list[str]:
    """Say what a reader of the figures must know, one sentence each."""
    return [*doubts(result), *_prefix(result)]


def doubts(result: BenchResult) -> list[str]:
    """Say why the figures are less reliable than others; empty if there is no known reason."""
    lines = []
    if not result.complete:
        lines.append("interrupted: the figures are of what was measured until then")
    if not result.verified:
        lines.append(f"unverified: {result.standing}")
    if result.unmatched:
        lines.append(f"suite conditions not met: {', '.join(result.unmatched)}")
    if result.degraded:
        lines.append(f"measured while degraded: {', '.join(result.degraded)}")
    lines += [f"skipped: {why}" for why in result.skipped]
    for case in result.cases:
        lines += [f"{case.name}: {line}" for line in _about(case)]
    return lines


def _about(case: Case) -> Iterator[str]:
    wanted, sound = case.conditions.prompt_tokens, len(case.sound)
    counted = [each.prompt_tokens for each in case.sound if each.prompt_tokens]
    if case.faults:
        yield f"{len(case.faults)} of {len(case.samples)} requests failed: {case.faults[0]}"
    if case.cut_off:
        yield f"{case.cut_off} of {sound} answers were cut off before they were finished"
    if case.cut_short:
        yield (
            f"{case.cut_short} of {sound} answers ended before the "
            f"{case.conditions.max_tokens} tokens of the suite"
        )
    if case.in_one_piece:
        yield f"{case.in_one_piece} of {sound} answers came in one piece: no token times"
    if wanted and len(counted) < sound:
        yield f"the engine did not count {sound - len(counted)} of {sound} prompts"
    furthest = max(counted, key=lambda tokens: abs(tokens - wanted), default=wanted)
    if wanted and abs(furthest - wanted) > LENGTH_OFF * wanted:
        most = "up to " if furthest > wanted else "down to "
        yield f"prompts have {most}{furthest} tokens, not {wanted}"
    cached = sum(each.cached_tokens or 0 for each in case.sound)
    if wanted and case.conditions.prefix is Prefix.COLD and cached > WARMED * sum(counted):
        yield f"{cached} tokens of supposedly new prompts came from the prefix cache"
    if case.foreign > OTHERS * (sum(counted) or 1) and case.foreign > wanted:
        who = "the watchdog or another client" if case.foreign <= PROBED else "another client"
        yield f"{who} sent {case.foreign:.0f} prompt tokens meanwhile: the engine was shared"


def _prefix(result: BenchResult) -> Iterator[str]:
    """Say what a warm prefix saves, and how much of that a timestamp loses."""
    ttft = {
        case.conditions.prefix: stats.median
        for case in result.cases
        if (stats := case.statistics(TTFT)) is not None and case.conditions.prompt_tokens
    }
    cold, warm = ttft.get(Prefix.COLD), ttft.get(Prefix.WARM)
    stamped = ttft.get(Prefix.STAMPED)
    if not cold or warm is None:
        return
    saved = cold - warm
    if saved < SAVES * cold:
        yield "a cached prefix saves nothing: check that the engine's prefix cache is on"
        return
    times = f"{number(cold, 's')} to {number(warm, 's')} s"
    yield f"a cached prefix cuts the first token from {times}: {saved / cold:.1%} less"
    if stamped is not None:
        lost = (stamped - warm) / saved
        seconds = f"{number(stamped, 's')} s"
        if lost > SAVES:
            yield (
                f"a timestamp at its beginning loses {min(lost, 1.0):.0%} of that: {seconds} to "
                "the first token; put variable text after the stable text"
            )
        else:
            yield f"a timestamp at its beginning costs nothing: {seconds} to the first token"
