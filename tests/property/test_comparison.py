"""What a comparison says does not depend on which run is named first, where it should not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import bench_results
from hypothesis import given, settings
from hypothesis import strategies as st

from servicekit.lab.bench.figures import FIGURES
from servicekit.lab.bench.result import BenchResult, ContextFigures
from servicekit.lab.bench.samples import Conditions, Prefix
from servicekit.lab.compare.comparison import compared
from servicekit.lab.compare.judgement import Difference, judge
from servicekit.lab.compare.matching import mismatches
from servicekit.lab.compare.traps import traps

if TYPE_CHECKING:
    from servicekit.lab.bench.result import Case

MIRRORED = {
    Difference.BETTER: Difference.WORSE,
    Difference.WORSE: Difference.BETTER,
    Difference.SAME: Difference.SAME,
    Difference.UNKNOWN: Difference.UNKNOWN,
}
speeds = st.floats(1, 500)
patient = settings(deadline=None, max_examples=60)
"""Building results takes a while, and a busy machine more."""


@st.composite
def cases(draw: st.DrawFn, /, **changes: Any) -> Case:  # noqa: ANN401
    """Cases whose samples are a little or very much unlike, from none to six."""
    ttft, decode = draw(st.floats(0.01, 5)), draw(speeds)
    near = st.floats(0.9, 1.1) | st.floats(0.5, 2)
    samples = [
        bench_results.sample(
            ttft=ttft * draw(near),
            decode=decode * draw(near),
            tokens=draw(st.sampled_from([2, 200, 2000])),
            correct=draw(st.sampled_from([True, True, False, None])),
        )
        for _ in range(draw(st.integers(0, 6)))
    ]
    counted = bench_results.side(drafts=draw(st.sampled_from([None, 0.0, 40.0, 150.0])))
    return bench_results.case(samples=samples, engine=counted, **changes)


@st.composite
def conditions(draw: st.DrawFn) -> Conditions:
    """Conditions of few values, so that two of them often match."""
    return bench_results.conditions(
        context=draw(st.sampled_from([4096, 32768])),
        concurrency=draw(st.sampled_from([1, 4])),
        kv_precision=draw(st.sampled_from(["fp8", "?"])),
        prefix=draw(st.sampled_from(Prefix)),
        thinking=draw(st.sampled_from([False, None])),
    )


@st.composite
def results(draw: st.DrawFn) -> BenchResult:
    """Runs of one of two suites, with one or two cases."""
    return bench_results.result(
        draw(st.sampled_from(["one", "two"])),
        suite=bench_results.SUITE.model_copy(update={"version": draw(st.sampled_from([1, 2]))}),
        cases=tuple(
            draw(cases(name=name, conditions=draw(conditions())))
            for name in draw(st.sampled_from([("chat",), ("chat", "code"), ("code",)]))
        ),
        pools=ContextFigures(requested=1000, declared=None, physical=draw(st.integers(1, 2000)),
                    effective=None),
    )  # fmt: skip


@patient
@given(cases(), cases())
def test_a_verdict_has_a_mirror_image(one: Case, two: Case) -> None:
    """What is better than the other is the one that the other is worse than; noise is both's."""
    for figure in FIGURES:
        there, back = judge(figure, one, two), judge(figure, two, one)
        assert back.verdict is MIRRORED[there.verdict]
        assert (back.before, back.now) == (there.now, there.before)
        assert back.noise == there.noise


@patient
@given(cases())
def test_nothing_is_better_than_itself(case: Case) -> None:
    """The same samples are no difference, or too few to tell."""
    for figure in FIGURES:
        assert judge(figure, case, case).verdict in {Difference.SAME, Difference.UNKNOWN}


@patient
@given(results(), results())
def test_two_runs_match_or_not_whichever_comes_first(one: BenchResult, two: BenchResult) -> None:
    """The same conditions are named, with the values the other way round."""
    there, back = mismatches(one, two), mismatches(two, one)
    assert {each.partition(" (")[0] for each in there} == {each.partition(" (")[0] for each in back}
    assert mismatches(one, one) == () or not any(case.samples for case in one.cases)


@patient
@given(results(), results())
def test_a_trap_is_fallen_into_whichever_comes_first(one: BenchResult, two: BenchResult) -> None:
    """The same runs are named for the same traps, and never both for one."""
    there, back = traps([one, two], "AB"), traps([two, one], "BA")
    assert sorted(map(str, there)) == sorted(map(str, back))
    pairs = [(trap.name, trap.case) for trap in there if trap.case is not None]
    assert len(pairs) == len(set(pairs))


@patient
@given(cases(), cases())
def test_a_comparison_of_any_samples_is_whole(one: Case, two: Case) -> None:
    """Whatever was measured, it can be said, of each run for each figure."""
    runs = [bench_results.result(name, cases=(case,)) for name, case in (("a", one), ("b", two))]
    if one.samples and two.samples:
        found = compared(runs)
        for section in found.as_json()["cases"]:
            for figure in section["figures"]:
                assert [value["run"] for value in figure["values"]] == ["A", "B"]
