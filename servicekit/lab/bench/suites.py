"""Suites: what is asked, how often and under which conditions, in TOML files. Disk.

An edited suite is another suite: its hash covers the file's text and the version of `prompts`, and
results with different hashes are not compared.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from servicekit import data
from servicekit.errors import ExitCode, UserError, reason
from servicekit.lab.bench import prompts
from servicekit.lab.bench.cases import LARGEST, SHARE, SMALLEST, CaseData, Planned, SuiteData
from servicekit.lab.bench.samples import Conditions, Sampling, Suite
from servicekit.profiles.findings import Finding, lines_of, syntax, texts, wording
from servicekit.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class LoadedSuite:
    """A valid suite, with its identity in a result."""

    data: SuiteData
    suite: Suite


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """What a suite must know about the service under test."""

    context: int  # tokens that the profile requests
    effective: int | None  # tokens that one request can really use; `None` before the service runs
    usable: int  # prompt tokens that one request may have
    kv_precision: str
    tells_thinking: bool  # whether the engine's API can turn thinking on and off
    forces_length: bool  # whether the API can make the model go on until `max_tokens`


def names() -> tuple[str, ...]:
    return data.names("suites")


def load(named: str) -> LoadedSuite:
    if "/" in named or named.endswith(".toml"):
        try:
            with Path(named).open("rb") as file:
                content = file.read(LARGEST + 1)
            if len(content) > LARGEST:
                raise UserError(f'suite file "{named}" is larger than {LARGEST >> 10} KiB')
            text = content.decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f'cannot read suite file "{named}": {reason(error)}') from None
        return parse(text.replace("\r\n", "\n"), where=named)
    if named not in names():
        listed = ", ".join(names())
        raise UserError(
            f'there is no suite "{named}"{did_you_mean(named, names())}',
            hint=f"use one of {listed}, or the path of a file",
            code=ExitCode.USAGE,
        )
    return parse(data.read("suites", named), where=named)


def parse(text: str, *, where: str) -> LoadedSuite:
    """Read a suite's text; `UserError` lists everything that is wrong, one line each."""
    try:
        content = tomllib.loads(text)
    except ValueError as error:
        raise UserError(f'suite "{where}": {syntax(error)}', code=ExitCode.CONFIG) from None
    try:
        data = SuiteData.model_validate(content)
    except ValidationError as error:
        findings = [
            Finding(
                each["loc"],
                "unknown key" if each["type"] == "extra_forbidden" else wording(each),
            )
            for each in error.errors(include_url=False)
        ]
        lines = texts(findings, lines_of(text))
        message = "\n".join(f'suite "{where}": {line}' for line in lines)
        raise UserError(message, code=ExitCode.CONFIG) from None
    every = [name for name, _, _ in _expanded(data)]
    twice = [name for name in every if every.count(name) > 1]
    if twice:
        message = f'suite "{where}": there are two cases "{twice[0]}"'
        raise UserError(message, code=ExitCode.CONFIG)
    digest = hashlib.sha256(f"{prompts.VERSION}\n{text}".encode()).hexdigest()[:16]
    return LoadedSuite(data, Suite(name=data.name, version=data.version, hash=digest))


def _expanded(data: SuiteData) -> Iterator[tuple[str, CaseData, int]]:
    for case in data.cases:
        for concurrency in case.concurrency:
            more = f"-c{concurrency}" if len(case.concurrency) > 1 else ""
            yield case.name + more, case, concurrency


def unmatched(data: SuiteData, service: ServiceLimits) -> tuple[str, ...]:
    """Name the conditions of a suite that a profile does not meet."""
    differences: list[str] = []
    if data.context is not None:
        if service.context != data.context:
            differences.append(f"context {service.context} instead of {data.context}")
        elif service.effective is not None and service.effective < data.context:
            differences.append(f"a pool for {service.effective} tokens instead of {data.context}")
    if data.kv_precision is not None and service.kv_precision != data.kv_precision:
        differences.append(f"KV cache {service.kv_precision} instead of {data.kv_precision}")
    return tuple(differences)


def planned(data: SuiteData, service: ServiceLimits) -> tuple[tuple[Planned, ...], tuple[str, ...]]:
    """Return the cases that a service can run, and why the others are skipped."""
    cases: list[Planned] = []
    skipped: list[str] = []
    for name, case, concurrency in _expanded(data):
        room = min(service.usable, (service.effective or service.context) - case.max_tokens)
        wanted = case.prompt_tokens or 0
        if case.or_less and wanted > room * SHARE:
            wanted = max(SMALLEST, int(room * SHARE))
        if wanted > room or room < SMALLEST:
            have = service.effective or service.context
            skipped.append(
                f"{name}: {wanted} prompt tokens and {case.max_tokens} answer tokens "
                f"do not fit in {have}"
            )
            continue
        conditions = Conditions(
            context=service.context,
            concurrency=concurrency,
            kv_precision=service.kv_precision,
            prefix=case.prefix,
            thinking=case.thinking if service.tells_thinking else None,
            sampling=Sampling(temperature=data.temperature, seed=data.seed),
            prompt_tokens=wanted,
            max_tokens=case.max_tokens,
            exact_output=case.exact_output and service.forces_length,
        )
        cases.append(Planned(name, case, conditions))
    return tuple(cases), tuple(skipped)
