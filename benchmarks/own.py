"""What servicekit takes: until ready, until a crash is noticed and mended, and while idle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from machines.waiting import wait_until

from benchmarks import seen
from benchmarks.keepers import (
    LISTENED,
    START_LIMIT,
    Httpok,
    Ours,
    OursUnderSupervisor,
    OursUnderSystemd,
    OursWithGpu,
)
from benchmarks.table import Row, not_run, sampled
from servicekit.watchdog.ledger import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.keepers import Keeper
    from benchmarks.machinery import Machinery

CRASHES: Final = 5
HEALTHY: Final = 1.0
"""Seconds of service after which an earlier crash is forgotten, so that none is held off."""
LOAD: Final = 0.9
LOAD_STEP: Final = 0.037
"""Seconds by which each start of the engine takes longer than the one before: samples must not all
meet the gate at the same moment of its period."""
SETTLED: Final = 10.0
"""Seconds from ready until an idle service is measured."""
IDLE: Final = 60.0
"""Seconds for which it is measured: two completions, four surveys, twelve reads of counters."""

GATE_AIM: Final = 0.3
NOTICED_AIM: Final = 0.05
PROCESS_AIM: Final = 1.0
RSS_AIM: Final = 40.0
CPU_AIM: Final = 0.2


def ready_at(ours: Ours) -> float:
    """When the manager was told that it is ready, in seconds of wall-clock time."""
    if not isinstance(ours, OursUnderSystemd):
        return ours.records(Kind.READY)[-1].at.timestamp()
    microseconds = int(ours.machine.show(ours.unit, "ActiveEnterTimestampMonotonic"))
    wall_clock = time.clock_gettime(time.CLOCK_REALTIME) - time.monotonic()
    return microseconds / 1e6 + wall_clock


def could_answer_at(ours: Ours) -> float:
    """When the engine could answer, in seconds of wall-clock time, as it says itself."""
    url = f"http://127.0.0.1:{ours.port}/_fault"
    ask = f"import urllib.request as u; print(u.urlopen({url!r}).read().decode())"
    argv = ["python3", "-c", ask]
    if isinstance(ours, OursUnderSystemd):
        argv = ours.machine.argv(*argv)
    said = subprocess.run(argv, capture_output=True, check=True, stdin=subprocess.DEVNULL)
    return float(json.loads(said.stdout)["ready_at"])


class Crashes:
    """One service, whose engine is killed again and again."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self.gate: list[float] = []
        self.noticed: list[float] = []
        self.process: list[float] = []

    def run(self) -> None:
        """Start the service, and kill its engine `CRASHES` times."""
        self._keeper.start()
        self._ready()
        for number in range(1, CRASHES + 1):
            self._keeper.play(load=LOAD + number * LOAD_STEP)
            self._crash()
            self._ready()
        self._keeper.close()

    def _ready(self) -> None:
        keeper = self._keeper
        keeper.wait_listening()
        if isinstance(keeper, Ours):
            self.gate.append(ready_at(keeper) - could_answer_at(keeper))
        time.sleep(2 * HEALTHY)

    def _crash(self) -> None:
        keeper = self._keeper
        old = keeper.engine
        at, since_boot = datetime.now(UTC), seen.boot_time()
        os.kill(old.pid, signal.SIGKILL)
        new = keeper.wait_replaced(old, START_LIMIT)
        if new is None:
            raise RuntimeError(f"{keeper.name} starts no new engine")
        # A start time is cut to the kernel's tick of 10 ms.
        self.process.append(max(0.0, seen.started(new) - since_boot))
        if isinstance(keeper, Ours):
            # A record's time is cut to milliseconds.
            fault = keeper.records(Kind.FAULT)[-1]
            self.noticed.append(max(0.0, (fault.at - at).total_seconds()))


def services(machinery: Machinery, **changes: object) -> Iterator[Ours]:
    """A service under each manager, not started yet; under systemd where one can be booted."""
    processes = machinery.processes
    if not machinery.no_systemd:
        yield machinery.keep(OursUnderSystemd(processes, machinery.machine, changes=changes))
    yield machinery.keep(OursUnderSupervisor(processes, changes=changes))


def measure_crashes(machinery: Machinery) -> Iterator[Row]:
    """From "can answer" to ready, and from a crash to a new engine."""
    if machinery.no_systemd:
        yield not_run("crashes", OursUnderSystemd.name, machinery.no_systemd)
    quick = {"watch": {"interval": HEALTHY}, "restart": {"healthy": HEALTHY}}
    for ours in services(machinery, **quick):
        crashes = Crashes(ours)
        crashes.run()
        yield sampled("can answer -> READY=1", ours.name, crashes.gate, "s", aim=GATE_AIM)
        yield sampled("crash -> noticed", ours.name, crashes.noticed, "s", aim=NOTICED_AIM)
        yield sampled("crash -> new process", ours.name, crashes.process, "s", aim=PROCESS_AIM)
    rival = machinery.keep(Httpok(machinery.processes, LISTENED, {"load": LOAD}))
    crashes = Crashes(rival)
    crashes.run()
    yield sampled("crash -> new process", "Supervisor alone", crashes.process, "s")


def measure_idle(machinery: Machinery) -> Iterator[Row]:
    """What a watchdog costs while nobody uses its engine, everything as shipped."""
    if machinery.no_systemd:
        yield not_run("idle watchdog", OursUnderSystemd.name, machinery.no_systemd)
    idle = [*services(machinery), machinery.keep(OursWithGpu(machinery.processes))]
    for ours in idle:
        ours.start()
    for ours in idle:
        wait_until(ours.is_ready, START_LIMIT, f"{ours.name} is ready")
    time.sleep(SETTLED)
    watched = [(ours, {ours.watchdog}) for ours in idle]
    watched.append((idle[-1], seen.below(idle[-1].watchdog, without=[idle[-1].engine.pid])))
    before = [seen.cpu_seconds(processes) for _, processes in watched]
    time.sleep(IDLE)
    for (ours, processes), spent in zip(watched, before, strict=True):
        percent = (seen.cpu_seconds(processes) - spent) / IDLE * 100
        resident, divided = seen.memory(processes)
        alone = len(processes) == 1
        what = "idle watchdog" if alone else "idle watchdog and driver's child"
        how = f"PSS {divided:.1f} MiB"
        aim = RSS_AIM if alone else None
        yield Row(f"{what}, RSS", ours.name, resident, "MiB", aim=aim, how=how)
        how = f"over {IDLE:g} s: counters every 5 s, survey 15 s, completion 30 s"
        aim = CPU_AIM if alone else None
        yield Row(f"{what}, CPU", ours.name, percent, "% of a core", aim=aim, how=how)
    for ours in idle:
        ours.close()
