"""One table of everything that was measured, each figure beside its aim or its rivals."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HEADINGS: Final = ("what", "of", "measured", "aim", "ratio", "met", "how")
LARGE: Final = 100
"""From here on a figure is shown without decimals."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    of: str
    """Whose figure it is: ours, or that of something else in the same place."""
    value: float | None
    """`None` where there is no figure; then `said` says why."""
    unit: str
    aim: float | None = None
    """The figure that it should not exceed (or fall short of, with `more_is_better`)."""
    more_is_better: bool = False
    times: float | None = None
    """The figure of the same measurement for something else, by how much ours, if there is one."""
    said: str = ""
    """Words in the place of a figure, or beside it."""
    how: str = ""
    """Number of samples, their range, what was done."""

    @property
    def met(self) -> bool | None:
        """Whether the aim was met; `None` where there is none, or no figure."""
        if self.aim is None or self.value is None:
            return None
        return self.value >= self.aim if self.more_is_better else self.value <= self.aim

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as it is printed."""
        measured = " ".join(filter(None, (shown(self.value, self.unit), self.said)))
        aim = shown(self.aim, self.unit)
        if aim:
            aim = f"{'>=' if self.more_is_better else '<='} {aim}"
        ratio = ""
        if self.times:
            ratio = f"{figure(self.times)} x ours"
        elif self.aim and self.value is not None:
            ratio = f"{figure(self.value / self.aim)} of aim"
        met = {True: "yes", False: "NO", None: ""}[self.met]
        return (self.what, self.of, measured, aim, ratio, met, self.how)


def sampled(
    what: str,
    of: str,
    samples: Sequence[float],
    unit: str,
    *,
    aim: float | None = None,
    said: str = "",
) -> Row:
    """Make a row of the median of several samples."""
    if not samples:
        return Row(what, of, None, unit, aim=aim, said="nothing measured")
    low, high = figure(min(samples)), figure(max(samples))
    how = f"median of {len(samples)}, {low} to {high} {unit}"
    return Row(what, of, median(samples), unit, aim=aim, said=said, how=how)


def not_run(what: str, of: str, why: str) -> Row:
    """Make a row for what could not be measured here."""
    return Row(what, of, None, "", said=f"not run: {why}")


def figure(value: float) -> str:
    """Write a number as exactly as it is worth: three digits."""
    return f"{value:.0f}" if abs(value) >= LARGE or value == 0 else f"{value:.3g}"


def shown(value: float | None, unit: str) -> str:
    """Write a number with its unit; nothing where there is none."""
    return "" if value is None else " ".join(filter(None, (figure(value), unit)))


def render(rows: Iterable[Row]) -> str:
    """Lay the rows out as a table, in Markdown, which is as readable in a terminal."""
    lines = [HEADINGS, *(row.cells for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    ruled = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    ruled.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(ruled)


def as_json(rows: Iterable[Row]) -> str:
    """Give the rows as a JSON array of objects."""
    return json.dumps([asdict(row) | {"met": row.met} for row in rows], indent=2)
