"""The acceptance gates, and how each judges the answers. Pure."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from servicekit.lab.verify.gate import (
    QUESTIONS,
    THOUGHT,
    ask,
    chat_body,
    contains,
    decided,
    skipped,
    user_message,
)
from servicekit.lab.verify.long_prompts import kv_precision, recall, stability, wall
from servicekit.lab.verify.picture import data_url, squares

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from servicekit.lab.verify.chat import ChatReply
    from servicekit.lab.verify.gate import GateVerdict, ServedModel, Steps

# HTTP statuses that mean "no images here"; others say that the server could not answer now.
NO_PICTURES: Final = (400, 404, 415, 422, 501)

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
# How models spell a call that no parser has taken out of the text.
RAW_CALL: Final = re.compile(r"<function=|<tool_call>|\[TOOL_CALLS\]|<\|python_tag\|>")
CALL_ID: Final = "call00001"


def text(model: ServedModel) -> Steps[GateVerdict]:
    faults, answers = [], {}
    for question, pattern in QUESTIONS:
        reply = yield from ask(chat_body(model, user_message(question)))
        answers[question] = reply.content
        if reply.fault:
            faults.append(f'"{question}": {reply.fault}')
        elif not contains(reply.content, pattern):
            faults.append(f'"{question}" was answered "{reply.content[:60]}"')
    return decided(faults, f"{len(QUESTIONS)} known answers", {"answers": answers})


def thinking(model: ServedModel) -> Steps[GateVerdict]:
    """Ask with thinking off and on; trace and answer must be in separate fields."""
    if not model.toggles_thinking:
        return skipped("this engine's API cannot turn thinking on and off for a request")
    question = user_message(QUESTIONS[0][0])
    off = yield from ask(chat_body(model, question))
    kwargs = {"enable_thinking": True}
    on = yield from ask(chat_body(model, question, tokens=THOUGHT, chat_template_kwargs=kwargs))
    replies = (("off", off), ("on", on))
    evidence = {"off": off.content, "on": on.content, "trace": on.reasoning}
    faults = [f"{mode}: {reply.fault}" for mode, reply in replies if reply.fault]
    if faults:
        return decided(faults, "", evidence)
    if off.reasoning:
        faults.append("off: the model thinks anyway")
    elif not off.content:
        faults.append("off: there is no answer")
    faults += [
        f"{mode}: the trace is in `content`: reasoning parser missing"
        for mode, reply in replies
        if "</think>" in reply.content
    ]
    if model.thinks and not on.reasoning and not faults:
        faults.append("on: there is no trace, although the profile names a reasoning parser")
    if not on.reasoning:
        return decided(faults, "off: no trace; on: this model has none either", evidence)
    # A model that runs out of tokens while it thinks has no answer yet: that is not a fault.
    if not on.content and on.finish_reason != "length":
        faults.append("on: the model finished thinking and gave no answer")
    return decided(faults, "off: no trace; on: trace and answer in separate fields", evidence)


def tools(model: ServedModel) -> Steps[GateVerdict]:
    """Call a tool: freely, by force, twice at once; then answer with a tool's result."""
    if model.tools is False:
        return skipped("the model's chat template does not support tools")
    if model.tool_parser:
        return skipped(f"the profile names no {model.tool_parser}: calls would stay in the text")
    paris = user_message("What is the weather in Paris? Use the tool.")
    both = user_message(
        "What is the weather in Paris and in Rome? Call the tool once for each city."
    )
    call = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    turns = (
        paris,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": CALL_ID, "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": CALL_ID, "content": '{"celsius": 21}'},
    )
    faults: list[str] = []
    evidence: dict[str, Any] = {}
    for name, messages, choice, cities in (
        ("auto", (paris,), "auto", {"paris"}),
        ("required", (paris,), "required", {"paris"}),
        ("parallel", (both,), "auto", {"paris", "rome"}),
        ("multi-turn", turns, "auto", set()),
    ):
        more: dict[str, Any] = {"tools": [TOOL], "tool_choice": choice}
        if name == "parallel":
            more["parallel_tool_calls"] = True
        reply = yield from ask(chat_body(model, *messages, tokens=THOUGHT // 2, **more))
        evidence[name] = {"calls": list(reply.calls), "content": reply.content}
        if fault := reply.fault or _call_fault(reply, cities):
            faults.append(f"{name}: {fault}")
    return decided(faults, "auto, required, parallel and multi-turn", evidence)


def _call_fault(reply: ChatReply, cities: set[str]) -> str:
    """Describe what is wrong with the calls for `cities`; without cities, with the answer."""
    if raw := RAW_CALL.search(reply.content):
        return f"`{raw[0]}` in `content`: tool-call parser missing"
    if not cities:
        return "" if "21" in reply.content else "the tool's result is not in the answer"
    if not reply.calls:
        return "no structured tool call"
    called = set()
    for call in reply.calls:
        if call.get("name") != "get_weather":
            return f'the call names "{call.get("name")}"'
        arguments = _parsed(call.get("arguments"))
        if not isinstance(arguments, dict) or not isinstance(arguments.get("city"), str):
            return f"the arguments do not match the tool: {call.get('arguments')}"
        called.add(arguments["city"].lower())
    missing = [city for city in sorted(cities) if not any(city in each for each in called)]
    return f"no call for {', '.join(missing)}" if missing else ""


def _parsed(value: object) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        return None


def json_answer(model: ServedModel) -> Steps[GateVerdict]:
    """Bind the answer to a schema."""
    form = {"name": "person", "strict": True, "schema": SCHEMA}
    more = {"response_format": {"type": "json_schema", "json_schema": form}}
    question = user_message("Ada is 36 years old. Give her name and age as JSON.")
    reply = yield from ask(chat_body(model, question, tokens=THOUGHT // 2, **more))
    faults = [reply.fault] if reply.fault else []
    if not faults and not _matches_schema(_parsed(reply.content)):
        faults = [f'the answer does not match the schema: "{reply.content[:60]}"']
    return decided(faults, "the answer matches the schema", {"answer": reply.content})


def _matches_schema(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"name", "age"}
        and isinstance(value["name"], str)
        and type(value["age"]) is int
    )


def vision(model: ServedModel) -> Steps[GateVerdict]:
    """Count the squares in two pictures; one alone could be guessed."""
    if model.vision is False:
        return skipped("the model reads text only")
    faults, answers = [], []
    for count, pattern in ((3, r"\b(3|three)\b"), (2, r"\b(2|two)\b")):
        picture = {"type": "image_url", "image_url": {"url": data_url(squares(count))}}
        words = {"type": "text", "text": "How many red squares are in the picture? Reply briefly."}
        reply = yield from ask(chat_body(model, user_message([picture, words])))
        if model.vision is None and reply.status in NO_PICTURES:
            return skipped(f"the server accepts no images: {reply.error[:100]}")
        answers.append(reply.content)
        if reply.fault:
            faults.append(reply.fault)
        elif not contains(reply.content, pattern):
            faults.append(f'{count} squares were counted as "{reply.content[:40]}"')
    return decided(faults, "the squares are counted correctly", {"answers": answers})


# Every gate by its name, in the order in which they run.
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
