"""Control groups of ours: one for the watchdog, one per engine, where systemd delegated the unit's.

A process leaves its control group only when somebody who may write to the parent's moves it:
whatever an engine starts, however it detaches itself, stays a member and dies with `cgroup.kill`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

ENGINE: Final = "engine-"  # prefix of an engine's group; the run's id follows
WATCHDOG: Final = "watchdog"


def own() -> Path | None:
    """Find our service's cgroup v2 directory; `None` where that hierarchy is not mounted.

    Once we have moved into a leaf of a delegated group, it is still the group that is meant.
    """
    try:
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    path = next((line[3:] for line in groups if line.startswith("0::")), None)
    if path is None:
        return None
    for mount in mounts:
        place, _, kind = mount.partition(" - ")
        root, where = place.split()[3:5]
        if kind.startswith("cgroup2 "):
            below = os.path.relpath(path, root) if root != "/" else path.lstrip("/")
            group = Path(where) / below
            return group.parent if group.name == WATCHDOG else group
    return None


def delegated() -> Path | None:
    """Take over our unit's control group, where systemd delegated it; else `None`.

    The watchdog itself moves into a leaf of it, so that the group is free to have other leaves. It
    is done only by the main process of a service: a group of somebody else's is not ours to divide,
    even where we are root and could.
    """
    if os.environ.get("SYSTEMD_EXEC_PID") != str(os.getpid()):
        return None
    group = own()
    if group is None or not _is_delegated(group):
        return None
    leaf = group / WATCHDOG
    try:
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text("0", encoding="ascii")
    except OSError:
        return None
    return group


def _is_delegated(group: Path) -> bool:
    """Return whether systemd marked the group, or gave it to our user, as before version 251."""
    for attribute in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            return os.getxattr(group, attribute) == b"1"
    return os.geteuid() != 0 and group.stat().st_uid == os.geteuid()


def make_engine(delegated_group: Path, run: str) -> Path:
    """Make the group of this run's engine, removing those of earlier runs that are empty."""
    for old in engines(delegated_group):
        remove(old)
    group = delegated_group / f"{ENGINE}{run}"
    group.mkdir(exist_ok=True)
    return group


def engines(delegated_group: Path) -> tuple[Path, ...]:
    """List the groups of engines, of this run and earlier ones."""
    return tuple(sorted(delegated_group.glob(f"{ENGINE}*")))


def members(group: Path) -> set[int]:
    """Name the processes in a group and in the groups below it."""
    pids: set[int] = set()
    for folder, _, _ in os.walk(group):
        with suppress(OSError):
            pids.update(map(int, Path(folder, "cgroup.procs").read_text("ascii").split()))
    return pids


def is_frozen(group: Path) -> bool:
    """Return whether the processes of a group are frozen, by it or a group above it."""
    with suppress(OSError):
        return "frozen 1" in (group / "cgroup.events").read_text("ascii")
    return False


def kill(group: Path) -> None:
    """SIGKILL every process in a group and in the groups below it (needs Linux 5.14)."""
    with suppress(OSError):
        (group / "cgroup.kill").write_text("1", encoding="ascii")


def remove(group: Path) -> None:
    """Remove a group and the groups below it, as far as they are empty."""
    for folder, _, _ in os.walk(group, topdown=False):
        with suppress(OSError):
            Path(folder).rmdir()
