"""The result of a benchmark, as its file holds it. Pure.

A file holds samples, never averages: every statistic is computed from them. A file may come from
another machine, so everything is checked when it is read. Times are in seconds of the client's
monotonic clock, lengths in tokens as counted by the engine.
"""

from __future__ import annotations

import json
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from servicekit.errors import UserError
from servicekit.lab.bench.figures import DONE, PREFILL, Figure, Statistics, statistics
from servicekit.lab.verify.chat import LEAST_DECODED, LEAST_SPAN, MOST_TOKENS, in_one_piece
from servicekit.lab.verify.record import Fingerprint
from servicekit.profiles.findings import Finding, texts, wording
from servicekit.text import shown

FORMAT: Final = 1  # version of the file's layout; another one is refused
MOST: Final = 1e11  # larger numbers of seconds, tokens or tokens/s are not believed
YEARS: Final = (1970, 9998)  # of a run, so that every time zone can show it


def _time(text: str) -> str:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None or not YEARS[0] <= at.year <= YEARS[1]:
        raise ValueError(f'must be an ISO 8601 time with its zone, not "{shown(text)}"')
    return text


Seconds = Annotated[float, Field(ge=0, le=MOST)]
Amount = Annotated[float, Field(ge=0, le=MOST)]
Count = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
Name = Annotated[str, Field(max_length=200)]
Time = Annotated[str, AfterValidator(_time)]


class ResultError(UserError):
    """A file that is not a benchmark result, or has another format."""


class Prefix(StrEnum):
    """What the engine's prefix cache holds of a prompt when it arrives."""

    COLD = "cold"
    """Nothing: prompts differ from their first words on."""
    WARM = "warm"
    """Everything but the question at the end."""
    STAMPED = "stamped"
    """Nothing, since a timestamp that changes precedes a prefix that does not."""


class _Stored(BaseModel):
    # Strict about unknown keys, missing keys and types. Every field is always written.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Suite(_Stored):
    """Which suite was run. An edited suite has another hash, and is another suite."""

    name: Name
    version: Count
    hash: str


class Sampling(_Stored):
    """How the model's next token is chosen."""

    temperature: Annotated[float, Field(ge=0)]
    seed: int


class Conditions(_Stored):
    """What must be equal for two cases to be compared."""

    context: Count
    """Tokens of context that the profile requests."""
    concurrency: Annotated[int, Field(ge=1)]
    """Requests in progress at once."""
    kv_precision: str
    """Type of the KV cache, such as `fp8`, `f16` or `k q8_0, v q4_0`; `?` if unknown."""
    prefix: Prefix
    thinking: bool | None
    """Whether thinking was on; `None` if this engine's API cannot switch it."""
    sampling: Sampling
    prompt_tokens: Count
    """Prompt tokens that the suite asks for; the real number is in each sample."""
    max_tokens: Count
    """Tokens of the answer, at most."""
    exact_output: bool
    """Whether the model was made to go on until `max_tokens`."""

    def differences(self, other: Conditions) -> tuple[tuple[str, str], ...]:
        """Name each difference with both values: `("kv_precision", "(fp8, bf16)")`."""
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


class Sample(_Stored):
    """One request, by the client's clock and the engine's count."""

    asked: Seconds
    """When it was sent, since the case began."""
    first: Seconds | None
    """From then to the first token, reasoning included; `None` if none came."""
    visible: Seconds | None
    """To the first token of the answer itself."""
    last: Seconds | None
    """To the last token."""
    done: Seconds
    """To the end of the answer."""
    prompt_tokens: Count | None
    cached_tokens: Count | None
    """Of those, taken from the prefix cache; `None` if the engine does not report it."""
    completion_tokens: Count | None
    """Reasoning and answer together."""
    finish_reason: str | None
    correct: bool | None
    """Whether the answer is the known one; `None` if the suite has none."""
    answer: str
    """The beginning of the answer: the evidence for `correct`."""
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
        """Seconds to the first token."""
        return None if self.in_one_piece else self.first

    @property
    def first_visible(self) -> float | None:
        """Seconds to the first token of the answer itself."""
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
        return _ratio(self.completion_tokens - 1, spent)

    @property
    def prefill(self) -> float | None:
        """Prefill tokens/s: the prompt tokens that were not cached, over the TTFT.

        If the engine does not report cached tokens, the whole prompt counts. That is right for a
        cold prefix only, and `Case` gives it for no other.
        """
        if self.prompt_tokens is None:
            return None
        return _ratio(self.prompt_tokens - (self.cached_tokens or 0), self.ttft)


class EngineSide(_Stored):
    """How far the engine's own counters moved during a case; `None` for what it does not count.

    The series of SGLang, vLLM and llama.cpp differ: see `counters`.
    """

    prompt_tokens: Amount | None
    """All of them, cached ones included."""
    cached_tokens: Amount | None
    generated_tokens: Amount | None
    prefill_seconds: Amount | None
    """Spent on prompts, without queueing, added up over requests."""
    first_count: Amount | None
    first_seconds: Amount | None
    """From arrival to first token, added up over `first_count` requests."""
    decoded_tokens: Amount | None
    decode_seconds: Amount | None
    """Spent on `decoded_tokens`, added up over requests."""
    drafts: Amount | None
    """Times that the target verified a draft."""
    drafted_tokens: Amount | None
    accepted_tokens: Amount | None

    @property
    def prefill(self) -> float | None:
        """Prefill tokens/s of what was not cached."""
        if self.prompt_tokens is None:
            return None
        return _ratio(self.prompt_tokens - (self.cached_tokens or 0), self.prefill_seconds)

    @property
    def ttft(self) -> float | None:
        """Mean TTFT in seconds."""
        return _ratio(self.first_seconds, self.first_count)

    @property
    def decode(self) -> float | None:
        """Decode tokens/s of one request."""
        return _ratio(self.decoded_tokens, self.decode_seconds)

    @property
    def acceptance(self) -> float | None:
        """Part of the drafted tokens that was accepted, 0 to 1."""
        return _ratio(self.accepted_tokens, self.drafted_tokens)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens that one verification yields: the accepted ones and the target's own."""
        accepted = _ratio(self.accepted_tokens, self.drafts)
        return None if accepted is None else 1 + accepted


def _ratio(part: float | None, of: float | None) -> float | None:
    """Divide; `None` for an unknown or absurd value."""
    if part is None or of is None or of <= 0 or not 0 <= part <= MOST * of:
        return None
    return part / of


class Case(_Stored):
    """One case of a suite: the same kind of request, repeated under the same conditions."""

    name: Name
    """Unique within its suite."""
    conditions: Conditions
    planned: Count
    """Requests in the suite; there are fewer samples after ^C."""
    samples: tuple[Sample, ...]
    engine: EngineSide | None
    """`None` if the engine's counters could not be read."""

    @property
    def sound(self) -> tuple[Sample, ...]:
        return tuple(sample for sample in self.samples if sample.sound)

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the others do not."""
        return tuple(sample.fault for sample in self.samples if not sample.sound)

    @property
    def correctness(self) -> float | None:
        """Part of the requests with a known answer that got it, 0 to 1; a fault is a wrong one."""
        known = [sample for sample in self.samples if sample.correct is not None]
        return _ratio(sum(sample.correct is True for sample in known), len(known))

    @property
    def throughput(self) -> float | None:
        """Tokens/s of all answers together, from the first request to the last end."""
        if not self.sound:
            return None
        tokens = [sample.completion_tokens for sample in self.sound]
        began = min(sample.asked for sample in self.sound)
        ended = max(sample.asked + sample.done for sample in self.sound)
        counted = [each for each in tokens if each is not None]
        return _ratio(sum(counted), ended - began) if len(counted) == len(tokens) else None

    def values(self, figure: Figure) -> tuple[float, ...]:
        """Return `figure` for each sample that has it, in order."""
        values = (figure.of(sample) for sample in self.sound if self._has(figure, sample))
        return tuple(value for value in values if value is not None)

    def _has(self, figure: Figure, sample: Sample) -> bool:
        if figure is PREFILL and self.conditions.prefix is not Prefix.COLD:
            return sample.cached_tokens is not None
        if figure is DONE:
            if self.conditions.exact_output:
                return self._is_whole(sample)
            return sample.finish_reason != "length"
        return True

    @property
    def cut_off(self) -> int:
        """Answers that were not finished within `max_tokens`, and so have no time to finish."""
        return 0 if self.conditions.exact_output else len(self.sound) - len(self.values(DONE))

    @property
    def cut_short(self) -> int:
        """Answers that should have gone on until `max_tokens` and ended before."""
        if not self.conditions.exact_output:
            return 0
        return sum(not self._is_whole(sample) for sample in self.sound)

    def _is_whole(self, sample: Sample) -> bool:
        tokens = sample.completion_tokens
        if tokens is None:
            return sample.finish_reason == "length"
        return tokens >= self.conditions.max_tokens

    @property
    def in_one_piece(self) -> int:
        """Answers that were not streamed."""
        return sum(
            sample.in_one_piece
            or (sample.decode is None and (sample.completion_tokens or 0) >= LEAST_DECODED)
            for sample in self.sound
        )

    @property
    def foreign(self) -> float:
        """Prompt tokens of other clients' requests during the case, if the engine counts them.

        The watchdog's own completion has a few dozen now and then.
        """
        if self.engine is None or self.engine.prompt_tokens is None:
            return 0.0
        ours = [sample.prompt_tokens for sample in self.samples if sample.prompt_tokens]
        return max(0.0, self.engine.prompt_tokens - sum(ours))

    def statistics(self, figure: Figure) -> Statistics | None:
        """Summarise `figure` over the samples; `None` if none has it."""
        return statistics(self.values(figure))


class ContextFigures(_Stored):
    """The engine's context figures during the run, in tokens; `None` if not reported."""

    requested: Count | None
    declared: Count | None
    physical: Count | None
    effective: Count | None


def _unique(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    names = [case.name for case in cases]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f'must not have two cases "{shown(twice[0])}"')
    return cases


class BenchResult(_Stored):
    """One run of a suite, as its file holds it."""

    format: Literal[1]
    suite: Suite
    profile: Name
    engine: str
    """`sglang`, `vllm`, `llamacpp` or `openai`."""
    model: str
    drafter: str | None
    fingerprint: Fingerprint
    verified: bool
    """Whether a verification with all gates is valid for this fingerprint."""
    standing: str
    """The verification status in words."""
    unmatched: tuple[str, ...]
    """Conditions of the suite that the profile does not meet."""
    skipped: tuple[str, ...]
    """Cases that were not run, each with the reason."""
    started: Time
    """ISO 8601, by the wall clock."""
    ended: Time
    complete: bool
    """False after ^C."""
    degraded: tuple[str, ...]
    """Reasons why the service was `degraded` before or after, such as `draft-graph-disabled`."""
    pools: ContextFigures
    cases: Annotated[tuple[Case, ...], AfterValidator(_unique)]

    @property
    def name(self) -> str:
        """Name of the run, and of its file without `.json`."""
        time = self.started.partition(".")[0].replace(":", "").replace("-", "")
        return f"{time}Z-{self.profile}-{self.suite.name}"

    def case(self, name: str) -> Case | None:
        return next((case for case in self.cases if case.name == name), None)

    def as_text(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def parse(cls, text: str, *, where: str) -> Self:
        """Read the text of a file; `ResultError` names the first thing that is wrong `where`."""
        problem = f'"{where}" is not a benchmark result'
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            raise ResultError(f"{problem}: it is not JSON") from None
        form = content.get("format") if isinstance(content, dict) else None
        if type(form) is not int:
            raise ResultError(f"{problem}: it has no format number")
        if form != FORMAT:
            raise ResultError(
                f'"{where}" has format {form}, and this servicekit reads format {FORMAT}',
                hint="measure again, or compare with the servicekit that wrote it",
            )
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            unknown = first["type"] in {"extra_forbidden", "unexpected_keyword_argument"}
            message = "unknown key" if unknown else wording(first)
            (finding,) = texts([Finding(first["loc"], message)], {})
            raise ResultError(f"{problem}: {finding}") from None
