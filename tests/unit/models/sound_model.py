"""A model that passes every gate: it knows what the gates ask, and answers as it should."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode
from typing import TYPE_CHECKING, Any

from machines.scripted import as_stream, completion

from servicekit.lab.verify.gate import QUESTIONS
from servicekit.lab.verify.long_prompts import NEEDLES

if TYPE_CHECKING:
    from collections.abc import Callable

    Answer = tuple[int, dict[str, Any]]
    Model = Callable[[dict[str, Any]], Answer]

CONTEXT = 2048
"""Words that it takes, with its answer."""
KNOWN = dict(zip((question for question, _ in QUESTIONS), ("Paris", "Blue", "Rome"), strict=True))
KNOWN |= dict(zip((needle[2] for needle in NEEDLES), ("Rufus", "47", "Mango"), strict=True))


def question(body: dict[str, Any]) -> str:
    """Give what was asked last, without what stands before it."""
    content = body["messages"][-1]["content"]
    return content.rpartition("\n")[2] if isinstance(content, str) else ""


def words(body: dict[str, Any]) -> int:
    """Count the words of all messages: here, the tokens."""
    return sum(len(str(message["content"]).split()) for message in body["messages"])


def squares(body: dict[str, Any]) -> int:
    """Count the red squares of the picture, on its middle row."""
    url = body["messages"][0]["content"][0]["image_url"]["url"]
    png = b64decode(url.partition(",")[2])
    (length,) = (int.from_bytes(png[33:37], "big"),)
    rows = zlib.decompress(png[41 : 41 + length])
    width = 1 + 3 * 224
    middle = rows[112 * width + 1 : 113 * width]
    return len(re.findall(rb"(?:\xdc\x14\x14)+", middle))


def call(city: str, **changes: object) -> dict[str, Any]:
    """Spell a structured tool call."""
    function = {"name": "get_weather", "arguments": json.dumps({"city": city}), **changes}
    return {"id": f"call-{city}", "type": "function", "function": function}


def sound(body: dict[str, Any]) -> Answer:
    """Answer as a good model on a good engine."""
    tokens = words(body)
    if tokens >= CONTEXT:
        return 400, {"error": f"{tokens} tokens exceed {CONTEXT}"}
    asked = question(body)
    message: dict[str, Any] = {"content": KNOWN.get(asked, "Well.")}
    if body.get("chat_template_kwargs", {}).get("enable_thinking"):
        message["reasoning_content"] = "Let me think."
    if "response_format" in body:
        message["content"] = '{"name": "Ada", "age": 36}'
    if isinstance(body["messages"][0]["content"], list):
        message["content"] = f"There are {squares(body)}."
    if body["messages"][-1]["role"] == "tool":
        message["content"] = "It is 21 degrees."
    elif "tools" in body:
        cities = [city for city in ("Paris", "Rome") if city in asked]
        message = {"content": None, "tool_calls": [call(city) for city in cities]}
    return 200, completion(prompt=tokens, **message)


def spoken(model: Model) -> Callable[[dict[str, Any]], tuple[int, str]]:
    """Put a model's answers into the form of a scripted server's, streamed where that is asked."""

    def serve(body: dict[str, Any]) -> tuple[int, str]:
        status, answer = model(body)
        whole = status != 200 or not body.get("stream")
        return status, json.dumps(answer) if whole else as_stream(answer)

    return serve
