"""Figures of a whole case, which have no spread, and how any figure is said. Pure."""

from __future__ import annotations

from math import floor, log10
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from servicekit.bench.values import Case

DIGITS: Final = 3
"""Significant digits that are said; whole numbers keep all of theirs."""


class Whole(NamedTuple):
    """A figure that a case has once: it is shown, and no verdict follows from it."""

    name: str
    label: str
    unit: str
    of: Callable[[Case], float | None]


WHOLES: Final = (
    Whole("throughput", "throughput", "tokens/s", lambda case: case.throughput),
    Whole(
        "acceptance",
        "acceptance",
        "%",
        lambda case: case.engine.acceptance if case.engine else None,
    ),
    Whole(
        "acceptance_length",
        "per verification",
        "tokens",
        lambda case: case.engine.acceptance_length if case.engine else None,
    ),
    Whole("correctness", "correctness", "%", lambda case: case.correctness),
)
"""Every one, in the order in which a comparison shows them."""


def number(value: float, unit: str) -> str:
    """Say a value without its unit; of "%", `value` is a part of one."""
    if unit == "%":
        value *= 100
    if not value:
        return "0"
    places = max(0, DIGITS - 1 - floor(log10(abs(value))))
    text = f"{value:,.{places}f}"
    return text.removesuffix(f".{'0' * places}") if unit == "%" else text


def spoken(value: float | None, unit: str) -> str:
    """Say a value with its unit, and `-` for none."""
    return "-" if value is None else f"{number(value, unit)} {unit}"


def percent(change: float | None) -> str:
    """Say by which part a value is more or less: `+6.8 %`, `\N{MINUS SIGN}90.2 %`."""
    if change is None:
        return ""
    sign = "\N{MINUS SIGN}" if change < 0 else "+"
    return f"{sign}{abs(change) * 100:,.1f} %"
