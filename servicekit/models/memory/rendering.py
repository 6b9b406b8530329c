"""Renders a budget as text with one bar. Pure."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from servicekit.models.memory.outcome import Budget, Fit, Part, PartName
from servicekit.models.memory.units import counted, gib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SMALLEST_WIDTH: Final = 40
_LETTERS: Final[Mapping[PartName, str]] = {
    PartName.RUNTIME: "R",
    PartName.WEIGHTS: "W",
    PartName.DRAFTER: "D",
    PartName.STATES: "S",
    PartName.KV: "K",
    PartName.INTERMEDIATE: "I",
    PartName.GRAPHS: "G",
    PartName.TRANSIENTS: "T",
    PartName.FREE: "·",
}
# Background colours of ECMA-48; black letters stand on them.
_COLOURS: Final[Mapping[PartName, int]] = {
    PartName.RUNTIME: 100,
    PartName.WEIGHTS: 44,
    PartName.DRAFTER: 104,
    PartName.STATES: 45,
    PartName.KV: 42,
    PartName.INTERMEDIATE: 105,
    PartName.GRAPHS: 46,
    PartName.TRANSIENTS: 43,
    PartName.FREE: 0,
}
_VERDICT_COLOURS: Final[Mapping[Fit, int]] = {
    Fit.FITS: 32,
    Fit.TIGHT: 33,
    Fit.DOES_NOT_FIT: 31,
}
_OVER: Final = "!"


def _segments(budget: Budget, width: int) -> list[tuple[str, int, PartName | None]]:
    """Divide a bar of `width` characters among the parts, by size and at least one to each.

    Where the parts exceed the memory, the whole bar is what they need, and what is beyond the
    memory is drawn `!`.
    """
    shown = [part for part in budget.parts if part.bytes > 0]
    cells = _shares([part.bytes for part in shown], width)
    segments: list[tuple[str, int, PartName | None]] = []
    over = _shares([budget.total, -budget.free], width)[1] if budget.free < 0 else 0
    left = width - over
    for part, count in zip(shown, cells, strict=True):
        inside = min(count, left)
        segments.append((_LETTERS[part.name], inside, part.name))
        left -= inside
    segments.append((_OVER, over, None))
    return [segment for segment in segments if segment[1]]


def _shares(sizes: list[int], width: int) -> list[int]:
    """Share `width` cells out by size: one to each, the rest by the largest remainder."""
    spare = width - len(sizes)
    whole = sum(sizes)
    exact = [max(0.0, size / whole * width - 1) for size in sizes]
    scale = spare / sum(exact) if sum(exact) else 0.0
    cells = [int(share * scale) for share in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda index: cells[index] - exact[index] * scale)
    for index in by_remainder[: spare - sum(cells)]:
        cells[index] += 1
    return [1 + count for count in cells]


def render_budget(budget: Budget, *, width: int = 80, color: bool = False) -> str:
    """Render the budget in lines of at most `width` characters, at least 40.

    A bar, a table, the figures, the verdict and its levers. `color` adds ECMA-48 colours.
    """
    width = max(width, SMALLEST_WIDTH)
    return "\n".join(_lines(budget, width, color=color)) + "\n"


def _lines(budget: Budget, width: int, *, color: bool) -> Iterator[str]:
    yield _cut(f"{budget.title}, {gib(budget.total)}", width)
    yield ""
    yield "".join(
        _paint(letter * cells, name, color=color)
        for letter, cells, name in _segments(budget, width)
    )
    yield ""
    for part in budget.parts:
        if part.bytes or part.name is PartName.FREE:
            yield _row(part, width, color=color)
    yield ""
    yield from _wrapped(_figures(budget), width)
    verdict = budget.verdict.value.replace("-", " ")
    if color:
        verdict = f"\x1b[1;{_VERDICT_COLOURS[budget.verdict]}m{verdict}\x1b[0m"
    first, *more = textwrap.wrap(f"{'x' * len(budget.verdict.value)}: {budget.reason}", width)
    yield verdict + first[len(budget.verdict.value) :]
    yield from more
    for number, lever in enumerate(budget.levers, start=1):
        yield from _wrapped(f"{number}. {lever}", width, indent=3)
    for note in budget.notes:
        yield from _wrapped(f"note: {note}", width, indent=6)
    if any(part.estimated for part in budget.parts):
        yield from _wrapped(
            "~ estimated: measured elsewhere or guessed by the engine; see docs/memory.md",
            width,
            indent=2,
        )


def _row(part: Part, width: int, *, color: bool) -> str:
    letter = _paint(_LETTERS[part.name], part.name, color=color)
    size = f"{'~' if part.estimated else ''}{gib(part.bytes)}"
    return f"{letter} {_cut(f'{part.name:<19} {size:>11}  {part.detail}', width - 2)}"


def _figures(budget: Budget) -> str:
    figures = [f"pool {budget.kv_tokens:,} tokens"]
    if budget.slots is not None:
        figures.append(counted(budget.slots, "slot"))
    figures.append(f"{budget.concurrency} at once")
    context = f"context {budget.effective_context:,} per request"
    figures.append(f"{context} (input {budget.usable_input:,})")
    if budget.balanced_ratio is not None:
        figures.append(
            f"balanced ratio {budget.balanced_ratio:.2f} at {budget.average_length:,} tokens"
        )
    figures.append(f"{gib(budget.left_after_pools)} left after the pools")
    return " · ".join(figures)


def _wrapped(text: str, width: int, *, indent: int = 0) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=" " * indent, break_on_hyphens=False)


def _cut(text: str, width: int) -> str:
    text = text.rstrip()
    return text if len(text) <= width else text[: width - 1] + "…"


def _paint(text: str, name: PartName | None, *, color: bool) -> str:
    if not color:
        return text
    colour = None if name is None else _COLOURS[name]
    code = {None: "31", 0: "2"}.get(colour, f"30;{colour}")
    return f"\x1b[{code}m{text}\x1b[0m"


def budget_json(budget: Budget) -> dict[str, Any]:
    """Return the budget as JSON's types. Sizes are in bytes; `free` is negative where short."""
    return {
        "title": budget.title,
        "total_bytes": budget.total,
        "parts": [{**asdict(part), "name": part.name.value} for part in budget.parts],
        "kv_tokens": budget.kv_tokens,
        "slots": budget.slots,
        "concurrency": budget.concurrency,
        "effective_context": budget.effective_context,
        "usable_input": budget.usable_input,
        "balanced_ratio": budget.balanced_ratio,
        "average_length": budget.average_length,
        "left_after_pools_bytes": budget.left_after_pools,
        "verdict": budget.verdict.value,
        "reason": budget.reason,
        "levers": list(budget.levers),
        "notes": list(budget.notes),
    }
