"""The product on a real vLLM on the CPU, under a real systemd: `make live` installs and runs it.

Not part of `make test`: the engine is 3.4 GB. `-s` shows what a user sees; `LIVE_REPORT=FILE`
writes the section of `docs/live.md`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from live.service import DEAD, LIMITS, Fault, Live, Report, reporting, show
from machines.systemd import Machine, why_not
from machines.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.live, pytest.mark.timeout(1200)]

LIVE: Final = Path(os.environ.get("LIVE_DIR", ".cache/live")).absolute()
"""Where `make live` put the engine's environment (`vllm`) and the model (`smollm`)."""
INSIDE: Final = Path("/opt/live")
PROGRAM: Final = INSIDE / "bin/vllm"
NAME: Final = "livevllm"
PORT: Final = 18011
START_LIMIT: Final = 300.0
"""Seconds for a start on two busy cores; 40 on quiet ones."""
ROLES: Final = {"core": "EngineCore", "worker": "Worker"}
RECIPE: Final[dict[str, Any]] = {
    "summary": "SmolLM2-135M on vLLM, CPU",
    "engine": "vllm",
    "executable": str(PROGRAM),
    "model": str(INSIDE / "smollm"),
    "served_name": "smollm",
    "port": PORT,
    "gpus": [],
    "options": {"enforce-eager": True, "max-num-seqs": 4},
    "environment": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"},
    "context": {"requested": 4096, "parallel": 4},
    **LIMITS,
}
STORY: Final = "Write a very long story about a lighthouse keeper."
FAULTS: Final = (
    Fault("KILL", "core", busy=False, causes=DEAD),
    Fault("KILL", "core", busy=True, causes=DEAD),
    Fault("STOP", "core", busy=False, causes=("hung",)),
    Fault("STOP", "core", busy=True, causes=("hung",)),
    Fault("KILL", "main", busy=False, causes=DEAD),
    Fault("STOP", "main", busy=False, causes=("hung",)),
)


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    """Collect the rows of this run, and write them at its end."""
    yield from reporting("vLLM on the CPU")


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """Install the profile on a booted machine."""
    if reason := why_not():
        pytest.skip(reason)
    if not (LIVE / "vllm/bin/python").exists():
        pytest.skip(f"no vLLM in {LIVE}: `make live` installs it")
    machine = Machine(trees={LIVE / "vllm": INSIDE / "vllm", LIVE / "smollm": INSIDE / "smollm"})
    try:
        machine.boot()
        machine.run("useradd", "--system", "--no-create-home", "servicekit")
        main = "from vllm.entrypoints.cli.main import main"
        program = f'#!{INSIDE}/vllm/bin/python\n{main}\nif __name__ == "__main__":\n    main()\n'
        machine.write(PROGRAM, program, mode=0o755)
        live = Live(machine, NAME, RECIPE, roles=ROLES, start_limit=START_LIMIT)
        live.write()
        yield live
        live.verb("uninstall", "--purge", check=False)
    finally:
        machine.remove()


def test_check_and_plan_know_this_engine(live: Live) -> None:
    """The profile passes `check` against the installed version, and a misspelt option does not."""
    agreed = live.verb("check")
    assert "(vllm: 0.32.0+cpu is installed)" in agreed.stdout
    refused = live.verb("plan", check=False)
    assert 'the memory of engine "vllm" without a GPU cannot be planned' in refused.stderr
    live.write(options={"enforce-eager": True, "max-num-seq": 4})
    refused = live.verb("check", check=False)
    live.write()
    assert refused.returncode != 0
    assert "max-num-seqs" in refused.stdout + refused.stderr


def test_it_becomes_ready(live: Live, report: Report) -> None:
    """Install and start end in `ready`, with every boot phase and its time in `history`."""
    live.verb("install", "--no-enable")
    live.verb("start", limit=START_LIMIT)
    now = live.wait_ready()
    report.notes.append(f"first start: ready after {now['ready_seconds']:.0f} s")
    live.verb("status")
    live.verb("history")
    assert now["context"]["effective"] == RECIPE["context"]["requested"]


def test_the_gates_and_a_benchmark_run(live: Live, report: Report) -> None:
    """`verify` runs every gate, which so small a model need not pass, and `bench` measures it."""
    done = live.verb("verify", "--json", check=False, limit=900)
    verdict = json.loads(done.stdout)
    outcomes = {each["gate"]: each["outcome"] for each in verdict["findings"]}
    reasons = {each["gate"]: each["reason"] for each in verdict["findings"]}
    show("verify", "\n".join(f"{gate}: {outcomes[gate]}: {reasons[gate]}" for gate in outcomes))
    report.notes.append(f"verify: {', '.join(f'{gate} {end}' for gate, end in outcomes.items())}")
    assert outcomes["text"] == "pass"
    assert outcomes["wall"] == "pass"
    assert outcomes["tools"] == "skip"
    done = live.verb("bench", "--suite", "small", "--anyway", limit=900)
    assert "tokens/s" in done.stdout


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.title)
def test_a_fault_is_noticed_named_and_survived(live: Live, report: Report, fault: Fault) -> None:
    """Whatever dies or stops, the ledger names it, nothing is left, and the service comes back."""
    report.rows.append(live.inflict(fault, engine="vLLM", prompt=STORY, tokens=3000))


def test_a_long_prefill_lives(live: Live) -> None:
    """Prompts that take longer than `watch.stall` to read are load, not a hang."""
    before = live.wait_ready()
    prompts = [f"Report {n}. " + "the boats lay quiet in the harbour. " * 400 for n in range(3)]
    clients = [live.begin(prompt, 8, limit=300) for prompt in prompts]
    for client in clients:
        client.communicate(timeout=300)
    assert live.wait_ready()["run"] == before["run"]


def test_too_long_a_prompt_is_the_clients_error(live: Live) -> None:
    """A prompt beyond the context is refused by the engine, and the service stays ready."""
    before = live.wait_ready()
    answer = live.ask("harbour " * 12000, 8).stdout
    assert "maximum context length" in answer or "too long" in answer or "400" in answer
    assert live.wait_ready()["run"] == before["run"]


def test_a_stop_ends_a_generation(live: Live, report: Report) -> None:
    """A stop with a request under way ends within the grace period and leaves nothing."""
    took = live.stop_while_generating(STORY, 3000)
    report.notes.append(f"stop with a generation under way: {took:.1f} s")


def test_a_wrong_option_and_a_taken_port_are_named(live: Live) -> None:
    """What the engine refuses at its start is the cause of a failed start, not a loop."""
    live.write(options={"enforce-eager": True, "max-num-seqs": 4, "dtype": "float7"})
    assert live.verb("install", "--no-enable", check=False).returncode != 0
    live.write()
    live.verb("install", "--no-enable")
    holder = live.machine.spawn("python3", "-m", "http.server", str(PORT), "--bind", "127.0.0.1")
    wait_until(lambda: str(PORT) in live.machine.run("ss", "-ltnH").stdout, 10, "the port is taken")
    refused = live.verb("start", check=False, limit=120)
    assert refused.returncode != 0
    assert str(PORT) in refused.stdout + refused.stderr
    holder.terminate()
    holder.communicate(timeout=10)
