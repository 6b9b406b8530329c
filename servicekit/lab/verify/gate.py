"""What an acceptance gate is: its subject, its actions and its verdict. Pure.

A gate is a generator. It yields actions, receives their results, and returns a verdict; the runner
has the client and the clock.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from servicekit.lab.verify.chat import ChatReply, ChatRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

TWIN_TOKENS: Final = 32768  # limit of the long prompts that compare KV cache precision
LEAST_SENTENCES: Final = 4  # of a text in which facts are hidden at three depths
ANSWER: Final = 48  # tokens allowed for a short answer
THOUGHT: Final = 512  # tokens allowed for reasoning and the answer after it

# Questions that the smallest chat models answer, with a pattern of the right answer.
QUESTIONS: Final = (
    ("What is the capital of France? Reply with one word.", r"\bparis\b"),
    ("Which colour is the sky on a clear day? Reply with one word.", r"\bblue\b"),
    ("What is the capital of Italy? Reply with one word.", r"\brome\b"),
)


class GateOutcome(StrEnum):
    """How a gate ended."""

    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Twin:
    """Answers of a profile with the same model and a KV cache of FP8 or better."""

    profile: str
    at: str  # when its verification began, ISO 8601
    answers: Mapping[str, str]  # by question
    sentences: int  # length of its long prompts; the same prompts are asked again


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the gates must know about the model under test."""

    served_name: str
    context: int  # tokens that one request can really use
    usable: int  # prompt tokens that one request may have
    parallel: int = 1  # requests that the profile plans to serve at once
    repeats: int = 8  # repetitions of the question in the stability gate
    toggles_thinking: bool = True  # whether thinking can be switched per request
    thinks: bool = False
    """Whether the profile names a reasoning parser, so that a trace must appear."""
    tools: bool | None = None
    """Whether the model's chat template supports tools; `None` if not reported."""
    tool_parser: str = ""
    """The engine's option for a tool-call parser that the profile lacks; empty if not needed."""
    vision: bool | None = None  # whether the model accepts images; `None` if not reported
    below_fp8: str | None = None
    """The option that puts the KV cache below FP8, such as `kv-cache-dtype = nvfp4`."""
    twin: Twin | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Send these requests at the same time; the result is a reply for each, in order."""

    requests: tuple[ChatRequest, ...]


@dataclass(frozen=True, slots=True)
class LookAtVram:
    """Read the VRAM in use on the profile's GPUs, in MiB; the result is `None` without a GPU."""


GateAction: TypeAlias = Batch | LookAtVram
# A running gate: it yields actions, receives their results, and returns a `T`.
Steps: TypeAlias = Generator[GateAction, Any, T]


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """What a gate decided, and the evidence for it."""

    outcome: GateOutcome
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GateResult:
    """The verdict of a named gate, and the seconds it took."""

    gate: str
    outcome: GateOutcome
    reason: str
    evidence: Mapping[str, Any]
    seconds: float


def user_message(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def chat_body(
    model: ServedModel,
    *messages: Mapping[str, Any],
    tokens: int = ANSWER,
    **more: Any,  # noqa: ANN401
) -> dict[str, Any]:
    """Return the body of a completion at temperature 0, with thinking off where it can be."""
    body = {
        "model": model.served_name,
        "messages": list(messages),
        "max_tokens": tokens,
        "temperature": 0,
        **more,
    }
    if model.toggles_thinking:
        body.setdefault("chat_template_kwargs", {"enable_thinking": False})
    return body


def ask_all(*bodies: Mapping[str, Any], streamed: bool = False) -> Steps[tuple[ChatReply, ...]]:
    """Send all `bodies` at once."""
    replies: tuple[ChatReply, ...] = yield Batch(tuple(ChatRequest(b, streamed) for b in bodies))
    return replies


def ask(body: Mapping[str, Any], *, streamed: bool = False) -> Steps[ChatReply]:
    return (yield from ask_all(body, streamed=streamed))[0]


def decided(
    faults: Sequence[str], passed: str, evidence: Mapping[str, Any] | None = None
) -> GateVerdict:
    """Fail with all `faults`, or pass with the reason `passed`."""
    if faults:
        return GateVerdict(GateOutcome.FAIL, "; ".join(faults), evidence or {})
    return GateVerdict(GateOutcome.PASS, passed, evidence or {})


def skipped(reason: str, evidence: Mapping[str, Any] | None = None) -> GateVerdict:
    return GateVerdict(GateOutcome.SKIP, reason, evidence or {})


def contains(answer: str | None, pattern: str) -> bool:
    """Whether `pattern` occurs in the answer, ignoring case."""
    return re.search(pattern, (answer or "").lower()) is not None
