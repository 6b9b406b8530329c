"""The format of a suite's file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from servicekit.lab.bench.samples import Conditions, Prefix
from servicekit.lab.verify.chat import MOST_TOKENS
from servicekit.profiles.vocabulary import NAME, matching

T = TypeVar("T")

SHARE: Final = 0.75  # part of the room that a prompt takes which may be shorter than asked for
LARGEST: Final = 64 << 10  # bytes of a suite's file; a device would never end
SMALLEST: Final = 128  # prompt tokens below which a length cannot be set

CaseName = Annotated[str, AfterValidator(matching(NAME, 'a name of a-z, 0-9 and "-"'))]


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return text


def _some(values: tuple[T, ...]) -> tuple[T, ...]:
    if not values:
        raise ValueError("must not be empty")
    return values


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class CaseData(_Data):
    """One kind of request; with several concurrencies, a case for each."""

    name: CaseName
    question: str
    expect: Annotated[str, AfterValidator(_pattern)] | None = None
    """Regular expression that the right answer contains, ignoring case."""
    prompt_tokens: Annotated[int, Field(ge=SMALLEST)] | None = None
    """Tokens of the whole prompt, filled up by a text before the question; `None`: no text."""
    or_less: bool = False
    """Whether a profile with less room gets a shorter prompt instead of skipping the case."""
    hidden: str = ""  # sentence inserted in the middle of the text
    max_tokens: Annotated[int, Field(ge=1)]
    exact_output: bool = False  # whether the model is made to go on until `max_tokens`
    thinking: bool = False
    prefix: Prefix = Prefix.COLD
    requests: Annotated[int, Field(ge=1, le=10_000)]
    concurrency: Annotated[
        tuple[Annotated[int, Field(ge=1, le=256)], ...], AfterValidator(_some)
    ] = (1,)


class SuiteData(_Data):
    """A suite."""

    name: CaseName
    version: Annotated[int, Field(ge=1, le=MOST_TOKENS)]
    summary: str
    context: Annotated[int, Field(ge=1)] | None = None
    """Tokens of context that a profile must request; `None`: any."""
    kv_precision: str | None = None  # type of the KV cache that it must have; `None`: any
    temperature: Annotated[float, Field(ge=0)] = 0.0
    seed: int = 1
    cases: Annotated[tuple[CaseData, ...], AfterValidator(_some)]


@dataclass(frozen=True, slots=True)
class Planned:
    """A case under the conditions of one service."""

    name: str
    data: CaseData
    conditions: Conditions
