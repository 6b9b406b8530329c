"""Charts of a comparison, as Vega-Lite JSON. Pure: `drawing` renders them.

Every axis of values begins at zero. A bar or point is a median, its whisker one standard deviation
either way. Colours are variables of the page, so that one drawing serves light and dark themes; no
meaning is carried by colour alone.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from servicekit.lab.bench.formatting import number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from servicekit.lab.bench.figures import Figure
    from servicekit.lab.bench.result import CaseFigure
    from servicekit.lab.compare.comparison import ComparedCase, ComparedRun, Comparison

# Pixels, but for `ROOM` and `CURVE`.
WIDTH: Final = 300  # of the plot itself: with its labels, it fits a phone
BAR: Final = 24  # from one bar to the next
HEIGHT: Final = 220  # of a curve's plot
LETTER: Final = 7.6  # of a label's character in any font
ROOM: Final = 1.2  # length of an axis over the longest whisker, so that the value fits
CURVE: Final = 3  # prompt lengths that make a curve

_INK: Final = "currentColor"
_LINE: Final = "var(--line)"
_CONFIG: Final[dict[str, Any]] = {
    # The page has a text alternative; a label on every mark would be noise.
    "aria": False,
    "mark": {"aria": False},
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": _INK,
        "titleColor": _INK,
        "gridColor": _LINE,
        "domainColor": _LINE,
        "tickColor": _LINE,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {"labelColor": _INK, "labelFontSize": 12},
    "header": {"labelColor": _INK, "labelFontSize": 12, "labelFontWeight": "bold"},
    "text": {"fontSize": 12, "color": _INK},
}


class Chart(NamedTuple):
    """One figure of all cases."""

    kind: str
    spec: dict[str, Any]


def chart(figure: Figure | CaseFigure, comparison: Comparison) -> Chart:
    """Return `figure` as bars, or as a curve if the cases differ in prompt length only."""
    points = list(_points(figure, comparison))
    top = max(point["high"] for point in points)
    scale = {"domain": [0, top * ROOM or 1], "nice": True}
    axis = {"title": f"{figure.label}, {figure.unit}", "tickCount": 5}
    if is_sweep(comparison.sections):
        spec = _curve(comparison, {"type": "quantitative", "scale": scale, "axis": axis})
        return Chart("Curve", _whole(points, spec))
    spec = _bars(comparison, {"type": "quantitative", "scale": scale, "axis": axis})
    return Chart("Bar chart", _whole(points, spec))


def is_sweep(sections: Sequence[ComparedCase]) -> bool:
    lengths = {each.conditions.prompt_tokens for each in sections}
    alike = {each.conditions.model_copy(update={"prompt_tokens": 0}) for each in sections}
    return len(alike) == 1 and len(lengths) == len(sections) >= CURVE


def _points(figure: Figure | CaseFigure, comparison: Comparison) -> Iterator[dict[str, Any]]:
    factor = 100 if figure.unit == "%" else 1
    runs = {run.letter: run for run in comparison.runs}
    for section in comparison.sections:
        for row in section.rows:
            for each in row.values if row.figure is figure else ():
                if each.value is None:
                    continue
                spread = each.statistics.deviation if each.statistics else 0.0
                yield {
                    "case": section.case,
                    "run": runs[each.run].label,
                    "tokens": _prompt(runs[each.run], section),
                    "value": each.value * factor,
                    "low": max(0.0, each.value - spread) * factor,
                    "high": (each.value + spread) * factor,
                    "text": number(each.value, figure.unit),
                }


def _prompt(run: ComparedRun, section: ComparedCase) -> float:
    """Median prompt tokens as counted by the engine, else those of the suite."""
    case = run.result.case(section.case)
    counted = [each.prompt_tokens for each in case.sound if each.prompt_tokens] if case else []
    return median(counted) if counted else section.conditions.prompt_tokens


def _whole(points: list[dict[str, Any]], spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "background": None,
        "padding": 2,
        "data": {"values": points},
        "config": _CONFIG,
        **spec,
    }


def _colour(comparison: Comparison) -> dict[str, Any]:
    runs = [run.label for run in comparison.runs]
    colours = [f"var(--run-{run.letter})" for run in comparison.runs]
    return {
        "field": "run",
        "type": "nominal",
        "scale": {"domain": runs, "range": colours},
        "legend": None,
    }


def _bars(comparison: Comparison, values: dict[str, Any]) -> dict[str, Any]:
    runs = [run.label for run in comparison.runs]
    # The renderer measures text in a font that a reader may not have, so its room is reserved.
    room = {"title": None, "ticks": False, "minExtent": LETTER * max(map(len, runs))}
    whisker = {"color": _INK, "strokeWidth": 1.5}
    end = {"type": "tick", "color": _INK, "thickness": 1.5, "height": 9}
    return {
        "facet": {
            "row": {
                "field": "case",
                "type": "nominal",
                "sort": [section.case for section in comparison.sections],
                "header": {"title": None, "labelOrient": "top", "labelAnchor": "start"},
            }
        },
        "spacing": 10,
        "spec": {
            "width": WIDTH,
            "height": {"step": BAR},
            "encoding": {"y": {"field": "run", "type": "nominal", "sort": runs, "axis": room}},
            "layer": [
                {
                    "mark": {"type": "bar", "height": {"band": 0.72}},
                    "encoding": {"x": {"field": "value", **values}, "color": _colour(comparison)},
                },
                {
                    "mark": {"type": "rule", **whisker},
                    "encoding": {"x": {"field": "low", **values}, "x2": {"field": "high"}},
                },
                {"mark": end, "encoding": {"x": {"field": "low", **values}}},
                {"mark": end, "encoding": {"x": {"field": "high", **values}}},
                {
                    "mark": {"type": "text", "align": "left", "dx": 6},
                    "encoding": {"x": {"field": "high", **values}, "text": {"field": "text"}},
                },
            ],
        },
    }


def _curve(comparison: Comparison, values: dict[str, Any]) -> dict[str, Any]:
    # One run per line: side by side, they would overlap in a wider font.
    legend = {"title": None, "orient": "top", "columns": 1, "labelLimit": WIDTH}
    colour = {**_colour(comparison), "legend": legend}
    shape = {
        "field": "run",
        "type": "nominal",
        "scale": {"domain": [run.label for run in comparison.runs]},
        "legend": legend,
    }
    tokens = {
        "field": "tokens",
        "type": "quantitative",
        "scale": {"domainMin": 0, "nice": True},
        "axis": {"title": "prompt, tokens", "tickCount": 5, "grid": False},
    }
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "encoding": {"x": tokens, "color": colour},
        "layer": [
            {
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {"y": {"field": "value", **values}},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {"y": {"field": "low", **values}, "y2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
                "encoding": {"y": {"field": "value", **values}, "shape": shape},
            },
        ],
    }
