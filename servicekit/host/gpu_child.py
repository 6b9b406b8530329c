"""Asks the NVIDIA driver, in a process that may be lost: a call into it can hang for ever.

A program of its own that imports nothing of servicekit. It reads one JSON object per line from
stdin and answers each with one on stdout, in order:

    {"id": 1, "gpus": ["0"]}  →  {"id": 1, "driver": "580.95", "cuda": "13.0", "devices": [{…}]}
                              or {"id": 1, "error": "…", "lost": false}

No GPU named means every one there is. With `events` as its argument and GPUs behind it, it writes
one line per Xid that the driver reports instead: {"xid": 79, "gpu": "GPU-…"}. Either way it ends
when its stdin does.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from contextlib import suppress
from typing import Any

EVENT_WAIT_MS = 2000
"""Milliseconds that one wait for events takes: how late the end of stdin may be noticed."""
MIB = 1 << 20
# NVML's reasons for lower clocks that are no ordinary ones: idleness and a power limit are.
SLOWDOWNS = {
    0x20: "its temperature",
    0x40: "its temperature",
    0x80: "the power supply (power brake)",
}


def look(nvml: Any, gpus: list[str]) -> dict[str, Any]:  # noqa: ANN401 - an untyped module
    """Read what the driver knows of `gpus` and of the processes on them."""
    every = gpus or [str(index) for index in range(nvml.nvmlDeviceGetCount())]
    cuda = ""
    with suppress(nvml.NVMLError):
        newest = nvml.nvmlSystemGetCudaDriverVersion_v2()
        cuda = f"{newest // 1000}.{newest % 1000 // 10}"
    return {
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "cuda": cuda,
        "devices": [device(nvml, gpu) for gpu in every],
    }


def device(nvml: Any, gpu: str) -> dict[str, Any]:  # noqa: ANN401 - as above
    """Read one GPU; figures in MiB, `None` where the driver has none."""
    handle = find(nvml, gpu)
    used = total = None
    # Where GPU and CPU share their memory, and in some containers, there is no such figure.
    with suppress(nvml.NVMLError_NotSupported):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        used, total = memory.used // MIB, memory.total // MIB
    pci = ""
    with suppress(nvml.NVMLError):  # a slice of a GPU (MIG) has no address of its own
        pci = nvml.nvmlDeviceGetPciInfo(handle).busId
    capability = persistence = None
    with suppress(nvml.NVMLError):
        capability = ".".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(handle)))
    with suppress(nvml.NVMLError):  # Windows, whose driver WSL uses, has no such mode
        persistence = bool(nvml.nvmlDeviceGetPersistenceMode(handle))
    utilisation = None
    with suppress(nvml.NVMLError):  # a slice of a GPU (MIG) has none
        utilisation = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    celsius = None
    with suppress(nvml.NVMLError):
        celsius = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
    return {
        "uuid": nvml.nvmlDeviceGetUUID(handle),
        "name": nvml.nvmlDeviceGetName(handle),
        "pci": pci,
        "used": used,
        "total": total,
        "processes": processes(nvml, handle),
        "capability": capability,
        "persistence": persistence,
        "utilisation": utilisation,
        "slowed_by": slowed_by(nvml, handle),
        "celsius": celsius,
    }


def slowed_by(nvml: Any, handle: Any) -> str:  # noqa: ANN401 - as above
    """Say why the GPU runs below its clocks; "" if it does not, or the driver does not say."""
    for kind in ("Event", "Throttle"):  # by the name that older drivers' bindings have, too
        with suppress(AttributeError, nvml.NVMLError):
            reasons = getattr(nvml, f"nvmlDeviceGetCurrentClocks{kind}Reasons")(handle)
            return next((words for bit, words in SLOWDOWNS.items() if reasons & bit), "")
    return ""


def find(nvml: Any, gpu: str) -> Any:  # noqa: ANN401 - as above
    """Find a GPU by its index or by its UUID, whose end may be omitted as in CUDA."""
    if gpu.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(gpu))
    if not gpu.startswith("MIG-"):
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            if nvml.nvmlDeviceGetUUID(handle).startswith(gpu):
                return handle
    return nvml.nvmlDeviceGetHandleByUUID(gpu)


def processes(nvml: Any, handle: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - as above
    """List who computes or draws on a GPU; MiB are `None` if the driver does not report them (WSL).

    The version of the call is named: the unversioned one has been filled in by drivers whose
    structures had another shape, which mixed pids and sizes up.
    """
    held: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics"):
        for process in running(nvml, handle, kind):
            mib = None if process.usedGpuMemory is None else process.usedGpuMemory // MIB
            before = held.get(process.pid, 0)
            held[process.pid] = None if mib is None or before is None else before + mib
    return [{"pid": pid, "mib": mib} for pid, mib in held.items()]


def running(nvml: Any, handle: Any, kind: str) -> Any:  # noqa: ANN401 - as above
    """Call the newest version of the process list that the driver has."""
    for version in ("v3", "v2"):
        with suppress(nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NotSupported):
            return getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses_{version}")(handle)
    return []


def answer(nvml: Any, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - as above
    """Answer one request."""
    try:
        nvml.nvmlInit()
        try:
            return look(nvml, request["gpus"])
        finally:
            with suppress(nvml.NVMLError):
                nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        lost = (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired)
        return {"error": words(nvml, error), "lost": isinstance(error, lost)}


def words(nvml: Any, error: Exception) -> str:  # noqa: ANN401 - as above
    """Say what the driver says; for a missing library, what the loader says."""
    if isinstance(error, nvml.NVMLError_LibraryNotFound):
        from ctypes import CDLL

        try:
            CDLL("libnvidia-ml.so.1")
        except OSError as why:
            return f"the NVIDIA driver's library cannot be loaded: {why}"
    return f"the NVIDIA driver says: {error}"


def serve(nvml: Any) -> None:  # noqa: ANN401 - as above
    """Answer requests until stdin ends."""
    up = False
    for line in sys.stdin:
        request = json.loads(line)
        reply = answer(nvml, request)
        # While all is well one reference to the driver is kept, so that it is not set up anew for
        # every request; after an error it is let go of, since a driver that comes back, or was
        # replaced by an update, must be loaded from the beginning.
        well = "error" not in reply
        if well is not up:
            with suppress(nvml.NVMLError):
                (nvml.nvmlInit if well else nvml.nvmlShutdown)()
            up = well
        say({"id": request["id"], **reply})


def watch(nvml: Any, gpus: list[str]) -> None:  # noqa: ANN401 - as above
    """Report Xids until stdin ends."""
    nvml.nvmlInit()
    events = nvml.nvmlEventSetCreate()
    for gpu in gpus:
        nvml.nvmlDeviceRegisterEvents(find(nvml, gpu), nvml.nvmlEventTypeXidCriticalError, events)
    while not select.select([sys.stdin], [], [], 0)[0]:
        with suppress(nvml.NVMLError_Timeout):
            event = nvml.nvmlEventSetWait_v2(events, EVENT_WAIT_MS)
            say({"xid": event.eventData, "gpu": nvml.nvmlDeviceGetUUID(event.device)})


def say(reply: dict[str, Any]) -> None:
    """Write one line at once."""
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> None:
    """Serve, or watch for events."""
    # What asks for our end is our parent's affair: it closes stdin.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    import pynvml as nvml

    with suppress(BrokenPipeError):
        if arguments[:1] == ["events"]:
            with suppress(nvml.NVMLError):  # no driver, or one without events: nothing to hear
                watch(nvml, arguments[1:])
        else:
            serve(nvml)
    # A driver that hangs in its own clean-up must not keep us: there is nothing of ours to clean.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
