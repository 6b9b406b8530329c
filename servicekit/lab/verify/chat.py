"""Chat completions: the request and the reply, in one shape for every engine. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from servicekit.engines.base import FINISH_REASONS

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_TOKENS: Final = 2**31  # a larger count is nonsense
# HTTP statuses by which a server rejects the request itself, for instance a prompt that is too
# long; others concern who asks, what for, or how often.
REFUSALS: Final = (400, 413, 422)
# An answer in one piece shows no first token and no rate: at least `LEAST_DECODED` tokens within
# `LEAST_SPAN` seconds, which is what the clock may be off by.
LEAST_DECODED: Final = 16
LEAST_SPAN: Final = 0.002


def in_one_piece(first: float | None, last: float | None, tokens: int | None) -> bool:
    """Whether an answer of so many tokens was sent whole rather than token by token."""
    if first is None or last is None or tokens is None:
        return False
    return tokens >= LEAST_DECODED and last - first < LEAST_SPAN


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One chat completion. A streamed one shows the time to its first token."""

    body: Mapping[str, Any]
    streamed: bool = False


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The reply to a request, successful or not."""

    status: int  # HTTP status; 0 if there was no complete answer
    body: Any = None  # parsed JSON, or `None`
    error: str = ""
    """Why there was no complete answer, or what the server sent with an error status."""
    seconds: float = 0.0
    ttft: float | None = None  # seconds to the first token of a streamed answer, reasoning included
    visible: float | None = None  # seconds to the first token of the answer itself
    last: float | None = None  # seconds to the last token, reasoning included

    @property
    def _choice(self) -> Mapping[str, Any]:
        try:
            choice = self.body["choices"][0]
        except (LookupError, TypeError):
            return {}
        return choice if isinstance(choice, dict) else {}

    def _text(self, *keys: str) -> str:
        message = self._choice.get("message")
        texts = [message.get(key) for key in keys] if isinstance(message, dict) else []
        return next((text for text in texts if isinstance(text, str) and text), "")

    @property
    def content(self) -> str:
        return self._text("content")

    @property
    def reasoning(self) -> str:
        """The trace: `reasoning_content` for SGLang and llama-server, `reasoning` for vLLM."""
        return self._text("reasoning_content", "reasoning")

    @property
    def finish_reason(self) -> str | None:
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
        return self._usage("prompt_tokens") or None

    @property
    def completion_tokens(self) -> int | None:
        """Tokens of reasoning and answer, as counted by the engine."""
        return self._usage("completion_tokens")

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens taken from the prefix cache; `None` if not reported.

        SGLang reports them with `--enable-cache-report`, vLLM with
        `--enable-prompt-tokens-details`.
        """
        return self._usage("prompt_tokens_details", "cached_tokens")

    def _usage(self, *keys: str) -> int | None:
        value = self.body.get("usage") if isinstance(self.body, dict) else None
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value if type(value) is int and 0 <= value <= MOST_TOKENS else None

    @property
    def first_token(self) -> float | None:
        """Seconds to the first token; `None` for an answer that came in one piece."""
        whole = in_one_piece(self.ttft, self.last, self.completion_tokens)
        return None if whole else self.ttft

    @property
    def is_refused(self) -> bool:
        """Whether the server rejected the request itself, as it does a prompt that is too long."""
        return self.status in REFUSALS

    @property
    def broken(self) -> str:
        """Why this is not a complete chat completion; empty if it is one."""
        if self.status != 200:  # noqa: PLR2004 - HTTP's own word for success
            return f"HTTP {self.status}: {self.error}" if self.status else self.error
        if not self._choice:
            return "the answer is not a chat completion"
        if self.finish_reason is None:
            return "the answer has no finish reason"
        if self.finish_reason not in FINISH_REASONS:
            return f'finish reason "{self.finish_reason[:40]}"'
        return ""

    @property
    def fault(self) -> str:
        """Why this answer is unusable; empty if it is sound."""
        if self.broken:
            return self.broken
        text = "".join(self.content.split())
        if len(text) >= 4 and len(set(text)) == 1:  # noqa: PLR2004 - below, it may be a word
            return f'one repeated character: "{text[:20]}"'
        return ""
