"""What the command line takes, as whole processes: as a ratio to a Python that does nothing.

All commands take turns. Processor time is compared, which hardly depends on what else the machine
does; the time that passed is shown beside it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from machines.waiting import wait_until

from benchmarks.keepers import START_LIMIT, OursUnderSupervisor
from benchmarks.table import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.machinery import Machinery

    Timed = Callable[[], "Spent"]

RUNS: Final = 15
BARE: Final = "python -c ''"
LAUNCH: Final = "watch, until the engine's wrapper runs"
# The largest ratio to a bare Python.
AIMS: Final = {"--help": 3.0, "--version": 3.0, "status": 4.0, "status PROFILE": 4.0, LAUNCH: 5.0}


class Spent(NamedTuple):
    """Seconds that a command took."""

    passed: float
    processor: float


def measure(machinery: Machinery) -> Iterator[Row]:
    """Time the commands beside one service under Supervisor."""
    ours = machinery.keep(OursUnderSupervisor(machinery.processes))
    ours.start()
    wait_until(ours.is_ready, START_LIMIT, "the service is ready")
    name = ours.profile_name
    here = [_program(), "--user", "--config", str(ours.folder / "servicekit.toml")]
    yield from _rows(
        {
            BARE: _ended([sys.executable, "-c", ""]),
            "--help": _ended([_program(), "--help"]),
            "--version": _ended([_program(), "--version"]),
            "status": _ended([*here, "status"]),
            "status PROFILE": _ended([*here, "status", name]),
            "probe PROFILE": _ended([*here, "probe", name]),
            "list": _ended([*here, "list"]),
            "render PROFILE": _ended([*here, "render", name]),
        }
    )
    ours.supervisor.ctl("stop", f"servicekit-{name}")
    yield from _rows({BARE: _ended([sys.executable, "-c", ""]), LAUNCH: _launched(ours, here)})
    ours.close()


def _program() -> str:
    return str(Path(sys.executable).with_name("servicekit"))


def _ended(argv: list[str]) -> Timed:
    """Time a command to its end."""

    def timed() -> Spent:
        began = time.monotonic()
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        passed = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{argv} exited with {process.returncode}")
        return Spent(passed, usage.ru_utime + usage.ru_stime)

    return timed


def _launched(ours: OursUnderSupervisor, here: list[str]) -> Timed:
    """Time a watchdog of the stopped service until it has launched the engine."""
    wrappers = ours.folder / "wrappers"
    plan = wrappers / f"{ours.profile_name}.plan.json"
    argv = [*here, "watch", ours.profile_name, "--plan", str(plan)]
    fifo = ours.folder / "launched"
    os.mkfifo(fifo)
    wrapper = wrappers / ours.profile_name
    wrapper.write_text(f"#!/bin/sh\necho >{shlex.quote(str(fifo))}\n", encoding="utf-8")

    def timed() -> Spent:
        ours.history.unlink(missing_ok=True)  # an earlier end would be waited for
        began = time.monotonic()
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        with fifo.open() as opened:
            opened.read()
        passed = time.monotonic() - began
        threads = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
        on_processor = sum(int(thread.read_text().split()[0]) for thread in threads)
        process.wait(START_LIMIT)
        return Spent(passed, on_processor / 1e9)

    return timed


def _rows(commands: Mapping[str, Timed]) -> Iterator[Row]:
    """Time commands in turns; give the ratio of each one's processor time to the first's."""
    spent = defaultdict(list)
    for _ in range(RUNS):
        for what, timed in commands.items():
            spent[what].append(timed())
    typical = {
        what: Spent(*(median(column) for column in zip(*each, strict=True)))
        for what, each in spent.items()
    }
    bare = typical[BARE]
    for what, each in typical.items():
        how = (
            f"medians of {RUNS}: {each.processor * 1000:.0f} ms of a core; "
            f"{each.passed * 1000:.0f} ms passed, {each.passed / bare.passed:.2f} times"
        )
        of = "" if what == BARE else "servicekit"
        ratio = each.processor / bare.processor
        yield Row(what, of, ratio, f"x {BARE}", aim=AIMS.get(what), how=how)
