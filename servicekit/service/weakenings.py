"""What a profile takes away from its service's protection, each with its consequence. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from servicekit.engines.options.parser import Level, Remark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.profiles.model import Profile

LOADS_CODE: Final = frozenset({"LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "PYTHONPATH"})
"""Variables that make a program load other code than its own."""


def weakenings(profile: Profile) -> Iterator[Remark]:
    """Yield what makes the service of `profile` less protected than the built-in unit."""
    service = profile.service
    if service.user == "root":
        yield _weaker("service.user", "the engine and the model's code run as root")
    for path in service.read_write:
        yield _weaker("service.read_write", f'the engine can write below "{path}"')
    for directive in service.without:
        yield _weaker("service.without", f"the unit leaves out {directive}=")
    for name in sorted(LOADS_CODE & set(profile.environment)):
        message = f"{name} makes the engine load code from elsewhere: {profile.environment[name]}"
        yield _weaker("environment", message)


def _weaker(where: str, consequence: str) -> Remark:
    return Remark(Level.WARNING, where, f"{consequence}; remove it unless you rely on it")
