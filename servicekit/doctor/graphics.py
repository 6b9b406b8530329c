"""Checks of the GPU: its driver, who has its memory, what it suffered. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from servicekit.doctor.answer import Answer, Inquiry, fail, ok, skip, warn
from servicekit.doctor.view import Driver, HostView, Unseen
from servicekit.host.facts import GpuView
from servicekit.host.xid import Recovery

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from servicekit.host.gpu import Device, GpuReading
    from servicekit.host.xid import Xid

GROUP: Final = "GPU"

NODES: Final = ("nvidiactl", "nvidia0", "nvidia-uvm")
"""Without the last one CUDA finds no GPU, and some engines go on without a word on the CPU."""
WORTH_TELLING: Final = 1024
"""MiB in strangers' hands that a desktop usually stays below."""


def driver(host: HostView) -> Answer:
    """Kernel module and library are of one version, and the device nodes are there."""
    if host.wsl is not None:
        return skip("under WSL the driver is Windows'")
    if isinstance(host.driver, Unseen):
        return skip(host.driver.why)
    match host.driver.module, host.driver.library:
        case None, None:
            return _without(host, "no NVIDIA driver", "install NVIDIA's driver")
        case None, _ if host.container:
            return skip("the kernel module is not to be seen from inside this container")
        case None, library:
            return fail(f"the kernel module of driver {library} is not loaded", "`modprobe nvidia`")
        case module, None:
            return fail(
                f"driver {module} is loaded, but its library libnvidia-ml.so.1 is not found",
                "install the driver's libraries of that version",
            )
        case module, library if module != library:
            return fail(
                f"the kernel runs driver {module}, and the library is of {library}",
                "reboot, so that the kernel loads the newer one",
            )
        case _:
            return _nodes(host.driver, host.account)


def _nodes(driver: Driver, account: str) -> Answer:
    absent = [f"/dev/{node}" for node in NODES if node not in driver.nodes]
    if absent:
        return fail(
            f"driver {driver.module} is loaded, but {' and '.join(absent)} is missing",
            "`nvidia-modprobe -c 0 -u` as root; a container needs the devices handed in",
        )
    if driver.closed:
        nodes = " and ".join(f"/dev/{node}" for node in driver.closed)
        return warn(f'"{account}" may not open {nodes}', "let the engine's account open them")
    return ok(f"kernel module and library are both {driver.module}")


def _without(host: HostView, what: str, remedy: str) -> Answer:
    """Say that something of a GPU is not here, which is no fault where nobody wants one."""
    if host.wants_gpu and host.subjects:
        return fail(what, remedy)
    return skip(what if host.wants_gpu else f"{what}, and no profile here wants one")


def visible(host: HostView) -> Answer:
    """The driver answers, and lists a GPU."""
    if isinstance(host.gpu, Unseen):
        return skip(host.gpu.why)
    match host.gpu.view:
        case GpuView.PRESENT if host.gpu.devices:
            names = Counter(device.name for device in host.gpu.devices)
            listed = ", ".join(
                f"{count} x {name}" if count > 1 else name for name, count in names.items()
            )
            cuda = f", CUDA up to {host.gpu.cuda}" if host.gpu.cuda else ""
            return ok(f"{listed} (driver {host.gpu.driver}{cuda})")
        case GpuView.PRESENT:
            return _without(host, "the driver knows no GPU", "see `nvidia-smi` and `dmesg`")
        case GpuView.UNRESPONSIVE:
            return fail(host.gpu.note, "reboot the host: no signal ends such a call")
        case GpuView.LOST:
            return fail(host.gpu.note, "reset the GPU or reboot the host")
        case _:
            return _without(host, host.gpu.note, "install NVIDIA's driver, or hand the GPU in")


def free(host: HostView) -> Answer:
    """Nobody but our own services has the GPU's memory."""
    look = _present(host.gpu)
    if isinstance(look, Unseen):
        return skip(look.why)
    if isinstance(host.held, Unseen):
        return skip(host.held.why)
    by_gpu = {held.gpu: held.by for held in host.held}
    told, strangers = [], []
    for index, device in enumerate(look.devices):
        holders = by_gpu.get(device.uuid, ())
        foreign = [process for process, profile in holders if profile is None]
        if foreign and _mib(device, foreign) > WORTH_TELLING:
            strangers += [f"GPU {index}: {process.named}" for process in foreign]
        told.append(_memory(device, {profile for _, profile in holders if profile}))
    if strangers:
        return warn(
            f"{'; '.join(strangers)}, in what a profile may need",
            "stop what is not needed, or make that profile smaller",
        )
    return ok("; ".join(told))


def _mib(device: Device, holders: Iterable[object]) -> int:
    """Add up what `holders` have; where the driver does not tell, it is what is in use."""
    amounts = [getattr(process, "mib", None) for process in holders]
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else device.used or 0


def _memory(device: Device, profiles: Iterable[str]) -> str:
    if device.used is None or device.total is None:
        return f"{device.name} shares its memory with the CPU"
    used = f"{device.used} of {device.total} MiB in use"
    by = ", ".join(sorted(profiles))
    return f"{used} by {by}" if by else used


def persistence(host: HostView) -> Answer:
    """The driver stays set up while nobody uses the GPU."""
    if host.wsl is not None:
        return skip("under WSL the driver is Windows'")
    look = _present(host.gpu)
    if isinstance(look, Unseen):
        return skip(look.why)
    off = [device.name for device in look.devices if device.persistence is False]
    if off:
        return warn(
            f"persistence mode is off for {', '.join(dict.fromkeys(off))}: without a process the "
            "driver is torn down, and every start pays for setting it up",
            "`systemctl enable --now nvidia-persistenced`, or `nvidia-smi -pm 1` at every boot",
        )
    if any(device.persistence for device in look.devices):
        return ok("on")
    return skip("this driver has no such mode")


def xids(host: HostView) -> Answer:
    """The GPU reported no fault since the boot."""
    if host.wsl is not None:
        return skip("under WSL the driver reports to Windows")
    if not host.wants_gpu:
        return skip("no profile here wants a GPU")
    if not isinstance(host.driver, Unseen) and not (host.driver.module or host.driver.library):
        # A container reads the log of a host whose GPUs it does not have.
        return skip("no NVIDIA driver, so that none is about a GPU of ours")
    if isinstance(host.xids, Unseen):
        return skip(host.xids.why)
    reach = "since the boot" if host.xids.whole else "as far back as the kernel's log reaches"
    if not host.xids.seen:
        return ok(f"none {reach}")
    worst = max(host.xids.seen, key=lambda xid: _GRAVITY[xid.recovery])
    said = f"{', '.join(_counted(host.xids.seen))} {reach}"
    if worst.recovery in {Recovery.RESET, Recovery.REBOOT}:
        return fail(said, f"{worst.recovery} for Xid {worst.code}, unless that was done since")
    if worst.recovery is Recovery.RESTART_APP:
        return warn(said, "a program's fault, or its engine's: look into that one's log")
    return ok(f"{said}, of no consequence")


_GRAVITY: Final = {
    recovery: gravity
    for gravity, recovery in enumerate(
        (Recovery.NONE, Recovery.RESTART_APP, Recovery.RESET, Recovery.REBOOT)
    )
}


def _counted(seen: Iterable[Xid]) -> Iterator[str]:
    for (code, gpu), count in Counter((xid.code, xid.gpu) for xid in seen).items():
        times = f"{count} times " if count > 1 else ""
        yield f"Xid {code} {times}on {gpu}"


def _present(look: GpuReading | Unseen) -> GpuReading | Unseen:
    if isinstance(look, Unseen):
        return look
    if look.view is GpuView.PRESENT and look.devices:
        return look
    return Unseen("no GPU can be asked")


INQUIRIES: Final = (
    Inquiry(
        "driver",
        "driver",
        "NVIDIA's kernel module and library are of one version, and the device nodes are there.",
        driver,
    ),
    Inquiry("gpu", "GPU", "The driver answers in time and lists a GPU.", visible),
    Inquiry(
        "gpu-memory",
        "GPU memory",
        "Nobody but servicekit's own services has the GPU's memory.",
        free,
    ),
    Inquiry(
        "persistence",
        "persistence mode",
        "The driver stays set up while no process uses the GPU.",
        persistence,
    ),
    Inquiry("xids", "Xids", "The kernel's log tells of no fault of a GPU since the boot.", xids),
)
