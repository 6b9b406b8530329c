"""What a benchmark stores of one request, and of the conditions that it was made under. Pure.

Times are in seconds of the client's monotonic clock, lengths in tokens as counted by the engine.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from servicekit.lab.verify.chat import LEAST_DECODED, LEAST_SPAN, MOST_TOKENS, in_one_piece

MOST: Final = 1e11  # larger numbers of seconds, tokens or tokens/s are not believed

Elapsed = Annotated[float, Field(ge=0, le=MOST)]
Amount = Annotated[float, Field(ge=0, le=MOST)]
TokenCount = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
ShortName = Annotated[str, Field(max_length=200)]


class Prefix(StrEnum):
    """What the engine's prefix cache holds of a prompt when it arrives."""

    COLD = "cold"  # nothing: prompts differ from their first words on
    WARM = "warm"  # everything but the question at the end
    STAMPED = "stamped"  # nothing, since a timestamp that changes precedes a prefix that does not


class Stored(BaseModel):
    """A part of a benchmark's file."""

    # Strict about unknown keys, missing keys and types. Every field is always written.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Suite(Stored):
    """Which suite was run. An edited suite has another hash, and is another suite."""

    name: ShortName
    version: TokenCount
    hash: str


class Sampling(Stored):
    """How the model's next token is chosen."""

    temperature: Annotated[float, Field(ge=0)]
    seed: int


class Conditions(Stored):
    """What must be equal for two cases to be compared."""

    context: TokenCount  # tokens of context that the profile requests
    concurrency: Annotated[int, Field(ge=1)]  # requests in progress at once
    kv_precision: str
    """Type of the KV cache, such as `fp8`, `f16` or `k q8_0, v q4_0`; `?` if unknown."""
    prefix: Prefix
    thinking: bool | None  # whether thinking was on; `None` if this engine's API cannot switch it
    sampling: Sampling
    prompt_tokens: TokenCount
    """Prompt tokens that the suite asks for; the real number is in each sample."""
    max_tokens: TokenCount  # tokens of the answer, at most
    exact_output: bool  # whether the model was made to go on until `max_tokens`

    def differences(self, other: Conditions) -> tuple[tuple[str, str], ...]:
        """ShortName each difference with both values: `("kv_precision", "(fp8, bf16)")`."""
        own, others = self.model_dump(mode="json"), other.model_dump(mode="json")
        return tuple(
            (name, f"({_spelt(own[name])}, {_spelt(others[name])})")
            for name in own
            if own[name] != others[name]
        )


def _spelt(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key} {_spelt(each)}" for key, each in value.items())
    if value is None:
        return "unknown"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


class Sample(Stored):
    """One request, by the client's clock and the engine's count."""

    asked: Elapsed  # when it was sent, since the case began
    first: Elapsed | None  # from then to the first token, reasoning included; `None` if none came
    visible: Elapsed | None  # to the first token of the answer itself
    last: Elapsed | None  # to the last token
    done: Elapsed  # to the end of the answer
    prompt_tokens: TokenCount | None
    cached_tokens: TokenCount | None
    """Of those, taken from the prefix cache; `None` if the engine does not report it."""
    completion_tokens: TokenCount | None  # reasoning and answer together
    finish_reason: str | None
    correct: bool | None  # whether the answer is the known one; `None` if the suite has none
    answer: str  # the beginning of the answer: the evidence for `correct`
    fault: str
    """Why the answer is unusable, else empty. Such a sample counts in no other figure."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        times = [t for t in (self.first, self.visible, self.last, self.done) if t is not None]
        if times != sorted(times):
            raise ValueError("must have first, visible, last and done in this order")
        return self

    @property
    def sound(self) -> bool:
        return not self.fault

    @property
    def in_one_piece(self) -> bool:
        """Whether the answer was not streamed, so that the times of its tokens are unknown."""
        return in_one_piece(self.first, self.last, self.completion_tokens)

    @property
    def ttft(self) -> float | None:
        """Elapsed to the first token."""
        return None if self.in_one_piece else self.first

    @property
    def first_visible(self) -> float | None:
        """Elapsed to the first token of the answer itself."""
        return None if self.in_one_piece else self.visible

    @property
    def decode(self) -> float | None:
        """Decode tokens/s: the tokens after the first, over the time after the first.

        `None` for an answer of fewer than `LEAST_DECODED` tokens, and for one in one piece.
        """
        if self.first is None or self.last is None or self.completion_tokens is None:
            return None
        spent = self.last - self.first
        if self.completion_tokens < LEAST_DECODED or spent < LEAST_SPAN:
            return None
        return ratio(self.completion_tokens - 1, spent)

    @property
    def prefill(self) -> float | None:
        """Prefill tokens/s: the prompt tokens that were not cached, over the TTFT.

        If the engine does not report cached tokens, the whole prompt counts. That is right for a
        cold prefix only, and `Case` gives it for no other.
        """
        if self.prompt_tokens is None:
            return None
        return ratio(self.prompt_tokens - (self.cached_tokens or 0), self.ttft)


class EngineSide(Stored):
    """How far the engine's own counters moved during a case; `None` for what it does not count.

    The series of SGLang, vLLM and llama.cpp differ: see `counters`.
    """

    prompt_tokens: Amount | None  # all of them, cached ones included
    cached_tokens: Amount | None
    generated_tokens: Amount | None
    prefill_seconds: Amount | None  # spent on prompts, without queueing, added up over requests
    first_count: Amount | None
    first_seconds: Amount | None
    """From arrival to first token, added up over `first_count` requests."""
    decoded_tokens: Amount | None
    decode_seconds: Amount | None  # spent on `decoded_tokens`, added up over requests
    drafts: Amount | None  # times that the target verified a draft
    drafted_tokens: Amount | None
    accepted_tokens: Amount | None

    @property
    def prefill(self) -> float | None:
        """Prefill tokens/s of what was not cached."""
        if self.prompt_tokens is None:
            return None
        return ratio(self.prompt_tokens - (self.cached_tokens or 0), self.prefill_seconds)

    @property
    def ttft(self) -> float | None:
        """Mean TTFT in seconds."""
        return ratio(self.first_seconds, self.first_count)

    @property
    def decode(self) -> float | None:
        """Decode tokens/s of one request."""
        return ratio(self.decoded_tokens, self.decode_seconds)

    @property
    def acceptance(self) -> float | None:
        """Part of the drafted tokens that was accepted, 0 to 1."""
        return ratio(self.accepted_tokens, self.drafted_tokens)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens that one verification yields: the accepted ones and the target's own."""
        accepted = ratio(self.accepted_tokens, self.drafts)
        return None if accepted is None else 1 + accepted


def ratio(part: float | None, of: float | None) -> float | None:
    """Divide; `None` for an unknown or absurd value."""
    if part is None or of is None or of <= 0 or not 0 <= part <= MOST * of:
        return None
    return part / of
