"""Who holds a GPU's memory: ours, orphans or foreign processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from servicekit.host import procfs
from servicekit.host.gpu import xids

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping

    from servicekit.host.gpu import Device
    from servicekit.host.procfs import Stat
    from servicekit.host.xid import Xid


@dataclass(frozen=True, slots=True)
class Holders:
    """Whose a GPU's memory is, in MiB over all GPUs that were looked at."""

    engine_mib: int | None  # `None` where that is not known
    orphans: Mapping[int, int | None]  # by pid
    foreign: Mapping[int, int | None]  # by pid; 0 stands for processes outside our pid namespace
    unattributed_mib: int  # in use above the baseline, and no living process accounts for it
    baseline: Mapping[str, int] = field(default_factory=dict)
    """MiB in use without a process, by UUID: the least that was ever seen."""


def attribute(
    devices: Iterable[Device],
    *,
    engine: Collection[int] | None,
    orphans: Collection[int],
    living: Mapping[int, Stat],
    baseline: Mapping[str, int],
    whole_host: bool,
) -> Holders:
    """Attribute the memory of `devices`. Pure.

    `engine` are the live engine's pids, `None` without one; `living` is every process that can be
    seen, and `whole_host` whether that is every process there is. What the driver cannot attribute
    is judged by what is in use above `baseline`: the engine's, if there is one.
    """
    of_engine = unattributed = 0
    reported = True
    left: dict[int, int | None] = {}
    foreign: dict[int, int | None] = {}
    least = dict(baseline)
    for device in devices:
        listed = accounted = 0
        known = True
        for pid, mib in device.processes.items():
            known = known and mib is not None
            if engine is not None and pid in engine:
                listed += mib or 0
            elif pid in orphans:
                left[pid] = _sum(left.get(pid, 0), mib)
                accounted += mib or 0
            elif pid in living or not whole_host:
                owner = pid if pid in living else 0
                foreign[owner] = _sum(foreign.get(owner, 0), mib)
                accounted += mib or 0
        if device.used is None:  # memory shared with the CPU: what is free there says nothing
            of_engine += listed
            continue
        rest = max(0, device.used - accounted - listed)
        base = least.get(device.uuid)
        if engine is not None and not listed:
            # Not reported (WSL), or by a pid of another namespace: it is ours by its growth.
            reported = reported and base is not None
            of_engine += max(0, rest - (rest if base is None else base))
            continue
        of_engine += listed
        if known or engine is None:
            least[device.uuid] = min(rest, rest if base is None else base)
        unattributed += max(0, rest - least.get(device.uuid, rest))
    return Holders(of_engine if reported else None, left, foreign, unattributed, least)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def holds_gpu(
    process: Stat,
    memory: procfs.ProcessReader,
    *,
    links: Callable[[int], Iterable[str]] = procfs.links,
    threads: Callable[[int], Iterable[int]] = procfs.threads,
) -> bool:
    """Return whether a process has a GPU's memory open, even one whose leader is a zombie.

    Who only watches a GPU opens the same devices, but the unified-memory device is mapped by none
    but a CUDA context. On WSL there is one device for everything, and who has it open may hold.
    """
    opened = set(links(process.pid))
    if "/dev/dxg" in opened:
        return True
    if "/dev/nvidia-uvm" not in opened:
        return False
    paths = [f"/proc/{process.pid}/maps"]
    if process.state == "Z":
        paths = [f"/proc/{process.pid}/task/{tid}/maps" for tid in threads(process.pid)]
    return any(b"/dev/nvidia-uvm" in maps for maps in memory.read(paths).values())


def sees_whole_host() -> bool:
    """Return whether our pid namespace is the host's: its inode number is fixed in the kernel."""
    return Path("/proc/self/ns/pid").stat().st_ino == 0xEFFFFFFC  # noqa: PLR2004 - PROC_PID_INIT_INO


class GpuSight(NamedTuple):
    """What a survey asks beside the driver's list of processes."""

    whole_host: Callable[[], bool] = sees_whole_host
    holds: Callable[[Stat, procfs.ProcessReader], bool] = holds_gpu
    faults: Callable[[tuple[str, ...]], AsyncIterator[Xid]] = xids
