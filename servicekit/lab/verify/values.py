"""What gates ask, what comes back, and what they find. Pure: frozen values."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeVar

from servicekit.engines.base import FINISH_REASONS

T = TypeVar("T")

TWIN_TOKENS: Final = 32768
"""Tokens, at most, of the long prompts that decide about a KV cache's precision."""
LEAST_SENTENCES: Final = 4
"""Sentences of a text, at least, in which something is hidden at three depths."""
MOST_TOKENS: Final = 2**31
"""Tokens beyond which a count is none."""


class GateOutcome(StrEnum):
    """How a gate ended."""

    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Twin:
    """What a profile with the same model and a cache of FP8 or better answered."""

    profile: str
    at: str
    """When its verification began, ISO 8601."""
    answers: Mapping[str, str]
    """By question."""
    sentences: int
    """How long its long prompts were: the same are asked again."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What is verified, as far as gates must know it."""

    served_name: str
    context: int
    """Tokens that one request can really use."""
    usable: int
    """Tokens of prompt that one request may have."""
    parallel: int = 1
    """Requests that the profile plans to serve at once."""
    repeats: int = 8
    """Times that the stability gate asks the same."""
    toggles_thinking: bool = True
    """Whether thinking can be turned on and off for a request."""
    thinks: bool = False
    """Whether the profile names a parser for thinking, so that a trace must appear."""
    tools: bool | None = None
    """Whether the model's chat template knows tools; `None` where that is not told."""
    vision: bool | None = None
    """Whether the model sees images; `None` where that is not told."""
    below_fp8: str | None = None
    """The option that puts the KV cache below FP8, such as `kv-cache-dtype = nvfp4`."""
    twin: Twin | None = None
    """What the same model answered with a cache of FP8 or better."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One chat completion; `streamed` ones tell the time to their first token."""

    body: Mapping[str, Any]
    streamed: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that are asked at the same time; the answer is a reply for each, in order."""

    requests: tuple[ChatRequest, ...]


@dataclass(frozen=True, slots=True)
class LookAtVram:
    """Asks for the MiB that the profile's GPUs have in use; the answer is `None` without one."""


GateAction: TypeAlias = Batch | LookAtVram
Steps: TypeAlias = Generator[GateAction, Any, T]
"""A gate under way: it yields orders, is sent their answers, and returns a `T`."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What came back, good or bad."""

    status: int
    """Of HTTP; 0 where there was no whole answer."""
    body: Any = None
    """Parsed JSON; `None` where it was none."""
    error: str = ""
    """Why there was no whole answer, or what the server said with a bad status."""
    seconds: float = 0.0
    ttft: float | None = None
    """Seconds to the first token of a streamed answer, thought or said."""
    visible: float | None = None
    """Seconds to the first token of one that is said."""
    last: float | None = None
    """Seconds to the last token, thought or said."""

    @property
    def _choice(self) -> Mapping[str, Any]:
        try:
            choice = self.body["choices"][0]
        except (LookupError, TypeError):
            return {}
        return choice if isinstance(choice, dict) else {}

    def _text(self, *keys: str) -> str:
        message = self._choice.get("message")
        found = [message.get(key) for key in keys] if isinstance(message, dict) else []
        return next((text for text in found if isinstance(text, str) and text), "")

    @property
    def content(self) -> str:
        """What the model said."""
        return self._text("content")

    @property
    def reasoning(self) -> str:
        """What it thought: `reasoning_content` at SGLang and llama-server, `reasoning` at vLLM."""
        return self._text("reasoning_content", "reasoning")

    @property
    def finish_reason(self) -> str | None:
        """Why it ended."""
        reason = self._choice.get("finish_reason")
        return reason if isinstance(reason, str) else None

    @property
    def calls(self) -> tuple[Mapping[str, Any], ...]:
        """The `function` of each structured tool call."""
        message = self._choice.get("message")
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        every = calls if isinstance(calls, list) else ()
        functions = (call.get("function") for call in every if isinstance(call, dict))
        return tuple(function for function in functions if isinstance(function, dict))

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt as the engine counted them."""
        return self._usage("prompt_tokens") or None

    @property
    def completion_tokens(self) -> int | None:
        """Tokens of thought and answer, as the engine counted them."""
        return self._usage("completion_tokens")

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that came from the prefix cache; `None` where that is not told.

        SGLang tells it with `--enable-cache-report`, vLLM with `--enable-prompt-tokens-details`.
        """
        return self._usage("prompt_tokens_details", "cached_tokens")

    def _usage(self, *keys: str) -> int | None:
        found = self.body.get("usage") if isinstance(self.body, dict) else None
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found if type(found) is int and 0 <= found <= MOST_TOKENS else None

    @property
    def broken(self) -> str:
        """Why this is no completion; empty where it is one, whatever it says."""
        if self.status != 200:  # noqa: PLR2004 - HTTP's own word for success
            return f"HTTP {self.status}: {self.error}" if self.status else self.error
        if not self._choice:
            return "the answer is no chat completion"
        if self.finish_reason is None:
            return "the answer has no finish reason"
        if self.finish_reason not in FINISH_REASONS:
            return f'finish reason "{self.finish_reason[:40]}"'
        return ""

    @property
    def fault(self) -> str:
        """Why this is no sound completion; empty where it is one."""
        if self.broken:
            return self.broken
        said = "".join(self.content.split())
        if len(said) >= 4 and len(set(said)) == 1:  # noqa: PLR2004 - below, it may be a word
            return f'one repeated character: "{said[:20]}"'
        return ""


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """What a gate decided, and on what grounds."""

    outcome: GateOutcome
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GateResult:
    """A judgement with its gate and the seconds it took."""

    gate: str
    outcome: GateOutcome
    reason: str
    evidence: Mapping[str, Any]
    seconds: float
