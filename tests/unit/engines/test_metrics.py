"""Progress as each engine's metrics tell it, and the reader of those metrics."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from servicekit.engines import engine
from servicekit.engines.base import Counters, ShapeError
from servicekit.engines.prometheus import MetricSample, read_samples, totals
from servicekit.profiles.vocabulary import EngineName

LABEL = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def expose(values: dict[str, float], labels: str = "") -> str:
    """Write series as an exposition, one line each."""
    return "".join(f"{name}{labels} {value}\n" for name, value in values.items())


@given(st.lists(st.tuples(LABEL, st.floats(), st.sampled_from("abc")), max_size=6))
def test_the_reader_reads_what_the_library_reads(series: list[tuple[str, float, str]]) -> None:
    """Every label and value that the reference library writes comes back as that reads it."""
    registry = CollectorRegistry()
    gauges = {
        name: Gauge(f"vllm:{name}", "a\nhelp", ["label"], registry=registry) for name in "abc"
    }
    Counter("vllm:unwanted", "x", registry=registry).inc()
    Histogram("vllm:seconds", "x", registry=registry).observe(0.2)
    for label, value, name in series:
        gauges[name].labels(label).set(value)
    text = generate_latest(registry).decode()
    wanted = {"vllm:a", "vllm:b", "vllm:c", "vllm:seconds_sum", "vllm:seconds_count"}
    theirs = [
        (sample.name, sample.labels, repr(sample.value))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in wanted
    ]
    ours = read_samples(text, wanted)
    assert [(each.name, dict(each.labels), repr(each.value)) for each in ours] == theirs


def test_the_reader_takes_what_the_format_allows() -> None:
    """Spaces, timestamps, trailing commas and infinities are all legal."""
    text = '# a 1\na 1\n a 2\nab 3\na{x="}",} +Inf 1796036939\na{ x = "\\"\\\\\\n" }\t7\n'
    assert read_samples(text, ("a",)) == (
        MetricSample("a", {}, 1.0),
        MetricSample("a", {"x": "}"}, math.inf),
        MetricSample("a", {"x": '"\\\n'}, 7.0),
    )


@pytest.mark.parametrize("text", ['a{x="} 1\n', "a\t\n", "<a> 1\n", "a"])
def test_a_line_that_only_begins_like_a_series_is_left_alone(text: str) -> None:
    """What cannot be read is not taken for a number."""
    assert read_samples(text, ("a",)) == ()


def test_a_value_that_is_no_number_is_refused() -> None:
    """An exposition with nonsense in it is not to be judged by."""
    with pytest.raises(ShapeError, match='"one" is not a value of a'):
        read_samples("a one\n", ("a",))


def test_series_of_several_ranks_are_added_up() -> None:
    """Progress of any rank is progress."""
    samples = read_samples('a{r="0"} 1\na{r="1"} 2\nb 4\n', ("a", "b"))
    assert totals(samples, of="it") == {"a": 3.0, "b": 4.0}


@pytest.mark.parametrize("name", [EngineName.SGLANG, EngineName.VLLM, EngineName.LLAMACPP])
@pytest.mark.parametrize("body", ["", "<html>busy</html>", "# HELP x y\nother:series 1\n"])
def test_no_counters_are_not_counters_that_stand_still(name: EngineName, body: str) -> None:
    """A server started without metrics must not look hung."""
    with pytest.raises(ShapeError, match="no metrics of "):
        engine(name).counters(body)


SGLANG_IDLE = {
    'sglang:realtime_tokens_total{mode="prefill_compute"}': 1000.0,
    'sglang:realtime_tokens_total{mode="decode"}': 500.0,
    "sglang:prompt_tokens_total": 1000.0,
    "sglang:generation_tokens_total": 510.0,
    "sglang:num_requests_total": 12.0,
    "sglang:num_aborted_requests_total": 2.0,
    "sglang:inter_token_latency_seconds_sum": 10.0,
    "sglang:inter_token_latency_seconds_count": 498.0,
    "sglang:max_total_num_tokens": 38688.0,
    "sglang:token_usage": 0.2,
    "sglang:num_running_reqs": 2.0,
    "sglang:gen_throughput": 0.27,
}
VLLM_IDLE = {
    "vllm:prompt_tokens_total": 1000.0,
    "vllm:generation_tokens_total": 510.0,
    "vllm:kv_cache_usage_perc": 0.25,
    'vllm:request_success_total{finished_reason="stop"}': 8.0,
    'vllm:request_success_total{finished_reason="length"}': 4.0,
    'vllm:request_success_total{finished_reason="abort"}': 3.0,
    'vllm:request_success_total{finished_reason="error"}': 1.0,
    "vllm:time_to_first_token_seconds_count": 10.0,
    "vllm:inter_token_latency_seconds_sum": 10.0,
    "vllm:num_requests_running": 1.0,
}
LLAMA_IDLE = {
    "llamacpp:prompt_tokens_total": 1000.0,
    "llamacpp:tokens_predicted_total": 500.0,
    "llamacpp:tokens_predicted_seconds_total": 10.0,
    "llamacpp:n_decode_total": 600.0,
    "llamacpp:requests_processing": 1.0,
}


def test_counters_of_sglang() -> None:
    """Tokens of the scheduler are progress; its requests count once they were answered."""
    assert engine(EngineName.SGLANG).counters(expose(SGLANG_IDLE)) == Counters(
        progress=(1500.0, 1000.0, 510.0),
        tokens=1500.0,
        generated=498.0,
        finished=10.0,
        decode_seconds=10.0,
        running=2.0,
    )


def test_counters_of_vllm() -> None:
    """Requests that were broken off, by a probe's deadline say, were not answered."""
    assert engine(EngineName.VLLM).counters(expose(VLLM_IDLE)) == Counters(
        progress=(1000.0, 510.0, 0.25),
        tokens=1510.0,
        generated=500.0,
        finished=12.0,
        decode_seconds=10.0,
        running=1.0,
    )


def test_counters_of_llamacpp() -> None:
    """Its tokens count at a request's end, so that they tell of finished requests as well."""
    assert engine(EngineName.LLAMACPP).counters(expose(LLAMA_IDLE)) == Counters(
        progress=(1000.0, 500.0, 600.0),
        tokens=1500.0,
        generated=500.0,
        finished=500.0,
        decode_seconds=10.0,
        running=1.0,
    )


@pytest.mark.parametrize(
    ("name", "idle", "series", "moves"),
    [
        # work, each kind by itself
        ("sglang", SGLANG_IDLE, 'sglang:realtime_tokens_total{mode="prefill_compute"}', True),
        ("sglang", SGLANG_IDLE, 'sglang:realtime_tokens_total{mode="decode"}', True),
        ("vllm", VLLM_IDLE, "vllm:kv_cache_usage_perc", True),
        ("vllm", VLLM_IDLE, "vllm:generation_tokens_total", True),
        ("llamacpp", LLAMA_IDLE, "llamacpp:n_decode_total", True),
        # what an idle or wedged engine's metrics do by themselves
        ("sglang", SGLANG_IDLE, "sglang:token_usage", False),
        ("sglang", SGLANG_IDLE, "sglang:gen_throughput", False),
        ("sglang", SGLANG_IDLE, "sglang:num_aborted_requests_total", False),
        ("vllm", VLLM_IDLE, "vllm:num_requests_running", False),
        ("vllm", VLLM_IDLE, 'vllm:request_success_total{finished_reason="abort"}', False),
        ("llamacpp", LLAMA_IDLE, "llamacpp:requests_processing", False),
    ],
)
def test_progress_moves_with_work_and_with_nothing_else(
    name: str, idle: dict[str, float], series: str, *, moves: bool
) -> None:
    """Two equal tuples mean that nothing was done between two looks."""
    adapter = engine(EngineName(name))
    before = adapter.counters(expose(idle))
    after = adapter.counters(expose(idle | {series: idle[series] + 1.0}))
    assert (after.progress != before.progress) is moves


def test_sglang_before_its_first_request() -> None:
    """Its counters appear with the first work; until then they are zero, and known to be there."""
    counters = engine(EngineName.SGLANG).counters("sglang:max_total_num_tokens 38688.0\n")
    assert counters == Counters(progress=(0.0, 0.0, 0.0), tokens=0.0)


def test_speculation_of_sglang() -> None:
    """What a request has beyond its first token and one a verification was accepted."""
    adapter = engine(EngineName.SGLANG)
    drafting = SGLANG_IDLE | {"sglang:spec_verify_calls_total": 200.0}
    counters = adapter.counters(expose(drafting))
    assert (counters.drafted, counters.accepted) == (200.0, 510.0 - 12.0 - 200.0)
    useless = drafting | {"sglang:generation_tokens_total": 212.0}
    assert adapter.counters(expose(useless)).accepted == 0.0
    cut_off = drafting | {"sglang:generation_tokens_total": 205.0}
    assert adapter.counters(expose(cut_off)).accepted == 0.0


@pytest.mark.parametrize(
    ("name", "idle", "prefix"),
    [("vllm", VLLM_IDLE, "vllm"), ("llamacpp", LLAMA_IDLE, "llamacpp")],
)
def test_speculation_of_the_others(name: str, idle: dict[str, float], prefix: str) -> None:
    """They count drafted and accepted tokens themselves."""
    drafting = idle | {
        f"{prefix}:spec_decode_num_draft_tokens_total": 57.0,
        f"{prefix}:spec_decode_num_accepted_tokens_total": 26.0,
    }
    counters = engine(EngineName(name)).counters(expose(drafting))
    assert (counters.drafted, counters.accepted) == (57.0, 26.0)


@pytest.mark.parametrize("name", [EngineName.SGLANG, EngineName.VLLM, EngineName.LLAMACPP])
def test_the_speed_of_one_request(name: EngineName) -> None:
    """The growth of `generated` over that of `decode_seconds` is in tokens/s."""
    idle = {"sglang": SGLANG_IDLE, "vllm": VLLM_IDLE, "llamacpp": LLAMA_IDLE}[name]
    counters = engine(name).counters(expose(idle))
    assert counters.generated is not None
    assert counters.decode_seconds is not None
    assert counters.generated / counters.decode_seconds == pytest.approx(50, rel=0.01)
