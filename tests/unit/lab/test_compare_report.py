"""The report: one file that says everything, to every reader, and asks nobody for anything."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import bench_results
import pytest
from tinyhtml5.parser import HTMLParser

from servicekit.errors import UserError
from servicekit.lab.bench.figures import FIGURES
from servicekit.lab.bench.result import CASE_FIGURES
from servicekit.lab.bench.samples import Suite
from servicekit.lab.compare.charts import chart, is_sweep
from servicekit.lab.compare.comparison import Comparison, compared
from servicekit.lab.compare.drawing import check_drawing, drawn
from servicekit.lab.compare.report import page
from servicekit.lab.compare.words import MEANINGS

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from servicekit.lab.bench.figures import Figure
    from servicekit.lab.bench.result import Case, CaseFigure

SHOWN: tuple[Figure | CaseFigure, ...] = (*FIGURES, *CASE_FIGURES)
HOSTILE = '<script>alert("1")</script>'
"""What a file from another machine may call itself."""


def case(name: str, decode: float, tokens: int = 8192) -> Case:
    """Give a case with three samples that are a little apart."""
    samples = [
        bench_results.sample(decode=decode * factor, ttft=tokens / 10_000, prompt_tokens=tokens)
        for factor in (0.99, 1.0, 1.01)
    ]
    return bench_results.case(
        name, samples, conditions=bench_results.conditions(prompt_tokens=tokens)
    )


def two(*names: str, **changes: Any) -> Comparison:  # noqa: ANN401
    """Compare two runs with these cases; `changes` are those of the second."""
    cases = tuple(case(name, 100) for name in names or ("chat",))
    return compared([
        bench_results.result("first", cases=cases),
        bench_results.result(**{"profile": "second", "cases": cases, **changes}),
    ])  # fmt: skip


def sweep() -> Comparison:
    """Compare two runs through three lengths of the prompt."""
    return compared([
        bench_results.result(name, cases=tuple(
            case(f"prompt-{tokens}", decode, tokens) for tokens in (1024, 8192, 32768)
        ))
        for name, decode in (("first", 100), ("second", 50))
    ])  # fmt: skip


def parsed(comparison: Comparison) -> Element:
    """Read the page as a browser does; one that has to guess has found a mistake."""
    parser = HTMLParser(namespace_html_elements=False)
    root: Element = parser.parse(page(comparison, at="2026-01-31 12:00:00 UTC"))
    assert parser.errors == []
    return root


def text(element: Element) -> str:
    """Give what is read there."""
    return " ".join("".join(element.itertext()).split())


def rows(table: Element) -> list[list[str]]:
    """Give the cells of a table's body."""
    return [[text(cell) for cell in row] for row in table.findall("tbody/tr")]


HOSTILE_RUN = two(
    profile=HOSTILE,
    model=HOSTILE,
    standing=HOSTILE,
    verified=False,
    suite=bench_results.SUITE,
    degraded=(HOSTILE,),
)


@pytest.mark.parametrize("comparison", [two(), sweep(), HOSTILE_RUN], ids=["bars", "curve", "odd"])
def test_a_report_asks_nobody_for_anything(comparison: Comparison) -> None:
    """No script runs, nothing is fetched, and the page itself forbids both."""
    root = parsed(comparison)
    for element in root.iter():
        name = str(element.tag).rpartition("}")[2]
        assert name not in {"script", "link", "iframe", "img", "image", "object", "base", "use"}
        for key, value in element.attrib.items():
            assert not key.startswith("on")
            assert key.rpartition("}")[2] not in {"src", "href", "srcset", "action"}
            assert "url(" not in value
    style = text(root.find("head/style"))  # type: ignore[arg-type]
    assert "url(" not in style
    assert "@import" not in style
    policies = [
        meta.get("content")
        for meta in root.iter("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_what_a_file_calls_itself_is_text() -> None:
    """A result from another machine cannot write into the page."""
    root = parsed(HOSTILE_RUN)
    assert HOSTILE in text(root.find("head/title"))  # type: ignore[arg-type]
    assert HOSTILE in text(root.find("body/header/h1"))  # type: ignore[arg-type]


def test_the_page_says_what_the_comparison_does() -> None:
    """Traps, marks, notes, conditions and suite are all there, in words."""
    second = bench_results.result(
        "second",
        cases=(case("chat", 19),),
        verified=False,
        standing="not verified: recall failed",
        engine="vllm",
        suite=Suite(name="matched-32k", version=1, hash="0123456789abcdef"),
    )
    comparison = compared([bench_results.result("first", cases=(case("chat", 109),)), second])
    root = parsed(comparison)
    said = text(root.find("body"))  # type: ignore[arg-type]
    (trap,) = comparison.traps
    assert f"B, chat: drafter graph lost: {trap.text}" in said
    assert "not verified: recall failed" in said
    assert "B and A differ in engine (sglang 0.5.23, vllm 0.5.23)." in said
    assert "Suite matched-32k version 1 (0123456789ab)." in said
    assert "8,192 prompt tokens, up to 256 answer tokens, concurrency 1, context 32,768" in said
    assert "Made 2026-01-31 12:00:00 UTC by servicekit" in said
    (html,) = root.iter("html")
    assert html.get("lang") == "en"


def test_without_traps_there_is_no_alarm() -> None:
    """The section is left out, and no heading announces nothing."""
    assert not [each for each in parsed(two()).iter("section") if each.get("class") == "traps"]


@pytest.mark.parametrize("comparison", [two("chat", "code"), sweep()], ids=["bars", "curve"])
def test_beside_every_chart_there_is_a_table_that_says_the_same(comparison: Comparison) -> None:
    """A chart is a picture with a text that names it; each of its values is in the table."""
    figures = [each for each in parsed(comparison).iter("section") if each.get("class") == "figure"]
    assert len(figures) == len(SHOWN)
    for shown, figure in zip(figures, SHOWN, strict=True):
        (picture,) = (each for each in shown.iter("div") if each.get("role") == "img")
        label = picture.get("aria-label") or ""
        assert figure.label.lower() in label.lower()
        assert "the table beside it has the same values" in label
        assert [str(each.tag).rpartition("}")[2] for each in picture] == ["svg"]
        symbols = [each for each in picture.iter() if each.get("role") == "graphics-symbol"]
        assert all(each.get("aria-label") for each in symbols)
        (table,) = shown.iter("table")
        every = [cell for row in rows(table) for cell in row]
        for section in comparison.sections:
            assert section.case in every
        spec = chart(figure, comparison).spec
        told = [cell.partition(" ")[0] for cell in every]
        assert {point["text"] for point in spec["data"]["values"]} <= set(told)


def test_every_table_has_headings_for_its_cells() -> None:
    """A screen reader can say of each cell where it stands, and a keyboard can reach each table."""
    root = parsed(two("chat", "code"))
    for table in root.iter("table"):
        heads = table.findall("thead/tr/th")
        assert heads
        assert all(head.get("scope") == "col" for head in heads)
        spans = 0
        for row in table.findall("tbody/tr"):
            spanned = [cell for cell in row if cell.get("rowspan")]
            assert len(row) + (1 if spans > 0 and not spanned else 0) == len(heads)
            if spanned:
                spans = int(spanned[0].get("rowspan") or 0)
            spans -= 1
    scrolled = [each for each in root.iter("div") if each.get("class") == "scroll"]
    assert len(scrolled) == len(list(root.iter("table")))
    assert all(each.get("tabindex") == "0" for each in scrolled)
    labels = [each.get("aria-label") for each in scrolled]
    assert len(set(labels)) == len(labels)
    named = [each.get("aria-labelledby") for each in root.iter("section")]
    assert len(set(named)) == len(named)
    assert set(named) <= {each.get("id") for each in root.iter()}


def test_verdicts_are_told_by_words_and_signs() -> None:
    """Who sees no colours reads the same."""
    root = parsed(sweep())
    (glance,) = (each for each in root.iter("section") if each.get("aria-labelledby") == "overview")
    (table,) = glance.iter("table")
    first = rows(table)[0]
    assert first[:3] == ["B second", "prompt-1024", "= 0.0 %no difference"]
    assert first[5] == "▼ -50.0 %worse"


def test_a_case_that_a_run_lacks_is_left_out_of_its_overview() -> None:
    """An empty row would say nothing."""
    both = (case("chat", 100), case("code", 100))
    runs = [
        bench_results.result(name, cases=cases)
        for name, cases in (("a", both), ("b", both[:1]), ("c", both))
    ]
    (glance,) = (
        each
        for each in parsed(compared(runs)).iter("section")
        if each.get("aria-labelledby") == "overview"
    )
    (table,) = glance.iter("table")
    assert [row[:2] for row in rows(table)] == [["B b", "chat"], ["C c", "chat"], ["C c", "code"]]


def axes(spec: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Give every quantitative scale of a chart, with what it is of."""
    found: list[tuple[str, dict[str, Any]]] = []

    def look(value: Any) -> None:  # noqa: ANN401
        if isinstance(value, dict):
            if value.get("type") == "quantitative" and "scale" in value:
                found.append((str(value["axis"]["title"]), value["scale"]))
            for each in value.values():
                look(each)
        elif isinstance(value, list):
            for each in value:
                look(each)

    look(spec)
    return found


@pytest.mark.parametrize("figure", SHOWN, ids=lambda figure: figure.name)
@pytest.mark.parametrize("comparison", [two(), sweep()], ids=["bars", "curve"])
def test_axes_are_honest(comparison: Comparison, figure: Figure | CaseFigure) -> None:
    """Each begins at zero, ends beyond its longest whisker, and names its unit."""
    spec = chart(figure, comparison).spec
    points = spec["data"]["values"]
    for title, scale in axes(spec):
        if title == "prompt, tokens":
            assert scale["domainMin"] == 0
            continue
        assert title == f"{figure.label}, {figure.unit}"
        assert scale["domain"][0] == 0
        assert scale["domain"][1] > max(point["high"] for point in points)
    for point in points:
        assert 0 <= point["low"] <= point["value"] <= point["high"]


def test_cases_stay_in_the_order_of_their_suite() -> None:
    """They are neither sorted by name nor by anything else."""
    (svg,) = drawn([chart(FIGURES[0], two("prompt-8k", "chat", "prompt-30k")).spec])
    assert re.findall(">(prompt-8k|chat|prompt-30k)<", svg) == ["prompt-8k", "chat", "prompt-30k"]


def test_a_whisker_is_one_standard_deviation() -> None:
    """Of what has no spread there is none."""
    comparison = two()
    spread = [point["high"] - point["value"] for point in _points(FIGURES[3], comparison)]
    assert spread == pytest.approx([1.0, 1.0])
    assert all(point["low"] == point["high"] for point in _points(CASE_FIGURES[0], comparison))


def _points(figure: Figure | CaseFigure, comparison: Comparison) -> list[dict[str, float]]:
    values: list[dict[str, float]] = chart(figure, comparison).spec["data"]["values"]
    return values


def test_lengths_of_a_prompt_make_a_curve() -> None:
    """Three that differ in nothing else; the tokens are those that the engine counted."""
    comparison = sweep()
    assert is_sweep(comparison.sections)
    assert not is_sweep(comparison.sections[:2])
    assert not is_sweep(two("a", "b", "c").sections)
    assert [point["tokens"] for point in _points(FIGURES[0], comparison)] == [
        1024, 1024, 8192, 8192, 32768, 32768,
    ]  # fmt: skip
    uncounted = bench_results.case(samples=[bench_results.sample(prompt_tokens=None)] * 3)
    runs = [bench_results.result(name, cases=(uncounted,)) for name in "ab"]
    assert {point["tokens"] for point in _points(FIGURES[0], compared(runs))} == {8192}


def test_nothing_at_all_is_drawn_too() -> None:
    """Where every value is zero, there is an axis and no error."""
    wrong = bench_results.case(samples=[bench_results.sample(correct=False)] * 3)
    runs = [bench_results.result(name, cases=(wrong,)) for name in "ab"]
    (svg,) = drawn([chart(CASE_FIGURES[3], compared(runs)).spec])
    assert svg.startswith("<svg")


def test_colours_are_the_pages() -> None:
    """One drawing serves light and dark: every colour in it is a variable or the text's own."""
    html = page(two(), at="")
    for svg in re.findall("<svg.*?</svg>", html, re.DOTALL):
        colours = set(re.findall(r'(?:fill|stroke)="([^"]+)"', svg))
        assert colours <= {"none", "currentColor", "transparent", "var(--line)", *(
            f"var(--run-{letter})" for letter in "AB"
        )}  # fmt: skip
    for name in set(re.findall(r"var\((--[A-Za-z-]+)\)", html)):
        assert len(re.findall(rf"{name}: #", html)) == 2, f"{name} is not set for light and dark"


def test_every_figure_is_explained() -> None:
    """Each has a sentence that says what it is."""
    assert list(MEANINGS) == [figure.name for figure in SHOWN]


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not among the dependencies, being large."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UserError) as refusal:
        check_drawing()
    assert str(refusal.value) == (
        "cannot draw the report: vl-convert-python is not installed; "
        "install it: `pip install 'servicekit[report]'`"
    )
