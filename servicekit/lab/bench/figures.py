"""Figures of a whole case, which have no spread, and how any figure is said. Pure."""

from __future__ import annotations

from math import floor, log10
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from servicekit.lab.bench.values import Case, Figure, Statistics

MOST_PLACES: Final = 9
"""Places behind the point, at most: what is smaller would only make a table unreadable."""
DIGITS: Final = 3
"""Digits that count and are said, of a whole number all; of percent, a tenth where there is one."""


class CaseFigure(NamedTuple):
    """A figure that a case has once: it is shown, and no verdict follows from it."""

    name: str
    label: str
    unit: str
    of: Callable[[Case], float | None]


WHOLES: Final = (
    CaseFigure("throughput", "throughput", "tokens/s", lambda case: case.throughput),
    CaseFigure(
        "acceptance",
        "acceptance",
        "%",
        lambda case: case.engine.acceptance if case.engine else None,
    ),
    CaseFigure(
        "acceptance_length",
        "per verification",
        "tokens",
        lambda case: case.engine.acceptance_length if case.engine else None,
    ),
    CaseFigure("correctness", "correctness", "%", lambda case: case.correctness),
)
"""Every one, in the order in which a comparison shows them."""


def number(value: float, unit: str) -> str:
    """Say a value without its unit; of "%", `value` is a part of one."""
    return _written(value, unit, _places(value, unit))


def spread(value: float | None, found: Statistics | None, unit: str) -> str:
    """Say a median and how far its samples deviate, to the same place; `-` for none."""
    if value is None:
        return "-"
    if found is None:
        return number(value, unit)
    places = _places(value, unit)
    deviation = _written(found.deviation, unit, places)
    return f"{_written(value, unit, places)} \N{PLUS-MINUS SIGN} {deviation}"


def worst(figure: Figure | CaseFigure, found: Statistics | None) -> str:
    """Say the p99 of a time; of a rate, it would be among the best."""
    return number(found.p99, "s") if found is not None and figure.unit == "s" else ""


def _places(value: float, unit: str) -> int:
    if unit == "%":
        return 0 if f"{value:.3f}".endswith("0") else 1
    if not value:
        return 0
    return min(MOST_PLACES, max(0, DIGITS - 1 - floor(log10(abs(value)))))


def _written(value: float, unit: str, places: int) -> str:
    return f"{value * (100 if unit == '%' else 1):,.{places}f}"


def spoken(value: float | None, unit: str) -> str:
    """Say a value with its unit, and `-` for none."""
    return "-" if value is None else f"{number(value, unit)} {unit}"


def percent(change: float | None) -> str:
    """Say by which part a value is more or less: `+6.8 %`, `-90.2 %`; nothing for `None`."""
    if change is None:
        return ""
    text = f"{change * 100:+,.1f} %"
    return text[1:] if text[1:] == "0.0 %" else text
