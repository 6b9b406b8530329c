"""Results of benchmarks on disk: one file a run, below the state directory of its profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from servicekit.host import run_files
from servicekit.lab.bench.values import BenchResult, ResultError
from servicekit.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = "bench"
LARGEST: Final = 64 << 20
"""Bytes of a file from elsewhere that are read at most; one of ours has some hundred KiB."""


def prepare(states: Path, profile: str) -> None:
    """Make the place of a profile's runs; raise `OSError` where nothing can be written there."""
    run_files.prepare(states / profile, FOLDER)


def write(states: Path, result: BenchResult) -> Path:
    """Store `result` below `states`, where each profile has a directory; give the file's path."""
    state, name = states / result.profile, f"{result.name}{run_files.SUFFIX}"
    run_files.write(state, FOLDER, name, result.as_text())
    return state / FOLDER / name


def texts(states: Path) -> dict[str, str]:
    """Read every stored run below `states`, unparsed: its text by its name, the oldest first."""
    return dict(sorted(_every(states)))


def names(states: Path) -> tuple[str, ...]:
    """Give the name of every stored run below `states`, the oldest first; none is read."""
    found = (name for state in _states(states) for name in run_files.names(state, FOLDER))
    return tuple(sorted(name.removesuffix(run_files.SUFFIX) for name in found))


def _every(states: Path) -> Iterator[tuple[str, str]]:
    for state in _states(states):
        for name, text in run_files.read(state, FOLDER):
            yield name.removesuffix(run_files.SUFFIX), text


def _states(states: Path) -> list[Path]:
    try:
        return sorted(states.iterdir())
    except FileNotFoundError:
        return []


def load(named: str, states: Path) -> BenchResult:
    """Read the run that is called `named`, or the file that is there: from another machine, say.

    Raise `ResultError` where neither is there, or is no result.
    """
    path = Path(named)
    if path.suffix == run_files.SUFFIX or "/" in named:
        return BenchResult.parse(_text(path), where=named)
    stored = texts(states)
    if named not in stored:
        raise ResultError(
            f'there is no run "{named}"{did_you_mean(named, stored)}',
            hint="`servicekit bench --list` shows the runs there are; a file is named by its path",
        )
    return BenchResult.parse(stored[named], where=named)


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise ResultError(f'there is no file "{path}"')
        if path.stat().st_size > LARGEST:
            raise ResultError(f'"{path}" has more than {LARGEST >> 20} MiB: no result of a run')
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise ResultError(f'"{path}" cannot be read: {reason}') from None
