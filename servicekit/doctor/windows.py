"""Checks of the Windows that WSL2 runs under. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from servicekit.doctor.answer import Answer, Inquiry, fail, ok, skip, warn
from servicekit.doctor.view import Unseen, Wsl
from servicekit.doctor.wsl import wanted
from servicekit.doctor.wsl.conf import WslKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.doctor.wsl.wanted import Wanted

GROUP: Final = "WSL"

REMEDY: Final = "`servicekit wsl render` writes the file as it should be"
LIBRARY: Final = "/usr/lib/wsl/lib/"
"""Where Windows' driver puts its libraries for Linux."""

_GPU: Final = WslKey("wsl2", "gpuSupport").folded


def systemd(wsl: Wsl) -> Answer:
    """`wsl.conf` has WSL start systemd."""
    return _setting(wanted.SYSTEMD, wsl.conf, "only a Supervisor can start services")


def instance_idle(wsl: Wsl) -> Answer:
    """The distribution is not stopped when its last window is closed."""
    return _setting(
        wanted.INSTANCE_IDLE,
        wsl.wslconfig,
        "without a window the distribution is stopped, with all services, after a quarter of a "
        "minute",
    )


def vm_idle(wsl: Wsl) -> Answer:
    """The virtual machine is not stopped when nothing seems to run."""
    return _setting(
        wanted.VM_IDLE, wsl.wslconfig, "the virtual machine is stopped when WSL finds it idle"
    )


def memory_reclaim(wsl: Wsl) -> Answer:
    """The page cache is left alone."""
    return _setting(
        wanted.MEMORY_RECLAIM,
        wsl.wslconfig,
        "WSL empties the page cache when it is idle, and the next load reads from the disk",
    )


def _setting(one: Wanted, settings: Mapping[WslKey, str] | Unseen, otherwise: str) -> Answer:
    if isinstance(settings, Unseen):
        return skip(settings.why)
    said = one.said(settings)
    shown = f"{one.key} = {said}" if said is not None else f"{one.key} is not set in {one.file}"
    if one.holds(settings):
        return ok(shown)
    return warn(f"{shown}: {otherwise}", REMEDY)


def networking(wsl: Wsl) -> Answer:
    """Loopback works: the networking mode is not mirrored."""
    if isinstance(wsl.networking, Unseen):
        return skip(wsl.networking.why)
    if wsl.networking == "wsl1":
        return fail("this is WSL 1, which has no GPU", "`wsl.exe --set-version NAME 2`")
    if not wanted.NETWORKING.does(wsl.networking):
        return warn(
            f"networking is {wsl.networking}: connections over loopback may hang or go astray",
            REMEDY,
        )
    return ok(f"networking is {wsl.networking}")


def keepalive(wsl: Wsl) -> Answer:
    """Windows starts the distribution at logon, and keeps it running."""
    if isinstance(wsl.task, Unseen):
        return skip(wsl.task.why)
    name = f'"{wsl.task.name}"'
    if not wsl.task.registered:
        return warn(
            f"Windows has no task {name}: after a boot nothing starts the distribution",
            "`servicekit wsl render` writes it, and says how to register it",
        )
    if wsl.task.faults:
        return warn(
            f"the task {name} {' and '.join(wsl.task.faults)}",
            "register it anew from `servicekit wsl render`",
        )
    return ok(f"the task {name} is registered")


def library(wsl: Wsl) -> Answer:
    """The GPU is handed in, and CUDA's library is Windows'."""
    if not isinstance(wsl.wslconfig, Unseen) and wsl.wslconfig.get(_GPU, "").lower() in {
        "false",
        "0",
    }:
        return fail("[wsl2] gpuSupport = false", "remove it from .wslconfig, `wsl.exe --shutdown`")
    if not wsl.device:
        return fail(
            "/dev/dxg is missing: Windows hands no GPU in", "install NVIDIA's Windows driver"
        )
    if isinstance(wsl.cuda, Unseen):
        return skip(wsl.cuda.why)
    if wsl.cuda is None:
        return fail(
            f"no libcuda.so.1 is found, which should be in {LIBRARY}",
            "`ldconfig` as root; is NVIDIA's Windows driver installed?",
        )
    if not wsl.cuda.startswith(LIBRARY):
        return fail(
            f'CUDA is "{wsl.cuda}", a Linux driver\'s, which finds no GPU under WSL',
            f"remove that package: the driver is Windows', its library is in {LIBRARY}",
        )
    return ok(wsl.cuda)


INQUIRIES: Final = (
    Inquiry(
        "wsl-systemd",
        "systemd",
        "wsl.conf has WSL start systemd: [boot] systemd=true.",
        systemd,
    ),
    Inquiry(
        "wsl-instance-idle",
        "instance idle",
        "The distribution is not stopped without a window: [general] instanceIdleTimeout=-1.",
        instance_idle,
    ),
    Inquiry(
        "wsl-vm-idle",
        "VM idle",
        "The virtual machine is not stopped: [wsl2] vmIdleTimeout=-1, which alone is not enough.",
        vm_idle,
    ),
    Inquiry(
        "wsl-memory-reclaim",
        "memory reclaim",
        "The page cache is left alone: [experimental] autoMemoryReclaim=disabled.",
        memory_reclaim,
    ),
    Inquiry(
        "wsl-networking",
        "networking",
        "The networking mode is not mirrored, under which loopback has failed in several ways.",
        networking,
    ),
    Inquiry(
        "wsl-keepalive",
        "keepalive task",
        "A task of Windows starts the distribution at logon, without the limit of three days.",
        keepalive,
    ),
    Inquiry(
        "wsl-cuda",
        "CUDA library",
        "The GPU is handed in, and the loader takes libcuda from Windows' driver.",
        library,
    ),
)
