"""What keeps model servers alive, side by side: the same faults, at the same time, as shipped.

Each way of keeping an engine is set up four times, and each of the four meets one thing: a crash
that leaves a child behind, a server that stands still, a server that answers everything but
completions, and prompts of a minute, after which it is left alone and what it costs is measured.
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Final

from benchmarks import seen
from benchmarks.keepers import (
    LISTENED,
    NOTHING,
    Httpok,
    Monit,
    OursUnderSupervisor,
    OursUnderSystemd,
    PlainUnit,
    find_monit,
)
from benchmarks.table import Row, not_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.keepers import Keeper
    from benchmarks.machinery import Machinery

GENERATES: Final = "/health_generate"
"""SGLang's check that makes a token."""
WITHIN: Final = 230.0
"""Seconds after which a hang is called never found."""
HANG_AIM: Final = 30.0 + max(30.0, 180.0) + 1.0
"""`watch.interval` + max(`probe.deadline`, `watch.stall`) + 1 s, as shipped."""
CRASH_WITHIN: Final = 150.0
PREFILL: Final = 60.0
PROMPTS: Final = 2
BETWEEN: Final = 10.0
"""Seconds from one prompt to the next: who looks every minute for ten seconds must meet one."""
TURN: Final = 6.0
"""Seconds between two crashes: each is to be measured by itself."""
IDLE: Final = 60.0
SETTLED: Final = 5.0
AT_ONCE: Final = 3
"""Services that are being started at a time."""

CRASH: Final = "crash -> new process"
LEFT: Final = "child left behind by a crash"
FULL: Final = "server stands still -> new process"
GENERATION: Final = "completions hang -> new process"
KILLS: Final = f"kills during {PROMPTS} prompts of {PREFILL:g} s"
MEMORY: Final = "idle, RSS beside the engine"
CPU: Final = "idle, CPU beside the engine"
ORDER: Final = (CRASH, LEFT, FULL, GENERATION, KILLS, MEMORY, CPU)


@dataclass(frozen=True)
class Way:
    """One way of keeping an engine, to be set up as often as it is needed."""

    name: str
    ours: str
    """Which of ours it is compared with."""
    make: Callable[[Mapping[str, object]], Keeper]


class Trials:
    """What is done to each of the keepers, to all at the same time."""

    def __init__(self) -> None:
        self._turns = count()
        self._lock = Lock()

    def of(self, way: Way) -> Iterator[tuple[Keeper, Callable[[Keeper], list[Row]]]]:
        """The four trials of one way, with a keeper for each."""
        yield way.make({"orphan": True}), self.crash
        yield way.make(NOTHING), self._stand_still
        yield way.make(NOTHING), self._hang
        yield way.make({"slots": 1}), self._prefill

    @staticmethod
    def _replaced(keeper: Keeper, what: str, do: Callable[[int], object], within: float) -> Row:
        """Do something to the engine, and take the time until there is a new one."""
        old, at = keeper.engine, seen.boot_time()
        do(old.pid)
        new = keeper.wait_replaced(old, within)
        if new is None:
            return Row(what, keeper.name, None, "s", said=f"never (within {within:g} s)")
        return Row(what, keeper.name, seen.started(new) - at, "s")

    def crash(self, keeper: Keeper) -> list[Row]:
        """Kill the engine, which has a child that would outlive it."""
        with self._lock:
            turn = next(self._turns)
        time.sleep(turn * TURN)
        at = seen.boot_time()
        row = self._replaced(keeper, CRASH, lambda pid: os.kill(pid, signal.SIGKILL), CRASH_WITHIN)
        if row.value is not None:
            keeper.wait_listening()
        left = len(keeper.orphans(at))
        return [row, Row(LEFT, keeper.name, left, "")]

    def _stand_still(self, keeper: Keeper) -> list[Row]:
        return [self._replaced(keeper, FULL, lambda pid: os.kill(pid, signal.SIGSTOP), WITHIN)]

    def _hang(self, keeper: Keeper) -> list[Row]:
        return [
            self._replaced(keeper, GENERATION, lambda _: keeper.tell(completion="hang"), WITHIN)
        ]

    def _prefill(self, keeper: Keeper) -> list[Row]:
        engine, kills = keeper.engine, 0
        for _ in range(PROMPTS):
            keeper.tell(prefill=PREFILL)
            over = time.monotonic() + PREFILL + BETWEEN
            while new := keeper.wait_replaced(engine, max(0.0, over - time.monotonic())):
                engine = new
                kills += 1
                keeper.wait_listening()
        return [Row(KILLS, keeper.name, kills, ""), *self._idle(keeper)]

    def _idle(self, keeper: Keeper) -> list[Row]:
        residents = keeper.residents()
        before = seen.cpu_seconds(residents)
        time.sleep(IDLE)
        percent = (seen.cpu_seconds(residents) - before) / IDLE * 100
        resident, divided = seen.memory(residents)
        how = f"{len(residents)} processes, PSS {divided:.1f} MiB"
        return [
            Row(MEMORY, keeper.name, resident, "MiB", how=how),
            Row(CPU, keeper.name, percent, "% of a core", how=f"over {IDLE:g} s"),
        ]


def ways(machinery: Machinery) -> Iterator[Way | Row]:
    """All that are compared, ours first; a row for one that cannot be run here."""
    processes, why_not = machinery.processes, machinery.no_systemd
    numbers = count()
    ours, plain, supervised = OursUnderSystemd.name, PlainUnit.name, OursUnderSupervisor.name
    if why_not:
        yield from (not_run("side by side", name, why_not) for name in (ours, plain))
    else:
        machine = machinery.machine
        yield Way(
            ours,
            ours,
            lambda script: OursUnderSystemd(
                processes, machine, f"bench-{next(numbers)}", script=script
            ),
        )
        yield Way(plain, ours, partial(PlainUnit, processes, machine))
    yield Way(supervised, supervised, lambda script: OursUnderSupervisor(processes, script=script))
    for path in (LISTENED, GENERATES):
        name = f"Supervisor + httpok {path}"
        yield Way(name, supervised, partial(Httpok, processes, path))
    monit = find_monit(machinery.folder)
    if monit is None:
        yield not_run("side by side", Monit.name, "monit is not installed")
    else:
        yield Way(Monit.name, ours, partial(Monit, processes, monit))


def measure(machinery: Machinery) -> Iterator[Row]:
    """Do everything to everybody, and compare."""
    every = []
    for way in ways(machinery):
        if isinstance(way, Row):
            yield way
        else:
            every.append(way)
    trials = Trials()
    prepared = [
        (machinery.keep(keeper), trial) for way in every for keeper, trial in trials.of(way)
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(_started, (keeper for keeper, _ in prepared)))
    time.sleep(SETTLED)
    with ThreadPoolExecutor(len(prepared)) as pool:
        running = [pool.submit(_tried, keeper, trial) for keeper, trial in prepared]
        rows = [row for future in running for row in future.result()]
    yield from compared(rows, every)


def _started(keeper: Keeper) -> None:
    keeper.start()
    keeper.wait_listening()


def _tried(keeper: Keeper, trial: Callable[[Keeper], list[Row]]) -> list[Row]:
    rows = trial(keeper)
    keeper.close()
    return rows


def compared(rows: Sequence[Row], every: Sequence[Way]) -> Iterator[Row]:
    """Order the rows by what was measured, and set each beside its aim or beside ours."""
    found = {(row.what, row.of): row for row in rows}
    aims = {LEFT: 0.0, FULL: HANG_AIM, GENERATION: HANG_AIM, KILLS: 0.0}
    for what in ORDER:
        for way in every:
            row = found.get((what, way.name))
            if row is None:
                continue
            if way.name == way.ours:
                yield replace(row, aim=aims.get(what))
                continue
            ours = found.get((what, way.ours))
            if row.value is not None and ours is not None and ours.value:
                row = replace(row, times=row.value / ours.value)
            yield row
