"""A driver to be put in the place of NVIDIA's, which does what a file says.

`PYTHONPATH` leads servicekit's driver child here, and `FAKE_NVML` names a JSON file, read anew at
every call:

    {"gpus": [{"uuid": …, "used": MiB, "total": MiB, "compute": {pid: MiB}, "graphics": {}}]}

With "held_by" the name of a variable, a GPU is also held by each process that has the variable in
its environment, which says how many MiB; of which it has so far only "part". "driver" is the
driver's version. With "error" the name of an NVML error, every call raises it; with "hang" a path,
every call looks that path up, and hangs where that does; "clocks" are the bits of the reasons for
lower clocks, "celsius" is the temperature; "xids" are reported as events, [code,
index of the GPU].
"""

# ruff: noqa: N801, N802, N815, N816, N818 - the names are NVML's own

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20
nvmlEventTypeXidCriticalError = 8
NVML_TEMPERATURE_GPU = 0


class NVMLError(Exception):
    """Any error of the driver."""


class NVMLError_LibraryNotFound(NVMLError):
    """There is no driver library."""


class NVMLError_DriverNotLoaded(NVMLError):
    """There is no driver."""


class NVMLError_LibRmVersionMismatch(NVMLError):
    """The driver is of another version than its library."""


class NVMLError_InvalidArgument(NVMLError):
    """There is no such GPU."""


class NVMLError_NotSupported(NVMLError):
    """The GPU cannot tell."""


class NVMLError_FunctionNotFound(NVMLError):
    """The driver is too old for the call."""


class NVMLError_GpuIsLost(NVMLError):
    """The GPU has fallen off the bus."""


class NVMLError_ResetRequired(NVMLError):
    """The GPU needs a reset."""


class NVMLError_Timeout(NVMLError):
    """Nothing happened."""


@dataclass
class Values:
    """What NVML returns as structures."""

    used: int = 0
    total: int = 0
    busId: str = ""
    pid: int = 0
    usedGpuMemory: int | None = None
    device: Any = None
    eventData: int = 0
    gpu: int = 0


def _world() -> dict[str, Any]:
    world: dict[str, Any] = json.loads(Path(os.environ["FAKE_NVML"]).read_text(encoding="utf-8"))
    if "hang" in world:
        Path(world["hang"]).exists()
    if "error" in world:
        raise globals()[f"NVMLError_{world['error']}"](f"it is {world['error']}")
    return world


def _holders(handle: dict[str, Any]) -> dict[int, int]:
    """Find who says in its environment how much it holds."""
    wanted = f"{handle['held_by']}=".encode() if "held_by" in handle else None
    held: dict[int, int] = {}
    for entry in Path("/proc").iterdir() if wanted else ():
        if entry.name.isdecimal():
            with suppress(OSError):
                for variable in (entry / "environ").read_bytes().split(b"\0"):
                    if wanted and variable.startswith(wanted):
                        mib = int(variable.removeprefix(wanted))
                        held[int(entry.name)] = int(mib * handle.get("part", 1))
    return held


def _mib(value: int | None) -> int | None:
    return None if value is None else value * MIB


def nvmlInit() -> None:
    """Set up."""
    _world()


def nvmlShutdown() -> None:
    """Tear down."""


def nvmlSystemGetDriverVersion() -> str:
    """Name the driver."""
    return str(_world().get("driver", "580.95"))


def nvmlSystemGetCudaDriverVersion_v2() -> int:
    """Tell the newest CUDA that it can serve."""
    return 13000


def nvmlDeviceGetCount() -> int:
    """Count the GPUs."""
    return len(_world()["gpus"])


def nvmlDeviceGetHandleByIndex(index: int) -> dict[str, Any]:
    """Find a GPU."""
    gpus = _world()["gpus"]
    if index >= len(gpus):
        raise NVMLError_InvalidArgument("Invalid Argument")
    gpu: dict[str, Any] = gpus[index]
    return gpu


def nvmlDeviceGetHandleByUUID(uuid: str) -> dict[str, Any]:
    """Find a GPU, or a slice of one."""
    for gpu in _world()["gpus"]:
        if gpu["uuid"] == uuid:
            found: dict[str, Any] = gpu
            return found
    raise NVMLError_InvalidArgument("Invalid Argument")


def nvmlDeviceGetUUID(handle: dict[str, Any]) -> str:
    """Name a GPU."""
    uuid: str = handle["uuid"]
    return uuid


def nvmlDeviceGetName(handle: dict[str, Any]) -> str:
    """Name its model."""
    return str(handle.get("name", "NVIDIA GeForce RTX 5090"))


def nvmlDeviceGetPciInfo(handle: dict[str, Any]) -> Values:
    """Give its address."""
    if "pci" not in handle:
        raise NVMLError_NotSupported("Not Supported")
    return Values(busId=handle["pci"])


def nvmlDeviceGetCudaComputeCapability(handle: dict[str, Any]) -> list[int]:
    """Tell what kind of code it runs."""
    if "capability" not in handle:
        raise NVMLError_NotSupported("Not Supported")
    capability: list[int] = handle["capability"]
    return capability


def nvmlDeviceGetPersistenceMode(handle: dict[str, Any]) -> int:
    """Tell whether it stays set up while nobody uses it."""
    if "persistence" not in handle:
        raise NVMLError_NotSupported("Not Supported")
    return int(handle["persistence"])


def nvmlDeviceGetUtilizationRates(handle: dict[str, Any]) -> Values:
    """Tell what part of the time it was at work."""
    if "utilisation" not in handle:
        raise NVMLError_NotSupported("Not Supported")
    return Values(gpu=handle["utilisation"])


def nvmlDeviceGetCurrentClocksEventReasons(_: dict[str, Any]) -> int:
    """Tell why its clocks are lower, as bits."""
    reasons: int = _world().get("clocks", 0)
    return reasons


def nvmlDeviceGetTemperature(_: dict[str, Any], sensor: int) -> int:
    """Tell how hot it is."""
    assert sensor == NVML_TEMPERATURE_GPU, "there is one sensor"
    if "celsius" not in (world := _world()):
        raise NVMLError_NotSupported("Not Supported")
    return int(world["celsius"])


def nvmlDeviceGetMemoryInfo(handle: dict[str, Any]) -> Values:
    """Give its memory."""
    if "used" not in handle:
        raise NVMLError_NotSupported("Not Supported")
    used = handle["used"] + sum(_holders(handle).values())
    return Values(used=used * MIB, total=handle["total"] * MIB)


def nvmlDeviceGetComputeRunningProcesses_v3(handle: dict[str, Any]) -> list[Values]:
    """List who computes on it."""
    processes = handle.get("compute", {}) | _holders(handle)
    return [Values(pid=int(pid), usedGpuMemory=_mib(mib)) for pid, mib in processes.items()]


def nvmlDeviceGetGraphicsRunningProcesses_v3(_handle: dict[str, Any]) -> list[Values]:
    """Be a driver that does not have this call."""
    raise NVMLError_FunctionNotFound("Function Not Found")


def nvmlDeviceGetGraphicsRunningProcesses_v2(handle: dict[str, Any]) -> list[Values]:
    """List who draws on it."""
    processes = handle.get("graphics", {})
    return [Values(pid=int(pid), usedGpuMemory=_mib(mib)) for pid, mib in processes.items()]


class _Events:
    """A set of events: which GPUs it is about, and how many were reported."""

    def __init__(self) -> None:
        self.uuids: set[str] = set()
        self.reported = 0


def nvmlEventSetCreate() -> _Events:
    """Begin to watch."""
    return _Events()


def nvmlDeviceRegisterEvents(handle: dict[str, Any], kind: int, events: _Events) -> None:
    """Watch a GPU."""
    if kind == nvmlEventTypeXidCriticalError:
        events.uuids.add(handle["uuid"])


def nvmlEventSetWait_v2(events: _Events, limit_ms: int) -> Values:
    """Wait for the next event."""
    end = time.monotonic() + limit_ms / 1000
    while time.monotonic() < end:
        world = _world()
        news = world.get("xids", [])[events.reported :]
        if news:
            events.reported += 1
            code, index = news[0]
            handle = world["gpus"][index]
            if handle["uuid"] in events.uuids:
                return Values(eventData=code, device=handle)
        time.sleep(0.01)
    raise NVMLError_Timeout("Timeout")
