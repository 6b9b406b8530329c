"""Checks of the Windows settings that WSL2 depends on. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from servicekit.doctor.answer import Answer, Checks, fail, ok, seen, warn
from servicekit.doctor.view import Unseen, Wsl
from servicekit.doctor.wsl import wanted
from servicekit.doctor.wsl.conf import WslKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.doctor.wsl.wanted import Wanted

GROUP: Final = "WSL"
CHECKS: Final = Checks[Wsl]()

REMEDY: Final = "`servicekit wsl render` writes a corrected file"
LIBRARY: Final = "/usr/lib/wsl/lib/"  # where Windows' driver puts its libraries for Linux

_GPU: Final = WslKey("wsl2", "gpuSupport").folded


@CHECKS.add("wsl-systemd", "systemd")
def systemd(wsl: Wsl) -> Answer:
    """wsl.conf has WSL start systemd: [boot] systemd=true."""
    return _setting(wanted.SYSTEMD, wsl.conf, "only Supervisor can start services")


@CHECKS.add("wsl-instance-idle", "instance idle")
def instance_idle(wsl: Wsl) -> Answer:
    """The distribution is not stopped without a window: [general] instanceIdleTimeout=-1."""
    return _setting(
        wanted.INSTANCE_IDLE,
        wsl.wslconfig,
        "without a window the distribution and its services stop after 15 seconds",
    )


@CHECKS.add("wsl-vm-idle", "VM idle")
def vm_idle(wsl: Wsl) -> Answer:
    """The virtual machine is not stopped: [wsl2] vmIdleTimeout=-1, which alone is not enough."""
    return _setting(
        wanted.VM_IDLE, wsl.wslconfig, "the virtual machine stops when WSL considers it idle"
    )


@CHECKS.add("wsl-memory-reclaim", "memory reclaim")
def memory_reclaim(wsl: Wsl) -> Answer:
    """The page cache is left alone: [experimental] autoMemoryReclaim=disabled."""
    return _setting(
        wanted.MEMORY_RECLAIM,
        wsl.wslconfig,
        "WSL drops the page cache when idle, and the next load reads from disk",
    )


def _setting(one: Wanted, settings: Mapping[WslKey, str] | Unseen, otherwise: str) -> Answer:
    known = seen(settings)
    value = one.value_in(known)
    shown = f"{one.key} = {value}" if value is not None else f"{one.key} is not set in {one.file}"
    if one.holds(known):
        return ok(shown)
    return warn(f"{shown}: {otherwise}", REMEDY)


@CHECKS.add("wsl-networking", "networking")
def networking(wsl: Wsl) -> Answer:
    """The networking mode is not mirrored: loopback has failed under it in several ways."""
    networking = seen(wsl.networking)
    if networking == "wsl1":
        return fail("this is WSL 1, which has no GPU", "`wsl.exe --set-version NAME 2`")
    if not wanted.NETWORKING.does(networking):
        return warn(f"networking is {networking}: loopback connections may hang or fail", REMEDY)
    return ok(f"networking is {networking}")


@CHECKS.add("wsl-keepalive", "keepalive task")
def keepalive(wsl: Wsl) -> Answer:
    """A Windows task starts the distribution at logon, without the limit of three days."""
    task = seen(wsl.task)
    name = f'"{task.name}"'
    if not task.registered:
        return warn(
            f"Windows has no task {name}: nothing starts the distribution after a boot",
            "`servicekit wsl render` writes it and shows how to register it",
        )
    if task.faults:
        return warn(
            f"the task {name} {' and '.join(task.faults)}",
            "register it again from `servicekit wsl render`",
        )
    return ok(f"the task {name} is registered")


@CHECKS.add("wsl-cuda", "CUDA library")
def library(wsl: Wsl) -> Answer:
    """Windows provides the GPU, and the loader uses the Windows driver's libcuda."""
    settings = {} if isinstance(wsl.wslconfig, Unseen) else wsl.wslconfig
    if settings.get(_GPU, "").lower() in {"false", "0"}:
        return fail("[wsl2] gpuSupport = false", "remove it from .wslconfig, `wsl.exe --shutdown`")
    if not wsl.device:
        return fail(
            "/dev/dxg is missing: Windows provides no GPU", "install NVIDIA's Windows driver"
        )
    cuda = seen(wsl.cuda)
    if cuda is None:
        return fail(
            f"libcuda.so.1 was not found; it should be in {LIBRARY}",
            "install NVIDIA's Windows driver, or run `ldconfig` as root",
        )
    if not cuda.startswith(LIBRARY):
        return fail(
            f'CUDA is "{cuda}", from a Linux driver, which finds no GPU under WSL',
            f"remove that package: WSL uses the Windows driver's library in {LIBRARY}",
        )
    return ok(cuda)
