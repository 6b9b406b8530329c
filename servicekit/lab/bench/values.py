"""What a benchmark measured, as its file holds it, and the figures that follow from it. Pure.

A file holds samples, never averages: every statistic is computed from them, here and in one way.
What a file must be is checked where it is read, since it may come from another machine. All times
are in seconds by a monotonic clock of the client, all lengths in tokens as the engine counted them.
"""

from __future__ import annotations

import json
from collections.abc import Callable  # noqa: TC003 - a NamedTuple's annotation
from datetime import datetime
from enum import StrEnum
from math import ceil
from statistics import median, stdev
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from servicekit.errors import UserError
from servicekit.lab.verify.record import Fingerprint
from servicekit.lab.verify.values import MOST_TOKENS
from servicekit.profiles.findings import Finding, texts, wording
from servicekit.text import shown

FORMAT: Final = 1
"""Version of the file's layout; another one is refused."""
LEAST_DECODED: Final = 16
"""Tokens of an answer, at least, whose decode rate is worth telling."""

LEAST_SPAN: Final = 0.002
"""Seconds between first and last token, at least, over which there is a decode rate: what the clock
may be off by. An answer that comes in one piece was not streamed, and tells none."""
MOST: Final = 1e11
"""Beyond it nothing is a number of seconds, tokens or tokens/s, whatever a file or a page says."""


def _time(text: str) -> str:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None or not YEARS[0] <= at.year <= YEARS[1]:
        raise ValueError(f'must be a time of ISO 8601 with its zone, not "{shown(text)}"')
    return text


YEARS: Final = (1970, 9998)
"""In which a run can have been, so that any zone's clock can show it."""

Seconds = Annotated[float, Field(ge=0, le=MOST)]
Amount = Annotated[float, Field(ge=0, le=MOST)]
Count = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
Name = Annotated[str, Field(max_length=200)]
Time = Annotated[str, AfterValidator(_time)]


class ResultError(UserError):
    """A file that is no result of a benchmark, or of another format."""


class Prefix(StrEnum):
    """What the engine's prefix cache knows of a prompt when it is asked."""

    COLD = "cold"
    """Nothing: prompts differ from their first words on."""
    WARM = "warm"
    """All but the question at the end: the same prefix was asked before."""
    STAMPED = "stamped"
    """The same prefix behind a timestamp, which is another one at every request."""


class _Stored(BaseModel):
    # Strict about what is unknown, missing or of another type. Every field is always written.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Suite(_Stored):
    """Which suite was run; an edited one has another hash, and is another suite."""

    name: Name
    version: Count
    hash: str


class Sampling(_Stored):
    """How the model's next token is chosen."""

    temperature: Annotated[float, Field(ge=0)]
    seed: int


class Conditions(_Stored):
    """What must be equal for two cases to be put side by side."""

    context: Count
    """Tokens of context that the profile asks for."""
    concurrency: Annotated[int, Field(ge=1)]
    """Requests under way at once."""
    kv_precision: str
    """Type of the KV cache, such as `fp8`, `f16` or `k q8_0, v q4_0`; `?` where nobody tells."""
    prefix: Prefix
    thinking: bool | None
    """Whether the model was told to think; `None` where this engine's API cannot tell it."""
    sampling: Sampling
    prompt_tokens: Count
    """Tokens of prompt that the suite wants; what they were is in each sample."""
    max_tokens: Count
    """Tokens of the answer, at most."""
    exact_output: bool
    """Whether the model had to go on until `max_tokens`, whatever it had to say."""

    def differences(self, other: Conditions) -> tuple[str, ...]:
        """Name what is not equal, each with both values: `kv_precision (fp8, f16)`."""
        mine, others = self.model_dump(mode="json"), other.model_dump(mode="json")
        return tuple(
            f"{name} ({_said(mine[name])}, {_said(others[name])})"
            for name in mine
            if mine[name] != others[name]
        )


def _said(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key} {_said(each)}" for key, each in value.items())
    return (
        {True: "on", False: "off", None: "unknown"}.get(value, str(value))
        if (value is None or isinstance(value, bool))
        else str(value)
    )


class Sample(_Stored):
    """One request, by the client's clock and the engine's count."""

    asked: Seconds
    """When it was sent, since the case began."""
    first: Seconds | None
    """From then to the first token, thought or said; `None` where none came."""
    visible: Seconds | None
    """To the first token that a person sees: of the answer, not of the thought before it."""
    last: Seconds | None
    """To the last token."""
    done: Seconds
    """To the end of the answer."""
    prompt_tokens: Count | None
    cached_tokens: Count | None
    """Of those, taken from the prefix cache; `None` where the engine does not tell."""
    completion_tokens: Count | None
    """Thought and answer together."""
    finish_reason: str | None
    correct: bool | None
    """Whether the answer is the known one; `None` where the suite knows none."""
    answer: str
    """What was said, its beginning at least; the evidence for `correct`."""
    fault: str
    """Why this is no sound answer; empty where it is one. A fault counts in no other figure."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        told = [
            each for each in (self.first, self.visible, self.last, self.done) if each is not None
        ]
        if told != sorted(told):
            raise ValueError("must have first, visible, last and done in this order")
        return self

    @property
    def sound(self) -> bool:
        """Whether it counts."""
        return not self.fault

    @property
    def decode(self) -> float | None:
        """Decode tokens/s: the tokens after the first, over the time after the first.

        `None` for an answer of fewer than `LEAST_DECODED` tokens, which is no rate yet, and for one
        that came within `LEAST_SPAN`.
        """
        if self.first is None or self.last is None or self.completion_tokens is None:
            return None
        spent = self.last - self.first
        if self.completion_tokens < LEAST_DECODED or spent < LEAST_SPAN:
            return None
        return _ratio(self.completion_tokens - 1, spent)

    @property
    def prefill(self) -> float | None:
        """Prefill tokens/s: the tokens of the prompt that were not cached, over the TTFT.

        Where the engine does not tell what was cached, the whole prompt counts: that is right for
        a cold prefix only, and `Case` gives it for no other.
        """
        if self.prompt_tokens is None:
            return None
        return _ratio(self.prompt_tokens - (self.cached_tokens or 0), self.first)


class EngineSide(_Stored):
    """How far the engine's own counters moved during a case; `None` where it does not count.

    Series of SGLang, vLLM and llama.cpp differ: `counters` says which is which.
    """

    prompt_tokens: Amount | None
    """All of them, cached ones too."""
    cached_tokens: Amount | None
    generated_tokens: Amount | None
    prefill_seconds: Amount | None
    """Spent on prompts, without waiting for a turn, added up over requests."""
    first_count: Amount | None
    first_seconds: Amount | None
    """From arrival to first token, added up over `first_count` requests."""
    decoded_tokens: Amount | None
    decode_seconds: Amount | None
    """Spent on `decoded_tokens`, added up over requests."""
    drafts: Amount | None
    """Times that the target verified what a drafter proposed."""
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
        """Tokens that one verification yields: those accepted, and the target's own."""
        accepted = _ratio(self.accepted_tokens, self.drafts)
        return None if accepted is None else 1 + accepted


def _ratio(part: float | None, of: float | None) -> float | None:
    """Divide; `None` for what is no part of anything, and where nothing sensible comes out."""
    if part is None or of is None or of <= 0 or not 0 <= part <= MOST * of:
        return None
    return part / of


class Case(_Stored):
    """One case of a suite: the same kind of request, repeated under the same conditions."""

    name: Name
    """Unique within its suite."""
    conditions: Conditions
    planned: Count
    """Requests that the suite wants; fewer samples after ^C."""
    samples: tuple[Sample, ...]
    engine: EngineSide | None
    """`None` where the engine's counters could not be read."""

    @property
    def sound(self) -> tuple[Sample, ...]:
        """Samples that count."""
        return tuple(sample for sample in self.samples if sample.sound)

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the others do not."""
        return tuple(sample.fault for sample in self.samples if not sample.sound)

    @property
    def correctness(self) -> float | None:
        """Part of all requests with a known answer that gave it, 0 to 1; a fault gave none."""
        known = [sample for sample in self.samples if sample.correct is not None]
        return _ratio(sum(sample.correct is True for sample in known), len(known))

    @property
    def throughput(self) -> float | None:
        """Tokens/s of all answers together, from the first request to the last answer's end."""
        if not self.sound:
            return None
        tokens = [sample.completion_tokens for sample in self.sound]
        begun = min(sample.asked for sample in self.sound)
        ended = max(sample.asked + sample.done for sample in self.sound)
        counted = [each for each in tokens if each is not None]
        return _ratio(sum(counted), ended - begun) if len(counted) == len(tokens) else None

    def values(self, figure: Figure) -> tuple[float, ...]:
        """Give `figure` for each sample that has it, in their order."""
        counted = [sample for sample in self.sound if self._has(figure, sample)]
        found = [figure.of(sample) for sample in counted]
        return tuple(value for value in found if value is not None)

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
        """Answers that were not finished within `max_tokens`: they took no time to finish."""
        return 0 if self.conditions.exact_output else len(self.sound) - len(self.values(DONE))

    @property
    def cut_short(self) -> int:
        """Answers that were to go on until `max_tokens`, and ended before: other work was done."""
        if not self.conditions.exact_output:
            return 0
        return sum(not self._is_whole(sample) for sample in self.sound)

    def _is_whole(self, sample: Sample) -> bool:
        told = sample.completion_tokens
        if told is None:
            return sample.finish_reason == "length"
        return told >= self.conditions.max_tokens

    @property
    def in_one_piece(self) -> int:
        """Answers that were not streamed, so that nobody knows when their tokens were made."""
        return sum(
            sample.decode is None and (sample.completion_tokens or 0) >= LEAST_DECODED
            for sample in self.sound
        )

    @property
    def foreign(self) -> float:
        """Tokens of prompts that somebody else had the engine read meanwhile, as far as it counts.

        The watchdog's own completion has some dozens now and then.
        """
        if self.engine is None or self.engine.prompt_tokens is None:
            return 0.0
        ours = [sample.prompt_tokens for sample in self.samples if sample.prompt_tokens]
        return max(0.0, self.engine.prompt_tokens - sum(ours))

    def statistics(self, figure: Figure) -> Statistics | None:
        """Sum `figure` up over the samples; `None` where none has it."""
        return statistics(self.values(figure))


class ContextFigures(_Stored):
    """Context figures of the engine while it was measured, in tokens; `None` where not told."""

    requested: Count | None
    declared: Count | None
    physical: Count | None
    effective: Count | None


def _told_apart(cases: tuple[Case, ...]) -> tuple[Case, ...]:
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
    """Whether a verification of all gates held for this very fingerprint."""
    standing: str
    """The same in words: what is verified, what changed since, or what failed."""
    unmatched: tuple[str, ...]
    """Conditions of the suite that the profile does not meet, run all the same."""
    skipped: tuple[str, ...]
    """Cases that were not run, each with the reason: prompts that do not fit, say."""
    started: Time
    """ISO 8601, by the wall clock."""
    ended: Time
    complete: bool
    """False after ^C."""
    degraded: tuple[str, ...]
    """Reasons why the service was `degraded` before or after, such as `draft-graph-disabled`."""
    pools: ContextFigures
    cases: Annotated[tuple[Case, ...], AfterValidator(_told_apart)]

    @property
    def name(self) -> str:
        """Name of the run, and of its file without `.json`."""
        time = self.started.partition(".")[0].replace(":", "").replace("-", "")
        return f"{time}Z-{self.profile}-{self.suite.name}"

    def case(self, name: str) -> Case | None:
        """The case called `name`, where it was measured."""
        return next((case for case in self.cases if case.name == name), None)

    def as_text(self) -> str:
        """What the file holds."""
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def parse(cls, text: str, *, where: str) -> Self:
        """Read the text of a file; `ResultError` names the first thing that is wrong `where`."""
        try:
            told = json.loads(text)
        except (ValueError, RecursionError):
            raise ResultError(f'"{where}" is no result of a benchmark: it is not JSON') from None
        form = told.get("format") if isinstance(told, dict) else None
        if type(form) is not int:
            raise ResultError(f'"{where}" is no result of a benchmark: it names no format')
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
            message = "is not a key that there is" if unknown else wording(first)
            said = texts([Finding(first["loc"], message)], {})[0]
            raise ResultError(f'"{where}" is no result of a benchmark: {said}') from None


class Statistics(NamedTuple):
    """A figure over the samples of a case."""

    samples: int
    median: float
    p99: float
    """The smallest value that 99 % of them do not exceed: with fewer than 100, the largest."""
    least: float
    most: float
    deviation: float
    """Standard deviation of the samples; 0 of one."""


def statistics(values: tuple[float, ...]) -> Statistics | None:
    """Sum `values` up; `None` where there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return Statistics(
        samples=len(ordered),
        median=median(ordered),
        p99=ordered[ceil(0.99 * len(ordered)) - 1],
        least=ordered[0],
        most=ordered[-1],
        deviation=stdev(ordered) if len(ordered) > 1 else 0.0,
    )


class Figure(NamedTuple):
    """One figure of a request."""

    name: str
    label: str
    unit: str
    more_is_better: bool
    of: Callable[[Sample], float | None]


TTFT: Final = Figure("ttft", "first token", "s", False, lambda sample: sample.first)  # noqa: FBT003
VISIBLE: Final = Figure("visible", "first visible", "s", False, lambda sample: sample.visible)  # noqa: FBT003
DONE: Final = Figure("done", "answer finished", "s", False, lambda sample: sample.done)  # noqa: FBT003
DECODE: Final = Figure("decode", "decode", "tokens/s", True, lambda sample: sample.decode)  # noqa: FBT003
PREFILL: Final = Figure("prefill", "prefill", "tokens/s", True, lambda sample: sample.prefill)  # noqa: FBT003

FIGURES: Final = (TTFT, VISIBLE, PREFILL, DECODE, DONE)
"""Every figure of a request, in the order in which a request shows them."""


def summary(case: Case) -> dict[str, Any]:
    """Give every figure of a case, for a program."""
    side = case.engine
    return {
        "case": case.name,
        "samples": len(case.samples),
        "planned": case.planned,
        "faults": list(case.faults),
        "correctness": case.correctness,
        "throughput": case.throughput,
        "cut_off": case.cut_off,
        "foreign_tokens": case.foreign,
        **{
            figure.name: None if (found := case.statistics(figure)) is None else found._asdict()
            for figure in FIGURES
        },
        "engine": None
        if side is None
        else {
            "ttft": side.ttft,
            "prefill": side.prefill,
            "decode": side.decode,
            "acceptance": side.acceptance,
            "acceptance_length": side.acceptance_length,
        },
    }
