"""Figures as text. Pure."""

from __future__ import annotations

from math import floor, log10
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from servicekit.lab.bench.figures import Figure, Statistics
    from servicekit.lab.bench.result import CaseFigure

MOST_PLACES: Final = 9  # decimal places, at most; smaller values would only clutter a table
DIGITS: Final = 3  # significant digits; whole numbers are shown in full, percentages to a tenth


def number(value: float, unit: str) -> str:
    """Format a value without its unit; a value in "%" is a part of one."""
    return _written(value, unit, _places(value, unit))


def spread(value: float | None, stats: Statistics | None, unit: str) -> str:
    """Format a median and its deviation to the same place; `-` for none."""
    if value is None:
        return "-"
    if stats is None:
        return number(value, unit)
    places = _places(value, unit)
    deviation = _written(stats.deviation, unit, places)
    return f"{_written(value, unit, places)} \N{PLUS-MINUS SIGN} {deviation}"


def worst(figure: Figure | CaseFigure, stats: Statistics | None) -> str:
    """Format the p99 of a time; that of a rate would be among the best values."""
    return number(stats.p99, "s") if stats is not None and figure.unit == "s" else ""


def _places(value: float, unit: str) -> int:
    if unit == "%":
        return 0 if f"{value:.3f}".endswith("0") else 1
    if not value:
        return 0
    return min(MOST_PLACES, max(0, DIGITS - 1 - floor(log10(abs(value)))))


def _written(value: float, unit: str, places: int) -> str:
    return f"{value * (100 if unit == '%' else 1):,.{places}f}"


def with_unit(value: float | None, unit: str) -> str:
    """Format a value with its unit; `-` for none."""
    return "-" if value is None else f"{number(value, unit)} {unit}"


def percent(change: float | None) -> str:
    """Format a relative change: `+6.8 %`, `-90.2 %`; empty for `None`."""
    if change is None:
        return ""
    text = f"{change * 100:+,.1f} %"
    return text[1:] if text[1:] == "0.0 %" else text
