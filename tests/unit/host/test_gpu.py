"""The driver asked from a distance: it may be missing, lie, die or never answer."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines.driver import CARD
from machines.waiting import wait_until
from typing_extensions import override

from servicekit.diagnosis.causes import Cause
from servicekit.host import gpu, procfs
from servicekit.host.facts import GpuView
from servicekit.host.gpu import Device, GpuReading, Gpus, Lock, XidWatch, xids
from servicekit.host.procfs import Stat
from servicekit.host.xid import KernelWatch, Recovery, Xid, same_address, xid_in
from servicekit.watchdog import gpu_holders
from servicekit.watchdog.gpu_holders import Holders, attribute
from servicekit.watchdog.survey import xid_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from machines.driver import Driver
    from machines.dstate import Stuck

LIMIT = 10.0
"""Seconds for anything that is done at once on an idle machine."""


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a story in a loop of its own."""
    asyncio.run(story())


def child_of(gpus: Gpus) -> int:
    """Give the pid of the child that asks the driver."""
    assert gpus._talk is not None
    return gpus._talk._child.pid


def looks(gpus: Gpus, count: int = 1) -> list[GpuReading]:
    """Look so many times, and let the child go."""

    async def look() -> list[GpuReading]:
        found = [await gpus.look() for _ in range(count)]
        gpus.close()
        return found

    return asyncio.run(look())


# What the driver knows.


def test_a_look_tells_memory_and_processes(driver: Driver) -> None:
    """Compute and graphics contexts of one process are added up, and figures are MiB."""
    (look,) = looks(driver.gpus("0"))
    assert look.view is GpuView.PRESENT
    assert look.driver == "580.95"
    assert look.devices == (
        Device(
            uuid="GPU-11111111",
            name="NVIDIA GeForce RTX 5090",
            pci="00000000:03:00.0",
            used=20000,
            total=32607,
            processes={812: 18100, 813: 500, 900: 200},
        ),
    )


@pytest.mark.parametrize("name", ["1", "GPU-2", "GPU-22222222", "MIG-33333333"])
def test_a_gpu_is_found_by_every_name_that_cuda_knows(name: str, driver: Driver) -> None:
    """Index, UUID, the beginning of a UUID, and a slice of a GPU name the same devices as CUDA."""
    two = {"uuid": "GPU-22222222", "used": 1, "total": 2}
    slice_of_two = {"uuid": "MIG-33333333", "used": 1, "total": 2}
    driver.does(gpus=[CARD, two, slice_of_two])
    (look,) = looks(driver.gpus(name))
    expected = slice_of_two if name.startswith("MIG") else two
    assert [device.uuid for device in look.devices] == [expected["uuid"]]
    assert look.devices[0].pci == ""


def test_what_the_driver_does_not_tell_is_none(driver: Driver) -> None:
    """WSL gives no memory per process, shared memory none per GPU: neither is taken for zero."""
    driver.does(
        gpus=[{"uuid": "GPU-1", "compute": {"79": None, "80": 3}, "graphics": {"80": None}}]
    )
    (look,) = looks(driver.gpus())
    (device,) = look.devices
    assert (device.used, device.total) == (None, None)
    assert device.processes == {79: None, 80: None}


@pytest.mark.parametrize(
    ("error", "view", "note"),
    [
        ("LibraryNotFound", GpuView.ABSENT, "the NVIDIA driver"),
        ("DriverNotLoaded", GpuView.ABSENT, "the NVIDIA driver says: it is DriverNotLoaded"),
        ("GpuIsLost", GpuView.LOST, "it is GpuIsLost"),
        ("ResetRequired", GpuView.LOST, "it is ResetRequired"),
    ],
)
def test_a_driver_that_cannot_answer_is_told_in_a_sentence(
    error: str, view: GpuView, note: str, driver: Driver
) -> None:
    """No library, no driver and a lost GPU are findings with a reason, not failures of ours."""
    driver.does(error=error)
    (look,) = looks(driver.gpus())
    assert look.view is view
    assert note in look.note
    assert look.devices == ()


def test_without_nvidia_libraries_the_gpu_is_absent() -> None:
    """On a machine without a driver the real library says so, in one sentence."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a driver")
    (look,) = looks(Gpus(["0"]))
    assert look.view is GpuView.ABSENT
    assert look.note.startswith("the NVIDIA driver's library cannot be loaded: libnvidia-ml.so.1")
    assert "\n" not in look.note


def test_a_gpu_that_is_not_there_is_absent(driver: Driver) -> None:
    """An index that the driver does not know is a finding."""
    (look,) = looks(driver.gpus("7"))
    assert (look.view, look.note) == (
        GpuView.ABSENT,
        "the NVIDIA driver says: Invalid Argument",
    )


def test_a_driver_that_comes_late_is_found(driver: Driver) -> None:
    """One child sees a driver come, go and come back, as at boot and under an update."""

    async def story() -> None:
        gpus = driver.gpus()
        seen = []
        for what in ({"error": "DriverNotLoaded"}, {"gpus": [CARD]}, {"error": "GpuIsLost"}):
            driver.does(**what)
            seen.append((await gpus.look()).view)
        driver.does(gpus=[CARD])
        first = child_of(gpus)
        seen.append((await gpus.look()).view)
        assert seen == [GpuView.ABSENT, GpuView.PRESENT, GpuView.LOST, GpuView.PRESENT]
        assert child_of(gpus) == first
        gpus.close()
        wait_until(lambda: ended(first), LIMIT, "the child ends with its stdin")

    run(story)


def ended(pid: int) -> bool:
    """Tell whether a process is dead."""
    stat = procfs.stat(pid)
    return stat is None or not stat.alive


# A driver that never answers, and children that die.


def test_a_call_that_never_returns_stalls_nothing(driver: Driver, stuck: Stuck) -> None:
    """With the child stuck in the kernel the loop turns, no second child comes, and all can end."""
    driver.does(gpus=[CARD], hang=str(stuck.path))

    async def story() -> None:
        gpus = driver.gpus(limit=0.3)
        loop = asyncio.get_running_loop()
        turned = 0

        def turn() -> None:
            nonlocal turned
            turned += 1
            loop.call_later(0.01, turn)

        turn()
        first = await gpus.look()
        pid = child_of(gpus)
        second = await gpus.look()
        assert turned >= 30
        assert (first.view, second.view) == (GpuView.UNRESPONSIVE, GpuView.UNRESPONSIVE)
        assert first.note == "a call into the NVIDIA driver has not returned for 0 s"
        assert child_of(gpus) == pid
        # Not even SIGKILL ends it, and nobody waits for that.
        stuck.wait()
        os.kill(pid, 9)
        wait_until(lambda: (s := procfs.stat(pid)) and s.state == "D", LIMIT, "it is stuck")
        assert (await gpus.look()).view is GpuView.UNRESPONSIVE
        gpus.close()
        assert not ended(pid)
        stuck.release()
        wait_until(lambda: ended(pid), LIMIT, "released, it dies")
        assert gpus._talk is not None
        assert gpus._talk._child.poll() is not None

    run(story)


def test_an_answer_that_comes_late_makes_the_child_useful_again(
    driver: Driver, tmp_path: Path
) -> None:
    """A slow call is not taken for the answer to a later question, and the child is kept."""
    fifo = tmp_path / "slow"
    os.mkfifo(fifo)
    slow = f"""
import json, sys
for number, line in enumerate(sys.stdin):
    if number == 0:
        open({str(fifo)!r}).close()
    reply = {{"driver": str(number), "cuda": "", "devices": []}}
    print(json.dumps({{"id": json.loads(line)["id"], **reply}}))
    sys.stdout.flush()
"""

    async def story() -> None:
        gpus = Gpus(["0"], command=[sys.executable, "-c", slow], limit=0.2)
        assert (await gpus.look()).view is GpuView.UNRESPONSIVE
        first = child_of(gpus)
        fifo.open("w").close()
        gpus._limit = LIMIT
        waiting = await gpus.look()
        assert (waiting.view, waiting.driver) == (GpuView.PRESENT, "0")
        assert (await gpus.look()).driver == "1"
        assert child_of(gpus) == first
        gpus.close()

    del driver
    run(story)


def test_looks_at_the_same_time_share_one_question() -> None:
    """The readiness probe and the survey may look at once; the driver is asked once."""
    counts = "import json, sys\nfor n, line in enumerate(sys.stdin):\n"
    counts += (
        ' print(json.dumps({"id": n + 1, "driver": str(n), "cuda": "", "devices": []}), flush=True)'
    )

    async def story() -> None:
        gpus = Gpus(["0"], command=[sys.executable, "-c", counts], limit=LIMIT)
        found = await asyncio.gather(gpus.look(), gpus.look(), gpus.look())
        assert [look.driver for look in found] == ["0", "0", "0"]
        gpus.close()

    run(story)


def test_a_child_that_dies_is_replaced_but_not_at_once() -> None:
    """A library that crashes its process is reported, and asked again after a while only."""

    async def story() -> None:
        command = [sys.executable, "-c", "import os; input(); os.abort()"]
        gpus = Gpus(["0"], command=command, limit=LIMIT)
        first = await gpus.look()
        pid = child_of(gpus)
        assert first.view is GpuView.ABSENT
        assert first.note.startswith("the process that queries the NVIDIA driver exited")
        again = await gpus.look()
        assert (again.view, again.note) == (
            GpuView.ABSENT,
            "the process that queries the NVIDIA driver keeps exiting",
        )
        assert child_of(gpus) == pid
        gpus.close()
        gpus = Gpus(["0"], command=command, limit=LIMIT, ask_again=0.0)
        await gpus.look()
        pid = child_of(gpus)
        await gpus.look()
        assert child_of(gpus) != pid
        gpus.close()

    run(story)


def test_a_child_that_cannot_be_started_is_a_finding() -> None:
    """Without the program that asks there is no GPU, and no failure."""
    (look,) = looks(Gpus(["0"], command=["/nonexistent"]))
    assert look.view is GpuView.ABSENT
    assert "cannot query" in look.note


def test_words_that_are_none_are_passed_over() -> None:
    """What a library prints on stdout is not taken for an answer."""
    chats = 'import sys; input(); print("NVRM: hello"); print("""{"id": 1, "error": "no"}""")'
    (look,) = looks(Gpus(["0"], command=[sys.executable, "-c", chats]))
    assert (look.view, look.note) == (GpuView.ABSENT, "no")


@pytest.mark.parametrize("reply", ['"devices": [{"of": "tomorrow"}]', '"driver": "580"'])
def test_an_answer_of_another_version_is_no_failure(reply: str) -> None:
    """After an update under a running service its child may speak differently: no GPU is seen."""
    says = f"input(); print('{{\"id\": 1, {reply}}}')"
    (look,) = looks(Gpus(["0"], command=[sys.executable, "-c", says]))
    assert look.view is GpuView.ABSENT
    assert "cannot parse the reply" in look.note


def test_a_gpu_that_is_known_to_be_lost_is_not_asked_again() -> None:
    """After a fatal Xid the driver is left alone."""
    gpus = Gpus(["0"], command=["/nonexistent"])
    gpus.lost = "Xid 79"
    (look,) = looks(gpus)
    assert (look.view, look.note) == (GpuView.LOST, "Xid 79")


# Xids.


def test_xids_come_from_the_driver_where_the_log_is_closed(driver: Driver) -> None:
    """A second child reports what the driver reports of our GPUs, and of no other."""
    other = {**CARD, "uuid": "GPU-22222222"}
    driver.does(gpus=[CARD, other])

    async def story() -> None:
        heard: asyncio.Queue[Xid] = asyncio.Queue()
        watch = XidWatch(["0"], heard.put_nowait, environment=driver.environment)
        driver.does(gpus=[CARD, other], xids=[[13, 1], [79, 0], [31, 0]])
        async with asyncio.timeout(LIMIT):
            assert await heard.get() == Xid(79, "GPU-11111111")
            assert await heard.get() == Xid(31, "GPU-11111111")
        pid = watch._talk._child.pid
        watch.close()
        watch.close()
        wait_until(lambda: ended(pid), LIMIT, "the child ends with its stdin")

    run(story)


def test_a_driver_without_events_is_no_failure(driver: Driver) -> None:
    """Where there is nothing to hear, nothing is heard, and the child is gone."""
    driver.does(error="DriverNotLoaded")

    async def story() -> None:
        heard: list[Xid] = []
        watch = XidWatch(["0"], heard.append, environment=driver.environment)
        async with asyncio.timeout(LIMIT):
            while not watch._talk.ended:  # noqa: ASYNC110 - the end of a process, not a task
                await asyncio.sleep(0.01)
        assert heard == []

    run(story)


@pytest.fixture
def kernel() -> Callable[[str], None]:
    """Write messages into the kernel's log."""
    if not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        pytest.skip("the kernel's log is closed to us")

    def say(message: str) -> None:
        Path("/dev/kmsg").write_text(f"<7>{message}\n", encoding="ascii")

    return say


LOST_LINE = (
    "NVRM: Xid (PCI:0000:03:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)


def test_xids_come_from_the_kernels_log(kernel: Callable[[str], None]) -> None:
    """A message of the kernel's real log is heard at once, and what was there before is not."""
    kernel("NVRM: Xid (PCI:0000:09:00): 31, of the past")

    async def story() -> None:
        heard = xids(["0"])
        first = asyncio.ensure_future(anext(heard))
        await asyncio.sleep(0)
        kernel("nothing of interest")
        kernel(LOST_LINE)
        async with asyncio.timeout(LIMIT):
            assert (await first).code == 79
        await heard.aclose()

    run(story)


def test_a_log_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    """Whoever asks for the kernel's log and may not read it is told, and can ask the driver."""

    async def story() -> None:
        with pytest.raises(OSError, match="absent"):
            KernelWatch(print, log=str(tmp_path / "absent"))

    run(story)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (LOST_LINE, Xid(79, "0000:03:00", None, "GPU has fallen off the bus.")),
        (
            "NVRM: Xid (PCI:0000:41:00): 31, pid=4711, name=python3, Ch 00000008, intr 1000",
            Xid(31, "0000:41:00", 4711, "Ch 00000008, intr 1000"),
        ),
        ("NVRM: Xid (PCI:0000:41:00): 45, pid='99', name=x", Xid(45, "0000:41:00", 99, "")),
        ("NVRM: GPU at PCI:0000:41:00: GPU-1", None),
        ("usb 1-1: new device", None),
    ],
)
def test_an_xid_is_read_from_a_message(message: str, expected: Xid | None) -> None:
    """Code, GPU and process are told apart in the kernel's words."""
    assert xid_in(message) == expected


@pytest.mark.parametrize(
    ("code", "recovery", "cause"),
    [
        (31, Recovery.RESTART_APP, Cause.GPU_FAULT),
        (119, Recovery.RESET, Cause.GPU_LOST),
        (79, Recovery.REBOOT, Cause.GPU_LOST),
        (43, Recovery.NONE, None),
        (9999, Recovery.NONE, None),
    ],
)
def test_what_an_xid_asks_for(code: int, recovery: Recovery, cause: Cause | None) -> None:
    """A program's own fault is a restart, a lost GPU is for an operator, the rest is nothing."""
    xid = Xid(code, "0000:03:00", text="x")
    fault = xid_fault(xid)
    assert xid.recovery is recovery
    assert (fault.cause if fault else None) is cause
    if fault:
        assert fault.sentence == f"Xid {code} on GPU 0000:03:00: x"
        assert fault.remedy


def test_addresses_are_compared_by_what_they_mean() -> None:
    """NVML and the kernel spell the same address in different ways."""
    assert same_address("00000000:03:00.0", "0000:03:00")
    assert not same_address("0000:03:00", "0000:41:00")


# Whose memory it is.

BASE = {"GPU-1": 600}


def card(used: int | None, **processes: int | None) -> Device:
    """Make a device; processes are named `p812=MiB`."""
    held = {int(name[1:]): mib for name, mib in processes.items()}
    return Device("GPU-1", "", "", used, 32607, held)


def living(*pids: int) -> dict[int, Stat]:
    """Make such processes alive."""
    return {pid: Stat(pid, "x", "S", 1, pid, pid, 1, 1, 0) for pid in pids}


def attributed(
    device: Device,
    engine: set[int] | None = None,
    *,
    orphans: tuple[int, ...] = (),
    alive: tuple[int, ...] = (1, 812, 900),
    baseline: dict[str, int] | None = None,
    whole_host: bool = True,
) -> Holders:
    """Say whose the memory of one device is."""
    return attribute(
        [device],
        engine=engine,
        orphans=orphans,
        living=living(*alive),
        baseline=BASE if baseline is None else baseline,
        whole_host=whole_host,
    )


def test_the_first_look_without_an_engine_is_the_baseline() -> None:
    """What is in use by nobody before the launch is what an idle driver uses."""
    held = attributed(card(1600, p900=1000), baseline={})
    assert held == Holders(0, {}, {900: 1000}, 0, {"GPU-1": 600})


def test_the_least_that_was_seen_is_the_baseline() -> None:
    """Memory that an orphan holds does not become what an idle driver uses."""
    held = attributed(card(20600))
    assert (held.unattributed_mib, held.baseline) == (20000, {"GPU-1": 600})
    assert attributed(card(500)).baseline == {"GPU-1": 500}


def test_the_engine_and_strangers_are_told_apart() -> None:
    """Memory is the engine's, a stranger's or an orphan's by pid."""
    held = attributed(card(20600, p812=18000, p900=500, p77=1500), {812}, orphans=(77,))
    assert held == Holders(18000, {77: 1500}, {900: 500}, 0, BASE)


def test_an_engine_that_fell_back_to_the_cpu_holds_nothing() -> None:
    """Listed or not, an engine under which nothing grew holds no memory of the GPU."""
    assert attributed(card(600), {812}).engine_mib == 0


def test_a_dead_holder_leaves_its_memory_to_nobody() -> None:
    """A pid in the driver's list that does not live is nobody, where we see every process."""
    held = attributed(card(20600, p4711=20000))
    assert (held.foreign, held.unattributed_mib) == ({}, 20000)


def test_in_a_container_an_unknown_pid_is_outside() -> None:
    """Where pids are the host's, a holder that cannot be found lives outside, and is a stranger."""
    held = attributed(card(20600, p4711=20000), whole_host=False)
    assert (held.foreign, held.unattributed_mib) == ({0: 20000}, 0)


@pytest.mark.parametrize("device", [card(20600), card(20600, p79=None)])
def test_without_figures_the_engine_holds_what_came_with_it(device: Device) -> None:
    """On WSL the engine's memory is what is in use above the baseline, and so is an orphan's."""
    assert attributed(device, {812}, whole_host=False).engine_mib == 20000
    assert attributed(device, {812}, whole_host=False).unattributed_mib == 0
    assert attributed(device, None, whole_host=False).unattributed_mib == 20000
    unknown = attributed(device, {812}, baseline={}, whole_host=False)
    assert (unknown.engine_mib, unknown.baseline) == (None, {})


def test_a_listed_engine_without_figures_does_not_move_the_baseline() -> None:
    """Figures that are partly missing prove nothing about what nobody uses."""
    held = attributed(card(20600, p812=18000, p900=None), {812}, baseline={})
    assert (held.foreign, held.baseline, held.unattributed_mib) == ({900: None}, {}, 0)


def test_shared_memory_is_judged_by_the_process_list_alone() -> None:
    """Where GPU and CPU share memory, what is free on the GPU does not exist as a figure."""
    held = attributed(card(None, p812=18000), {812})
    assert held == Holders(18000, {}, {}, 0, BASE)
    assert attributed(card(None)).unattributed_mib == 0


@given(
    st.integers(0, 40000),
    st.dictionaries(st.sampled_from([812, 900, 77, 4711]), st.none() | st.integers(0, 40000)),
    st.none() | st.just({812}),
    st.sampled_from(["host", "container"]),
)
def test_no_memory_is_counted_twice(
    used: int, processes: dict[int, int | None], engine: set[int] | None, seen: str
) -> None:
    """Whatever the driver says, nothing is negative, and no more is attributed than is in use."""
    device = Device("GPU-1", "", "", used, 40000, processes)
    held = attributed(device, engine, orphans=(77,), whole_host=seen == "host")
    listed = sum(mib or 0 for mib in processes.values())
    told = [held.engine_mib or 0, held.unattributed_mib]
    told += [mib or 0 for mib in (*held.orphans.values(), *held.foreign.values())]
    assert min(told) >= 0
    assert sum(told) <= max(used, listed)
    assert held.baseline["GPU-1"] <= BASE["GPU-1"]


@pytest.mark.parametrize(
    ("links", "maps", "state", "holds"),
    [
        (["/dev/null"], "", "S", "no"),
        (["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"], "/dev/nvidiactl", "S", "no"),
        (["/dev/nvidia-uvm"], "rw-s 00000000 00:06 142 /dev/nvidia-uvm", "S", "yes"),
        (["/dev/nvidia-uvm"], "rw-s 00000000 00:06 142 /dev/nvidia-uvm", "Z", "yes"),
        (["/dev/dxg"], "", "S", "yes"),
    ],
)
def test_who_only_watches_a_gpu_does_not_hold_it(
    links: list[str], maps: str, state: str, holds: str
) -> None:
    """A process is a suspect when it has mapped a GPU's memory, not when it looks at a GPU."""

    class Read(procfs.ProcessReader):
        @override
        def read(self, paths: Sequence[str]) -> dict[str, bytes]:
            assert [path.startswith("/proc/1/task/") for path in paths] == [state == "Z"]
            return dict.fromkeys(paths, maps.encode())

    process = Stat(1, "x", state, 0, 1, 1, 2, 1, 0)
    held = gpu_holders.holds_gpu(
        process, Read(), links=lambda _: iter(links), threads=lambda _: (7,)
    )
    assert held is (holds == "yes")


# One profile per GPU.


def test_a_gpu_is_kept_for_one_profile_as_long_as_it_lives() -> None:
    """A second profile is told who has the GPU; the lock dies with its process."""
    program = """
from servicekit.host.gpu import Lock
lock = Lock("balanced")
assert lock.take(["GPU-test"]) == ""
print("taken", flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        lock = Lock("long-context")
        assert lock.take(["GPU-other", "GPU-test"]) == "balanced"
        holder.kill()
    assert lock.take(["GPU-other", "GPU-test"]) == ""
    assert lock.take(["GPU-test"]) == "", "taking it again changes nothing"
    assert Lock("mtp").take(["GPU-test"]) == "long-context"
    lock.release()
    after = Lock("mtp")
    assert after.take(["GPU-test"]) == ""
    after.release()


def test_a_holder_without_a_name_is_another_profile() -> None:
    """A lock whose holder has not said its name yet is held all the same."""
    assert gpu._lock_holder("GPU-of-nobody") == "another profile"
