"""Who holds a real GPU: real contexts with real memory, and NVML in the disposable child.

The programs use CUDA's driver API alone, so that they need nothing but a driver.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from machines.waiting import wait_until

from servicekit.host import procfs
from servicekit.host.facts import GpuView
from servicekit.host.gpu import Gpus, XidWatch
from servicekit.profiles.parsing import parse
from servicekit.watchdog import gpu_holders
from servicekit.watchdog.census import Census, Marker, sweep
from servicekit.watchdog.engine import EngineProcess, become_subreaper, reap_adopted
from servicekit.watchdog.survey import Surveyor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servicekit.host.procfs import Stat
    from servicekit.watchdog.events import SurveyResult

pytestmark = pytest.mark.gpu

LIMIT = 30.0
"""Seconds for a context to be made or torn down; a fraction of one is usual."""
CONTEXT = 1024
"""MiB that a context takes at most by itself; 518 MiB on an H200."""
ALLOWANCE = 64
"""MiB within which figures of the driver are the same."""
HOLDS = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(MIB << 20)) == 0
print("held", flush=True)
time.sleep(600)
"""
LEAVES = """
import os, sys
child = os.fork()
if child == 0:
    os.setsid()
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
os.wait()
"""
MARKER = Marker("demo", "run-1", f"/var/lib/servicekit-{os.getpid()}/demo")


def holds(mib: int) -> str:
    """Give a program that holds so much memory of the first GPU."""
    return HOLDS.replace("MIB", str(mib))


class Card:
    """The first GPU of this machine, looked at by one run."""

    def __init__(self) -> None:
        recipe = {
            "summary": "for a test",
            "engine": "openai",
            "executable": "/bin/true",
            "model": "owner/name",
            "served_name": "name",
            "port": 18997,
            "gpus": ["0"],
            "context": {"requested": 1024},
        }
        self.census = Census()
        self.engine: EngineProcess | None = None
        self._profile = parse(recipe, name="demo", where="test")
        self._loop = asyncio.new_event_loop()
        self.gpus = Gpus(["0"])
        self.surveyor = Surveyor(self._profile, MARKER, self.census, None, gpus=self.gpus)

    def look(self) -> SurveyResult:
        """Look once."""
        return self._loop.run_until_complete(self.surveyor.look(self.engine))

    def launch(self, *argv: str) -> EngineProcess:
        """Launch an engine, and wait until it holds what it is to hold."""
        self.engine = EngineProcess.launch(
            [sys.executable, "-c", *argv], os.environ, MARKER, census=self.census
        )
        heard = b""

        def held() -> bool:
            nonlocal heard
            try:
                heard += os.read(engine.output, 1 << 16)
            except BlockingIOError:
                return False
            return b"held" in heard

        engine = self.engine
        wait_until(held, LIMIT, "the engine holds memory")
        return engine

    def close(self) -> None:
        """End everything."""
        if self.engine is not None:
            self.engine.kill()
            wait_until(self.engine.poll, LIMIT, "the engine is dead")
            self.engine.close()
        self._loop.run_until_complete(self.surveyor.close())
        self._loop.close()


@pytest.fixture
def card() -> Iterator[Card]:
    """Look at a GPU that nobody of ours holds, and so learn its baseline."""
    card = Card()
    survey = card.look()
    assert survey.gpu is GpuView.PRESENT, survey.gpu_note
    yield card
    card.close()


@pytest.fixture
def subreaper() -> Iterator[None]:
    """Be a subreaper for one test."""
    become_subreaper()
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


@contextmanager
def stranger(mib: int) -> Iterator[int]:
    """Run a process that is not ours, and holds memory."""
    leaves = "from subprocess import DEVNULL, Popen\nimport sys\n"
    leaves += "print(Popen(sys.argv[1:], stdout=DEVNULL, start_new_session=True).pid)"
    started = subprocess.run(
        [sys.executable, "-c", leaves, sys.executable, "-c", holds(mib)],
        stdout=subprocess.PIPE,
        check=True,
    )
    pid = int(started.stdout)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)


def living(pid: int) -> Stat:
    """Read a process that lives."""
    stat = procfs.stat(pid)
    assert stat is not None
    assert stat.alive
    return stat


def is_free(survey: SurveyResult) -> bool:
    """Tell whether nobody has memory, neither who is still dying nor who cannot be named."""
    return not (survey.orphans or survey.foreign) and survey.unattributed_mib <= ALLOWANCE


def timed(condition: Callable[[], bool], what: str) -> float:
    """Wait, and tell how many milliseconds that took."""
    began = time.monotonic()
    wait_until(condition, LIMIT, what)
    return (time.monotonic() - began) * 1000


def test_an_engines_memory_is_seen_and_comes_back(
    card: Card, record_property: Callable[[str, object], None]
) -> None:
    """The engine holds what it took, nobody else does, and after SIGKILL all of it comes back."""
    engine = card.launch(holds(2048))
    survey = card.look()
    assert survey.engine_mib is not None
    assert 2048 <= survey.engine_mib <= 2048 + CONTEXT
    assert (survey.foreign, survey.orphans) == ((), ())
    assert survey.unattributed_mib <= ALLOWANCE
    assert gpu_holders.holds_gpu(living(engine.pid), card.census.memory)
    engine.kill()
    card.engine = None
    back = timed(lambda: is_free(card.look()), "the memory is back")
    record_property("back_ms", round(back))
    print(f"memory back {back:.0f} ms after SIGKILL")  # noqa: T201 - a measurement
    wait_until(engine.poll, LIMIT, "the engine is dead")
    engine.close()


@pytest.mark.usefixtures("subreaper")
def test_what_a_killed_parent_leaves_on_the_gpu_is_swept(card: Card) -> None:
    """A child that survives its parent's SIGKILL is a leftover with its memory, and is swept."""
    engine = card.launch(LEAVES, holds(1024))
    os.kill(engine.pid, signal.SIGKILL)
    wait_until(engine.poll, LIMIT, "the parent is dead")
    card.engine = None
    (left,) = card.look().orphans
    assert left.mib is not None
    assert left.mib >= 1024
    sweep([left])
    timed(lambda: is_free(card.look()), "the leftover and its memory are gone")
    reap_adopted(card.census, engine)
    engine.close()


def test_a_zombie_leader_still_holds_memory(card: Card) -> None:
    """A leader that is gone, while a thread of it holds the memory, is the engine as before."""
    program = holds(512).replace("time.sleep(600)", "")
    program += """
import threading
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    engine = card.launch(program)
    wait_until(lambda: living(engine.pid).state == "Z", LIMIT, "the leader is a zombie")
    survey = card.look()
    assert survey.engine_mib is not None
    assert survey.engine_mib >= 512
    assert engine.pid in engine.members()
    assert gpu_holders.holds_gpu(living(engine.pid), card.census.memory)
    assert survey.unattributed_mib <= ALLOWANCE


def test_a_stranger_is_named_and_left_alone(card: Card) -> None:
    """Somebody else's process is named with what it holds, beside an engine and without one."""
    with stranger(512) as pid:
        wait_until(lambda: card.look().foreign, LIMIT, "the stranger is seen")
        wait_until(lambda: (card.look().foreign[0].mib or 0) >= 512, LIMIT, "it holds its memory")
        card.launch(holds(256))
        survey = card.look()
        assert [process.pid for process in survey.foreign] == [pid]
        assert survey.engine_mib is not None
        assert 256 <= survey.engine_mib <= 256 + CONTEXT
        assert survey.unattributed_mib <= ALLOWANCE


def test_our_own_child_holds_no_memory(card: Card) -> None:
    """The child that asks the driver is nobody's suspect, and ends when it is let go."""
    card.look()
    assert card.gpus._talk is not None
    pid = card.gpus._talk._child.pid
    print("our child's devices:", sorted(set(procfs.links(pid))))  # noqa: T201 - a measurement
    assert not gpu_holders.holds_gpu(living(pid), card.census.memory)
    card.gpus.close()
    wait_until(
        lambda: (stat := procfs.stat(pid)) is None or not stat.alive, LIMIT, "the child is gone"
    )


def test_a_look_is_quick(card: Card) -> None:
    """Once the child is up, a look at the driver takes milliseconds."""
    began = time.monotonic()
    for _ in range(20):
        card.look()
    each = (time.monotonic() - began) / 20 * 1000
    print(f"a survey takes {each:.1f} ms")  # noqa: T201 - a measurement
    assert each < 500


def test_xids_can_be_heard_from_the_driver() -> None:
    """The second child registers for Xids and stays; none comes from a GPU that is well."""

    async def story() -> None:
        heard: list[object] = []
        watch = XidWatch(["0"], heard.append)
        await asyncio.sleep(3)  # a child that cannot register ends at once
        assert not watch._talk.ended
        assert heard == []
        watch.close()

    asyncio.run(story())
