"""What a suite says of each of its cases."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from servicekit.lab.bench.values import Conditions, Prefix
from servicekit.lab.verify.values import MOST_TOKENS
from servicekit.profiles.vocabulary import NAME, matching

T = TypeVar("T")


SHARE: Final = 0.75
"""Part of what one request can use that a prompt takes which may be shorter than the suite says."""


LARGEST: Final = 1 << 20
"""Bytes of a suite's file that are read at most: a device would never end."""


SMALLEST: Final = 128
"""Tokens of prompt below which its length cannot be set."""


Name = Annotated[str, AfterValidator(matching(NAME, 'a name of a-z, 0-9 and "-"'))]


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return text


def _some(values: tuple[T, ...]) -> tuple[T, ...]:
    if not values:
        raise ValueError("must not be empty")
    return values


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class CaseData(_Data):
    """One kind of request; with several concurrencies, a case for each."""

    name: Name
    question: str
    expect: Annotated[str, AfterValidator(_pattern)] | None = None
    """Regular expression that the right answer holds, whatever its letters' case."""
    prompt_tokens: Annotated[int, Field(ge=SMALLEST)] | None = None
    """Tokens of the whole prompt, made up by a text before the question; without, only that."""
    or_less: bool = False
    """Whether a profile with less room takes a shorter prompt, rather than none."""
    hidden: str = ""
    """Sentence that is put into the middle of the text."""
    max_tokens: Annotated[int, Field(ge=1)]
    exact_output: bool = False
    """Whether the model must go on until `max_tokens`."""
    thinking: bool = False
    prefix: Prefix = Prefix.COLD
    requests: Annotated[int, Field(ge=1, le=10_000)]
    concurrency: Annotated[
        tuple[Annotated[int, Field(ge=1, le=256)], ...], AfterValidator(_some)
    ] = (1,)


class SuiteData(_Data):
    """A whole suite, as its file says it."""

    name: Name
    version: Annotated[int, Field(ge=1, le=MOST_TOKENS)]
    summary: str
    context: Annotated[int, Field(ge=1)] | None = None
    """Tokens of context that profiles must ask for, where the suite compares such alone."""
    kv_precision: str | None = None
    """Type of the KV cache that they must have."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    seed: int = 1
    cases: Annotated[tuple[CaseData, ...], AfterValidator(_some)]


@dataclass(frozen=True, slots=True)
class Planned:
    """A case as it is going to be asked."""

    name: str
    data: CaseData
    conditions: Conditions
