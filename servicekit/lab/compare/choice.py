"""Finds results by the names of runs, by profiles, or by files. Disk."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final

from servicekit.errors import UserError
from servicekit.lab.bench.result import BenchResult, ResultError
from servicekit.lab.bench.store import load, texts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

_BACK: Final = re.compile(r"(?P<profile>[^~]+)~(?P<back>[0-9]{1,3})")


def chosen(
    named: Sequence[str], suite: str | None, states: Path, profiles: Collection[str]
) -> tuple[BenchResult, ...]:
    """Read the results `named`, stored below `states` or in files.

    A profile means its latest complete run of `suite`, by default the suite of the results named
    before it; `PROFILE~1` is the run before that. `profiles` are all that exist, with or without
    runs. Raises `UserError` for what does not exist or is not a result.
    """
    return tuple(_chosen(named, suite, states, profiles))


def _chosen(
    named: Sequence[str], suite: str | None, states: Path, profiles: Collection[str]
) -> Iterator[BenchResult]:
    stored = texts(states)
    for name in named:
        match = _BACK.fullmatch(name)
        profile, back = (match["profile"], int(match["back"])) if match else (name, 0)
        result = next(islice(_complete(profile, suite, stored), back, None), None)
        if result is None and profile in profiles:
            raise _lacking(profile, suite, back)
        result = result or load(name, states)
        suite = suite or result.suite.name
        yield result


def _lacking(profile: str, suite: str | None, back: int) -> UserError:
    of_suite, option = (f' of suite "{suite}"', f" --suite {suite}") if suite else ("", "")
    before = f" {back} before its latest" if back else ""
    hint = f"measure it: `servicekit bench {profile}{option}`"
    return UserError(f'profile "{profile}" has no complete run{of_suite}{before}', hint=hint)


def _complete(profile: str, suite: str | None, stored: dict[str, str]) -> Iterator[BenchResult]:
    """Yield the profile's complete runs of `suite`, or of any suite, the latest first."""
    for name in reversed(stored):
        if f"-{profile}-" in name:
            try:
                result = BenchResult.parse(stored[name], where=name)
            except ResultError:
                continue
            if result.profile == profile and result.complete and suite in {None, result.suite.name}:
                yield result
