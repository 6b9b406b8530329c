"""Suites: what is asked, how often and under which conditions. Data, in TOML files.

An edited suite is another suite: its hash is over the file's text and the version of what makes
prompts of it, and results with different hashes are not compared.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from servicekit import data
from servicekit.errors import ExitCode, UserError
from servicekit.lab.bench import prompts
from servicekit.lab.bench.cases import LARGEST, SHARE, SMALLEST, CaseData, Planned, SuiteData
from servicekit.lab.bench.values import Conditions, Sampling, Suite
from servicekit.profiles.findings import Finding, lines_of, syntax, texts, wording
from servicekit.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class LoadedSuite:
    """A suite that is valid, with what it is called in a result."""

    data: SuiteData
    suite: Suite


@dataclass(frozen=True, slots=True)
class ServiceLimits:
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


def names() -> tuple[str, ...]:
    """Names of the suites that come with servicekit."""
    return data.names("suites")


def load(named: str) -> LoadedSuite:
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


def parse(text: str, *, where: str) -> LoadedSuite:
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
    return LoadedSuite(data, Suite(name=data.name, version=data.version, hash=digest))


def _expanded(data: SuiteData) -> Iterator[tuple[str, CaseData, int]]:
    """Give name, case and concurrency of each case."""
    for case in data.cases:
        for concurrency in case.concurrency:
            more = f"-c{concurrency}" if len(case.concurrency) > 1 else ""
            yield case.name + more, case, concurrency


def unmatched(data: SuiteData, setting: ServiceLimits) -> tuple[str, ...]:
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


def planned(data: SuiteData, setting: ServiceLimits) -> tuple[tuple[Planned, ...], tuple[str, ...]]:
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
