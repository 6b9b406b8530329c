"""The product on a real vLLM on a real GPU, under a real systemd.

Needs root, systemd's files and an environment with vLLM, named by `LIVE_VLLM=/path/to/vllm`:

    LIVE_VLLM=/srv/vllm/bin/vllm pytest -s tests/gpu/test_vllm.py

`LIVE_REPORT=FILE` writes the section of `docs/live.md`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import pytest
from live.service import DEAD, LIMITS, TINY, Fault, Live, Report, on_gpu, reporting, vram

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.gpu, pytest.mark.live, pytest.mark.timeout(580)]

START_LIMIT: Final = 300.0
"""Seconds for a start: the first one on a machine compiles kernels."""
RECIPE: Final[dict[str, Any]] = {
    "summary": "a tiny random Qwen3 on vLLM",
    "engine": "vllm",
    "executable": os.environ.get("LIVE_VLLM", ""),
    "model": TINY,
    "served_name": "tiny",
    "port": 18021,
    "gpus": ["0"],
    "options": {
        "attention-backend": "TRITON_ATTN",
        "enforce-eager": True,
        "gpu-memory-utilization": 0.3,
        # So small a model would make a pool of millions of tokens.
        "num-gpu-blocks-override": 12_500,
        "max-num-seqs": 8,
        "reasoning-parser": "qwen3",
    },
    "environment": {"VLLM_NO_USAGE_STATS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"},
    "context": {"requested": 8192, "parallel": 4},
    **LIMITS,
    "watch": {**LIMITS["watch"], "unfinished": 30},
}
STORY: Final = "tell me a long story"
FAULTS: Final = (
    Fault("KILL", "core", busy=True, causes=DEAD),
    Fault("STOP", "core", busy=True, causes=("hung",)),
    Fault("KILL", "main", busy=False, causes=DEAD),
    Fault("STOP", "main", busy=False, causes=("hung",)),
)


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    """Collect the rows of this run, and write them at its end."""
    yield from reporting("vLLM on a GPU")


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """Install the profile on a booted machine."""
    with on_gpu("vllmgpu", RECIPE, roles={"core": "EngineCore"}, start_limit=START_LIMIT) as live:
        yield live


def test_it_becomes_ready(live: Live, report: Report) -> None:
    """Install and start end in `ready`, with every boot phase and its time in `history`."""
    live.verb("install", "--no-enable")
    live.verb("start", limit=START_LIMIT)
    now = live.wait_ready()
    report.notes.append(f"first start: ready after {now['ready_seconds']:.0f} s")
    report.notes.append(f"VRAM when ready: {vram() - (live.baseline or 0)} MiB above the baseline")
    live.verb("status")
    live.verb("history")
    assert now["context"]["effective"] == RECIPE["context"]["requested"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.title)
def test_a_fault_is_noticed_named_and_survived(live: Live, report: Report, fault: Fault) -> None:
    """Whatever dies or stops, the ledger names it, the GPU is free again, and it comes back."""
    report.rows.append(live.inflict(fault, engine="vLLM", prompt=STORY, tokens=7900))


def test_a_stop_ends_a_generation(live: Live, report: Report) -> None:
    """A stop with a request under way ends soon, since vLLM's own processes are gone at once."""
    took = live.stop_while_generating(STORY, 7900)
    report.notes.append(
        f"stop with a generation under way: {took:.1f} s, VRAM back at {vram()} MiB"
    )
