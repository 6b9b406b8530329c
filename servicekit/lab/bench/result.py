"""The result of a benchmark, as its file holds it. Pure.

A file holds samples, never averages: every statistic is computed from them. A file may come from
another machine, so everything is checked when it is read. Times are in seconds of the client's
monotonic clock, lengths in tokens as counted by the engine.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import AfterValidator, ValidationError

from servicekit.errors import UserError
from servicekit.lab.bench.figures import DONE, FIGURES, PREFILL, Figure, Statistics, statistics
from servicekit.lab.bench.samples import (
    Conditions,
    EngineSide,
    Prefix,
    Sample,
    ShortName,
    Stored,
    Suite,
    TokenCount,
    ratio,
)
from servicekit.lab.verify.chat import LEAST_DECODED
from servicekit.lab.verify.record import Fingerprint
from servicekit.profiles.findings import Finding, texts, wording
from servicekit.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable

FORMAT: Final = 1  # version of the file's layout; another one is refused
YEARS: Final = (1970, 9998)  # of a run, so that every time zone can show it


def _time(text: str) -> str:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None or not YEARS[0] <= at.year <= YEARS[1]:
        raise ValueError(f'must be an ISO 8601 time with its zone, not "{shown(text)}"')
    return text


Time = Annotated[str, AfterValidator(_time)]


class ResultError(UserError):
    """A file that is not a benchmark result, or has another format."""


class Case(Stored):
    """One case of a suite: the same kind of request, repeated under the same conditions."""

    name: ShortName  # unique within its suite
    conditions: Conditions
    planned: TokenCount  # requests in the suite; there are fewer samples after ^C
    samples: tuple[Sample, ...]
    engine: EngineSide | None  # `None` if the engine's counters could not be read

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
        return ratio(sum(sample.correct is True for sample in known), len(known))

    @property
    def throughput(self) -> float | None:
        """Tokens/s of all answers together, from the first request to the last end."""
        if not self.sound:
            return None
        tokens = [sample.completion_tokens for sample in self.sound]
        began = min(sample.asked for sample in self.sound)
        ended = max(sample.asked + sample.done for sample in self.sound)
        counted = [each for each in tokens if each is not None]
        return ratio(sum(counted), ended - began) if len(counted) == len(tokens) else None

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


class CaseFigure(NamedTuple):
    """A figure that a case has once. It has no spread, so no verdict follows from it."""

    name: str
    label: str
    unit: str
    of: Callable[[Case], float | None]


# In the order of a comparison.
CASE_FIGURES: Final = (
    CaseFigure("throughput", "throughput", "tokens/s", lambda case: case.throughput),
    CaseFigure(
        "acceptance",
        "acceptance",
        "%",
        lambda case: case.engine.acceptance if case.engine else None,
    ),
    CaseFigure(
        "acceptance_length",
        "per verification",
        "tokens",
        lambda case: case.engine.acceptance_length if case.engine else None,
    ),
    CaseFigure("correctness", "correctness", "%", lambda case: case.correctness),
)


def summary(case: Case) -> dict[str, Any]:
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
            figure.name: None if (stats := case.statistics(figure)) is None else stats._asdict()
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


class ContextFigures(Stored):
    """The engine's context figures during the run, in tokens; `None` if not reported."""

    requested: TokenCount | None
    declared: TokenCount | None
    physical: TokenCount | None
    effective: TokenCount | None


def _unique(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    names = [case.name for case in cases]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f'must not have two cases "{shown(twice[0])}"')
    return cases


class BenchResult(Stored):
    """One run of a suite, as its file holds it."""

    format: Literal[1]
    suite: Suite
    profile: ShortName
    engine: str  # `sglang`, `vllm`, `llamacpp` or `openai`
    model: str
    drafter: str | None
    fingerprint: Fingerprint
    verified: bool  # whether a verification with all gates is valid for this fingerprint
    standing: str  # the verification status in words
    unmatched: tuple[str, ...]  # conditions of the suite that the profile does not meet
    skipped: tuple[str, ...]  # cases that were not run, each with the reason
    started: Time  # ISO 8601, by the wall clock
    ended: Time
    complete: bool  # false after ^C
    degraded: tuple[str, ...]
    """Reasons why the service was `degraded` before or after, such as `draft-graph-disabled`."""
    pools: ContextFigures
    cases: Annotated[tuple[Case, ...], AfterValidator(_unique)]

    @property
    def name(self) -> str:
        """ShortName of the run, and of its file without `.json`."""
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
