"""The product on a real SGLang on a real GPU, under a real systemd.

Needs root, systemd's files and an environment with SGLang, named by `LIVE_SGLANG=/path/to/sglang`:

    LIVE_SGLANG=/srv/sgl/bin/sglang pytest -s tests/gpu/test_sglang.py

`LIVE_REPORT=FILE` writes the section of `docs/live.md`.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, Final

import pytest
from live.service import DEAD, LIMITS, TINY, Fault, Live, Report, on_gpu, reporting, show, vram
from machines.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.gpu, pytest.mark.live, pytest.mark.timeout(580)]

PROGRAM: Final = os.environ.get("LIVE_SGLANG", "")
NAME: Final = "livesgl"
PORT: Final = 18020
START_LIMIT: Final = 300.0
"""Seconds for a start: the first one on a machine compiles kernels for 75."""
ROLES: Final = {"scheduler": "sglang::scheduler", "detokenizer": "sglang::detokenizer"}
RECIPE: Final[dict[str, Any]] = {
    "summary": "a tiny random Qwen3 on SGLang",
    "engine": "sglang",
    "executable": PROGRAM,
    "model": TINY,
    "served_name": "tiny",
    "port": PORT,
    "gpus": ["0"],
    "options": {
        "attention-backend": "triton",
        "sampling-backend": "pytorch",
        "grammar-backend": "llguidance",
        "mem-fraction-static": 0.3,
        # So small a model would make a pool of 174 million tokens, whose list of free slots alone
        # takes 1.3 GB of the GPU now and then.
        "max-total-tokens": 200_000,
        "max-running-requests": 8,
        "reasoning-parser": "qwen3",
        "tool-call-parser": "qwen3_coder",
    },
    "context": {"requested": 8192, "parallel": 4},
    **LIMITS,
    "watch": {**LIMITS["watch"], "unfinished": 30},
}
STORY: Final = "tell me a long story"
FAULTS: Final = (
    Fault("KILL", "scheduler", busy=False, causes=DEAD),
    Fault("STOP", "scheduler", busy=False, causes=("hung",)),
    Fault("STOP", "scheduler", busy=True, causes=("hung",)),
    # The scheduler goes on without its detokenizer, and no answer comes out any more.
    Fault("KILL", "detokenizer", busy=False, causes=(*DEAD, "hung")),
    Fault("KILL", "main", busy=False, causes=DEAD),
    Fault("STOP", "main", busy=False, causes=("hung",)),
)


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    """Collect the rows of this run, and write them at its end."""
    yield from reporting("SGLang on a GPU")


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """Install the profile on a booted machine."""
    with on_gpu(NAME, RECIPE, roles=ROLES, start_limit=START_LIMIT) as live:
        yield live


def test_check_and_plan_know_this_engine(live: Live) -> None:
    """The profile passes `check` against the installed version; a misspelt option does not."""
    live.verb("check")
    live.verb("plan")
    live.write(options={**RECIPE["options"], "attention-backend": "tritn"})
    refused = live.verb("check", check=False)
    live.write()
    assert refused.returncode != 0
    assert "triton" in refused.stdout + refused.stderr


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


def test_the_gates_and_a_benchmark_run(live: Live, report: Report) -> None:
    """`verify` runs every gate, which a random model need not pass, and `bench` measures it."""
    done = live.verb("verify", "--json", check=False, limit=500)
    outcomes = {each["gate"]: each["outcome"] for each in json.loads(done.stdout)["findings"]}
    report.notes.append(f"verify: {', '.join(f'{gate} {end}' for gate, end in outcomes.items())}")
    assert outcomes["wall"] == "pass"
    done = live.verb("bench", "--suite", "small", "--anyway", limit=500)
    assert "tokens/s" in done.stdout


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.title)
def test_a_fault_is_noticed_named_and_survived(live: Live, report: Report, fault: Fault) -> None:
    """Whatever dies or stops, the ledger names it, the GPU is free again, and it comes back."""
    report.rows.append(live.inflict(fault, engine="SGLang", prompt=STORY, tokens=7900))


def test_vital_signs(live: Live, report: Report) -> None:
    """How much CPU the tree uses idle and decoding: what a hang is told from."""
    live.wait_ready()

    def busy(seconds: float) -> float:
        before, began = live.cpu_seconds(), time.monotonic()
        wait_until(lambda: time.monotonic() - began > seconds, seconds + 5, "the window is over")
        return (live.cpu_seconds() - before) / seconds * 100

    idle = busy(5)
    client = live.begin(STORY, 7900)
    wait_until(live.generating, 30, "a generation is under way")
    decoding = busy(2)
    client.communicate(timeout=120)
    report.notes.append(f"CPU of the tree, % of a core: idle {idle:.0f}, decoding {decoding:.0f}")


def test_too_long_a_prompt_is_the_clients_error(live: Live) -> None:
    """A prompt beyond the context is refused by the engine, and the service stays ready."""
    before = live.wait_ready()
    answer = live.ask("harbour " * 12000, 8).stdout
    show("the engine's answer", answer[:300])
    assert '"choices"' not in answer
    assert live.wait_ready()["run"] == before["run"]


def test_a_stop_ends_a_generation(live: Live, report: Report) -> None:
    """A stop with a request under way ends within the grace period and leaves nothing."""
    took = live.stop_while_generating(STORY, 7900)
    report.notes.append(
        f"stop with a generation under way: {took:.1f} s, VRAM back at {vram()} MiB"
    )


def test_too_large_a_context_is_refused_before_it_starts(live: Live) -> None:
    """More context than the model declares is refused by `install`, with the model's own figure."""
    options = {**RECIPE["options"], "max-total-tokens": 400_000}
    live.write(context={"requested": 400_000, "parallel": 1}, options=options)
    refused = live.verb("install", "--no-enable", check=False)
    live.write()
    assert refused.returncode != 0
    assert "8192" in refused.stdout + refused.stderr
