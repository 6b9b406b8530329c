"""The survey: who holds what a run needs.

It combines processes and sockets from /proc with what the driver reports about the GPU. A profile
without a GPU queries no driver.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from servicekit.diagnosis.causes import Cause
from servicekit.diagnosis.fault import Fault
from servicekit.host.facts import GpuView, Process
from servicekit.watchdog.ending import fault_of
from servicekit.watchdog.engine import orphans
from servicekit.watchdog.events import SurveyResult
from servicekit.watchdog.ports import port_holder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from pathlib import Path

    from servicekit.host.gpu import GpuReading, Gpus
    from servicekit.host.procfs import Stat
    from servicekit.host.xid import Xid
    from servicekit.profiles.model import Profile
    from servicekit.watchdog.adopted import AdoptedProcesses
    from servicekit.watchdog.census import Census, Marker
    from servicekit.watchdog.engine import EngineProcess
    from servicekit.watchdog.gpu_holders import GpuSight, Holders

GPU_IDLE: Final = 10  # percent of utilisation up to which a GPU does nothing but draw a desktop


class Surveyor:
    """Takes surveys for one run of `profile`; `marker` is the run's.

    `delegated` is our unit's control group where systemd delegated it; `adopted` remembers
    processes where it did not. `gpus` is made from the profile where it is not given.
    """

    def __init__(
        self,
        profile: Profile,
        marker: Marker,
        census: Census,
        delegated: Path | None,
        *,
        adopted: AdoptedProcesses | None = None,
        gpus: Gpus | None = None,
        sight: GpuSight | None = None,
    ) -> None:
        self._profile = profile
        self._marker = marker
        self._census = census
        self._delegated = delegated
        self._adopted = adopted
        self._gpus = gpus
        self._engine: EngineProcess | None = None
        self._present = asyncio.Event()
        self._addresses: tuple[str, ...] = ()
        self.baseline: dict[str, int] = {}
        """MiB that no process accounts for, by the UUID of each GPU."""
        self.processes: Mapping[int, Stat] = {}  # all processes of the last survey
        self.members: Mapping[int, Stat] = {}  # the engine's living processes among them
        if profile.gpus:
            from servicekit.host.gpu import Gpus, Lock
            from servicekit.watchdog.gpu_holders import GpuSight

            self._sight = sight or GpuSight()
            self._gpus = gpus or Gpus(profile.gpus)
            self._lock = Lock(profile.name)

    def remember(self, baseline: Mapping[str, int]) -> None:
        """Take over the baseline that earlier runs since this boot recorded."""
        self.baseline = dict(baseline)

    async def look(self, engine: EngineProcess | None) -> SurveyResult:
        """Survey the host; `engine` is the live one, and our other processes are orphans."""
        self._engine = engine
        gpu = await self._gpus.look() if self._gpus is not None else None
        self.processes = processes = self._census.look()
        self.members = engine.members(processes) if engine is not None else {}
        left = orphans(
            self._marker,
            census=self._census,
            live=engine,
            delegated=self._delegated,
            adopted=self._adopted,
            processes=processes,
        )
        self._remember(processes, {*self.members, *(process.pid for process in left)})
        # The readiness probe checks each time who holds the port of a living engine: it takes
        # milliseconds.
        holder = self._port_holder(left) if engine is None else None
        survey = SurveyResult(orphans=left, port_holder=holder)
        if gpu is None:
            return survey
        if gpu.view is not GpuView.PRESENT:
            return replace(survey, gpu=gpu.view, gpu_note=gpu.note)
        return self._with_gpu(survey, gpu, processes)

    def look_at_members(self, engine: EngineProcess) -> tuple[Stat, ...]:
        """Return the engine's processes, without the rest of a survey."""
        processes = self._census.look()
        members = engine.members(processes)
        self._remember(processes, members)
        return tuple(members.values())

    def _remember(self, processes: Mapping[int, Stat], ours: Iterable[int]) -> None:
        """Write down those of ours that the next run could not know by their marker."""
        if self._adopted is not None:
            marked = self._census.marked(processes)
            self._adopted.remember(processes[pid] for pid in ours if pid not in marked)

    def _port_holder(self, left: tuple[Process, ...]) -> Process | None:
        profile = self._profile
        holder = port_holder(profile.host, profile.port, None, self._census)
        if holder is None or holder.process is None:
            return None
        return None if holder.process.pid in {process.pid for process in left} else holder.process

    def _with_gpu(
        self, survey: SurveyResult, gpu: GpuReading, processes: Mapping[int, Stat]
    ) -> SurveyResult:
        from servicekit.watchdog.gpu_holders import attribute

        self._addresses = tuple(device.pci for device in gpu.devices if device.pci)
        self._present.set()
        living = {pid: stat for pid, stat in processes.items() if stat.alive}
        members = self.members if self._engine is not None else None
        holders = attribute(
            gpu.devices,
            engine=members,
            orphans={process.pid for process in survey.orphans},
            living=living,
            baseline=self.baseline,
            whole_host=self._sight.whole_host(),
        )
        self.baseline = dict(holders.baseline)
        ours = {*(members or ()), *(process.pid for process in survey.orphans)}
        foreign, unattributed = self._foreign(holders, ours, living)
        return replace(
            survey,
            orphans=tuple(
                replace(process, mib=holders.orphans.get(process.pid)) for process in survey.orphans
            ),
            foreign=foreign,
            locked_by=self._lock.take(device.uuid for device in gpu.devices),
            gpu=gpu.view,
            unattributed_mib=unattributed,
            gpu_busy=_busy(gpu),
            slowdown=_slowdown(gpu),
            engine_mib=holders.engine_mib,
        )

    def _foreign(
        self, holders: Holders, ours: set[int], living: Mapping[int, Stat]
    ) -> tuple[tuple[Process, ...], int]:
        """Name the foreign processes, and find one for memory the driver does not attribute."""
        named = [
            self._census.describe(living[pid], mib)
            if pid in living
            else Process(pid=0, started=0, user="", command="outside this container", mib=mib)
            for pid, mib in holders.foreign.items()
        ]
        unattributed = holders.unattributed_mib
        if unattributed > self._profile.watch.stranger_allowance:
            for suspect in self._suspects(ours | holders.foreign.keys(), living):
                named.append(self._census.describe(suspect, unattributed))
                unattributed = 0
                break
        return tuple(named), unattributed

    def _suspects(self, known: set[int], living: Mapping[int, Stat]) -> list[Stat]:
        """Find processes that have a GPU's memory open and are not in the driver's list.

        Where we see the whole host the driver lists everybody but a zombie whose threads live on;
        elsewhere (WSL, containers) the list may be empty, or have other numbers than we do.
        """
        whole, session = self._sight.whole_host(), os.getsid(0)
        return [
            stat
            for pid, stat in living.items()
            if pid not in known
            and stat.session != session
            and (stat.state == "Z" or not whole)
            and self._sight.holds(stat, self._census.memory)
        ]

    async def gpu_faults(self) -> AsyncIterator[Fault]:
        """Yield each fault of our GPUs that the kernel or the driver reports from now on.

        What only ends the program that caused it is yielded when that program is our engine.
        """
        if self._gpus is None:
            return
        from servicekit.host.xid import Recovery

        await self._present.wait()  # before that there is no driver that could report anything
        async for xid in self._sight.faults(self._gpus.names):
            fault = xid_fault(xid)
            if fault is None or not self._is_ours(xid):
                continue
            if xid.recovery is not Recovery.RESTART_APP:
                self._gpus.lost = fault.sentence
                yield fault
            elif self._engine is not None and xid.pid in self._engine.members():
                yield fault

    def _is_ours(self, xid: Xid) -> bool:
        """Return whether a report is about one of our GPUs; NVML's are, and name it by UUID."""
        from servicekit.host.xid import same_address

        by_address = ":" in xid.gpu and self._addresses
        return not by_address or any(same_address(xid.gpu, own) for own in self._addresses)

    async def close(self) -> None:
        """Close the connection to the driver and release the GPUs."""
        if self._gpus is not None:
            self._gpus.close()
            self._lock.release()


def xid_fault(xid: Xid) -> Fault | None:
    """Return the fault that ends a run after an Xid; `None` where the engine may go on."""
    from servicekit.host.xid import Recovery

    match xid.recovery:
        case Recovery.NONE:
            return None
        case Recovery.RESTART_APP:
            return fault_of(Cause.GPU_FAULT, xid.named)
        case Recovery.RESET | Recovery.REBOOT:
            remedy = f"{xid.recovery}; {Cause.GPU_LOST.remedies[1]}"
            return Fault(Cause.GPU_LOST, xid.named, remedy)


def _slowdown(gpu: GpuReading) -> str:
    slowed = next((device for device in gpu.devices if device.slowed_by), None)
    if slowed is None:
        return ""
    degrees = "" if slowed.celsius is None else f" (at {slowed.celsius} C)"
    return f"{slowed.name} is slowed down by {slowed.slowed_by}{degrees}"


def _busy(gpu: GpuReading) -> bool | None:
    used = [device.utilisation for device in gpu.devices]
    known = [percent for percent in used if percent is not None]
    if any(percent > GPU_IDLE for percent in known):
        return True
    return None if len(known) < len(used) else False
