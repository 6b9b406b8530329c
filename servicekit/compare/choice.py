"""Which results are meant: by the names of runs, by profiles, or by files. Disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servicekit.bench.store import load, texts
from servicekit.bench.values import Result, ResultError
from servicekit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path


def chosen(
    named: Sequence[str], suite: str | None, states: Path, profiles: Collection[str]
) -> tuple[Result, ...]:
    """Read what is `named`, below `states` or as a file.

    One of `profiles` is its latest complete run of `suite`; without one, of the suite of what is
    named before it. Raises `UserError` for what is not there, or is no result.
    """
    return tuple(_chosen(named, suite, states, profiles))


def _chosen(
    named: Sequence[str], suite: str | None, states: Path, profiles: Collection[str]
) -> Iterator[Result]:
    stored = texts(states)
    for name in named:
        found = _latest(name, suite, stored)
        if found is None and name in profiles:
            of_suite = f' of suite "{suite}"' if suite else ""
            option = f" --suite {suite}" if suite else ""
            raise UserError(
                f'profile "{name}" has no complete run{of_suite}',
                hint=f"`servicekit bench {name}{option}` makes one",
            )
        found = found or load(name, states)
        suite = suite or found.suite.name
        yield found


def _latest(profile: str, suite: str | None, stored: dict[str, str]) -> Result | None:
    """Give the profile's latest complete run of `suite`, or of any; passes over broken files."""
    for name in reversed(stored):
        if f"-{profile}-" in name:
            try:
                found = Result.parse(stored[name], where=name)
            except ResultError:
                continue
            if found.profile == profile and found.complete and suite in {None, found.suite.name}:
                return found
    return None
