"""The gates: what each asks, and how it judges what comes back. Pure.

A gate is a generator: it yields orders, is sent their answers, and returns a judgement. Whoever
drives it has the client and the clock.
"""

from __future__ import annotations

import json
import re
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from servicekit.lab.verify.picture import data_url, squares
from servicekit.lab.verify.values import (
    LEAST_SENTENCES,
    TWIN_TOKENS,
    Batch,
    ChatReply,
    ChatRequest,
    GateOutcome,
    GateVerdict,
    LookAtVram,
    ServedModel,
    Steps,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

QUESTIONS: Final = (
    ("What is the capital of France? Reply with one word.", r"\bparis\b"),
    ("Which colour is the sky on a clear day? Reply with one word.", r"\bblue\b"),
    ("What is the capital of Italy? Reply with one word.", r"\brome\b"),
)
"""Questions that the smallest of chat models answers, with what must be in the answer."""
ANSWER: Final = 48
"""Tokens of a short answer, at most."""
THOUGHT: Final = 512
"""Tokens of a thought and the answer after it, at most."""
FILLER: Final = "The harbour was quiet and the boats lay still in the morning light. "
NEEDLES: Final = (
    (
        0.1,
        "The dog of the baker is called Rufus. ",
        "What is the baker's dog called?",
        r"\brufus\b",
    ),
    (
        0.5,
        "The train to the coast leaves from platform 47. ",
        "From which platform does the train to the coast leave?",
        r"\b47\b",
    ),
    (
        0.9,
        "The favourite fruit of the queen is the mango. ",
        "What is the favourite fruit of the queen?",
        r"\bmango\b",
    ),
)
"""Depth as a part of the prompt, what is hidden there, how it is asked for, and what must be in the
answer."""
SHARES: Final = (0.125, 0.25, 0.5, 0.97)
"""Lengths of the recall gate as parts of what one request can use; the last leaves room for what a
count from shorter prompts may be off by."""
PROBED: Final = 20
"""Sentences of the prompt whose tokens the engine counts first."""
CREEP: Final = 2.0
"""Times that even the quickest of the later answers may take as long as the earlier ones."""
CREEP_SECONDS: Final = 1.0
"""Seconds below which a longer answer is jitter."""
TEMPLATE: Final = 1024
"""Tokens, at most, that a chat template puts around a prompt, which has no more than characters."""
WORD: Final = 0.25
"""Tokens that a word has at least; an engine that counts fewer does not count."""
REFUSALS: Final = (400, 413, 422)
"""Statuses of HTTP that say that the request was wrong, and not who asks, what for or how often."""
NO_PICTURES: Final = (400, 404, 415, 422, 501)
"""Statuses by which a server says that it takes none; others say that it could not tell now."""
VRAM_CREEP: Final = 256
"""MiB that the VRAM in use may grow by during the stability gate."""

TOOL: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
RAW_CALL: Final = re.compile(r"<function=|<tool_call>|\[TOOL_CALLS\]|<\|python_tag\|>")
"""How models spell a call that no parser has taken out of the text."""


def _user(text: object) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _body(
    subject: ServedModel,
    *messages: Mapping[str, Any],
    tokens: int = ANSWER,
    **more: Any,  # noqa: ANN401
) -> dict[str, Any]:
    body = {
        "model": subject.served_name,
        "messages": list(messages),
        "max_tokens": tokens,
        "temperature": 0,
        **more,
    }
    if subject.toggles_thinking:
        body.setdefault("chat_template_kwargs", {"enable_thinking": False})
    return body


def _ask(*bodies: Mapping[str, Any], streamed: bool = False) -> Steps[tuple[ChatReply, ...]]:
    replies: tuple[ChatReply, ...] = yield Batch(
        tuple(ChatRequest(body, streamed) for body in bodies)
    )
    return replies


def _one(body: Mapping[str, Any], *, streamed: bool = False) -> Steps[ChatReply]:
    return (yield from _ask(body, streamed=streamed))[0]


def _judged(
    faults: Sequence[str], passed: str, evidence: Mapping[str, Any] | None = None
) -> GateVerdict:
    """Fail with what is wrong, or pass with what has been seen."""
    if faults:
        return GateVerdict(GateOutcome.FAIL, "; ".join(faults), evidence or {})
    return GateVerdict(GateOutcome.PASS, passed, evidence or {})


def _skipped(reason: str, evidence: Mapping[str, Any] | None = None) -> GateVerdict:
    return GateVerdict(GateOutcome.SKIP, reason, evidence or {})


def _has(answer: str | None, pattern: str) -> bool:
    return re.search(pattern, (answer or "").lower()) is not None


def text(subject: ServedModel) -> Steps[GateVerdict]:
    """Ask what every model knows."""
    faults, answers = [], {}
    for question, pattern in QUESTIONS:
        reply = yield from _one(_body(subject, _user(question)))
        answers[question] = reply.content
        if reply.fault:
            faults.append(f'"{question}": {reply.fault}')
        elif not _has(reply.content, pattern):
            faults.append(f'"{question}" was answered "{reply.content[:60]}"')
    return _judged(faults, f"{len(QUESTIONS)} known answers", {"answers": answers})


def thinking(subject: ServedModel) -> Steps[GateVerdict]:
    """Ask with thinking off and on; trace and answer must be in fields of their own."""
    if not subject.toggles_thinking:
        return _skipped("this engine's API cannot turn thinking on and off for a request")
    question = _user(QUESTIONS[0][0])
    off = yield from _one(_body(subject, question))
    kwargs = {"enable_thinking": True}
    on = yield from _one(_body(subject, question, tokens=THOUGHT, chat_template_kwargs=kwargs))
    faults = [f"{how}: {reply.fault}" for how, reply in (("off", off), ("on", on)) if reply.fault]
    evidence = {"off": off.content, "on": on.content, "trace": on.reasoning}
    if faults:
        return _judged(faults, "", evidence)
    if off.reasoning:
        faults.append("off: it thinks all the same")
    elif not off.content:
        faults.append("off: there is no answer")
    faults += [
        f"{how}: the trace is in `content`: reasoning parser missing"
        for how, reply in (("off", off), ("on", on))
        if re.search(r"<think>.*\S.*</think>|</think>", reply.content, re.DOTALL)
    ]
    if subject.thinks and not on.reasoning and not faults:
        faults.append("on: there is no trace, although the profile names a reasoning parser")
    if not on.reasoning:
        return _judged(faults, "off: no trace; on: this model has none either", evidence)
    # A model whose tokens end while it thinks has said nothing yet: that is no fault.
    if not on.content and on.finish_reason != "length":
        faults.append("on: it thought to the end and answered nothing")
    return _judged(faults, "off: no trace; on: trace and answer in their own fields", evidence)


def _haystack(sentences: int, label: str = "") -> str:
    """Make a text of so many sentences, with the needles at their depths.

    Texts with different labels differ from their first words on, so that no cache knows them.
    """
    parts = [FILLER] * sentences
    for depth, needle, _, _ in NEEDLES:
        parts[int(depth * sentences)] += needle
    return label + "".join(parts)


def _room(subject: ServedModel) -> int:
    """Tokens of prompt that leave room for the answer."""
    return min(subject.usable, subject.context - ANSWER)


def recall(subject: ServedModel) -> Steps[GateVerdict]:
    """Ask for three needles in longer and longer prompts, up to all that one request can use."""
    if _room(subject) < 448:  # noqa: PLR2004 - what the first prompt needs, and some more
        return _skipped(f"{subject.context} tokens of context are too few to hide anything in")
    probe = yield from _one(_body(subject, _user(_haystack(PROBED)), tokens=1))
    if probe.fault or not probe.prompt_tokens:
        return _judged([probe.fault or "the engine does not count the tokens of a prompt"], "")
    counted = [(PROBED, probe.prompt_tokens)]
    lengths: list[dict[str, Any]] = []
    faults: list[str] = []
    claimed = 0
    for share in SHARES:
        wanted = int(_room(subject) * share)
        sentences = _sentences(counted, wanted)
        if lengths and sentences <= counted[-1][0]:
            continue
        label = f"Report {'ABCD'[len(lengths)]}. "
        haystack = _haystack(sentences, label)
        row, tokens = yield from _recalled(subject, haystack)
        lengths.append(row)
        if tokens is not None and (wrong := _miscounted(counted, sentences, haystack, tokens)):
            row["lost"].append(wrong)
            faults.append(wrong)
            break
        if row["lost"]:
            faults.append(f"{tokens or wanted} tokens: {', '.join(row['lost'])}")
        if tokens is None:
            break  # nothing longer will be answered either
        counted.append((sentences, tokens))
        claimed = claimed if faults else tokens
    evidence = {"longest_measured": claimed, "effective": subject.context, "lengths": lengths}
    if claimed:
        faults = [f"up to {claimed} tokens all is recalled", *faults] if faults else []
    return _judged(faults, f"all needles up to {claimed} tokens, as the engine counts", evidence)


def _sentences(counted: Sequence[tuple[int, int]], wanted: int) -> int:
    """How many make a prompt of `wanted` tokens at most, from what others of so many had.

    A sentence has more than one token, whatever a server says.
    """
    sentences, tokens = counted[-1]
    more = sentences * (wanted - tokens) / tokens
    if len(counted) > 2:  # noqa: PLR2004 - the first was none of these prompts
        fewer, before = counted[-2]
        more = (sentences - fewer) * (wanted - tokens) / max(1, tokens - before)
    return min(wanted, max(LEAST_SENTENCES, sentences + int(more)))


def _miscounted(
    counted: Sequence[tuple[int, int]], sentences: int, haystack: str, tokens: int
) -> str:
    """Say why a count cannot be one of this prompt, by which nothing may be claimed."""
    if tokens > len(haystack) + TEMPLATE:
        return f"the engine counts {tokens} tokens of a prompt of {len(haystack)} characters"
    if any(fewer < sentences and tokens <= before for fewer, before in counted):
        return "the tokens of a prompt do not grow with it"
    return ""


def _recalled(subject: ServedModel, haystack: str) -> Steps[tuple[dict[str, Any], int | None]]:
    """Ask for each needle at one length; the first question is the one that finds no cache."""
    lost: list[str] = []
    ttft: float | None = None
    tokens: int | None = None
    for depth, _, question, wanted in NEEDLES:
        body = _body(subject, _user(f"{haystack}\n\n{question}"))
        reply = yield from _one(body, streamed=True)
        if reply.fault:
            lost.append(reply.fault)
            break
        if tokens is None:
            tokens, ttft = reply.prompt_tokens, reply.ttft
        if not _has(reply.content, wanted):
            lost.append(f'the needle at {depth:.0%} came back as "{reply.content[:40]}"')
    if tokens is None and not lost:
        lost.append("the engine does not count the tokens of a prompt")
    return {"prompt_tokens": tokens, "ttft_seconds": ttft, "lost": lost}, tokens


def tools(subject: ServedModel) -> Steps[GateVerdict]:
    """Have it call a tool: freely, by force, twice at once, and answer with the result."""
    if subject.tools is False:
        return _skipped("the model's chat template knows no tools")
    paris = _user("What is the weather in Paris? Use the tool.")
    both = _user("What is the weather in Paris and in Rome? Call the tool once for each city.")
    call = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    asked = {"id": "call00001", "type": "function", "function": call}
    turns = (
        paris,
        {"role": "assistant", "content": None, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "call00001", "content": '{"celsius": 21}'},
    )
    faults: list[str] = []
    evidence: dict[str, Any] = {}
    for how, messages, choice, cities in (
        ("auto", (paris,), "auto", {"paris"}),
        ("required", (paris,), "required", {"paris"}),
        ("parallel", (both,), "auto", {"paris", "rome"}),
        ("multi-turn", turns, "auto", set()),
    ):
        more: dict[str, Any] = {"tools": [TOOL], "tool_choice": choice}
        if how == "parallel":
            more["parallel_tool_calls"] = True
        reply = yield from _one(_body(subject, *messages, tokens=THOUGHT // 2, **more))
        evidence[how] = {"calls": list(reply.calls), "content": reply.content}
        wrong = reply.fault or _wrong_call(reply, cities)
        if wrong:
            faults.append(f"{how}: {wrong}")
    return _judged(faults, "auto, required, parallel and multi-turn", evidence)


def _wrong_call(reply: ChatReply, cities: set[str]) -> str:
    """Tell what is wrong with the calls for these cities, none of them for an answer in words."""
    if raw := RAW_CALL.search(reply.content):
        return f"`{raw[0]}` in `content`: tool-call parser missing"
    if not cities:
        return "" if "21" in reply.content else "the tool's result is not in the answer"
    if not reply.calls:
        return "no structured tool call"
    found = set()
    for call in reply.calls:
        if call.get("name") != "get_weather":
            return f'the call names "{call.get("name")}"'
        arguments = _parsed(call.get("arguments"))
        if not isinstance(arguments, dict) or not isinstance(arguments.get("city"), str):
            return f"the arguments are not those of the tool: {call.get('arguments')}"
        found.add(arguments["city"].lower())
    lacking = [city for city in sorted(cities) if not any(city in each for each in found)]
    return f"no call for {', '.join(lacking)}" if lacking else ""


def _parsed(said: object) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(said) if isinstance(said, str) else None
    except (ValueError, RecursionError):
        return None


def json_answer(subject: ServedModel) -> Steps[GateVerdict]:
    """Bind the answer to a schema."""
    form = {"name": "person", "strict": True, "schema": SCHEMA}
    more = {"response_format": {"type": "json_schema", "json_schema": form}}
    question = _user("Ada is 36 years old. Give her name and age as JSON.")
    reply = yield from _one(_body(subject, question, tokens=THOUGHT // 2, **more))
    said = _parsed(reply.content)
    faults = [reply.fault] if reply.fault else []
    if not faults and not _fits(said):
        faults = [f'not as the schema says: "{reply.content[:60]}"']
    return _judged(faults, "an answer as the schema says", {"answer": reply.content})


def _fits(said: object) -> bool:
    return (
        isinstance(said, dict)
        and said.keys() == {"name", "age"}
        and isinstance(said["name"], str)
        and type(said["age"]) is int
    )


def vision(subject: ServedModel) -> Steps[GateVerdict]:
    """Have it count what a picture shows, twice, so that a guess does not pass."""
    if subject.vision is False:
        return _skipped("the model reads text only")
    faults, answers = [], []
    for count, pattern in ((3, r"\b(3|three)\b"), (2, r"\b(2|two)\b")):
        picture = {"type": "image_url", "image_url": {"url": data_url(squares(count))}}
        words = {"type": "text", "text": "How many red squares are in the picture? Reply briefly."}
        reply = yield from _one(_body(subject, _user([picture, words])))
        if subject.vision is None and reply.status in NO_PICTURES:
            return _skipped(f"the server takes no pictures: {reply.error[:100]}")
        answers.append(reply.content)
        if reply.fault:
            faults.append(reply.fault)
        elif not _has(reply.content, pattern):
            faults.append(f'{count} squares were counted as "{reply.content[:40]}"')
    return _judged(faults, "counts what is drawn", {"answers": answers})


def wall(subject: ServedModel) -> Steps[GateVerdict]:
    """Ask with one token too many: a clean refusal, and the next request is answered."""
    short, more = 64, 128
    counts = []
    for words in (short, more):
        reply = yield from _one(_body(subject, _user("a " * words), tokens=1))
        if reply.fault or not reply.prompt_tokens:
            return _judged([reply.fault or "the engine does not count the tokens of a prompt"], "")
        counts.append(reply.prompt_tokens)
    each = (counts[1] - counts[0]) / (more - short)
    if each < WORD:
        return _judged(["the tokens of a prompt do not grow with it"], "")
    # Rounded up: where a word is more than a token, the first prompt that is too long.
    words = short + int(-(-(subject.usable + 1 - counts[0]) // each))
    evidence: dict[str, Any] = {"words": words, "tokens": subject.usable + 1}
    refused = yield from _one(_body(subject, _user("a " * words), tokens=1))
    after = yield from _one(_body(subject, _user(QUESTIONS[0][0])))
    evidence |= {"status": refused.status, "said": refused.error[:200]}
    faults = []
    if refused.status not in REFUSALS:
        what = f"HTTP {refused.status}" if refused.status else refused.error
        faults.append(f"{subject.usable + 1} tokens were met with {what}, not with a refusal")
    if after.fault:
        faults.append(f"the next request was not answered: {after.fault}")
    passed = f"{subject.usable + 1} tokens: HTTP {refused.status}, and the next is answered"
    return _judged(faults, passed, evidence)


def stability(subject: ServedModel) -> Steps[GateVerdict]:
    """Ask the same again and again, put a mixed load in between, and compare."""
    body = _body(subject, _user(QUESTIONS[1][0]))
    yield from _one(body)  # the first answer finds no cache, and may be another one's neighbour
    vram_before: int | None = yield LookAtVram()
    half = max(2, subject.repeats // 2)
    replies = []
    for _ in range(half):
        replies.append((yield from _one(body)))  # noqa: PERF401 - each waits for the one before
    hay = _haystack(min(60, max(LEAST_SENTENCES, subject.usable // 60)))
    loads = [
        _body(subject, _user(QUESTIONS[0][0])),
        _body(subject, _user(f"{hay}\n\n{NEEDLES[0][2]}")),
    ]
    load = yield from _ask(*(loads[each % 2] for each in range(max(2, subject.parallel))))
    for _ in range(half):
        replies.append((yield from _one(body)))  # noqa: PERF401 - as above
    vram_after: int | None = yield LookAtVram()
    faults = list(dict.fromkeys(reply.fault for reply in (*replies, *load) if reply.fault))
    answers = {reply.content for reply in replies if not reply.fault}
    if len(answers) > 1:
        faults.append(f"{len(answers)} different answers at temperature 0")
    question, pattern = QUESTIONS[0]
    wrong = [r.content for r in load[::2] if not r.fault and not _has(r.content, pattern)]
    if wrong:
        faults.append(f'beside others, "{question}" was answered "{wrong[0][:40]}"')
    # Whoever else wants the CPU makes some answers late; what creeps makes all of them late.
    early = median(reply.seconds for reply in replies[:half])
    late = min(reply.seconds for reply in replies[half:])
    if late > CREEP * early and late - early > CREEP_SECONDS:
        faults.append(f"answers took {early:.1f} s at first and {late:.1f} s in the end")
    if vram_before is not None and vram_after is not None and vram_after > vram_before + VRAM_CREEP:
        faults.append(f"VRAM in use grew from {vram_before} to {vram_after} MiB")
    evidence = {
        "answers": sorted(answers),
        "seconds": [round(reply.seconds, 3) for reply in replies],
        "load_answers": [reply.content for reply in load],
        "load_seconds": [round(reply.seconds, 3) for reply in load],
        "vram_mib": [vram_before, vram_after],
    }
    unseen = "" if vram_before is not None else "; no VRAM to look at"
    passed = f"{2 * half} equal answers, {len(load)} requests at once in between{unseen}"
    return _judged(faults, passed, evidence)


def kv_precision(subject: ServedModel) -> Steps[GateVerdict]:
    """Compare the answers of a KV cache below FP8 with those of the same model at FP8."""
    twin = subject.twin if subject.below_fp8 is not None else None
    if subject.below_fp8 is not None and twin is None:
        lacking = "no profile with the same model and a cache of FP8 or better has been verified"
        return _judged([f"{subject.below_fp8} is below FP8, and {lacking} to compare with"], "")
    longest = max(LEAST_SENTENCES, min(_room(subject) // 2, TWIN_TOKENS) // 20)
    hay = _haystack(twin.sentences if twin else longest)
    asked = [(question, question, pattern) for question, pattern in QUESTIONS]
    asked += [(question, f"{hay}\n\n{question}", wanted) for _, _, question, wanted in NEEDLES]
    answers: dict[str, str] = {}
    for name, question, _ in asked:
        reply = yield from _one(_body(subject, _user(question)))
        if reply.fault:
            return _judged([f"{name}: {reply.fault}"], "", {"answered": answers})
        answers[name] = reply.content
    if twin is None:
        kept = {"answers": answers, "sentences": longest}
        why = "the KV cache is not below FP8; its answers are kept for a profile whose is"
        return _skipped(why, kept)
    right = [(name, wanted) for name, _, wanted in asked if _has(twin.answers.get(name), wanted)]
    faults = [
        f'{name}: "{answers[name][:40]}", at FP8 "{twin.answers[name][:40]}"'
        for name, wanted in right
        if not _has(answers[name], wanted)
    ]
    if not right:
        faults = [f'"{twin.profile}" answered nothing right at FP8: nothing can be compared']
    passed = f'{subject.below_fp8}: the {len(right)} answers that "{twin.profile}" gets right are'
    fp8 = {"profile": twin.profile, "at": twin.at, "answers": dict(twin.answers)}
    return _judged(faults, f"{passed} right", {"answers": answers, "fp8": fp8})


GATES: Final[Mapping[str, Callable[[ServedModel], Steps[GateVerdict]]]] = {
    "text": text,
    "thinking": thinking,
    "recall": recall,
    "tools": tools,
    "json": json_answer,
    "vision": vision,
    "wall": wall,
    "stability": stability,
    "kv-precision": kv_precision,
}
"""Every gate by its name, in the order in which they are asked."""
