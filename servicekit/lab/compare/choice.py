"""Which results are meant: by the names of runs, by profiles, or by files. Disk."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final

from servicekit.errors import UserError
from servicekit.lab.bench.store import load, texts
from servicekit.lab.bench.values import BenchResult, ResultError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

_BACK: Final = re.compile(r"(?P<profile>[^~]+)~(?P<back>[0-9]{1,3})")


def chosen(
    named: Sequence[str], suite: str | None, states: Path, profiles: Collection[str]
) -> tuple[BenchResult, ...]:
    """Read what is `named`, below `states` or as a file.

    A profile is its latest complete run of `suite`, without one of the suite of what is named
    before it; `PROFILE~1` is the one before that, and so on. Raises `UserError` for what is not
    there, or is no result. `profiles` are those that exist, whether they have runs or not.
    """
    return tuple(_chosen(named, suite, states, profiles))


def _chosen(
    named: Sequence[str], suite: str | None, states: Path, profiles: Collection[str]
) -> Iterator[BenchResult]:
    stored = texts(states)
    for name in named:
        match = _BACK.fullmatch(name)
        profile, back = (match["profile"], int(match["back"])) if match else (name, 0)
        found = next(islice(_complete(profile, suite, stored), back, None), None)
        if found is None and profile in profiles:
            raise _lacking(profile, suite, back)
        found = found or load(name, states)
        suite = suite or found.suite.name
        yield found


def _lacking(profile: str, suite: str | None, back: int) -> UserError:
    of_suite, option = (f' of suite "{suite}"', f" --suite {suite}") if suite else ("", "")
    before = f" {back} before its latest" if back else ""
    hint = f"`servicekit bench {profile}{option}` makes one"
    return UserError(f'profile "{profile}" has no complete run{of_suite}{before}', hint=hint)


def _complete(profile: str, suite: str | None, stored: dict[str, str]) -> Iterator[BenchResult]:
    """Give the profile's complete runs of `suite`, or of any, the latest first.

    Files that are no result are passed over.
    """
    for name in reversed(stored):
        if f"-{profile}-" in name:
            try:
                found = BenchResult.parse(stored[name], where=name)
            except ResultError:
                continue
            if found.profile == profile and found.complete and suite in {None, found.suite.name}:
                yield found
