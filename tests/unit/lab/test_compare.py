"""Results side by side: what matches, what is a difference, and what only looks like progress."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import bench_results
import pytest

from servicekit.errors import UserError
from servicekit.lab.bench.figures import DECODE, DONE, TTFT, statistics
from servicekit.lab.bench.formatting import number, percent, with_unit
from servicekit.lab.bench.result import BenchResult, ContextFigures
from servicekit.lab.bench.samples import Prefix, Sampling
from servicekit.lab.compare.comparison import compared
from servicekit.lab.compare.judgement import Difference, compare, judge, judged, quantile
from servicekit.lab.compare.matching import mismatches
from servicekit.lab.compare.traps import traps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servicekit.lab.bench.figures import Statistics
    from servicekit.lab.bench.result import Case
    from servicekit.lab.bench.samples import Suite


def measured(
    *decodes: float, ttft: float = 0.6, tokens: int = 201, right: int | None = None,
    **changes: Any,  # noqa: ANN401
) -> Case:  # fmt: skip
    """Give a case with a sample for each decode speed, the first `right` of which are correct."""
    samples = [
        bench_results.sample(
            decode=decode, ttft=ttft, tokens=tokens, correct=right is None or turn < right
        )
        for turn, decode in enumerate(decodes)
    ]
    return bench_results.case(samples=samples, **changes)


def run(profile: str, *cases: Case, **changes: Any) -> BenchResult:  # noqa: ANN401
    """Give a result with these cases."""
    return bench_results.result(profile, cases=cases or (measured(100, 101, 102),), **changes)


def yielding(tokens: float) -> dict[str, Any]:
    """Give the counters of an engine whose drafter yields so many tokens for each verification."""
    return {"engine": bench_results.side(drafts=50.0, accepted_tokens=50 * (tokens - 1))}


def suite(**changes: Any) -> Suite:  # noqa: ANN401
    """Give another suite."""
    return bench_results.SUITE.model_copy(update=changes)


def names(results: Sequence[BenchResult]) -> list[tuple[str, str]]:
    """Give each trap that was found, with the run that fell into it."""
    return [(trap.name, trap.run) for trap in traps(results, "ABCDEFGH"[: len(results)])]


FIRST = run("first")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"suite": suite(name="serving")}, "suite (matched-32k, serving)"),
        ({"suite": suite(version=2)}, "suite version (1, 2)"),
        ({"suite": suite(hash="feed")}, "suite hash (0123456789abcdef, feed)"),
        ({"context": 131072}, "context (32768, 131072)"),
        ({"concurrency": 4}, "concurrency (1, 4)"),
        ({"kv_precision": "f16"}, "kv precision (fp8, f16)"),
        ({"prefix": Prefix.WARM}, "prefix (cold, warm)"),
        ({"thinking": True}, "thinking (off, on)"),
        ({"thinking": None}, "thinking (off, unknown)"),
        ({"prompt_tokens": 16384}, "prompt tokens (8192, 16384)"),
        ({"max_tokens": 512}, "max tokens (256, 512)"),
        ({"exact_output": True}, "exact output (off, on)"),
        (
            {"sampling": Sampling(temperature=0.6, seed=0)},
            "sampling (temperature 0.0 seed 0, temperature 0.6 seed 0)",
        ),
    ],
)
def test_what_does_not_match_is_not_compared(other: dict[str, Any], said: str) -> None:
    """Each condition alone refuses, in one line that names it with both values."""
    if "suite" in other:
        second = run("second", **other)
    else:
        second = run("second", measured(1, 1, 1, conditions=bench_results.conditions(**other)))
    with pytest.raises(UserError) as refusal:
        compared([FIRST, second])
    assert str(refusal.value) == (
        f'cannot compare: "{second.name}" does not match "{FIRST.name}" in {said}; '
        "compare runs of the same suite under the same conditions"
    )


def test_prompts_that_were_of_another_length_are_not_compared() -> None:
    """Whatever the suite wanted: an engine may have cut them, or counted otherwise."""
    cut = [bench_results.sample(prompt_tokens=4000)] * 3
    short = run("short", bench_results.case(samples=cut))
    assert mismatches(FIRST, short) == ("counted prompt tokens (8192, 4000)",)
    near = [bench_results.sample(prompt_tokens=8000)] * 3
    assert mismatches(FIRST, run("near", bench_results.case(samples=near))) == ()
    unknown = [bench_results.sample(prompt_tokens=None)] * 3
    assert mismatches(FIRST, run("unknown", bench_results.case(samples=unknown))) == ()


def test_every_difference_of_every_run_is_in_the_one_line() -> None:
    """Who mends one condition is not sent back for the next."""
    second = run("second", suite=suite(version=2, hash="feed"))
    conditions = bench_results.conditions(kv_precision="f16", context=4096)
    cases = [measured(1, 1, 1, name=name, conditions=conditions) for name in ("chat", "code")]
    third = run("third", *cases)
    first = run("first", measured(1, 1, 1), measured(1, 1, 1, name="code"))
    with pytest.raises(UserError) as refusal:
        compared([first, second, third])
    assert refusal.value.message == (
        f'cannot compare: "{second.name}" does not match "{first.name}" in '
        f'suite version (1, 2), suite hash (0123456789abcdef, feed); "{third.name}" does not match '
        f'"{first.name}" in context (32768, 4096), kv precision (fp8, f16)'
    )


def test_without_a_case_that_both_measured_there_is_nothing_to_compare() -> None:
    """Runs that were interrupted at different ends have nothing in common."""
    second = run("second", measured(), measured(1, 1, 1, name="code"))
    assert mismatches(FIRST, second) == ("measured cases (chat, code)",)
    assert mismatches(run("none", measured()), FIRST) == ("measured cases (none, chat)",)


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([FIRST], "a comparison needs two runs; name a second one"),
        ([FIRST, FIRST], f'"{FIRST.name}" is named twice; name each run once'),
        ([FIRST] * 9, "cannot compare 9 runs; compare 8 at most"),
    ],
)
def test_how_many_runs_are_compared(runs: list[BenchResult], said: str) -> None:
    """Two to eight, each once."""
    with pytest.raises(UserError) as refusal:
        compared(runs)
    assert str(refusal.value) == said


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        ((100, 100, 100), (110, 110, 110), Difference.BETTER),
        ((110, 110, 110), (100, 100, 100), Difference.WORSE),
        ((100, 100, 100), (105, 105, 105), Difference.SAME),  # as two runs of one service may
        ((100, 100, 100), (105.3, 105.3, 105.3), Difference.BETTER),
        ((90, 100, 110), (99, 109, 119), Difference.SAME),  # within the spread of either
        ((90, 100, 110), (133, 133, 133), Difference.SAME),  # which three samples hardly tell
        ((90, 100, 110), (134, 134, 134), Difference.BETTER),
        ((90, 110) * 8, (122.1, 122.1, 122.1), Difference.SAME),
        ((90, 110) * 8, (122.3, 122.3, 122.3), Difference.BETTER),
        ((100, 100), (200, 200, 200), Difference.UNKNOWN),
        ((), (100, 100, 100), Difference.UNKNOWN),
    ],
)
def test_a_difference_exceeds_the_spread(
    before: tuple[float, ...], now: tuple[float, ...], verdict: Difference
) -> None:
    """Medians that differ by less than samples of one run do are not different."""
    judgement = judge(DECODE, measured(*before), measured(*now))
    assert judgement.verdict is verdict


@pytest.mark.parametrize("count", [3, 5, 8])
@pytest.mark.parametrize("skewed", [False, True])
def test_equal_runs_are_hardly_ever_called_different(count: int, *, skewed: bool) -> None:
    """Of the comparisons of equal runs, at most one in a hundred names a winner in any row."""
    chance = random.Random(count)  # noqa: S311 - the same at every run
    rows, trials = 20, 400

    def drawn() -> Statistics | None:
        draw = chance.lognormvariate if skewed else chance.gauss
        return statistics(tuple(draw(5, 0.3) for _ in range(count)))

    def names_a_winner() -> bool:
        verdicts = [compare(drawn(), drawn(), DECODE, rows).verdict for _ in range(rows)]
        return any(verdict is not Difference.SAME for verdict in verdicts)

    assert sum(names_a_winner() for _ in range(trials)) <= trials // 100


@pytest.mark.parametrize(
    ("level", "freedom", "value"),
    [
        (0.05, 1, 12.7062),
        (0.05, 2, 4.3027),
        (0.05, 3, 3.1824),
        (0.01, 5, 4.0321),
        (0.05, 30, 2.0423),
    ],
)
def test_quantiles_are_those_of_the_tables(level: float, freedom: int, value: float) -> None:
    """Student's t is that of every textbook."""
    assert quantile(level, freedom) == pytest.approx(value, abs=1e-4)


def test_every_row_of_a_comparison_counts_for_its_bound() -> None:
    """The more rows there are, the larger is the difference that none of them shows by chance."""
    one, two = measured(90, 100, 110), measured(90, 100, 110)
    noises = [judge(DECODE, one, two, rows).noise or 0 for rows in (1, 5, 20)]
    assert noises == sorted(set(noises))
    results = [bench_results.result(name, cases=(case,)) for name, case in (("a", one), ("b", two))]
    section = compared(results).sections[0]
    (row,) = (row for row in section.rows if row.figure is DECODE)
    verdict = row.values[1].judgement
    assert verdict is not None
    assert verdict.noise == judge(DECODE, one, two, judged(results)).noise


def test_of_times_less_is_better() -> None:
    """And two milliseconds are what a clock may be wrong by, of however short a time."""
    slow, quick = measured(100, 100, 100, ttft=0.010), measured(100, 100, 100, ttft=0.0079)
    assert judge(TTFT, slow, quick).verdict is Difference.BETTER
    assert judge(TTFT, quick, slow).verdict is Difference.WORSE
    assert judge(TTFT, slow, measured(1, 1, 1, ttft=0.0081)).verdict is Difference.SAME
    found = judge(TTFT, measured(1, 1, 1, ttft=2.0), measured(1, 1, 1, ttft=1.0))
    assert (found.before, found.now, found.change) == (2.0, 1.0, -0.5)
    assert found.noise == pytest.approx(0.1)


def test_a_drafter_without_its_graph_is_flagged() -> None:
    """Decode fell to a fifth while acceptance held: trap one of the tuning runs this is made of."""
    good = run("good", measured(109, 109, 109, **yielding(4)))
    lost = run("lost", measured(19, 19, 19, **yielding(3.8)))
    (trap,) = traps([good, lost], "AB")
    text = (
        "acceptance looks healthy (3.80 tokens per verification, A's 4.00), but decode is "
        "19.0 tokens/s, less than half of the 104 tokens/s expected from A"
    )
    assert tuple(trap) == ("drafter-graph-lost", "B", "chat", text)
    assert trap.title == "drafter graph lost"
    assert names([lost, good]) == [("drafter-graph-lost", "A")]


@pytest.mark.parametrize(
    "other",
    [
        measured(54.6, 54.6, 54.6, **yielding(4)),  # half as fast is not lost
        measured(19, 19, 19, **yielding(1.4)),  # the drafter itself got worse
        measured(28, 28, 28, **yielding(2)),  # which this explains
        measured(19, 19, 19, engine=None),  # there is no drafter to lose
        measured(**yielding(4)),  # nothing was measured
    ],
)
def test_a_slow_decode_by_itself_is_no_lost_graph(other: Case) -> None:
    """Only where acceptance is fine, and decode below half of what that lets expect."""
    assert names([run("a", measured(109, 109, 109, **yielding(4))), run("b", other)]) == []


@pytest.mark.parametrize(("decode", "found"), [(25.9, True), (26.1, False)])
def test_a_drafter_makes_no_run_slower_than_none(decode: float, found: bool) -> None:  # noqa: FBT001
    """A run without a drafter is what one with a drafter is at least expected to reach."""
    plain = run("plain", measured(52, 52, 52, engine=None))
    drafted = run("drafted", measured(*[decode] * 3, **yielding(3)))
    assert names([plain, drafted]) == [("drafter-graph-lost", "B")] * found


def test_a_faster_decode_with_a_later_answer_is_flagged() -> None:
    """Tokens per second are not answer speed: trap two."""
    terse = run("terse", measured(115, 115, 115, tokens=231, **yielding(2)))
    wordy = run("wordy", measured(250, 250, 250, tokens=2001))
    (trap,) = traps([wordy, terse], "AB")
    text = (
        "decode is faster (250 tokens/s, B: 115 tokens/s), but the finished answer comes "
        "later (8.60 s, B: 2.60 s); answers have 2,001 tokens instead of 231"
    )
    assert tuple(trap) == ("answer-later", "A", "chat", text)


@pytest.mark.parametrize(
    "other",
    [
        measured(250, 250, 250, tokens=501),  # the answer is there as soon, within two per cent
        measured(117, 117, 117, tokens=2001),  # decode is no faster, within two per cent
    ],
)
def test_an_answer_that_is_not_later_is_no_trap(other: Case) -> None:
    """Both differences must exceed what is noise."""
    first = run("a", measured(115, 115, 115, tokens=231, **yielding(2)))
    assert names([first, run("b", other)]) == []


def test_an_answer_that_is_never_finished_is_later_than_any() -> None:
    """Thoughts that fill the whole answer decode as fast as one likes."""
    terse = run("terse", measured(115, 115, 115, **yielding(2)))
    endless = bench_results.case(
        samples=[bench_results.sample(decode=250, finish_reason="length")] * 3
    )
    text = (
        "decode is faster (250 tokens/s, A: 115 tokens/s), but no answer finishes within "
        "256 tokens, unlike A's"
    )
    (trap,) = traps([terse, run("endless", endless)], "AB")
    assert tuple(trap) == ("answer-later", "B", "chat", text)


def test_an_answer_that_is_finished_less_often_is_flagged() -> None:
    """The few that are finished are the short ones: their time is no better one."""
    steady = run("steady", measured(*[100.0] * 10))
    cut = [bench_results.sample(decode=200, finish_reason="length")] * 8
    short = [bench_results.sample(decode=200, tokens=100)] * 2
    hasty = run("hasty", bench_results.case(samples=[*cut, *short]))
    assert judge(DONE, steady.cases[0], hasty.cases[0]).verdict is Difference.UNKNOWN
    assert judge(DONE, hasty.cases[0], steady.cases[0]).verdict is Difference.UNKNOWN
    (trap,) = traps([steady, hasty], "AB")
    assert trap.name == "answer-later"
    assert trap.text.endswith("8 of 10 answers do not finish within 256 tokens (A: 0 of 10)")


def test_what_fails_where_others_answer_is_not_faster() -> None:
    """A server that turns away every second request has time for the others; the trap is named."""
    patient = run("patient", measured(*[100.0] * 10))
    fault = bench_results.sample(fault="HTTP 503: busy", correct=False)
    turning = [*[bench_results.sample(decode=200)] * 5, *[fault] * 5]
    busy = run("busy", bench_results.case(samples=turning))
    for figure in (DECODE, DONE):
        assert judge(figure, patient.cases[0], busy.cases[0]).verdict is Difference.UNKNOWN
    assert judge(TTFT, patient.cases[0], busy.cases[0]).verdict is Difference.SAME
    assert ("correctness-lost", "B") in names([patient, busy])
    slower = run(
        "slower", bench_results.case(samples=[*[bench_results.sample(decode=50)] * 9, fault])
    )
    assert judge(DECODE, patient.cases[0], slower.cases[0]).verdict is Difference.WORSE


def test_a_late_answer_may_be_the_first_tokens_fault() -> None:
    """Where answers are no longer, nothing is said of their length."""
    quick = run("quick", measured(100, 100, 100))
    late = run("late", measured(150, 150, 150, ttft=5.0))
    (trap,) = traps([quick, late], "AB")
    assert trap.text.endswith("(6.33 s, A: 2.60 s)")


def test_a_pool_that_is_smaller_than_asked_is_flagged() -> None:
    """The repair of a lost graph took 22 % of the pool, and no figure of speed tells."""
    pools = ContextFigures(requested=114688, declared=114688, physical=89528, effective=89528)
    (trap,) = traps([run("a"), run("b", pools=pools)], "AB")
    said = "the KV pool holds 89,528 of the 114,688 tokens requested"
    assert tuple(trap) == ("pool-short", "B", None, said)


@pytest.mark.parametrize(
    "pools",
    [
        ContextFigures(requested=38700, declared=262144, physical=38688, effective=38688),
        ContextFigures(requested=38700, declared=262144, physical=None, effective=None),
        ContextFigures(requested=None, declared=None, physical=100, effective=100),
    ],
)
def test_a_pool_that_is_rounded_or_unknown_is_not_flagged(pools: ContextFigures) -> None:
    """An engine rounds to whole pages, and some tell nothing."""
    assert names([run("a"), run("b", pools=pools)]) == []


def test_speed_with_fewer_right_answers_is_flagged() -> None:
    """What answers faster and wrongly is not faster."""
    good = run("good", measured(*[100] * 10, right=10))
    fast = run("fast", measured(*[120] * 10, right=8))
    (trap,) = traps([good, fast], "AB")
    text = (
        "80 % of the answers are right (A: 100 %), although decode is faster (120 tokens/s, "
        "A: 100 tokens/s)"
    )
    assert tuple(trap) == ("correctness-lost", "B", "chat", text)


@pytest.mark.parametrize(
    "other",
    [
        measured(*[120] * 100, right=99),  # one in a hundred is let pass
        measured(*[101] * 100, right=50),  # nothing was gained
        measured(*[120] * 100, right=100),
        bench_results.case(samples=[bench_results.sample(decode=120, correct=None)] * 3),
    ],
)
def test_speed_without_a_loss_and_loss_without_speed_are_no_trap(other: Case) -> None:
    """One must have been paid for with the other."""
    assert names([run("a", measured(*[100] * 100, right=100)), run("b", other)]) == []


def test_each_run_is_held_against_the_first() -> None:
    """Of three runs, every one that is trapped is named."""
    good = run("good", measured(109, 109, 109, **yielding(4)))
    lost = run("lost", measured(19, 19, 19, **yielding(4)))
    also = run("also", measured(18, 18, 18, **yielding(4)))
    assert names([good, lost, also]) == [("drafter-graph-lost", run) for run in "BC"]


def test_a_comparison_holds_every_figure() -> None:
    """Medians and spread of samples with a verdict, figures of a whole case without one."""
    better = bench_results.side(drafted_tokens=200.0, accepted_tokens=180.0)
    second = run("second", measured(150, 151, 152, engine=better))
    third = run("third", measured(100, 101, 102, name="chat"), measured(name="extra", planned=3))
    found = compared([FIRST, second, third])
    (section,) = found.sections
    assert section.case == "chat"
    rows = {row.figure.name: row for row in section.rows}
    assert list(rows) == [
        "ttft", "visible", "prefill", "decode", "done",
        "throughput", "acceptance", "acceptance_length", "correctness",
    ]  # fmt: skip
    a, b, c = rows["decode"].values
    assert a.statistics
    assert (a.run, a.change, a.judgement) == ("A", None, None)
    assert a.value == a.statistics.median == pytest.approx(101)
    assert a.statistics.samples == 3
    assert b.judgement
    assert c.judgement
    assert (b.run, b.judgement.verdict) == ("B", Difference.BETTER)
    assert b.change == pytest.approx(50 / 101)
    assert (c.run, c.judgement.verdict) == ("C", Difference.SAME)
    accept = rows["acceptance"].values
    assert [each.value for each in accept] == pytest.approx([0.75, 0.9, 0.75])
    assert [each.change for each in accept] == [None, pytest.approx(0.2), pytest.approx(0)]
    assert all(each.judgement is None and each.statistics is None for each in accept)
    assert (found.traps, found.notes) == ((), ())
    assert all(run.marks == () for run in found.runs)


def test_a_figure_that_one_run_lacks_is_not_judged() -> None:
    """It is shown for whoever has it; what nobody has is not shown."""
    mute = [bench_results.sample(completion_tokens=None)] * 3
    second = run("second", bench_results.case(samples=mute, engine=None))
    rows = {row.figure.name: row for row in compared([FIRST, second]).sections[0].rows}
    b = rows["decode"].values[1]
    assert b.judgement
    assert (b.value, b.change, b.judgement.verdict) == (None, None, Difference.UNKNOWN)
    assert rows["acceptance"].values[1].value is None
    both = [bench_results.case(samples=mute, engine=None)]
    rows = {each.figure.name: each for each in compared(
        [run("x", *both), run("y", *both)]
    ).sections[0].rows}  # fmt: skip
    assert {"decode", "acceptance"}.isdisjoint(rows)


def test_a_case_that_one_of_three_lacks_is_compared_for_the_others() -> None:
    """The gap is shown as one, and noted."""
    code = measured(1, 1, 1, name="code")
    found = compared([
        run("a", measured(1, 1, 1), code), run("b", measured(1, 1, 1)),
        run("c", measured(1, 1, 1), code),
    ])  # fmt: skip
    assert [section.case for section in found.sections] == ["chat", "code"]
    assert found.sections[1].rows[0].values[1] == ("B", None, None, None, None)
    assert found.notes == ("only A measured code",)


def test_a_case_that_nobody_else_measured_is_left_out() -> None:
    """There is nothing to hold it against, and that is noted."""
    code = measured(1, 1, 1, name="code")
    found = compared([run("a", measured(1, 1, 1), code), run("b", measured(1, 1, 1))])
    assert [section.case for section in found.sections] == ["chat"]
    assert found.notes == ("only A measured code",)


def test_what_takes_from_a_runs_worth_is_marked() -> None:
    """Without a verification, cut short, failing, unmatched or degraded: each is said."""
    broken = bench_results.sample(fault="HTTP 500: out of memory")
    second = run(
        "second",
        bench_results.case(samples=[*[bench_results.sample()] * 3, broken], planned=10),
        verified=False,
        standing="not verified: recall failed",
        complete=False,
        unmatched=("context 16384, not 32768",),
        degraded=("draft-graph-disabled",),
        skipped=("prompt-64k: 64,000 tokens do not fit",),
    )
    assert compared([FIRST, second]).runs[1].marks == (
        "interrupted: the figures are of what was measured until then",
        "unverified: not verified: recall failed",
        "suite conditions not met: context 16384, not 32768",
        "measured while degraded: draft-graph-disabled",
        "skipped: prompt-64k: 64,000 tokens do not fit",
        "chat: 1 of 4 requests failed: HTTP 500: out of memory",
    )


def test_what_differs_between_the_hosts_is_named() -> None:
    """Driver, GPU, engine, model, drafter and servicekit, with both values."""
    bound = bench_results.BOUND
    other = type(bound)("b2", "0.2", "0.11", "feed", "590.2", "")
    second = run("second", fingerprint=other, engine="vllm", drafter=None)
    said = (
        "B and A differ in engine (sglang 0.5.23, vllm 0.11), GPU (RTX 5090, none), "
        "driver (580.1, 590.2), drafter (RadixArk/Qwen3.8-27B-DSpark, none), "
        "servicekit (0.1, 0.2), the model's files"
    )
    assert compared([FIRST, second]).notes == (said,)
    third = run("third", model="a/b")
    assert compared([FIRST, third]).notes == (
        "B and A differ in model (RadixArk/Qwen3.8-27B-NVFP4, a/b)",
    )


def test_what_is_unknown_of_both_is_not_taken_for_the_same() -> None:
    """Two unknowns are compared, and that they matched is said not to be shown."""
    conditions = bench_results.conditions(kv_precision="?", thinking=None)
    cases = [measured(1, 1, 1, conditions=conditions)]
    assert compared([run("a", *cases), run("b", *cases)]).notes == (
        "KV cache precision is unknown: it may differ between the runs",
        "thinking is unknown: it may differ between the runs",
    )


def test_a_comparison_as_json() -> None:
    """A program gets all of it, and no more precision is lost than JSON loses."""
    lost = run("lost", measured(19, 19, 19), verified=False, standing="not verified")
    told = json.loads(json.dumps(compared([FIRST, lost]).as_json()))
    assert list(told) == ["suite", "runs", "cases", "traps", "notes"]
    assert [each["name"] for each in told["runs"]] == [FIRST.name, lost.name]
    assert told["runs"][1]["marks"] == ["unverified: not verified"]
    assert told["runs"][0]["fingerprint"]["driver"] == "580.1"
    (case,) = told["cases"]
    assert case["conditions"]["kv_precision"] == "fp8"
    (done,) = (each for each in case["figures"] if each["figure"] == DONE.name)
    a, b = done["values"]
    assert (a["run"], a["verdict"], a["noise"]) == ("A", None, None)
    assert (b["run"], b["verdict"], b["statistics"]["samples"]) == ("B", "worse", 3)
    assert [trap["name"] for trap in told["traps"]] == ["drafter-graph-lost"]


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0.6451, "s", "0.645 s"),
        (0.0079, "s", "0.00790 s"),
        (12.34, "s", "12.3 s"),
        (9081.4, "tokens/s", "9,081 tokens/s"),
        (109.0, "tokens/s", "109 tokens/s"),
        (1.0, "%", "100 %"),
        (0.875, "%", "87.5 %"),
        (0, "%", "0 %"),
        (None, "s", "-"),
    ],
)
def test_how_values_are_said(value: float | None, unit: str, said: str) -> None:
    """Three digits that count, and all of a whole number's."""
    assert with_unit(value, unit) == said


def test_how_changes_are_said() -> None:
    """With a sign, and a minus that is one."""
    said = ["+6.8 %", "-90.2 %", "0.0 %", ""]
    assert [percent(each) for each in (0.068, -0.902, 1e-4, None)] == said
    assert number(-0.5, "s") == "-0.500"
