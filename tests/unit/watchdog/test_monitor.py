"""Why an engine ended: its log, the way it ended, and what the kernel counted, weighed together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from plans import profile

from servicekit.diagnosis.causes import Cause
from servicekit.host.child import ExitStatus
from servicekit.watchdog.events import Progressed
from servicekit.watchdog.evidence import OomProof
from servicekit.watchdog.monitor import EngineMonitor

if TYPE_CHECKING:
    from collections.abc import Callable

    from servicekit.diagnosis.fault import Fault
    from servicekit.watchdog.events import Event

OURS = OomProof("the OOM killer killed a process in this service's control group", own=True)
SOMEBODYS = OomProof("the OOM killer killed a process on this host at that time", own=False)
KILLED = ExitStatus(signal=9)
ENDED = ExitStatus(signal=15)
CRASHED = ExitStatus(signal=11)
FAILED = ExitStatus(code=1)
SGLANG, VLLM, LLAMACPP = "dspark", "mtp", "demo"

NOTHING = ""
WORKER = (
    "[2026-11-30 08:33:27] Subprocess sglang::scheduler (pid=4711) crashed with exit code -9. "
    "Triggering SIGQUIT for cleanup...\n"
)
SIGQUIT = "[2026-11-30 08:33:27] Received sigquit from a child process.\n"
CORE = (
    "(APIServer pid=8030) ERROR 11-30 07:31:32 [core_client.py:600] Engine core proc "
    "EngineCore_DP0 died unexpectedly, shutting down client.\n"
)
NO_NETWORK = "httpx.ConnectError: [Errno -3] Temporary failure in name resolution\n"
OUT_OF_VRAM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.42 GiB.\n"


def _monitor(name: str, log: str, post: Callable[[Event], None] = lambda _: None) -> EngineMonitor:
    """Return the monitor of an engine that printed `log`."""

    async def no_gpu() -> bool | None:
        return None

    monitor = EngineMonitor(
        profile(name),
        post,
        api_key=None,
        port_holder=lambda: None,
        holds_vram=no_gpu,
    )
    monitor.read(log.encode())
    return monitor


def why(name: str, log: str, status: ExitStatus, oom: OomProof | None) -> Fault:
    """Have an engine that printed `log` end by `status`, while the kernel counted `oom`."""
    return _monitor(name, log).why(status, oom)


@pytest.mark.parametrize(
    ("name", "log", "status", "oom", "cause"),
    [
        # A process of the service was killed for its memory: that is why, whatever echoes follow.
        (LLAMACPP, NOTHING, KILLED, OURS, Cause.OOM_KILL),
        (LLAMACPP, NOTHING, FAILED, OURS, Cause.OOM_KILL),
        (SGLANG, WORKER + SIGQUIT, KILLED, OURS, Cause.OOM_KILL),
        (VLLM, CORE, FAILED, OURS, Cause.OOM_KILL),
        (VLLM, NO_NETWORK, KILLED, OURS, Cause.OOM_KILL),
        # Where only the host counts, one of the engine's own must have been killed.
        (LLAMACPP, NOTHING, KILLED, SOMEBODYS, Cause.OOM_KILL),
        (VLLM, CORE, FAILED, SOMEBODYS, Cause.OOM_KILL),
        (LLAMACPP, NOTHING, FAILED, SOMEBODYS, Cause.ENGINE_EXIT),
        (LLAMACPP, NOTHING, CRASHED, SOMEBODYS, Cause.ENGINE_SIGNAL),
        (VLLM, NO_NETWORK, FAILED, SOMEBODYS, Cause.DOWNLOAD_FAILED),
        # What the log says outright stands.
        (SGLANG, OUT_OF_VRAM, KILLED, OURS, Cause.CUDA_OOM),
        # No counter, no OOM killer.
        (LLAMACPP, NOTHING, KILLED, None, Cause.OUTSIDE_KILL),
        (LLAMACPP, NOTHING, ENDED, None, Cause.OUTSIDE_KILL),
        (LLAMACPP, NOTHING, CRASHED, None, Cause.ENGINE_SIGNAL),
        # A hint in the log is not why somebody else's signal came.
        (VLLM, NO_NETWORK, KILLED, None, Cause.OUTSIDE_KILL),
        (VLLM, NO_NETWORK, FAILED, None, Cause.DOWNLOAD_FAILED),
        # Engines that kill themselves after one of their processes has died.
        (SGLANG, SIGQUIT, KILLED, None, Cause.ENGINE_SIGNAL),
        (SGLANG, WORKER, KILLED, None, Cause.WORKER_DIED),
        (VLLM, CORE, KILLED, None, Cause.WORKER_DIED),
    ],
)
def test_evidence_is_weighed(
    name: str, log: str, status: ExitStatus, oom: OomProof | None, cause: Cause
) -> None:
    """The OOM killer is named where the kernel counted it, and never for a line in a log."""
    assert why(name, log, status, oom).cause is cause


def test_the_boot_logs_figures_are_kept() -> None:
    """What the engine says about memory is there for whoever publishes it."""
    line = "[2026-12-02 08:00:40 TP0] Load weight end. elapsed=30 s, mem usage=20.14 GB.\n"
    assert _monitor(SGLANG, line).facts.figures() == {"weights_gib": 20.14}


def test_an_oom_kill_comes_with_its_evidence() -> None:
    """The sentence says what proves it, and what the engine said of its end."""
    fault = why(VLLM, CORE, FAILED, OURS)
    assert fault.sentence == (
        "the OOM killer killed a process in this service's control group; "
        "its log: vLLM's engine process EngineCore_DP0 died"
    )
    assert fault.remedy == Cause.OOM_KILL.remedies[0]


def test_a_loaded_model_is_not_called_serving() -> None:
    """Until the first answer, the text beside the state `starting` does not say `serving`."""
    events: list[Event] = []
    monitor = _monitor(LLAMACPP, "", events.append)
    monitor.read(b"main: model loaded\n")
    words = [event.boot for event in events if isinstance(event, Progressed) and event.boot]
    assert words == ["waiting for the first answer"]
