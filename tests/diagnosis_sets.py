"""Labelled failures, and healthy logs with noise in them, for tests and for `make diagnosis`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from servicekit.diagnosis.causes import Cause, Group
from servicekit.diagnosis.verdict import diagnose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.diagnosis.reading import Reading

DIRECTORY = Path(__file__).parent / "diagnosis"


class Case(NamedTuple):
    """A failure's log, its cause, and causes that are right, too."""

    cause: Cause
    log: str
    accept: tuple[Cause, ...] = ()

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Every cause that is right."""
        return (self.cause, *self.accept)


def cases(name: str) -> list[Case]:
    """Return the failures of `tests/diagnosis/NAME.toml`."""
    document = tomllib.loads((DIRECTORY / f"{name}.toml").read_text(encoding="utf-8"))
    return [
        Case(Cause(one["cause"]), one["log"], tuple(map(Cause, one.get("accept", ()))))
        for one in document["case"]
    ]


def noisy_logs() -> Iterator[tuple[str, list[str]]]:
    """Yield healthy boots, each as it is and with each of its engine's noise in the middle."""
    document = tomllib.loads((DIRECTORY / "noise.toml").read_text(encoding="utf-8"))
    for boot in document["boot"]:
        lines = boot["log"].splitlines()
        yield boot["name"], lines
        for noise in document["noise"]:
            if boot["name"] in noise["boots"]:
                middle = len(lines) * noise.get("after", 50) // 100
                text = noise["log"].splitlines()
                yield f"{boot['name']} with {text[-1][:60]}", lines[:middle] + text + lines[middle:]


def false_cause(reading: Reading) -> Cause | None:
    """Return the cause that an engine which was killed there would wrongly get, if any."""
    found = diagnose(reading, exit_status=1).cause
    innocent = found in {Cause.UNKNOWN, Cause.ENGINE_EXIT} or found.group is Group.DEGRADED
    return None if innocent else found
