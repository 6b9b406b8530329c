"""Checks of the GPU: its driver, its memory, its errors. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from servicekit.doctor.answer import Answer, Checks, fail, ok, seen, skip, warn
from servicekit.doctor.view import DRIVER_NODES, Driver, HostView, Unseen
from servicekit.host.facts import GpuView
from servicekit.host.xid import Recovery

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from servicekit.host.facts import Process
    from servicekit.host.gpu import Device
    from servicekit.host.xid import Xid

GROUP: Final = "GPU"
CHECKS: Final = Checks[HostView]()

WORTH_TELLING: Final = 1024  # MiB; a desktop usually uses less
GRAVITY: Final = (Recovery.NONE, Recovery.RESTART_APP, Recovery.RESET, Recovery.REBOOT)


@CHECKS.add("driver", "driver")
def driver(host: HostView) -> Answer:
    """NVIDIA's kernel module and library are of one version, and the device nodes are there."""
    if host.wsl is not None:
        return skip("under WSL the driver belongs to Windows")
    driver = seen(host.driver)
    match driver.module, driver.library:
        case None, None:
            return _without(host, "no NVIDIA driver", "install NVIDIA's driver")
        case None, _ if host.container:
            return skip("the kernel module is not visible from inside this container")
        case None, library:
            return fail(f"the kernel module of driver {library} is not loaded", "`modprobe nvidia`")
        case module, None:
            return fail(
                f"driver {module} is loaded, but its library libnvidia-ml.so.1 is not found",
                "install the driver's libraries of that version",
            )
        case module, library if module != library:
            return fail(
                f"the kernel module is version {module}, the library version {library}",
                "reboot to load the newer kernel module",
            )
        case _:
            return _nodes(driver, host.account)


def _nodes(driver: Driver, account: str) -> Answer:
    absent = [f"/dev/{node}" for node in DRIVER_NODES if node not in driver.nodes]
    if absent:
        return fail(
            f"driver {driver.module} is loaded, but {' and '.join(absent)} is missing",
            "`nvidia-modprobe -c 0 -u` as root; in a container, pass the devices in",
        )
    if driver.closed:
        nodes = " and ".join(f"/dev/{node}" for node in driver.closed)
        return warn(
            f'"{account}" may not open {nodes}', "grant the engine's account access to them"
        )
    return ok(f"kernel module and library are both {driver.module}")


def _without(host: HostView, what: str, remedy: str) -> Answer:
    """Fail because something is missing, or skip where no profile needs a GPU."""
    if host.wants_gpu and host.subjects:
        return fail(what, remedy)
    return skip(what if host.wants_gpu else f"{what}, and no profile needs one")


@CHECKS.add("gpu", "GPU")
def visible(host: HostView) -> Answer:
    """The driver answers in time and lists a GPU."""
    reading = seen(host.gpu)
    match reading.view:
        case GpuView.PRESENT if reading.devices:
            names = Counter(device.name for device in reading.devices)
            listed = ", ".join(
                f"{count} x {name}" if count > 1 else name for name, count in names.items()
            )
            cuda = f", CUDA up to {reading.cuda}" if reading.cuda else ""
            return ok(f"{listed} (driver {reading.driver}{cuda})")
        case GpuView.PRESENT:
            return _without(host, "the driver finds no GPU", "see `nvidia-smi` and `dmesg`")
        case GpuView.UNRESPONSIVE:
            return fail(reading.note, "reboot the host: a hung driver call cannot be interrupted")
        case GpuView.LOST:
            return fail(reading.note, "reset the GPU or reboot the host")
        case _:
            return _without(
                host, reading.note, "install NVIDIA's driver, or pass the GPU into the container"
            )


@CHECKS.add("gpu-memory", "GPU memory")
def free(host: HostView) -> Answer:
    """Only servicekit's own services use GPU memory."""
    devices = _devices(host)
    by_gpu = {each.gpu: each.by for each in seen(host.held)}
    lines, foreign_names = [], []
    for index, device in enumerate(devices):
        holders = by_gpu.get(device.uuid, ())
        foreign = [process for process, profile in holders if profile is None]
        if foreign and _mib(device, foreign) > WORTH_TELLING:
            foreign_names += [f"GPU {index}: {process.named}" for process in foreign]
        lines.append(_memory(device, {profile for _, profile in holders if profile}))
    if foreign_names:
        return warn(
            f"{'; '.join(foreign_names)}, which a profile may need",
            "stop what is not needed, or choose a smaller profile",
        )
    return ok("; ".join(lines))


def _mib(device: Device, holders: Sequence[Process]) -> int:
    """Add up what `holders` use; where the driver does not report it, the GPU's total use."""
    known = [process.mib for process in holders if process.mib is not None]
    return sum(known) if len(known) == len(holders) else device.used or 0


def _memory(device: Device, profiles: Iterable[str]) -> str:
    if device.used is None or device.total is None:
        return f"{device.name} shares its memory with the CPU"
    used = f"{device.used} of {device.total} MiB in use"
    by = ", ".join(sorted(profiles))
    return f"{used} by {by}" if by else used


@CHECKS.add("persistence", "persistence mode")
def persistence(host: HostView) -> Answer:
    """The driver stays initialised while no process uses the GPU."""
    if host.wsl is not None:
        return skip("under WSL the driver belongs to Windows")
    devices = _devices(host)
    off = [device.name for device in devices if device.persistence is False]
    if off:
        return warn(
            f"persistence mode is off for {', '.join(dict.fromkeys(off))}: the driver "
            "unloads without a process, and every start initialises it again",
            "`systemctl enable --now nvidia-persistenced`, or `nvidia-smi -pm 1` at every boot",
        )
    if any(device.persistence for device in devices):
        return ok("on")
    return skip("this driver has no persistence mode")


@CHECKS.add("xids", "Xids")
def xids(host: HostView) -> Answer:
    """The kernel log has no GPU error since boot."""
    if host.wsl is not None:
        return skip("under WSL the driver reports to Windows")
    if not host.wants_gpu:
        return skip("no profile needs a GPU")
    if not isinstance(host.driver, Unseen) and not (host.driver.module or host.driver.library):
        # A container reads the log of a host whose GPUs it does not have.
        return skip("no NVIDIA driver")
    xids = seen(host.xids)
    reach = "since boot" if xids.whole else "in what is left of the kernel log"
    if not xids.seen:
        return ok(f"none {reach}")
    worst = max(xids.seen, key=lambda xid: GRAVITY.index(xid.recovery))
    said = f"{', '.join(_counted(xids.seen))} {reach}"
    if worst.recovery in {Recovery.RESET, Recovery.REBOOT}:
        return fail(said, f"{worst.recovery} for Xid {worst.code}, unless already done")
    if worst.recovery is Recovery.RESTART_APP:
        return warn(said, "an application fault; check that program's log")
    return ok(f"{said}; harmless")


def _counted(seen: Iterable[Xid]) -> Iterator[str]:
    for (code, gpu), count in Counter((xid.code, xid.gpu) for xid in seen).items():
        times = f"{count} times " if count > 1 else ""
        yield f"Xid {code} {times}on {gpu}"


def _devices(host: HostView) -> tuple[Device, ...]:
    reading = seen(host.gpu)
    present = reading.view is GpuView.PRESENT and reading.devices
    return seen(present or Unseen("no GPU is available"))
