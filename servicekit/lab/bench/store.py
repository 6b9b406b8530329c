"""Benchmark results on disk: one file per run, below the state directory of its profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from servicekit.errors import reason
from servicekit.host import run_files
from servicekit.lab.bench.result import BenchResult, ResultError
from servicekit.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = "bench"
LARGEST: Final = 64 << 20  # bytes of a file; ours have a few hundred KiB


def prepare(states: Path, profile: str) -> None:
    """Create the directory of a profile's runs; raise `OSError` if it is not writable."""
    run_files.prepare(states / profile, FOLDER)


def write(states: Path, result: BenchResult) -> Path:
    """Store `result` below `states`, in its profile's directory; return the file's path."""
    state, name = states / result.profile, f"{result.name}{run_files.SUFFIX}"
    run_files.write(state, FOLDER, name, result.as_text())
    return state / FOLDER / name


def texts(states: Path) -> dict[str, str]:
    """Read every stored run below `states`: its unparsed text by its name, the oldest first."""
    return dict(sorted(_every(states)))


def names(states: Path) -> tuple[str, ...]:
    """Return the name of every stored run below `states`, the oldest first."""
    stored = (name for state in _states(states) for name in run_files.names(state, FOLDER))
    return tuple(sorted(name.removesuffix(run_files.SUFFIX) for name in stored))


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
    """Read the run or file `named`; raise `ResultError` if there is none, or it is no result."""
    path = Path(named)
    if path.suffix == run_files.SUFFIX or "/" in named:
        return BenchResult.parse(_text(path), where=named)
    stored = texts(states)
    if named not in stored:
        raise ResultError(
            f'there is no run "{named}"{did_you_mean(named, stored)}',
            hint="`servicekit bench --list` shows the stored runs; name a file by its path",
        )
    return BenchResult.parse(stored[named], where=named)


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise ResultError(f'file "{path}" does not exist', hint="correct the path")
        if path.stat().st_size > LARGEST:
            raise ResultError(
                f'"{path}" is larger than {LARGEST >> 20} MiB: not a benchmark result'
            )
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ResultError(f'"{path}" cannot be read: {reason(error)}') from None
