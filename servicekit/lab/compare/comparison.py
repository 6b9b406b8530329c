"""Matching results side by side: every figure with its verdict, and notes. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from servicekit.errors import UserError
from servicekit.lab.bench.figures import FIGURES
from servicekit.lab.bench.report import doubts
from servicekit.lab.bench.result import CASE_FIGURES, CaseFigure
from servicekit.lab.compare.judgement import Judgement, judge, judged, relative
from servicekit.lab.compare.matching import refuse_mismatch
from servicekit.lab.compare.traps import Trap, traps
from servicekit.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from servicekit.lab.bench.figures import Figure, Statistics
    from servicekit.lab.bench.result import BenchResult, Case
    from servicekit.lab.bench.samples import Conditions, Suite

MOST: Final = 8  # runs in one comparison: as many colours as people can distinguish
# Conditions that may be unknown: their names, and the value that means "unknown".
UNKNOWN: Final = {
    "kv_precision": ("KV cache precision", "?"),
    "thinking": ("thinking", None),
}


class ComparedRun(NamedTuple):
    """One run and its letter in the comparison."""

    letter: str
    result: BenchResult

    @property
    def label(self) -> str:
        return f"{self.letter} {self.result.profile}"

    @property
    def engine(self) -> str:
        return f"{self.result.engine} {self.result.fingerprint.engine or '?'}"

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(doubts(self.result))


class ComparedValue(NamedTuple):
    """One figure of one run in one case."""

    run: str  # letter of the run
    value: float | None  # the median, or the single value of a case; `None` if not measured
    statistics: Statistics | None  # `None` for a single value, and for what was not measured
    change: float | None  # relative change from the first run's value; `None` for the first run
    judgement: Judgement | None
    """Against the first run; `None` for the first run and for single values."""


class ComparedFigure(NamedTuple):
    """One figure of one case, for every run."""

    figure: Figure | CaseFigure
    values: tuple[ComparedValue, ...]


class ComparedCase(NamedTuple):
    """One case with every figure that any run has."""

    case: str
    conditions: Conditions
    rows: tuple[ComparedFigure, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two or more runs."""

    suite: Suite
    runs: tuple[ComparedRun, ...]
    sections: tuple[ComparedCase, ...]
    traps: tuple[Trap, ...]
    notes: tuple[str, ...]
    """How the runs differ beside their figures, and what is unknown; one sentence each."""

    def as_json(self) -> dict[str, Any]:
        return {
            "suite": self.suite.model_dump(mode="json"),
            "runs": [_run_json(run) for run in self.runs],
            "cases": [
                {
                    "case": section.case,
                    "conditions": section.conditions.model_dump(mode="json"),
                    "figures": [_row_json(row) for row in section.rows],
                }
                for section in self.sections
            ],
            "traps": [trap._asdict() for trap in self.traps],
            "notes": list(self.notes),
        }


def compared(results: Sequence[BenchResult]) -> Comparison:
    """Compare each of `results` with the first.

    Raises `UserError` for fewer than two, for the same twice, and if they do not match.
    """
    names = [result.name for result in results]
    if len(results) < 2:  # noqa: PLR2004 - a comparison has two sides
        raise UserError("a comparison needs two runs", hint="name a second one")
    if len(results) > MOST:
        raise UserError(f"cannot compare {len(results)} runs", hint=f"compare {MOST} at most")
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(printable(f'"{twice[0]}" is named twice'), hint="name each run once")
    refuse_mismatch(results)
    runs = tuple(ComparedRun(*pair) for pair in zip(ascii_uppercase, results, strict=False))
    letters = [run.letter for run in runs]
    return Comparison(
        suite=results[0].suite,
        runs=runs,
        sections=tuple(_sections(runs)),
        traps=tuple(traps(results, letters)),
        notes=tuple(_notes(runs)),
    )


def _sections(runs: Sequence[ComparedRun]) -> Iterator[ComparedCase]:
    """Yield every case of the first run that another run has as well."""
    first, *others = runs
    verdicts = judged([run.result for run in runs])
    for case in first.result.cases:
        cases = {run.letter: run.result.case(case.name) for run in runs}
        if case.samples and any(_measured(cases[other.letter]) for other in others):
            yield ComparedCase(case.name, case.conditions, tuple(_rows(case, cases, verdicts)))


def _measured(case: Case | None) -> bool:
    return case is not None and bool(case.samples)


def _rows(first: Case, cases: dict[str, Case | None], verdicts: int) -> Iterator[ComparedFigure]:
    for figure in FIGURES:
        values = tuple(
            _of_samples(figure, first, letter, case, verdicts) for letter, case in cases.items()
        )
        if any(each.value is not None for each in values):
            yield ComparedFigure(figure, values)
    for whole in CASE_FIGURES:
        values = tuple(_of_case(whole, first, letter, case) for letter, case in cases.items())
        if any(each.value is not None for each in values):
            yield ComparedFigure(whole, values)


def _of_samples(
    figure: Figure, first: Case, letter: str, case: Case | None, verdicts: int
) -> ComparedValue:
    stats = case.statistics(figure) if case else None
    judgement = judge(figure, first, case, verdicts) if case and case is not first else None
    return ComparedValue(
        run=letter,
        value=stats.median if stats else None,
        statistics=stats,
        change=judgement.change if judgement else None,
        judgement=judgement,
    )


def _of_case(whole: CaseFigure, first: Case, letter: str, case: Case | None) -> ComparedValue:
    value = whole.of(case) if case else None
    change = None if case is first else relative(whole.of(first), value)
    return ComparedValue(letter, value, None, change, None)


def _notes(runs: Sequence[ComparedRun]) -> Iterator[str]:
    first, *others = runs
    for run in others:
        if unlike := tuple(_unlike(first.result, run.result)):
            yield f"{run.letter} and {first.letter} differ in {', '.join(unlike)}"
    conditions = [case.conditions for run in runs for case in run.result.cases]
    for name, (spelt, unknown) in UNKNOWN.items():
        if any(getattr(each, name) == unknown for each in conditions):
            yield f"{spelt} is unknown: it may differ between the runs"
    for run in others:
        for one, two in ((first, run), (run, first)):
            lacking = [name for name in _names(one.result) if name not in _names(two.result)]
            if lacking:
                yield f"only {one.letter} measured {', '.join(lacking)}"


def _names(result: BenchResult) -> list[str]:
    return [case.name for case in result.cases if case.samples]


def _unlike(first: BenchResult, other: BenchResult) -> Iterator[str]:
    """Name how the measured services differ, with both values where they are readable."""
    own, others = first.fingerprint, other.fingerprint
    for name, one, two in (
        ("engine", ComparedRun("", first).engine, ComparedRun("", other).engine),
        ("GPU", own.gpu or "none", others.gpu or "none"),
        ("driver", own.driver or "none", others.driver or "none"),
        ("model", first.model, other.model),
        ("drafter", first.drafter or "none", other.drafter or "none"),
        ("servicekit", own.servicekit, others.servicekit),
    ):
        if one != two:
            yield f"{name} ({one}, {two})"
    if first.model == other.model and own.model != others.model:
        yield "the model's files"


def _run_json(run: ComparedRun) -> dict[str, Any]:
    result = run.result
    return {
        "run": run.letter,
        "name": result.name,
        "profile": result.profile,
        "engine": result.engine,
        "model": result.model,
        "drafter": result.drafter,
        "fingerprint": asdict(result.fingerprint),
        "verified": result.verified,
        "complete": result.complete,
        "marks": list(run.marks),
        "pools": result.pools.model_dump(mode="json"),
        "started": result.started,
    }


def _row_json(row: ComparedFigure) -> dict[str, Any]:
    figure = row.figure
    return {
        "figure": figure.name,
        "unit": figure.unit,
        "values": [
            {
                "run": each.run,
                "value": each.value,
                "statistics": each.statistics._asdict() if each.statistics else None,
                "change": each.change,
                "verdict": each.judgement.verdict.value if each.judgement else None,
                "noise": each.judgement.noise if each.judgement else None,
            }
            for each in row.values
        ],
    }
