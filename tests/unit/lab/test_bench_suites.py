"""Suites are data: checked as a whole, told apart by their text, cut to what a profile can hold."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import plans
import pytest

from servicekit.engines.base import ShapeError
from servicekit.errors import UserError
from servicekit.lab.bench import counters, suites
from servicekit.lab.bench.precision import kv_precision
from servicekit.lab.bench.samples import EngineSide, Prefix
from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from pathlib import Path

    from servicekit.profiles.model import Profile

WIDE = suites.ServiceLimits(32768, 32768, 32762, "fp8", tells_thinking=True, forces_length=True)
HEAD = 'name = "s"\nversion = 1\nsummary = "s"\n'
CASE = '[[cases]]\nname = "one"\nquestion = "Go on."\nmax_tokens = 8\nrequests = 2\n'


def profile(name: str, **changes: Any) -> Profile:  # noqa: ANN401
    """Give a built-in profile with changes."""
    return plans.plan(name).profile.model_copy(update=changes)


@pytest.mark.parametrize("name", suites.names())
def test_every_suite_of_ours_is_sound(name: str) -> None:
    """Its name is its file's, its right answers can be found, and its hidden sentence holds one."""
    loaded = suites.load(name)
    assert (loaded.suite.name, loaded.data.name) == (name, name)
    for case in loaded.data.cases:
        if case.hidden:
            assert case.expect is not None
            assert re.search(case.expect, case.hidden)


def test_the_conditions_of_the_articles() -> None:
    """Matched: 32,768, one at a time, FP8. Serving: 1,024 in, 128 out, 100 prompts, at 1, 2, 4."""
    matched = suites.load("matched-32k").data
    assert (matched.context, matched.kv_precision) == (32768, "fp8")
    cases, skipped = suites.planned(matched, WIDE)
    assert skipped == ()
    assert {case.conditions.concurrency for case in cases} == {1}
    assert {case.conditions.thinking for case in cases} == {False, True}
    served, _ = suites.planned(suites.load("serving").data, WIDE)
    assert [(case.name, case.conditions.concurrency) for case in served] == [
        ("serving-c1", 1),
        ("serving-c2", 2),
        ("serving-c4", 4),
    ]
    one = served[0]
    assert (one.conditions.prompt_tokens, one.conditions.max_tokens) == (1024, 128)
    assert (one.conditions.exact_output, one.data.requests) == (True, 100)
    prefix, _ = suites.planned(suites.load("prefix").data, WIDE)
    assert [case.conditions.prefix for case in prefix] == list(Prefix)


def test_what_does_not_fit_is_skipped_and_said() -> None:
    """A prompt and its answer fit, or the case is skipped, or its prompt may be shorter."""
    narrow = replace(WIDE, effective=16384, usable=16378)
    cases, skipped = suites.planned(suites.load("context-sweep").data, narrow)
    assert [case.name for case in cases] == ["prompt-1k", "prompt-4k", "prompt-8k"]
    assert skipped[0] == (
        "prompt-16k: 16384 prompt tokens and 32 answer tokens do not fit in 16384"
    )
    assert len(skipped) == 8
    (cold, *_), _ = suites.planned(suites.load("prefix").data, narrow)
    assert cold.conditions.prompt_tokens == int(0.75 * (16384 - 32))
    tiny = replace(WIDE, effective=64, usable=63)
    assert suites.planned(suites.load("prefix").data, tiny)[0] == ()


def test_what_a_profile_does_not_meet_is_named() -> None:
    """Context, a pool that is smaller than it, and the type of the KV cache."""
    data = suites.load("matched-32k").data
    assert suites.unmatched(data, WIDE) == ()
    assert suites.unmatched(data, replace(WIDE, context=114688, kv_precision="f16")) == (
        "context 114688 instead of 32768",
        "KV cache f16 instead of fp8",
    )
    assert suites.unmatched(data, replace(WIDE, effective=30000)) == (
        "a pool for 30000 tokens instead of 32768",
    )
    assert suites.unmatched(suites.load("small").data, replace(WIDE, context=1)) == ()


def test_an_edited_suite_is_another_suite(tmp_path: Path) -> None:
    """One more request, and the hash differs; a suite of one's own is named by its path."""
    file = tmp_path / "mine.toml"
    file.write_text(HEAD + CASE)
    first = suites.load(str(file)).suite
    file.write_text((HEAD + CASE).replace("requests = 2", "requests = 3"))
    second = suites.load(str(file)).suite
    assert (first.name, first.version) == (second.name, second.version)
    assert first.hash != second.hash


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + CASE + "more = 1\n", "line 4: cases[0].more: unknown key"),
        (HEAD + CASE.replace("8", "0"), "line 4: cases[0].max_tokens: must be at least 1, not 0"),
        (HEAD + CASE + 'expect = "("\n', "line 4: cases[0].expect: is not a regular expression"),
        (HEAD + CASE + CASE, 'there are two cases "one"'),
        (HEAD + CASE + "concurrency = [2, 2]\n", 'there are two cases "one-c2"'),
        (HEAD, "cases: is missing"),
        (HEAD + "temperature = inf\n" + CASE, "line 4: temperature: must be a finite number"),
        (HEAD.replace("1", "99999999999") + CASE, "version: must be at most 2147483648"),
        (HEAD + "cases = []\n", "line 4: cases: must not be empty"),
        (HEAD + CASE + "concurrency = []\n", "line 4: cases[0].concurrency: must not be empty"),
        (HEAD + "[", "is not TOML"),
    ],
)
def test_a_suite_that_is_wrong_is_refused_with_its_line(text: str, said: str) -> None:
    """What is wrong is named where it stands, as for profiles."""
    with pytest.raises(UserError) as refused:
        suites.parse(text, where="s.toml")
    assert str(refused.value).startswith('suite "s.toml": ')
    assert said in str(refused.value)
    assert refused.value.code == 78


def test_a_suite_that_is_not_there(tmp_path: Path) -> None:
    """A name that is none, and a file that cannot be read."""
    with pytest.raises(UserError, match=r'there is no suite "smal"; did you mean "small"\?'):
        suites.load("smal")
    with pytest.raises(UserError, match=r"cannot read suite file .*: no such file"):
        suites.load(str(tmp_path / "none.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff")
    with pytest.raises(UserError, match='suite file "/dev/zero" is larger than 64 KiB'):
        suites.load("/dev/zero")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        suites.load(str(tmp_path / "binary.toml"))


@pytest.mark.parametrize(
    ("name", "changes", "found"),
    [
        ("balanced", {}, "fp8"),
        ("balanced", {"options": {"kv-cache-dtype": "bfloat16"}}, "bf16"),
        ("balanced", {"options": {"kv-cache-dtype": "auto"}}, "fp8"),
        ("balanced", {"options": {}, "arguments": ("--kv-cache-dtype=fp8_e5m2",)}, "fp8"),
        ("balanced", {"options": {}, "model": "some/other"}, "?"),
        ("demo", {}, "f16"),
        ("demo", {"options": {"cache-type-k": "q8_0"}}, "k q8_0, v f16"),
        ("demo", {"arguments": ("-ctk", "q8_0", "-ctv", "q8_0")}, "q8_0"),
        ("demo", {"engine": EngineName.OPENAI}, "?"),
    ],
)
def test_the_type_of_a_kv_cache(name: str, changes: dict[str, Any], found: str) -> None:
    """One word for what engines call differently; `auto` is what the checkpoint declares."""
    assert kv_precision(profile(name, **changes), None) == found


def exposition(**values: float) -> str:
    """Spell metrics, `__` for the colon of a name."""
    return "".join(f"{name.replace('__', ':')} {value}\n" for name, value in values.items())


def moved(engine: EngineName, before: str, after: str) -> EngineSide:
    """Tell how far counters moved between two pages."""
    return counters.moved(engine, counters.read(engine, before), counters.read(engine, after))


def test_a_page_is_not_believed() -> None:
    """What is no number of tokens tells nothing, and ends no run."""
    before = exposition(vllm__generation_tokens_total=0, vllm__time_to_first_token_seconds_count=1)
    after = exposition(
        vllm__prompt_tokens_total=1e300,
        vllm__prompt_tokens_cached_total=inf,
        vllm__time_to_first_token_seconds_count=3,
        vllm__generation_tokens_total=1,
    )
    side = moved(EngineName.VLLM, before, after)
    assert (side.prompt_tokens, side.cached_tokens) == (None, None)
    assert (side.first_count, side.decoded_tokens) == (2, 0)
    twice = 'vllm:prompt_tokens_total{rank="0"} 1e308\nvllm:prompt_tokens_total{rank="1"} 1e308\n'
    assert counters.read(EngineName.VLLM, twice + before) != {}
    with pytest.raises(ShapeError, match="no metrics of vllm"):
        counters.read(EngineName.VLLM, twice)


def test_what_vllm_counts() -> None:
    """Tokens after the first are decoded ones; a series that comes to be began at 0."""
    before = exposition(vllm__prompt_tokens_total=10, vllm__generation_tokens_total=5)
    after = exposition(
        vllm__prompt_tokens_total=110,
        vllm__prompt_tokens_cached_total=40,
        vllm__generation_tokens_total=55,
        vllm__request_prefill_time_seconds_sum=0.5,
        vllm__time_to_first_token_seconds_sum=0.8,
        vllm__time_to_first_token_seconds_count=2,
        vllm__inter_token_latency_seconds_sum=0.96,
        vllm__spec_decode_num_drafts_total=10,
        vllm__spec_decode_num_draft_tokens_total=40,
        vllm__spec_decode_num_accepted_tokens_total=30,
    )
    side = moved(EngineName.VLLM, before, after)
    assert side.prefill == pytest.approx(60 / 0.5)
    assert side.ttft == pytest.approx(0.4)
    assert side.decode == pytest.approx(48 / 0.96)
    assert (side.acceptance, side.acceptance_length) == (0.75, 4.0)


def test_what_sglang_counts() -> None:
    """What is neither a first token nor a verification's own was accepted from the drafter."""
    before = exposition(sglang__generation_tokens_total=0)
    after = exposition(
        sglang__prompt_tokens_total=100,
        sglang__generation_tokens_total=102,
        sglang__time_to_first_token_seconds_sum=0.8,
        sglang__time_to_first_token_seconds_count=2,
        sglang__inter_token_latency_seconds_sum=2.0,
        sglang__inter_token_latency_seconds_count=100,
        sglang__spec_verify_calls_total=25,
    )
    side = moved(EngineName.SGLANG, before, after)
    assert side.decode == 50
    assert side.accepted_tokens == 75
    assert (side.acceptance, side.acceptance_length) == (None, 4.0)
    assert side.prefill is None


def test_what_llamacpp_counts() -> None:
    """It counts cached tokens apart from those that it read; without a drafter nothing is told."""
    before = exposition(llamacpp__prompt_tokens_total=50, llamacpp__prompt_tokens_cached_total=0)
    after = exposition(
        llamacpp__prompt_tokens_total=150,
        llamacpp__prompt_tokens_cached_total=900,
        llamacpp__prompt_seconds_total=0.5,
        llamacpp__tokens_predicted_total=60,
        llamacpp__tokens_predicted_seconds_total=2.0,
        llamacpp__spec_decode_num_drafts_total=0,
        llamacpp__spec_decode_num_draft_tokens_total=0,
        llamacpp__spec_decode_num_accepted_tokens_total=0,
    )
    side = moved(EngineName.LLAMACPP, before, after)
    assert (side.prompt_tokens, side.cached_tokens) == (1000, 900)
    assert (side.prefill, side.decode, side.acceptance) == (200, 30, None)


def test_counters_that_went_back_are_of_another_run() -> None:
    """An engine that was started anew meanwhile tells nothing, rather than less than nothing."""
    side = moved(
        EngineName.VLLM,
        exposition(vllm__prompt_tokens_total=100),
        exposition(vllm__prompt_tokens_total=10),
    )
    assert side.prompt_tokens is None
    with pytest.raises(ShapeError):
        counters.read(EngineName.VLLM, "<html>")
