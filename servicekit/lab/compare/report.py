"""A comparison as one self-contained HTML page: no network, no script, no font."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from markupsafe import Markup

from servicekit import __version__
from servicekit.lab.bench.figures import FIGURES
from servicekit.lab.bench.formatting import percent, spread, worst
from servicekit.lab.bench.result import CASE_FIGURES
from servicekit.lab.compare.charts import chart
from servicekit.lab.compare.drawing import drawn
from servicekit.lab.compare.judgement import CHANCE, CLOCK, FEWEST, LEFT_OUT, PRECISION, Difference
from servicekit.lab.compare.words import MEANINGS, conditions_in_words, run_in_words, suite_in_words
from servicekit.service.render import rendered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.lab.bench.figures import Figure
    from servicekit.lab.bench.result import CaseFigure
    from servicekit.lab.compare.comparison import ComparedFigure, ComparedValue, Comparison

TEMPLATE: Final = "comparison.html.j2"
# Signs beside each verdict, so that colour alone carries no meaning.
SIGNS: Final = {
    Difference.BETTER: "▲",
    Difference.WORSE: "▼",
    Difference.SAME: "=",
    Difference.UNKNOWN: "?",
}


class _Cell(NamedTuple):
    """One verdict."""

    sign: str
    verdict: str
    change: str


class _TableRow(NamedTuple):
    """One row of the table beside a chart."""

    case: str
    letter: str
    profile: str
    first: bool  # whether it is the first row of its case
    rows: int  # rows of the case
    value: str
    p99: str
    samples: str
    cell: _Cell


class _FigureBlock(NamedTuple):
    """One figure: a chart, and a table with the same values."""

    title: str
    unit: str
    meaning: str
    alternative: str  # text alternative of the chart
    svg: Markup
    spread: bool  # whether it has a spread, and therefore a verdict
    timed: bool  # whether it is a time, and therefore has a p99
    lines: tuple[_TableRow, ...]


class _Overview(NamedTuple):
    """The verdicts about one run in one case."""

    run: str
    case: str
    cells: tuple[_Cell, ...]


def page(comparison: Comparison, *, at: str) -> str:
    """Return the page, dated `at`. Raises `UserError` if charts cannot be drawn."""
    shown = [figure for figure in (*FIGURES, *CASE_FIGURES) if _rows(comparison, figure)]
    charts = [chart(figure, comparison) for figure in shown]
    pictures = drawn(each.spec for each in charts)
    figures = [
        _FigureBlock(
            title=figure.label.capitalize(),
            unit=figure.unit,
            meaning=MEANINGS[figure.name],
            alternative=f"{each.kind} of {figure.label} in {figure.unit}, for every case and run; "
            "the table beside it has the same values.",
            svg=Markup(picture),  # noqa: S704 - drawn here, with its texts escaped
            spread=figure in FIGURES,
            timed=figure.unit == "s",
            lines=tuple(_lines(comparison, figure)),
        )
        for figure, each, picture in zip(shown, charts, pictures, strict=True)
    ]
    return rendered(
        TEMPLATE,
        title=", ".join(run.label for run in comparison.runs),
        first=comparison.runs[0].result.profile,
        letters=[run.letter for run in comparison.runs],
        at=at,
        version=__version__,
        suite=suite_in_words(comparison.suite),
        runs=[run_in_words(run) for run in comparison.runs],
        cases=[(each.case, conditions_in_words(each.conditions)) for each in comparison.sections],
        overview=tuple(_overview(comparison)),
        headings=[figure.label for figure in FIGURES],
        traps=comparison.traps,
        notes=[f"{note[0].upper()}{note[1:]}." for note in comparison.notes],
        figures=figures,
        fewest=FEWEST,
        chance=f"{CHANCE:.0%}".replace("%", " %"),
        precision=f"{PRECISION:.0%}".replace("%", " %"),
        clock=f"{CLOCK * 1000:.0f} ms",
        left_out=f"{LEFT_OUT:.0%}".replace("%", " %"),
    )


def _rows(comparison: Comparison, figure: Figure | CaseFigure) -> list[tuple[str, ComparedFigure]]:
    return [
        (section.case, row)
        for section in comparison.sections
        for row in section.rows
        if row.figure is figure
    ]


def _lines(comparison: Comparison, figure: Figure | CaseFigure) -> Iterator[_TableRow]:
    profiles = {run.letter: run.result.profile for run in comparison.runs}
    for case, row in _rows(comparison, figure):
        for index, value in enumerate(row.values):
            stats = value.statistics
            yield _TableRow(
                case=case,
                letter=value.run,
                profile=profiles[value.run],
                first=index == 0,
                rows=len(row.values),
                value=spread(value.value, stats, figure.unit),
                p99=worst(figure, stats),
                samples=f"{stats.samples:,}" if stats else "",
                cell=_cell(value),
            )


def _cell(value: ComparedValue) -> _Cell:
    verdict = value.judgement.verdict if value.judgement else None
    return _Cell(
        sign=SIGNS[verdict] if verdict else "",
        verdict=verdict.value if verdict else "",
        change=percent(value.change),
    )


def _overview(comparison: Comparison) -> Iterator[_Overview]:
    for run in comparison.runs[1:]:
        for section in comparison.sections:
            values = {
                row.figure.name: value
                for row in section.rows
                for value in row.values
                if value.run == run.letter
            }
            cells = [values.get(figure.name) for figure in FIGURES]
            if all(each is None or each.value is None for each in cells):
                continue  # this case was not measured
            yield _Overview(
                run=run.label,
                case=section.case,
                cells=tuple(_cell(each) if each else _Cell("", "", "") for each in cells),
            )
