"""A suite is run against a server with known timings: every figure is what the server knows."""

from __future__ import annotations

import asyncio
from statistics import median
from typing import TYPE_CHECKING

import pytest
from machines import owntime
from machines.paced import FRAME, Pace, Paced, paced
from machines.scripted import completion
from typing_extensions import override

from servicekit.errors import UserError
from servicekit.lab.bench import prompts, suites
from servicekit.lab.bench.figures import DECODE, DONE, PREFILL, TTFT, VISIBLE
from servicekit.lab.bench.runner import SuiteRunner
from servicekit.lab.bench.samples import Prefix, Sample
from servicekit.lab.ruler import Length, Ruler
from servicekit.lab.verify.chat import ChatReply
from servicekit.lab.verify.client import Client
from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from servicekit.lab.bench.cases import Planned
    from servicekit.lab.bench.result import Case
    from servicekit.lab.verify.chat import ChatRequest

SETTING = suites.ServiceLimits(4096, 4096, 4095, "fp8", tells_thinking=True, forces_length=True)
EXACT = 0.02
"""Part by which a figure may differ from what the server knows."""
INSTANT = 0.002
"""Seconds by which a time may."""


def planned(text: str = "", *, setting: suites.ServiceLimits = SETTING) -> tuple[Planned, ...]:
    """Plan a suite of one case; `text` adds to it or replaces what it says."""
    base = {
        "name": '"one"',
        "question": '"Go on."',
        "max_tokens": "64",
        "requests": "9",
    }
    changed = dict(line.split(" = ", 1) for line in text.splitlines() if line)
    lines = "".join(f"{key} = {value}\n" for key, value in {**base, **changed}.items())
    head = 'name = "s"\nversion = 1\nsummary = "s"\n'
    loaded = suites.parse(f"{head}[[cases]]\n{lines}", where="s")
    return suites.planned(loaded.data, setting)[0]


class Told:
    """Remembers what it is told; may interrupt."""

    def __init__(self, interrupt_after: int = 0) -> None:
        self.cases: list[Case] = []
        self.begun: list[str] = []
        self.samples: list[Sample] = []
        self._interrupt_after = interrupt_after

    def begins(self, planned: Planned) -> None:
        self.begun.append(planned.name)

    def measured(self, sample: Sample) -> None:
        self.samples.append(sample)
        if len(self.samples) == self._interrupt_after:
            raise KeyboardInterrupt

    def ended(self, case: Case) -> None:
        self.cases.append(case)


def measure(
    cases: Sequence[Planned],
    pace: Pace | None = None,
    told: Told | None = None,
    change: Callable[[Paced], object] | None = None,
) -> tuple[list[Case], Paced]:
    """Measure against a server of that pace; give the cases, and the server with its memory."""
    told = told or Told()

    async def run() -> Paced:
        async with paced(pace) as server, Client(server.url, limit=20) as client:
            if change is not None:
                change(server)
            runner = SuiteRunner(
                client,
                told,
                served_name="m",
                engine=EngineName.VLLM,
                metrics_path="/metrics",
                run="fixed",
            )
            await runner.measure(cases)
            return server

    server = owntime.run(run())
    return told.cases, server


def close(found: float | None, known: float) -> bool:
    """Whether a time is within 2 % or 2 ms of what is known."""
    return found is not None and abs(found - known) <= max(EXACT * known, INSTANT)


@pytest.mark.parametrize(
    ("pace", "more"),
    [
        (Pace(first=0.3, gap=0.02), ""),
        (Pace(first=0.3, gap=0.02, thoughts=20, words=10), "thinking = true"),
        (Pace(first=0.3, gap=0.04, together=2, words=20), ""),
        (Pace(first=0.5, gap=0.05, uneven=3), "concurrency = [4]\nrequests = 16"),
        (Pace(first=0.5), "prompt_tokens = 500"),
    ],
    ids=["plain", "thinking", "drafted", "four at once", "long prompt"],
)
def test_every_figure_is_what_the_server_knows(pace: Pace, more: str) -> None:
    """Each median is within 2 % or 2 ms of that of the times at which the server sent.

    Times are as long as a model's, so that 2 % are more than what tracing adds for coverage.
    """
    (case,), server = measure(planned(more), pace)
    known = server.measured[-len(case.samples) :]
    assert len(case.samples) == case.planned
    assert case.faults == ()

    def median_of(name: str) -> float:
        return median(float(getattr(each, name)) - each.arrived for each in known)

    for figure, name in ((TTFT, "first"), (VISIBLE, "visible"), (DONE, "done")):
        found = case.statistics(figure)
        assert found is not None
        assert close(found.median, median_of(name)), f"{figure}: {found}, {median_of(name)}"
    decode = case.statistics(DECODE)
    rates = [(each.tokens - 1) / ((each.last or 0) - (each.first or 0)) for each in known]
    assert decode is not None
    assert decode.median == pytest.approx(median(rates), rel=EXACT)
    prefill = case.statistics(PREFILL)
    assert prefill is not None
    prompts_read = median(each.prompt_tokens for each in known)
    assert close(prompts_read / prefill.median, median_of("first"))
    counts = sorted((each.prompt_tokens or 0, each.completion_tokens) for each in case.samples)
    assert counts == sorted((each.prompt_tokens, each.tokens) for each in known)
    begun = min(each.arrived for each in known)
    took = max(each.done or 0 for each in known) - begun
    assert case.throughput == pytest.approx(sum(each.tokens for each in known) / took, rel=EXACT)
    # The engine's own counters are of these requests alone: no warm-up is in them.
    assert case.engine is not None
    assert case.engine.prompt_tokens == sum(each.prompt_tokens for each in known)
    assert case.engine.first_count == len(known)
    mean = sum((each.first or 0) - each.arrived for each in known) / len(known)
    assert case.engine.ttft == pytest.approx(mean)
    assert case.engine.decode is not None


def test_a_prompt_is_as_long_as_the_engine_counts_it() -> None:
    """The length is found by counting; all measured prompts have it, whatever their beginning."""
    cases, server = measure(planned("prompt_tokens = 777\nrequests = 3"), Pace(words=3, gap=0))
    assert {each.prompt_tokens for each in cases[0].samples} == {777}
    assert {len(each.body["messages"][0]["content"].split()) for each in server.measured} == {
        777 - FRAME
    }


def test_what_is_asked_for() -> None:
    """Temperature, seed, thinking and a forced length are in every request; all are streamed."""
    more = "thinking = true\nexact_output = true\nrequests = 1"
    _, server = measure(planned(more), Pace(words=3, gap=0))
    body = server.sent[-1].body
    assert {key: body[key] for key in body if key != "messages"} == {
        "model": "m",
        "max_tokens": 64,
        "temperature": 0.0,
        "seed": 1,
        "chat_template_kwargs": {"enable_thinking": True},
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    deaf = suites.ServiceLimits(4096, None, 4095, "?", tells_thinking=False, forces_length=False)
    _, server = measure(planned(more, setting=deaf), Pace(words=3, gap=0))
    assert not {"chat_template_kwargs", "ignore_eos"} & server.sent[-1].body.keys()


def asked(prefix: str) -> list[str]:
    """Give the measured prompts of a case with that prefix."""
    more = f'prefix = "{prefix}"\nprompt_tokens = 300\nrequests = 3'
    cases, server = measure(planned(more), Pace(words=3, gap=0))
    assert cases[0].conditions.prefix is Prefix(prefix)
    return [each.body["messages"][0]["content"] for each in server.measured[-3:]]


def shared(texts: Sequence[str]) -> int:
    """Characters that two texts have in common at their beginning."""
    return next(
        (place for place, (one, two) in enumerate(zip(*texts[:2], strict=False)) if one != two),
        len(texts[0]),
    )


def test_prefixes_are_what_they_are_called() -> None:
    """Cold prompts differ at once, warm ones at the end, stamped ones within the time of day."""
    cold, warm, stamped = asked("cold"), asked("warm"), asked("stamped")
    assert shared(cold) < 40
    assert shared(warm) > 0.9 * len(warm[0])
    assert shared(stamped) < len("The time is 16:40:0")
    assert len({text[shared(warm) :] for text in warm}) == 3


def test_another_run_begins_otherwise() -> None:
    """What an earlier run left in the engine's cache helps nobody."""
    (case,) = planned("prompt_tokens = 300")
    texts = [prompts.prompt(case, Length(5), run=run, turn=0) for run in ("a", "b")]
    assert shared(texts) < 40


def test_answers_are_held_against_what_is_known() -> None:
    """Letters' case and what stands around it are of no matter; a thought is no answer."""
    right, wrong = Pace(words=1, says="It is PARIS."), Pace(words=1, says="Rome")
    expect = "expect = '\\bparis\\b'\nrequests = 2"
    for pace, correctness in ((right, 1.0), (wrong, 0.0)):
        cases, _ = measure(planned(expect), pace)
        assert cases[0].correctness == correctness
    cases, _ = measure(planned("requests = 2"), right)
    assert cases[0].correctness is None
    assert cases[0].samples[0].answer == "It is PARIS."


def test_one_character_over_and_over_counts_where_it_was_asked_for() -> None:
    """A model that must go on says what it says; one that need not is broken."""
    dots = Pace(words=8, says=".", gap=0)
    with pytest.raises(UserError, match="no request was answered: one repeated character"):
        measure(planned("requests = 2"), dots)
    cases, _ = measure(planned("requests = 2\nexact_output = true"), dots)
    assert cases[0].faults == ()


def test_a_server_without_counters_is_measured_by_the_clock() -> None:
    """There is no engine's own figure then, rather than a wrong one."""

    def mute(server: Paced) -> None:
        server.metrics = False

    cases, _ = measure(planned("requests = 1"), change=mute)
    assert cases[0].engine is None
    assert cases[0].statistics(TTFT) is not None


def test_counters_that_lag_are_waited_for() -> None:
    """What a warm-up moves late is not the case's, and what the case moves late is."""

    def lagging(server: Paced) -> None:
        server.lag = 3

    cases, server = measure(planned("requests = 2"), Pace(words=3, gap=0), change=lagging)
    assert cases[0].engine is not None
    assert cases[0].engine.first_count == 2
    assert cases[0].engine.prompt_tokens == sum(each.prompt_tokens for each in server.sent[-2:])


def test_a_server_that_is_slow_to_tell_is_not_waited_for() -> None:
    """Counters that take seconds and never rest cost a case some of them, and no minutes."""

    class Slow:
        def __init__(self) -> None:
            self.looks = 0

        async def ask(self, request: ChatRequest) -> ChatReply:
            return ChatReply(200, completion(f"{len(request.body)}"), seconds=0.1, ttft=0.1)

        async def page(self, path: str) -> str:
            self.looks += 1
            await asyncio.sleep(4)
            return f"vllm:prompt_tokens_total {self.looks} # {path}\n"

    async def run() -> int:
        slow = Slow()
        runner = SuiteRunner(
            slow,
            Told(),
            served_name="m",
            engine=EngineName.VLLM,
            metrics_path="/metrics",
            run="fixed",
        )
        await runner.measure(planned("requests = 1"))
        return slow.looks

    assert owntime.run(run()) < 10


def test_what_cannot_be_asked_ends_the_run() -> None:
    """A refused warm-up, a refused count: one line with the case and the reason."""
    refusing = Pace(fault=503)
    with pytest.raises(UserError, match="one: the warm-up request failed: HTTP 503: no"):
        measure(planned(), refusing)
    with pytest.raises(UserError, match="one: the request that counts a prompt failed: HTTP 503"):
        measure(planned("prompt_tokens = 300"), refusing)


def test_a_length_that_cannot_be_counted_ends_the_run() -> None:
    """An engine that counts no prompts, or all alike, cannot be asked for one of a length."""
    long = planned("prompt_tokens = 300")
    with pytest.raises(UserError, match="one: the engine does not count prompt tokens"):
        measure(long, Pace(words=1, told=0))
    with pytest.raises(UserError, match="one: the token count does not grow with the prompt"):
        measure(long, Pace(words=1, told=50))
    cases, _ = measure(planned("requests = 1"), Pace(words=1, told=0))
    assert cases[0].samples[0].prompt_tokens is None


def test_a_length_that_does_not_grow_as_text_does_is_none() -> None:
    """By a quarter of a token for a sentence, a prompt of 8,192 tokens would be megabytes."""
    assert Ruler.of(100, 101) is None
    assert Ruler.of(100, 99) is None
    assert Ruler.of(100, 104) is not None


def test_an_engine_that_dies_meanwhile_ends_the_run() -> None:
    """A case without an answer is kept with its faults, and is the last."""

    class Ending(Told):
        server: Paced

        @override
        def begins(self, planned: Planned) -> None:
            super().begins(planned)
            self.server.pace = Pace(fault=500)

    told = Ending()
    with pytest.raises(UserError, match="one: no request was answered: HTTP 500: no"):
        measure(planned("requests = 2") * 2, told=told, change=lambda s: setattr(told, "server", s))
    assert [case.faults for case in told.cases] == [("HTTP 500: no",) * 2]


def test_an_interrupt_loses_only_what_was_under_way() -> None:
    """Each sample was told before the next request was sent."""
    told = Told(interrupt_after=3)
    with pytest.raises(KeyboardInterrupt):
        measure(planned("requests = 9"), Pace(words=2, gap=0), told)
    assert len(told.samples) == 3
    assert told.cases == []


def test_lengths_are_mended_in_both_directions() -> None:
    """What a count was off by becomes words, or a sentence fewer and words."""
    ruler = Ruler.of(100, 160)
    assert ruler == Ruler(40, 15)
    assert ruler is not None
    assert ruler.length(205) == Length(11, 0)
    assert ruler.length(10) == Length(0, 0)
    length = ruler.length(210)
    assert length == Length(11, 5)
    assert ruler.mended(length, wanted=210, counted=208) == Length(11, 7)
    assert ruler.mended(length, wanted=210, counted=213) == Length(11, 2)
    assert ruler.mended(length, wanted=210, counted=220) == Length(10, 10)
    assert Ruler.of(100, 100) is None
