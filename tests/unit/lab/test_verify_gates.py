"""Every gate passes a sound model, and fails each kind of unsound one over real HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from machines.scripted import completion, scripted
from unit.models.sound_model import CONTEXT, KNOWN, call, question, sound, spoken, words

from servicekit.lab.verify.chat import ChatReply
from servicekit.lab.verify.client import Client
from servicekit.lab.verify.gate import Batch, GateOutcome, GateResult, ServedModel, Twin
from servicekit.lab.verify.gates import GATES
from servicekit.lab.verify.long_prompts import NEEDLES
from servicekit.lab.verify.runner import KEPT, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unit.models.sound_model import Answer, Model

    from servicekit.lab.verify.gate import GateVerdict

SUBJECT = ServedModel("model", context=CONTEXT, usable=CONTEXT - 1, parallel=2, repeats=4)


BELOW = replace(SUBJECT, below_fp8="kv-cache-dtype = nvfp4")
TWIN = Twin("balanced", "2026-01-31", KNOWN, 40)


def judged(
    gate: str, model: Model, subject: ServedModel = SUBJECT, vram: Iterable[int] = ()
) -> GateResult:
    """Let a model on a real server be judged by one gate through the real client."""
    found: list[GateResult] = []
    levels = iter(vram)

    async def look() -> int | None:
        return next(levels, None)

    async def ask(base: str) -> None:
        async with Client(base, limit=20) as client:
            await run({gate: GATES[gate]}, subject, client, look, found.append)

    with scripted(spoken(model)) as base:
        asyncio.run(ask(base))
    return found[0]


def play(
    gate: str,
    model: Callable[[dict[str, Any]], ChatReply],
    subject: ServedModel,
    vram: Iterable[int] = (),
) -> GateVerdict:
    """Let a gate judge replies without any server."""
    steps, levels = GATES[gate](subject), iter(vram)
    answer: object = None
    while True:
        try:
            order = steps.send(answer)
        except StopIteration as ended:
            judgement: GateVerdict = ended.value
            return judgement
        if isinstance(order, Batch):
            answer = tuple(model(dict(request.body)) for request in order.requests)
        else:
            answer = next(levels, None)


def reply(body: dict[str, Any]) -> ChatReply:
    """Give the reply of the sound model, without a server."""
    status, answer = sound(body)
    return ChatReply(status, answer, seconds=0.1, ttft=0.1)


@pytest.mark.parametrize("gate", [gate for gate in GATES if gate != "kv-precision"])
def test_a_sound_model_passes(gate: str) -> None:
    """No gate fails or skips what is as it should be, and each says what it saw."""
    found = judged(gate, sound)
    assert (found.outcome, found.gate) == (GateOutcome.PASS, gate), found.reason
    assert found.reason
    assert found.evidence


def test_recall_claims_what_the_engine_counted() -> None:
    """The claim is the longest prompt that was measured, and every length has its own figures."""
    evidence = judged("recall", sound).evidence
    tokens = [row["prompt_tokens"] for row in evidence["lengths"]]
    assert evidence["longest_measured"] == tokens[-1] < CONTEXT
    assert tokens == sorted(tokens)
    assert tokens[-1] > 0.9 * CONTEXT
    assert all(row["ttft_seconds"] > 0 for row in evidence["lengths"])


def says(text: str | None, **message: Any) -> Model:  # noqa: ANN401 - fields of a message
    """Make a model that always says the same."""
    return lambda body: (200, completion(text, prompt=words(body), **message))


def forgets(limit: int) -> Model:
    """Make a model that recalls nothing from prompts longer than `limit` words."""
    return lambda body: sound(body) if words(body) <= limit else says("I forgot.")(body)


def breaks(limit: int) -> Model:
    """Make an engine that breaks at prompts longer than `limit` words, and only at those."""
    return lambda body: sound(body) if words(body) <= limit else (500, {"error": "boom"})


def swallows(body: dict[str, Any]) -> Answer:
    """Answer a prompt that is too long as if nothing were wrong."""
    return sound(body) if words(body) < CONTEXT else says("Well.")(body)


def dies_at_the_wall() -> Model:
    """Make an engine that refuses what is too long, and then nothing but that."""
    seen: list[int] = []

    def model(body: dict[str, Any]) -> Answer:
        seen.append(words(body))
        return (503, {}) if seen[-2:-1] and seen[-2] >= CONTEXT else sound(body)

    return model


def refuses(status: int) -> Model:
    """Make an engine that meets what is too long with this status."""
    return lambda body: sound(body) if words(body) < CONTEXT else (status, {"error": "no"})


def counts(tokens: object) -> Model:
    """Make an engine that counts the same tokens whatever it is asked."""

    def model(body: dict[str, Any]) -> Answer:
        answer = sound(body)[1]
        return 200, {**answer, "usage": {"prompt_tokens": tokens}}

    return model


def wavers() -> Model:
    """Make a model that says something else each time."""
    numbers = count()
    return lambda _: (200, completion(f"number {next(numbers)}"))


def thinks_into(content: str, **message: Any) -> Model:  # noqa: ANN401 - as above
    """Make a model that, with thinking on, answers with this."""

    def model(body: dict[str, Any]) -> Answer:
        on = body["chat_template_kwargs"]["enable_thinking"]
        return (200, completion(content, **message)) if on else sound(body)

    return model


def calls_only(how: Callable[[dict[str, Any]], bool], model: Model) -> Model:
    """Make a model that is sound but where `how` holds of what is asked."""
    return lambda body: model(body) if how(body) else sound(body)


def chosen(body: dict[str, Any]) -> bool:
    """Whether a call is demanded."""
    return bool(body["tool_choice"] == "required")


UNSOUND: tuple[tuple[str, Model, str], ...] = (
    ("text", says("!!!!!!"), 'one repeated character: "!!!!!!"'),
    ("text", says("Lyon"), 'was answered "Lyon"'),
    ("text", says(""), 'was answered ""'),
    ("text", says("Paris", finish=None), "no finish reason"),
    ("text", lambda _: (302, {}), "HTTP 302"),
    ("text", says("Paris", finish="abort"), 'finish reason "abort"'),
    ("text", lambda _: (200, {"object": "error"}), "not a chat completion"),
    ("text", lambda _: (0, {}), "the connection failed"),
    ("thinking", lambda _: (500, {"error": "boom"}), "off: HTTP 500"),
    ("thinking", says("Paris", reasoning="Hm."), "off: the model thinks anyway"),
    ("thinking", says(""), "off: there is no answer"),
    ("thinking", thinks_into("<think>Hm.</think>Paris"), "on: the trace is in `content`"),
    ("thinking", thinks_into("", reasoning_content="Hm."), "gave no answer"),
    ("recall", breaks(100), "HTTP 500"),
    ("recall", forgets(700), "everything is recalled up to"),
    ("recall", breaks(700), "HTTP 500"),
    ("recall", forgets(0), "came back as"),
    ("recall", says("In 1947."), 'the fact at 50% came back as "In 1947."'),
    ("recall", counts(0), "does not count prompt tokens"),
    ("recall", counts(10**30), "does not count prompt tokens"),
    ("recall", counts("8"), "does not count prompt tokens"),
    ("recall", counts(200_000), "the engine counts 200000 tokens in a prompt of"),
    ("recall", counts(900), "the token count does not grow with the prompt"),
    ("tools", says("<function=get_weather>"), "`<function=` in `content`: tool-call parser miss"),
    ("tools", says("<tool_call>{}</tool_call>"), "`<tool_call>` in `content`: tool-call parser"),
    ("tools", says("[TOOL_CALLS][]"), "`[TOOL_CALLS]` in `content`: tool-call parser missing"),
    ("tools", says("<|python_tag|>x"), "`<|python_tag|>` in `content`: tool-call parser missing"),
    ("tools", says("Sunny."), "auto: no structured tool call"),
    (
        "tools",
        says(None, tool_calls=[call("Paris", arguments={"city": "Paris"})]),
        "do not match the tool",
    ),
    ("tools", says(None, tool_calls=[call("Rome")]), "required: no call for paris"),
    ("tools", calls_only(chosen, says("Sunny, 21.")), "required: no structured"),
    ("tools", says(None, tool_calls=[call("Paris", name="rm")]), 'the call names "rm"'),
    ("tools", says(None, tool_calls=5), "no structured tool call"),
    ("tools", says(None, tool_calls=[call("Paris", arguments='{"city')]), "do not match the tool"),
    ("tools", says(None, tool_calls=[call("Paris", arguments=None)]), "do not match the tool"),
    ("tools", says(None, tool_calls=[call("Paris")]), "parallel: no call for rome"),
    ("tools", says(None, tool_calls=[call("Paris"), call("Rome")]), "multi-turn: the tool's res"),
    ("json", says("Ada is 36."), "does not match the schema"),
    ("json", says('{"name": "Ada", "age": "36"}'), "does not match the schema"),
    ("json", says('```json\n{"name": "Ada", "age": 36}\n```'), "does not match the schema"),
    ("json", says('{"name": "Ada", "age": 36, "x": 1}'), "does not match the schema"),
    ("json", says('{"name": "Ada", "age": true}'), "does not match the schema"),
    ("json", says('{"name": "Ada", "age": 3', finish="length"), "does not match the schema"),
    ("json", lambda _: (500, {}), "HTTP 500"),
    ("vision", says("Three."), '2 squares were counted as "Three."'),
    ("vision", lambda _: (500, {}), "HTTP 500"),
    ("vision", lambda _: (429, {"error": "busy"}), "HTTP 429"),
    ("vision", lambda _: (401, {"error": "who"}), "HTTP 401"),
    ("wall", lambda _: (500, {}), "HTTP 500"),
    ("wall", lambda _: (200, completion("Well.", prompt=8)), "does not grow"),
    ("wall", swallows, "2048 tokens were answered with HTTP 200"),
    ("wall", counts(10**30), "does not count prompt tokens"),
    ("wall", refuses(500), "2048 tokens were answered with HTTP 500"),
    ("wall", refuses(429), "2048 tokens were answered with HTTP 429"),
    ("wall", refuses(302), "2048 tokens were answered with HTTP 302"),
    ("wall", lambda b: sound(b) if words(b) < CONTEXT else (0, {}), "the connection failed"),
    ("wall", dies_at_the_wall(), "the next request was not answered: HTTP 503"),
    ("stability", wavers(), "4 different answers at temperature 0"),
    ("stability", calls_only(lambda b: "France" in question(b), says("Lyon")), "under load, "),
    ("stability", lambda b: (503, {}) if words(b) > 50 else sound(b), "HTTP 503"),
    ("kv-precision", lambda _: (500, {}), "HTTP 500"),
)


@pytest.mark.parametrize(("gate", "model", "why"), UNSOUND, ids=[f"{u[0]}-{u[2]}" for u in UNSOUND])
def test_each_gate_can_fail(gate: str, model: Model, why: str) -> None:
    """A server that is wrong in its own way fails the gate, and the reason names the way."""
    found = judged(gate, model)
    assert found.outcome is GateOutcome.FAIL
    assert why in found.reason


def test_a_broken_recall_claims_only_what_was_recalled() -> None:
    """What lies beyond the first loss is not claimed."""
    found = judged("recall", forgets(700))
    assert 0 < found.evidence["longest_measured"] <= 700


def test_a_count_that_cannot_be_one_claims_nothing() -> None:
    """An engine that tells the same of every prompt proves no length by it."""
    assert judged("recall", counts(200_000)).evidence["longest_measured"] == 0
    assert judged("recall", counts(900)).evidence["longest_measured"] == 0


def test_an_engine_that_does_not_count_claims_nothing() -> None:
    """Without the engine's own count of tokens neither a length nor a wall is known."""

    def uncounted(body: dict[str, Any]) -> ChatReply:
        return ChatReply(200, {**sound(body)[1], "usage": None})

    def counts_short_ones(body: dict[str, Any]) -> ChatReply:
        return reply(body) if body["max_tokens"] == 1 else uncounted(body)

    for gate, model in (("recall", uncounted), ("wall", uncounted), ("recall", counts_short_ones)):
        judgement = play(gate, model, SUBJECT)
        assert judgement.outcome is GateOutcome.FAIL
        assert "does not count prompt tokens" in judgement.reason


def test_what_a_model_cannot_do_is_skipped_with_a_reason() -> None:
    """No tools, no eyes, no switch for thinking, no room to hide anything: no failure."""
    for gate, subject, why in (
        ("tools", replace(SUBJECT, tools=False), "does not support tools"),
        ("tools", replace(SUBJECT, tool_parser="tool-call-parser"), "names no tool-call-parser"),
        ("vision", replace(SUBJECT, vision=False), "text only"),
        ("thinking", replace(SUBJECT, toggles_thinking=False), "cannot turn thinking"),
        ("recall", replace(SUBJECT, context=100, usable=99), "too few"),
        ("recall", replace(SUBJECT, context=200, usable=199), "too few"),
    ):
        judgement = play(gate, reply, subject)
        assert judgement.outcome is GateOutcome.SKIP
        assert why in judgement.reason


def test_thinking_is_not_mentioned_where_it_cannot_be_switched() -> None:
    """An engine that knows no arguments of a template is sent none."""
    seen: list[dict[str, Any]] = []

    def keep(body: dict[str, Any]) -> ChatReply:
        seen.append(body)
        return reply(body)

    assert play("text", keep, replace(SUBJECT, toggles_thinking=False)).outcome is GateOutcome.PASS
    assert not any("chat_template_kwargs" in body for body in seen)


def test_a_small_context_is_measured_once_at_each_length() -> None:
    """Where two lengths would be the same prompt, it is asked once."""

    def two_a_word(body: dict[str, Any]) -> ChatReply:
        answer = sound(body)[1]
        return ChatReply(200, {**answer, "usage": {"prompt_tokens": 2 * words(body)}})

    found = play("recall", two_a_word, replace(SUBJECT, context=512, usable=511))
    tokens = [row["prompt_tokens"] for row in found.evidence["lengths"]]
    assert tokens == sorted(set(tokens))
    assert len(tokens) < 4


def test_long_prompts_are_as_long_as_can_be() -> None:
    """The longest is close to all that a request can use, though each prompt has a fixed part."""

    def templated(body: dict[str, Any]) -> ChatReply:
        answer = sound(body)[1]
        return ChatReply(200, {**answer, "usage": {"prompt_tokens": 40 + words(body)}}, ttft=0.1)

    room = SUBJECT.context - 48
    found = play("recall", templated, SUBJECT)
    assert found.outcome is GateOutcome.PASS
    assert 0.95 * room < found.evidence["longest_measured"] <= 0.97 * room


def wordy(tokens_per_word: int, context: int = CONTEXT) -> Callable[[dict[str, Any]], ChatReply]:
    """Make a sound model whose tokenizer makes many tokens of a word, and refuses what exceeds."""

    def model(body: dict[str, Any]) -> ChatReply:
        tokens = tokens_per_word * words(body)
        if tokens >= context:
            return ChatReply(400, error=f"{tokens} tokens exceed {context}")
        answer = sound(body)[1]
        return ChatReply(200, {**answer, "usage": {"prompt_tokens": tokens}}, seconds=0.1, ttft=0.1)

    return model


@pytest.mark.parametrize("gate", ["recall", "wall", "stability"])
@pytest.mark.parametrize("tokens", [1, 3, 5])
def test_prompts_are_sized_by_the_engines_count(gate: str, tokens: int) -> None:
    """However many tokens a word has, no prompt of ours is too long for the engine."""
    context = min(8192, tokens * CONTEXT)
    subject = replace(SUBJECT, context=context, usable=context - 1)
    verdict = play(gate, wordy(tokens, context), subject)
    assert verdict.outcome is GateOutcome.PASS, verdict.reason


def test_a_long_prompt_of_the_precision_gate_fits() -> None:
    """The prompt that a twin will be asked, too, is sized by the engine's count."""
    verdict = play("kv-precision", wordy(5, 8192), replace(SUBJECT, context=8192, usable=8191))
    assert verdict.outcome is GateOutcome.SKIP, verdict.reason
    assert verdict.evidence["answers"] == KNOWN


def test_a_prompt_that_was_sized_too_long_is_shortened() -> None:
    """An engine that counts long prompts unlike short ones gets shorter ones, and no blame."""

    def grows(body: dict[str, Any]) -> ChatReply:
        tokens = int(words(body) * (1.1 if words(body) > 1000 else 1))
        return ChatReply(400, error="too long") if tokens >= CONTEXT else reply(body)

    verdict = play("recall", grows, SUBJECT)
    assert verdict.outcome is GateOutcome.PASS, verdict.reason
    assert 0.75 * CONTEXT < verdict.evidence["longest_measured"] < 0.95 * CONTEXT


def test_an_engine_that_refuses_far_shorter_prompts_fails() -> None:
    """A refusal well below the context that the engine reports is its own fault."""

    def small(body: dict[str, Any]) -> ChatReply:
        return ChatReply(400, error="too long") if words(body) > 900 else reply(body)

    verdict = play("recall", small, SUBJECT)
    assert verdict.outcome is GateOutcome.FAIL
    assert "HTTP 400" in verdict.reason


def test_a_twin_with_more_context_is_compared_as_far_as_prompts_fit() -> None:
    """Long prompts of the twin that exceed this context are left out, and counted."""
    twin = replace(TWIN, sentences=400)
    verdict = play("kv-precision", reply, replace(BELOW, twin=twin))
    assert verdict.outcome is GateOutcome.PASS, verdict.reason
    assert verdict.reason.endswith("; 3 prompts exceed this context")


def test_an_answer_in_one_piece_has_no_first_token() -> None:
    """All tokens at once show when the answer ended, not when it began."""
    body = completion("x", prompt=9)
    body["usage"]["completion_tokens"] = 40
    whole = ChatReply(200, body, ttft=1.0, last=1.0001)
    assert (whole.first_token, replace(whole, last=1.5).first_token) == (None, 1.0)


def test_what_a_server_says_is_kept_to_a_bound() -> None:
    """Megabytes of an answer are not evidence; the beginning is."""
    found = judged("text", says("Paris, blue, Rome. " + "x" * 100_000))
    assert found.outcome is GateOutcome.PASS
    assert all(len(answer) <= KEPT + 1 for answer in found.evidence["answers"].values())
    endless = says(None, tool_calls=[call("Paris", name="x" * 100_000)])
    assert len(judged("tools", endless).reason) <= KEPT + 1


def test_a_refused_picture_is_a_failure_only_where_the_model_sees() -> None:
    """A server that takes no pictures is skipped, unless the model is known to see."""

    def blind(_: dict[str, Any]) -> ChatReply:
        return ChatReply(400, error="image input is not supported")

    assert play("vision", blind, SUBJECT).outcome is GateOutcome.SKIP
    assert play("vision", blind, replace(SUBJECT, vision=True)).outcome is GateOutcome.FAIL


def test_a_trace_must_appear_where_a_parser_is_named() -> None:
    """A profile with a reasoning parser whose model shows no trace is wrong; without, it is not."""

    def thoughtless(body: dict[str, Any]) -> ChatReply:
        return ChatReply(200, completion(KNOWN[question(body)]))

    assert play("thinking", thoughtless, SUBJECT).outcome is GateOutcome.PASS
    failed = play("thinking", thoughtless, replace(SUBJECT, thinks=True))
    assert "there is no trace" in failed.reason


def test_an_empty_answer_while_thinking_is_no_failure() -> None:
    """A model whose tokens end within its thought has nothing to say yet."""
    model = thinks_into("", reasoning_content="Hm.", finish="length")
    found = judged("thinking", model)
    assert found.outcome is GateOutcome.PASS, found.reason


def test_creeping_latency_and_vram_are_failures() -> None:
    """Answers that take longer and longer, and VRAM that grows, fail the stability gate."""
    numbers = count()

    def slower(body: dict[str, Any]) -> ChatReply:
        return replace(reply(body), seconds=float(next(numbers)))

    assert "answers took" in play("stability", slower, SUBJECT, (900, 900)).reason
    assert "from 900 to 1900 MiB" in judged("stability", sound, vram=(900, 1900)).reason
    assert "no VRAM" not in play("stability", reply, SUBJECT, (900, 1000)).reason


def test_one_late_answer_is_no_creep() -> None:
    """What else happens on a machine makes some answers late; that is not the service's fault."""
    numbers = count()

    def hiccups(body: dict[str, Any]) -> ChatReply:
        return replace(reply(body), seconds=9.0 if next(numbers) % 2 else 0.1)

    assert play("stability", hiccups, replace(SUBJECT, repeats=8)).outcome is GateOutcome.PASS


def test_a_cache_below_fp8_is_compared_with_its_twin() -> None:
    """Without a twin it fails, with one it fails by what FP8 gets right and it does not."""
    kept = play("kv-precision", reply, SUBJECT)
    assert kept.outcome is GateOutcome.SKIP
    assert kept.evidence == {"answers": KNOWN, "sentences": 74}
    assert "no profile with the same model" in play("kv-precision", reply, BELOW).reason

    asked: list[str] = []

    def blurred(body: dict[str, Any]) -> ChatReply:
        asked.append(body["messages"][0]["content"])
        forgot = question(body) == NEEDLES[1][2]
        return ChatReply(200, completion("48")) if forgot else reply(body)

    below = replace(BELOW, twin=TWIN)
    passed = play("kv-precision", reply, below)
    assert passed.outcome is GateOutcome.PASS
    assert '6 answers that "balanced" gets right are right' in passed.reason
    worse = play("kv-precision", blurred, below)
    assert worse.outcome is GateOutcome.FAIL
    assert worse.reason == f'{NEEDLES[1][2]}: "48", at FP8 "47"'
    # The long prompts are those that the twin was asked, whatever this profile could take.
    assert [text.count("harbour") for text in asked] == [0, 0, 0, 40, 40, 40]
    # What FP8 gets wrong as well says nothing about the cache.
    equal = replace(TWIN, answers={**KNOWN, NEEDLES[1][2]: "46"})
    assert play("kv-precision", blurred, replace(BELOW, twin=equal)).outcome is GateOutcome.PASS


def test_a_twin_that_knows_nothing_proves_nothing() -> None:
    """Where FP8 got nothing right, no answer can be worse, and that is no pass."""
    dull = replace(TWIN, answers=dict.fromkeys(KNOWN, "Well."))
    judgement = play("kv-precision", reply, replace(BELOW, twin=dull))
    assert judgement.outcome is GateOutcome.FAIL
    assert "to compare with" in judgement.reason


def test_odd_bodies_are_read_without_an_error() -> None:
    """Whatever shape a body has, a reply has no text, no calls and no count, or the right ones."""
    body: object
    for body in (None, [], {"choices": []}, {"choices": ["x"]}, {"choices": [{"message": 1}]}):
        odd = ChatReply(200, body)
        assert (odd.content, odd.reasoning, odd.calls, odd.prompt_tokens) == ("", "", (), None)
        assert odd.fault
    odd_calls = ChatReply(200, completion("x", tool_calls=["x", {"function": 1}, call("Paris")]))
    assert [each["name"] for each in odd_calls.calls] == ["get_weather"]
    assert ChatReply(0, error="cut").fault == "cut"
