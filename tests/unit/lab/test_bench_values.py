"""What a benchmark's file holds, and the figures that follow from it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from bench_results import case, conditions, result, sample, side

from servicekit.host import run_files
from servicekit.lab.bench import store
from servicekit.lab.bench.figures import DECODE, DONE, FIGURES, PREFILL, TTFT, VISIBLE, statistics
from servicekit.lab.bench.result import BenchResult, ResultError, summary
from servicekit.lab.bench.samples import Prefix, Sampling

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def damaged(change: Callable[[dict[str, Any]], object]) -> str:
    """Give what is said of a result that was changed."""
    told = json.loads(result().as_text())
    change(told)
    with pytest.raises(ResultError) as refused:
        BenchResult.parse(json.dumps(told), where="x.json")
    return str(refused.value).removeprefix('"x.json" ')


def test_what_is_written_is_read() -> None:
    """The text of a result is the result."""
    assert BenchResult.parse(result().as_text(), where="x") == result()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda told: told.pop("pools"), "pools: is missing"),
        (lambda told: told.update(more=1), "more: unknown key"),
        (lambda told: told["fingerprint"].pop("gpu"), "fingerprint.gpu: is missing"),
        (lambda told: told["fingerprint"].update(x=1), "fingerprint.x: unknown key"),
        (
            lambda told: told["cases"][0]["samples"][0].update(done="1"),
            "cases[0].samples[0].done: must be a number, not text",
        ),
        (
            lambda told: told["cases"][0]["samples"][0].update(done=-1),
            "cases[0].samples[0].done: must be at least 0, not -1",
        ),
        (
            lambda told: told["cases"][0]["conditions"].update(prefix="hot"),
            'cases[0].conditions.prefix: must be one of "cold", "warm", "stamped", not "hot"',
        ),
        (
            lambda told: told["cases"][0]["samples"][0].update(completion_tokens=10**400),
            (
                "cases[0].samples[0].completion_tokens: "
                "must be at most 2147483648, not a number that large"
            ),
        ),
        (
            lambda told: told["cases"][0]["samples"][0].update(last=1e308),
            "cases[0].samples[0].last: must be at most 100000000000, not a number that large",
        ),
        (
            lambda told: told["cases"][0]["samples"][1].update(done=0.1),
            "cases[0].samples[1]: must have first, visible, last and done in this order",
        ),
        (
            lambda told: told["cases"][0]["engine"].update(drafts=-1.0),
            "cases[0].engine.drafts: must be at least 0, not -1",
        ),
        (
            lambda told: told.update(started="yesterday"),
            'started: must be an ISO 8601 time with its zone, not "yesterday"',
        ),
        (
            lambda told: told.update(ended="2026-01-31T12:00:00"),
            'ended: must be an ISO 8601 time with its zone, not "2026-01-31T12:00:00"',
        ),
        (
            lambda told: told.update(started="0001-01-01T00:00:00+00:00"),
            'started: must be an ISO 8601 time with its zone, not "0001-01-01T00:00:00+00:00"',
        ),
        (
            lambda told: told["cases"].append(told["cases"][0]),
            'cases: must not have two cases "chat"',
        ),
        (
            lambda told: told.update(profile="x" * 201),
            "profile: string should have at most 200 characters",
        ),
        (lambda told: told.pop("format"), "it has no format number"),
        (lambda told: told.update(format="1"), "it has no format number"),
    ],
)
def test_a_file_is_a_result_or_is_refused(
    change: Callable[[dict[str, Any]], object], said: str
) -> None:
    """What is missing, unknown or of another kind is named with its place."""
    assert damaged(change) == f"is not a benchmark result: {said}"


def test_another_format_is_told_from_damage() -> None:
    """A file of a later servicekit is not called broken."""
    said = damaged(lambda told: told.update(format=2, more=1))
    assert said.startswith("has format 2, and this servicekit reads format 1; ")
    for text in ("{", "[1]", "7", "[" * 100_000):
        with pytest.raises(ResultError, match="is not a benchmark result"):
            BenchResult.parse(text, where="x")


def test_statistics_are_of_the_samples_alone() -> None:
    """The 99th percentile is a value that was measured: with few samples the largest."""
    assert statistics(()) is None
    assert statistics((3.0,)) == (1, 3.0, 3.0, 3.0, 3.0, 0.0)
    few = statistics((4.0, 1.0, 2.0))
    assert few is not None
    assert few[:5] == (3, 2.0, 4.0, 1.0, 4.0)
    assert few.deviation == pytest.approx(1.5275, abs=1e-4)
    many = statistics(tuple(float(each) for each in range(1, 201)))
    assert many is not None
    assert (many.median, many.p99, many.most) == (100.5, 198.0, 200.0)


def test_the_figures_of_a_request() -> None:
    """Decode begins with the first token; a visible one may come much later; the answer last."""
    one = sample(ttft=0.5, decode=100.0, tokens=201, visible=1.5, prompt_tokens=1000, done=2.501)
    told = {figure.name: figure.of(one) for figure in FIGURES}
    assert told == {
        "ttft": 0.5,
        "visible": 1.5,
        "prefill": 2000.0,
        "decode": pytest.approx(100.0),
        "done": 2.501,
    }
    assert sample(cached_tokens=8000, ttft=0.5).prefill == pytest.approx(384)
    unseen = {"first": None, "visible": None, "last": None, "completion_tokens": None}
    silent = sample().model_copy(update=unseen)
    assert [figure.of(silent) for figure in (TTFT, VISIBLE, DECODE, PREFILL)] == [None] * 4
    assert sample(tokens=15).decode is None


def test_what_was_cached_is_not_prefilled() -> None:
    """With a warm prefix prefill has a figure only where the engine tells what was cached."""
    warm = conditions(prefix=Prefix.WARM)
    unknown = sample(cached_tokens=None)
    assert case(samples=[unknown]).values(PREFILL) == (unknown.prefill,)
    assert case(samples=[unknown], conditions=warm).values(PREFILL) == ()
    assert len(case(samples=[sample()], conditions=warm).values(PREFILL)) == 1


def test_an_answer_that_was_cut_off_never_finished() -> None:
    """A thought that ended with its tokens has no time to the finished answer."""
    cut = [sample(finish_reason="length"), sample()]
    assert (len(case(samples=cut).values(DONE)), case(samples=cut).cut_off) == (1, 1)
    exact = conditions(exact_output=True, max_tokens=201)
    assert len(case(samples=cut, conditions=exact).values(DONE)) == 2
    assert case(samples=cut, conditions=exact).cut_off == 0


def test_an_answer_that_ended_before_its_length_is_another_one() -> None:
    """An engine may overlook that it is to go on: the time to such an end is nobody's."""
    exact = conditions(exact_output=True, max_tokens=201)
    uncounted = sample(finish_reason="length", completion_tokens=None)
    asked = case(samples=[sample(), sample(tokens=60), uncounted], conditions=exact)
    assert (len(asked.values(DONE)), asked.cut_short) == (2, 1)
    assert case(samples=[sample(tokens=60)]).cut_short == 0


def test_what_came_in_one_piece_has_no_rate() -> None:
    """Behind a proxy that holds an answer back, tokens seem to come all at once."""
    held_back = case(samples=[sample(decode=1e6), sample(), sample(tokens=8, decode=1e6)])
    assert (len(held_back.values(DECODE)), held_back.in_one_piece) == (1, 1)


def test_no_figure_is_beyond_all_reason() -> None:
    """More from the cache than there was, no time at all: neither is a rate."""
    assert sample(cached_tokens=9000).prefill is None
    assert sample(ttft=5e-324).prefill is None
    assert side(drafted_tokens=5e-324).acceptance is None


def test_what_others_asked_meanwhile_is_seen() -> None:
    """The engine counts every prompt, whoever asked."""
    assert case(samples=[sample()], engine=side(prompt_tokens=9000.0)).foreign == 9000 - 8192
    for engine in (None, side(prompt_tokens=None), side(prompt_tokens=5.0)):
        assert case(engine=engine).foreign == 0


def test_a_fault_counts_as_wrong_and_as_nothing_else() -> None:
    """Statistics are of sound answers; correctness is of all that were asked."""
    broken = sample(fault="HTTP 500: no", correct=False, done=99.0)
    found = case(samples=[sample(), broken, sample(correct=False), sample(correct=None)])
    assert found.correctness == pytest.approx(1 / 3)
    assert found.faults == ("HTTP 500: no",)
    assert max(found.values(DONE)) < 99
    assert case(samples=[sample(correct=None)]).correctness is None


def test_throughput_is_of_all_requests_together() -> None:
    """Two requests at once are twice the tokens in the same time."""
    pair = [sample(asked=at, done=4.0, tokens=200) for at in (1.0, 2.0)]
    assert case(samples=pair).throughput == pytest.approx(400 / 5)
    assert case(samples=[*pair, sample(completion_tokens=None)]).throughput is None
    assert case(samples=[]).throughput is None


def test_the_engines_own_figures() -> None:
    """Counters give rates, and where one is not kept, no figure rather than a wrong one."""
    told = summary(case())["engine"]
    assert told == {
        "ttft": 0.59,
        "prefill": pytest.approx(14894.5, abs=0.1),
        "decode": 100.0,
        "acceptance": 0.75,
        "acceptance_length": 4.0,
    }
    bare = side(prompt_tokens=None, first_count=0.0, decode_seconds=None, drafts=None)
    told = summary(case(engine=bare))["engine"]
    assert list(told.values()) == [None, None, None, 0.75, None]
    assert summary(case(engine=None))["engine"] is None


def test_conditions_name_what_differs() -> None:
    """Each difference comes with both values, in words."""
    assert conditions().differences(conditions()) == ()
    hot = Sampling(temperature=1.0, seed=2)
    other = conditions(kv_precision="f16", thinking=None, sampling=hot)
    assert conditions().differences(other) == (
        ("kv_precision", "(fp8, f16)"),
        ("thinking", "(off, unknown)"),
        ("sampling", "(temperature 0.0 seed 0, temperature 1.0 seed 2)"),
    )


def test_a_run_is_found_by_its_name_or_its_path(tmp_path: Path) -> None:
    """Runs of all profiles are listed by time; a file from elsewhere is named by its path."""
    states = tmp_path / "state"
    assert store.texts(states) == {}
    later = result("alone", started="2026-02-01T12:00:00.000+00:00")
    store.write(states, later)
    path = store.write(states, result())
    assert path == states / "dspark/bench/20260131T120000Z-dspark-matched-32k.json"
    names = ["20260131T120000Z-dspark-matched-32k", "20260201T120000Z-alone-matched-32k"]
    assert list(store.texts(states)) == names
    assert store.load(names[1], states) == later
    assert store.load(str(path), states) == result()
    assert result().case("chat") == case()
    assert result().case("none") is None


def test_names_are_told_without_reading(tmp_path: Path) -> None:
    """Whoever presses the tab key does not wait for megabytes of runs."""
    assert store.names(tmp_path / "none") == ()
    written = store.write(tmp_path, result())
    large = written.with_name("large.json")
    large.touch()
    os.truncate(large, run_files.LARGEST + 1)
    (tmp_path / "other").mkdir()
    assert store.names(tmp_path) == (result().name, "large")
    assert list(store.texts(tmp_path)) == [result().name]


def test_what_is_no_run_is_said_in_one_line(tmp_path: Path) -> None:
    """A name that is none, a file that is not there, a folder, and one that is too large."""
    store.write(tmp_path, result())
    with pytest.raises(ResultError, match=r"there is no run .* did you mean"):
        store.load("20260131T120000Z-dspark-matched-32", tmp_path)
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ResultError, match="does not exist"):
            store.load(str(path), tmp_path)
    large = tmp_path / "large.json"
    large.touch()
    with large.open("r+b") as file:
        file.truncate(store.LARGEST + 1)
    with pytest.raises(ResultError, match="larger than 64 MiB"):
        store.load(str(large), tmp_path)
