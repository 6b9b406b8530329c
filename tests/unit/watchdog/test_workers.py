"""The processes of an engine, watched one by one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

from servicekit.host import procfs
from servicekit.watchdog.workers import Workers

if TYPE_CHECKING:
    from servicekit.host.facts import Process
    from servicekit.host.procfs import Stat

LIMIT = 10.0
TRACKER = "import time; time.sleep(60)  # from multiprocessing.resource_tracker import main"


def test_the_end_of_each_process_is_seen_once() -> None:
    """A worker that ends is named; one that lives on, or is another by now, is not."""
    with (
        subprocess.Popen(["sleep", "60"]) as dies,
        subprocess.Popen(["sleep", "60"]) as lives,
    ):
        try:
            first, second = seen(dies), seen(lives)
            other = second._replace(started=second.started + 1)
            ended = asyncio.run(watched(dies, first, second, other))
            assert [process.pid for process in ended] == [first.pid]
        finally:
            dies.kill()
            lives.kill()


def test_a_helper_of_python_is_no_worker() -> None:
    """A leader is alone when its workers are gone, though Python's resource tracker is left."""
    tracker = [sys.executable, "-c", TRACKER]
    with subprocess.Popen(["sleep", "60"]) as worker, subprocess.Popen(tracker) as helper:
        try:
            both = [seen(worker), seen(helper)]
            workers = Workers(procfs.ProcessReader(), lambda _: None)
            assert not workers.left_alone(1, both[1:])
            asyncio.run(watch_and_close(workers, both))
            assert not workers.left_alone(1, both)
            assert workers.left_alone(1, both[1:])
        finally:
            worker.kill()
            helper.kill()


def seen(process: subprocess.Popen[bytes]) -> Stat:
    """Read what /proc says of a process."""
    stat = procfs.stat(process.pid)
    assert stat is not None
    return stat


async def watch_and_close(workers: Workers, members: list[Stat]) -> None:
    """Watch for no time."""
    workers.watch(members)
    workers.close()


async def watched(dies: subprocess.Popen[bytes], *members: Stat) -> list[Process]:
    """Watch these processes until one has ended."""
    ended: list[Process] = []
    one = asyncio.Event()

    def exited(process: Process) -> None:
        ended.append(process)
        one.set()

    workers = Workers(procfs.ProcessReader(), exited)
    workers.watch(members)
    dies.kill()
    async with asyncio.timeout(LIMIT):
        await one.wait()
    workers.close()
    return ended
