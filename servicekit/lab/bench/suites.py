"""Suites: what is asked, how often and under which conditions. Data, in TOML files.

An edited suite is another suite: its hash is over the file's text and the version of what makes
prompts of it, and results with different hashes are not compared.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from servicekit import data
from servicekit.errors import ExitCode, UserError
from servicekit.lab.bench import prompts
from servicekit.lab.bench.values import Conditions, Prefix, Sampling, Suite
from servicekit.lab.verify.values import MOST_TOKENS
from servicekit.profiles.findings import Finding, did_you_mean, lines_of, syntax, texts, wording
from servicekit.profiles.vocabulary import NAME, matching

if TYPE_CHECKING:
    from collections.abc import Iterator

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
class Loaded:
    """A suite that is valid, with what it is called in a result."""

    data: SuiteData
    suite: Suite


@dataclass(frozen=True, slots=True)
class Setting:
    """What a suite must know of the service that it is run on."""

    context: int
    """Tokens that the profile asks for."""
    effective: int | None
    """Tokens that one request can really use; `None` before the service is up."""
    usable: int
    """Tokens of prompt that one request may have."""
    kv_precision: str
    tells_thinking: bool
    """Whether the engine's API can turn thinking on and off."""
    forces_length: bool
    """Whether it can make the model go on until `max_tokens`."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A case as it is going to be asked."""

    name: str
    data: CaseData
    conditions: Conditions


def names() -> tuple[str, ...]:
    """Names of the suites that come with servicekit."""
    return data.names("suites")


def load(named: str) -> Loaded:
    """Load the suite called `named`, or the file that is there; raise `UserError`."""
    if "/" in named or named.endswith(".toml"):
        try:
            with Path(named).open("rb") as file:
                told = file.read(LARGEST + 1)
            if len(told) > LARGEST:
                raise UserError(f'suite "{named}" has more than {LARGEST >> 10} KiB: it is none')
            text = told.decode("utf-8")
        except UnicodeDecodeError:
            raise UserError(f'suite "{named}" is not text in UTF-8') from None
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            raise UserError(f'suite "{named}" cannot be read: {reason}') from None
        return parse(text.replace("\r\n", "\n"), where=named)
    if named not in names():
        listed = ", ".join(names())
        raise UserError(
            f'there is no suite "{named}"{did_you_mean(named, names())}',
            hint=f"there are {listed}; a file of your own is named by its path",
            code=ExitCode.USAGE,
        )
    return parse(data.read("suites", named), where=named)


def parse(text: str, *, where: str) -> Loaded:
    """Read a suite's text; `UserError` tells all that is wrong, a line each."""
    try:
        told = tomllib.loads(text)
    except ValueError as error:
        raise UserError(f'suite "{where}": {syntax(error)}', code=ExitCode.CONFIG) from None
    try:
        data = SuiteData.model_validate(told)
    except ValidationError as error:
        findings = [
            Finding(
                each["loc"],
                "is not a key that there is"
                if each["type"] == "extra_forbidden"
                else wording(each),
            )
            for each in error.errors(include_url=False)
        ]
        said = texts(findings, lines_of(text))
        message = "\n".join(f'suite "{where}": {line}' for line in said)
        raise UserError(message, code=ExitCode.CONFIG) from None
    every = [name for name, _, _ in _expanded(data)]
    twice = [name for name in every if every.count(name) > 1]
    if twice:
        message = f'suite "{where}": there are two cases "{twice[0]}"'
        raise UserError(message, code=ExitCode.CONFIG)
    told_apart = f"{prompts.VERSION}\n{text}".encode()
    digest = hashlib.sha256(told_apart).hexdigest()[:16]
    return Loaded(data, Suite(name=data.name, version=data.version, hash=digest))


def _expanded(data: SuiteData) -> Iterator[tuple[str, CaseData, int]]:
    """Give name, case and concurrency of each case."""
    for case in data.cases:
        for concurrency in case.concurrency:
            more = f"-c{concurrency}" if len(case.concurrency) > 1 else ""
            yield case.name + more, case, concurrency


def unmatched(data: SuiteData, setting: Setting) -> tuple[str, ...]:
    """Name the conditions of a suite that a profile does not meet."""
    found = []
    if data.context is not None:
        if setting.context != data.context:
            found.append(f"context {setting.context} instead of {data.context}")
        elif setting.effective is not None and setting.effective < data.context:
            found.append(f"a pool for {setting.effective} tokens instead of {data.context}")
    if data.kv_precision is not None and setting.kv_precision != data.kv_precision:
        found.append(f"KV cache {setting.kv_precision} instead of {data.kv_precision}")
    return tuple(found)


def planned(data: SuiteData, setting: Setting) -> tuple[tuple[Planned, ...], tuple[str, ...]]:
    """Give the cases that a service can be asked, and why the others are skipped."""
    cases: list[Planned] = []
    skipped: list[str] = []
    for name, case, concurrency in _expanded(data):
        room = min(setting.usable, (setting.effective or setting.context) - case.max_tokens)
        wanted = case.prompt_tokens or 0
        if case.or_less and wanted > room * SHARE:
            wanted = max(SMALLEST, int(room * SHARE))
        if wanted > room or room < SMALLEST:
            have = setting.effective or setting.context
            skipped.append(
                f"{name}: {wanted} tokens of prompt and {case.max_tokens} of answer "
                f"do not fit into {have}"
            )
            continue
        conditions = Conditions(
            context=setting.context,
            concurrency=concurrency,
            kv_precision=setting.kv_precision,
            prefix=case.prefix,
            thinking=case.thinking if setting.tells_thinking else None,
            sampling=Sampling(temperature=data.temperature, seed=data.seed),
            prompt_tokens=wanted,
            max_tokens=case.max_tokens,
            exact_output=case.exact_output and setting.forces_length,
        )
        cases.append(Planned(name, case, conditions))
    return tuple(cases), tuple(skipped)
