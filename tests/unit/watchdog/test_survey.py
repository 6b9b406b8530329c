"""The survey as a whole: real processes and sockets, and a driver that does what a file says."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from machines.driver import CARD
from machines.waiting import wait_until

from servicekit.diagnosis.causes import Cause
from servicekit.host.facts import GpuView
from servicekit.host.gpu import Gpus, Lock
from servicekit.host.xid import Xid
from servicekit.profiles.parsing import parse
from servicekit.watchdog.adopted import AdoptedProcesses
from servicekit.watchdog.census import Census, Marker
from servicekit.watchdog.engine import EngineProcess
from servicekit.watchdog.events import SurveyResult
from servicekit.watchdog.gpu_holders import GpuSight
from servicekit.watchdog.survey import Surveyor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from machines.driver import Driver

    from servicekit.diagnosis.fault import Fault
    from servicekit.profiles.model import Profile

HOME = f"/var/lib/servicekit-{os.getpid()}/demo"
"""Where nobody else's services are: tests that run beside this one have the same names."""
MARKER = Marker("demo", "run-2", HOME)
EARLIER = Marker("demo", "run-1", HOME)
LIMIT = 10.0
SLEEP = "import time; time.sleep(600)"


def profile(port: int, *gpus: str) -> Profile:
    """Make a profile on a port, for some GPUs."""
    recipe = {
        "summary": "for a test",
        "engine": "openai",
        "executable": "/bin/true",
        "model": "owner/name",
        "served_name": "name",
        "port": port,
        "gpus": gpus,
        "context": {"requested": 1024},
    }
    return parse(recipe, name="demo", where="test")


@contextmanager
def other(program: str = SLEEP, **environment: str) -> Iterator[int]:
    """Run a process that is neither of the engine nor a child of ours."""
    leaves = "from subprocess import DEVNULL, Popen\nimport sys\n"
    leaves += "print(Popen(sys.argv[1:], stdout=DEVNULL, start_new_session=True).pid)"
    started = subprocess.run(
        [sys.executable, "-c", leaves, sys.executable, "-c", program],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        check=True,
    )
    pid = int(started.stdout)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)


def environ(pid: int) -> bytes:
    """Read a process's environment."""
    return Path(f"/proc/{pid}/environ").read_bytes()


class Scene:
    """One run's surveyor, its engine where there is one, and its driver."""

    def __init__(self, port: int, driver: Driver) -> None:
        self.driver = driver
        self.census = Census()
        self.engine: EngineProcess | None = None
        self._profile = profile(port, "0")
        self.surveyor = self._surveyor(GpuSight())

    def _surveyor(self, sight: GpuSight) -> Surveyor:
        gpus = self.driver.gpus()
        return Surveyor(self._profile, MARKER, self.census, None, gpus=gpus, sight=sight)

    def sees(self, sight: GpuSight) -> None:
        """Go on with a surveyor that sees this; what it knows of the GPU's memory stays."""
        before, self.surveyor = self.surveyor, self._surveyor(sight)
        self.surveyor.remember(before.baseline)

    def launch(self) -> int:
        """Launch an engine that holds what the driver says."""
        command = [sys.executable, "-c", SLEEP]
        self.engine = EngineProcess.launch(command, os.environ, MARKER, census=self.census)
        return self.engine.pid

    def card(self, used: int, **processes: int) -> None:
        """Let so much be in use, and these hold some of it: `p812=MiB`."""
        held = {name[1:]: mib for name, mib in processes.items()}
        self.driver.does(gpus=[{**CARD, "used": used, "compute": held, "graphics": {}}])

    def look(self) -> SurveyResult:
        """Look once, in a loop of its own."""

        async def look() -> SurveyResult:
            survey = await self.surveyor.look(self.engine)
            await self.surveyor.close()
            self.surveyor._gpus = self.driver.gpus()
            return survey

        return asyncio.run(look())

    def look_at_orphans(self) -> SurveyResult:
        """Look when an orphan has executed, before which it cannot be told from anybody."""
        seen = SurveyResult()

        def look() -> bool:
            nonlocal seen
            seen = self.look()
            return bool(seen.orphans)

        wait_until(look, LIMIT, "the orphan is found")
        return seen


@pytest.fixture
def scene(free_port: int, driver: Driver) -> Iterator[Scene]:
    """Set a scene, and end its engine."""
    scene = Scene(free_port, driver)
    scene.card(600)
    yield scene
    if scene.engine is not None:
        scene.engine.kill()
        wait_until(scene.engine.poll, LIMIT, "the engine is dead")
        scene.engine.close()


def test_a_cpu_profile_asks_no_driver(free_port: int) -> None:
    """Without GPUs there is no driver child, no lock and no fault of a GPU."""
    surveyor = Surveyor(profile(free_port), MARKER, Census(), None)

    async def story() -> None:
        assert await surveyor.look(None) == SurveyResult()
        assert [fault async for fault in surveyor.gpu_faults()] == []
        await surveyor.close()

    asyncio.run(story())


def test_what_could_not_be_known_later_is_written_down(free_port: int, tmp_path: Path) -> None:
    """An engine's process without its marker is remembered while it lives, and only that one."""
    path = tmp_path / "adopted.json"
    census, written = Census(), AdoptedProcesses(path, boot_id="boot", pid1_started=7)
    surveyor = Surveyor(profile(free_port), MARKER, census, None, adopted=written)
    program = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {SLEEP!r}], env={{}})
{SLEEP}
"""
    command = [sys.executable, "-c", program]
    engine = EngineProcess.launch(command, os.environ, MARKER, census=census)

    def known() -> set[int]:
        return {pid for pid, _ in AdoptedProcesses(path, boot_id="boot", pid1_started=7).known}

    def children() -> set[int]:
        members = surveyor.look_at_members(engine)
        return {member.pid for member in members if b"SERVICEKIT_RUN" not in environ(member.pid)}

    try:
        bare = wait_until(children, LIMIT, "it has a child without an environment")
        wait_until(
            lambda: surveyor.look_at_members(engine) and known() == bare, LIMIT, "it is known"
        )
        asyncio.run(surveyor.look(engine))
        assert known() == bare
    finally:
        engine.kill()
        wait_until(engine.poll, LIMIT, "the engine is dead")
        engine.close()
    wait_until(lambda: not asyncio.run(surveyor.look(None)).orphans, LIMIT, "nobody is left")
    assert not path.exists()


def test_nothing_is_in_the_way(scene: Scene) -> None:
    """On a free host the GPU is there, nobody holds anything, and the baseline is learnt."""
    assert scene.look() == SurveyResult(gpu=GpuView.PRESENT, engine_mib=0)
    assert scene.surveyor.baseline == {"GPU-11111111": 600}


def test_a_driver_that_is_not_there_is_told(scene: Scene) -> None:
    """The look says why there is no GPU, and the rest of the survey is made all the same."""
    scene.driver.does(error="DriverNotLoaded")
    with other(SERVICEKIT_RUN=EARLIER.value) as pid:
        survey = scene.look_at_orphans()
    assert (survey.gpu, survey.gpu_note) == (
        GpuView.ABSENT,
        "the NVIDIA driver says: it is DriverNotLoaded",
    )
    assert [process.pid for process in survey.orphans] == [pid]


def test_engine_orphan_and_foreign_process_are_distinguished(scene: Scene) -> None:
    """Everybody who holds the GPU is named with what is held, as what it is."""
    scene.look()
    engine = scene.launch()
    with other(SERVICEKIT_RUN=EARLIER.value) as orphan, other() as stranger:
        scene.card(21600, **{f"p{engine}": 18000, f"p{orphan}": 2000, f"p{stranger}": 1000})
        survey = scene.look_at_orphans()
    assert survey.engine_mib == 18000
    assert [(one.pid, one.mib) for one in survey.orphans] == [(orphan, 2000)]
    assert [(one.pid, one.mib) for one in survey.foreign] == [(stranger, 1000)]
    assert survey.unattributed_mib == 0


def test_memory_without_an_owner_is_told(scene: Scene) -> None:
    """What is in use above the baseline, and no process accounts for, has no owner."""
    scene.look()
    scene.card(9600)
    survey = scene.look()
    assert (survey.unattributed_mib, survey.foreign) == (9000, ())


def test_a_gpu_at_work_is_seen_where_the_driver_reports_it(scene: Scene) -> None:
    """A desktop's few percent are no work, and a driver that reports nothing proves nothing."""
    assert scene.look().gpu_busy is None
    for percent, busy in ((3, False), (97, True)):
        scene.driver.does(gpus=[{**CARD, "utilisation": percent}])
        assert scene.look().gpu_busy is busy


@pytest.mark.parametrize(
    ("world", "slowdown"),
    [
        ({}, ""),
        ({"clocks": 0x4}, ""),
        ({"clocks": 0x44, "celsius": 93}, "is slowed down by its temperature (at 93 C)"),
        ({"clocks": 0x80}, "is slowed down by the power supply (power brake)"),
    ],
)
def test_a_gpu_below_its_clocks_is_seen(scene: Scene, world: dict[str, int], slowdown: str) -> None:
    """Heat and a power brake are reported; a power limit is ordinary."""
    scene.driver.does(gpus=[CARD], **world)
    assert scene.look().slowdown.partition(" is ")[2] == slowdown.removeprefix("is ")


def test_a_baseline_of_earlier_runs_is_kept(scene: Scene) -> None:
    """What an earlier run found in use by nobody decides, not what an orphan now holds."""
    scene.surveyor.remember({"GPU-11111111": 600})
    scene.card(9600)
    assert scene.look().unattributed_mib == 9000


def test_a_suspect_is_named_for_memory_without_an_owner(scene: Scene) -> None:
    """Where the driver tells no pids, who has the GPU's memory open is named with the figure."""
    scene.look()
    scene.card(9600)
    with other() as suspect:
        scene.sees(GpuSight(lambda: False, lambda stat, _: stat.pid == suspect))
        survey = scene.look()
    assert [(one.pid, one.mib) for one in survey.foreign] == [(suspect, 9000)]
    assert survey.unattributed_mib == 0


def test_a_holder_outside_the_container_is_named_as_such(scene: Scene) -> None:
    """A pid that means nothing here belongs to a process that cannot be seen."""
    scene.sees(GpuSight(lambda: False))
    scene.card(9600, p4000000=9000)
    (stranger,) = scene.look().foreign
    assert stranger.named == (
        "a process that is not visible from here (outside this container, 9000 MiB)"
    )


def test_a_rival_is_named(scene: Scene) -> None:
    """Another profile that has the GPU is named; it is no stranger."""
    lock = Lock("balanced")
    assert lock.take(["GPU-11111111"]) == ""
    assert scene.look().locked_by == "balanced"
    lock.release()
    assert scene.look().locked_by == ""


def test_who_holds_the_port_is_named_unless_it_is_the_engine(scene: Scene) -> None:
    """A stranger on the port is in the way; an orphan there is an orphan."""
    port = scene.surveyor._profile.port
    with socket.create_server(("127.0.0.1", port)):
        holder = scene.look().port_holder
    assert holder is not None
    assert holder.pid == os.getpid()
    serves = f"import socket; s = socket.create_server(('127.0.0.1', {port})); {SLEEP}"
    with other(serves, SERVICEKIT_RUN=EARLIER.value) as pid:
        wait_until(lambda: _listens(port), LIMIT, "it listens")
        survey = scene.look()
    assert [one.pid for one in survey.orphans] == [pid]
    assert survey.port_holder is None


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


# Faults of the GPU.


def test_only_faults_of_our_gpu_and_our_engine_end_the_run(scene: Scene) -> None:
    """A lost GPU of ours ends the run; another GPU's, and another program's own, do not."""
    engine = scene.launch()
    ours, theirs = "0000:03:00", "0000:41:00"
    reports = [
        Xid(79, theirs),
        Xid(43, ours),
        Xid(31, ours),
        Xid(31, ours, os.getpid()),
        Xid(31, ours, engine),
        Xid(119, ours),
        Xid(79, "GPU-11111111"),
    ]

    async def reported(names: tuple[str, ...]) -> AsyncIterator[Xid]:
        assert names == ("0",)
        for report in reports:
            yield report

    scene.sees(GpuSight(faults=reported))

    async def story() -> None:
        faults = scene.surveyor.gpu_faults()
        first = asyncio.ensure_future(anext(faults))
        await asyncio.sleep(0)
        assert not first.done(), "without a driver there is nothing to report"
        await scene.surveyor.look(scene.engine)
        found: list[Fault] = [await first, *[fault async for fault in faults]]
        assert [fault.cause for fault in found] == [
            Cause.GPU_FAULT,
            Cause.GPU_LOST,
            Cause.GPU_LOST,
        ]
        survey = await scene.surveyor.look(scene.engine)
        assert (survey.gpu, survey.gpu_note) == (GpuView.LOST, "Xid 79 on GPU GPU-11111111")
        await scene.surveyor.close()

    asyncio.run(story())


def test_the_profiles_own_gpus_are_asked_about(free_port: int) -> None:
    """Without a driver given, the surveyor asks about the GPUs that the profile names."""
    surveyor = Surveyor(profile(free_port, "1", "GPU-123456"), MARKER, Census(), None)
    assert isinstance(surveyor._gpus, Gpus)
    assert surveyor._gpus.names == ("1", "GPU-123456")
