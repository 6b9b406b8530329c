"""Shared memory: what a dead engine left is removed, and nothing that is anybody else's."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from machines.waiting import wait_until

from servicekit.host.procfs import ProcessReader
from servicekit.host.shared_memory import DIRECTORY, SharedMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

USES = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.write(file, bytes(4096))
held = mmap.mmap(file, 4096)
if sys.argv[2] == "mapped":
    os.close(file)
print("up", flush=True)
sys.stdin.read()
"""


class Engine:
    """A process that uses a file in shared memory."""

    def __init__(self, path: Path, how: str) -> None:
        argv = [sys.executable, "-c", USES, str(path), how]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"up\n"
        self.pid = self._process.pid

    def kill(self) -> None:
        """End it as no engine would end itself."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def path() -> Iterator[Path]:
    """Name a file in shared memory."""
    path = Path(DIRECTORY, f"psm_{secrets.token_hex(8)}")
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def engine() -> Iterator[Callable[..., Engine]]:
    """Give a function that starts a process which uses a file."""
    running: list[Engine] = []

    def start(path: Path, how: str = "open") -> Engine:
        running.append(Engine(path, how))
        return running[-1]

    yield start
    for one in running:
        one.kill()


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_what_a_dead_engine_left_is_removed(
    path: Path, engine: Callable[..., Engine], how: str
) -> None:
    """A file that its process had open, or only mapped, goes when nobody uses it any more."""
    shared = SharedMemory(ProcessReader())
    shared.begin()
    one, other = engine(path, how), engine(path, how)
    shared.look([one.pid])
    one.kill()
    assert shared.clear() == ()
    shared.look([other.pid])
    other.kill()
    assert shared.clear() == (str(path),)
    assert not path.exists()


def test_a_file_that_was_there_before_the_engine_stays(
    path: Path, engine: Callable[..., Engine]
) -> None:
    """A model that somebody keeps in memory is not the engine's, even when it writes to it."""
    path.write_bytes(b"weights")
    shared = SharedMemory(ProcessReader())
    shared.begin()
    one = engine(path)
    shared.look([one.pid])
    one.kill()
    assert shared.clear() == ()
    assert path.exists()


def test_a_file_that_is_older_than_its_user_stays(
    path: Path, engine: Callable[..., Engine]
) -> None:
    """Of an engine whose launch was not seen, only files that are younger than it are removed."""
    holder = engine(path)
    wait_until(
        lambda: time.clock_gettime(time.CLOCK_REALTIME) > path.stat().st_ctime + 0.1,
        1,
        "the clock of processes, which ticks every 0.01 s, has gone on",
    )
    with path.open("rb") as file:
        one = subprocess.Popen(["sleep", "100"], stdin=file)
    shared = SharedMemory(ProcessReader())
    shared.look([one.pid])
    one.kill()
    one.wait()
    holder.kill()
    assert shared.clear() == ()
    assert path.exists()


def test_another_file_of_the_same_name_stays(path: Path, engine: Callable[..., Engine]) -> None:
    """What was removed and made anew by somebody else is another file."""
    shared = SharedMemory(ProcessReader())
    shared.begin()
    one = engine(path)
    shared.look([one.pid])
    one.kill()
    path.rename(path.with_suffix(".old"))
    path.write_bytes(b"new")
    assert shared.clear() == ()
    assert path.exists()
    path.with_suffix(".old").unlink()
