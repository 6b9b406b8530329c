"""A real engine as an installed service on a booted machine, and what each fault of it led to.

The suites of `tests/live` and `tests/gpu` share it. Each finished fault becomes a row of a report;
`docs/live.md` is made of these rows (`LIVE_REPORT=FILE` writes them).
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
import tomli_w
from machines.systemd import TESTS_INSIDE, Machine, why_not
from machines.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping

TINY: Final = "/opt/live/tiny"
"""Where a machine with a GPU has the small random model."""
DEAD: Final = ("engine-exit", "engine-signal", "outside-kill", "worker-died")
"""Causes of an end that the engine or a signal brought about, whichever is seen first."""
LIMITS: Final[dict[str, Any]] = {
    "probe": {"deadline": 10},
    "start": {"stall": 200, "limit": 290},
    "watch": {"interval": 5, "stall": 20, "survey": 5},
    "restart": {"budget": 50},
}
"""Keys of a profile whose faults are soon seen, and whose start may compile kernels."""
HEADINGS: Final = ("engine", "fault", "noticed", "cause", "new engine", "ready again", "VRAM back")


class Fault(NamedTuple):
    """One thing that is done to a process of a serving engine."""

    signal: str
    """`KILL` or `STOP`."""
    role: str
    """Which process: a key of `Live.roles`."""
    busy: bool
    """Whether a long generation is under way."""
    causes: tuple[str, ...]
    """Causes of which the ledger must name one."""

    @property
    def title(self) -> str:
        """Name it for a report and for pytest."""
        return f"SIG{self.signal} {self.role}{', busy' if self.busy else ''}"


class Row(NamedTuple):
    """What a fault led to, in seconds after the signal."""

    engine: str
    fault: str
    noticed: float
    cause: str
    new_engine: float
    ready: float
    vram: float | None
    """Until the GPU's memory in use was what it was before the first start; no GPU: `None`."""

    def cells(self) -> tuple[str, ...]:
        """Spell it for a Markdown table."""
        vram = "" if self.vram is None else f"{self.vram:.1f} s"
        times = (f"{self.noticed:.1f} s", self.cause, f"{self.new_engine:.1f} s")
        return (self.engine, self.fault, *times, f"{self.ready:.1f} s", vram)


@dataclass
class Report:
    """Rows and notes of one run of a suite."""

    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """Lay it out as a section of `docs/live.md`."""
        table = [HEADINGS, ("---",) * len(HEADINGS), *(row.cells() for row in self.rows)]
        lines = [f"## {self.title}", "", *(f"| {' | '.join(cells)} |" for cells in table), ""]
        return "\n".join([*lines, *(f"- {note}" for note in self.notes), ""])

    def write(self) -> None:
        """Print it, and append it to the file that `LIVE_REPORT` names."""
        show(self.title, self.markdown())
        if target := os.environ.get("LIVE_REPORT"):
            with Path(target).open("a", encoding="utf-8") as file:
                file.write(self.markdown() + "\n")


def show(title: str, text: str) -> None:
    """Print what a user sees."""
    sys.stdout.write(f"\n==== {title}\n{text.strip()}\n")
    sys.stdout.flush()


def reporting(title: str) -> Iterator[Report]:
    """Collect the rows of a suite, and write them at its end."""
    report = Report(title)
    yield report
    report.write()


class Live:
    """An installed profile of a real engine."""

    def __init__(
        self,
        machine: Machine,
        name: str,
        recipe: Mapping[str, Any],
        *,
        roles: Mapping[str, str],
        start_limit: float,
        vram: Callable[[], int] | None = None,
    ) -> None:
        self.machine, self.name, self.recipe = machine, name, recipe
        self.roles, self.start_limit, self._vram = roles, start_limit, vram
        self.baseline = None if vram is None else vram()
        """MiB of GPU memory in use before the first start."""
        self.unit = f"servicekit-{name}.service"

    # Files and verbs.

    def write(self, **changes: object) -> None:
        """Write the profile with `changes` laid over it, and allow it."""
        profile = {**self.recipe, **changes}
        self.machine.write(f"/etc/servicekit/profiles.d/{self.name}.toml", tomli_w.dumps(profile))
        settings = tomli_w.dumps({"allow": [self.name]})
        self.machine.write("/etc/servicekit/servicekit.toml", settings)

    def verb(
        self, verb: str, *words: str, check: bool = True, limit: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a verb of servicekit about it, and show what it printed."""
        done = self.machine.run("servicekit", verb, self.name, *words, check=check, limit=limit)
        show(f"servicekit {verb} {' '.join([self.name, *words])}", done.stdout + done.stderr)
        return done

    def json(self, verb: str, *words: str, limit: float = 300.0) -> Any:  # noqa: ANN401 - JSON
        """Run a verb with `--json` and parse what it printed."""
        done = self.machine.run("servicekit", verb, self.name, *words, "--json", limit=limit)
        return json.loads(done.stdout)

    def causes(self) -> list[str]:
        """List the causes of its faults, oldest first."""
        return [r["cause"] for r in self.json("history") if r["kind"] == "fault"]

    # What it is now.

    def state(self) -> dict[str, Any]:
        """Read what its watchdog publishes; empty before the first start."""
        try:
            text = self.machine.path(f"/run/servicekit/{self.name}/state.json").read_text()
        except FileNotFoundError:
            return {}
        found: dict[str, Any] = json.loads(text)
        return found

    def wait_ready(self, *, after: str = "") -> dict[str, Any]:
        """Wait until a run other than `after` is ready."""

        def ready() -> dict[str, Any]:
            now = self.state()
            return now if now.get("state") == "ready" and now["run"] != after else {}

        try:
            return wait_until(ready, self.start_limit, f"{self.name} is ready")
        except AssertionError:
            self.verb("status", check=False)
            self.verb("logs", "-n", "80", check=False)
            raise

    def pids(self) -> dict[int, str]:
        """Give the processes of its control group: command lines by pid, as the machine counts."""
        group = self.machine.show(self.unit, "ControlGroup")
        if not group:
            return {}
        listed = self.machine.run(
            *("sh", "-c", 'find "/sys/fs/cgroup$0" -name cgroup.procs -exec cat {} +', group),
            check=False,
        ).stdout.split()
        if not listed:
            return {}
        rows = self.machine.run(
            "ps", "-o", "pid=,args=", "-p", ",".join(listed), check=False
        ).stdout.splitlines()
        pairs = (row.split(maxsplit=1) for row in rows)
        return {int(pid): rest[0] if rest else "" for pid, *rest in pairs}

    def pid_of(self, role: str) -> int:
        """Find the process of a role; the main one is the engine that the watchdog names."""
        if role == "main":
            return int(self.state()["engine_pid"])
        word = self.roles[role]
        found = [pid for pid, args in self.pids().items() if word in args]
        assert found, f"no process with {word!r} in its command line: {self.pids()}"
        return found[0]

    def cpu_seconds(self) -> float:
        """CPU time that the service's control group has used: watchdog and engine."""
        group = self.machine.show(self.unit, "ControlGroup")
        stat = self.machine.run("cat", f"/sys/fs/cgroup{group}/cpu.stat").stdout
        usage = dict(line.split() for line in stat.splitlines())["usage_usec"]
        return int(usage) / 1e6

    def shared_memory(self) -> set[str]:
        """List /dev/shm of the machine."""
        return set(self.machine.run("ls", "/dev/shm", check=False).stdout.split())  # noqa: S108

    # Questions to the engine.

    def ask(
        self, prompt: str, tokens: int, *, limit: float = 120.0, **more: object
    ) -> subprocess.CompletedProcess[str]:
        """Ask for a completion and wait for it; the reply's text is on stdout."""
        return self.machine.run(*self._request(prompt, tokens, limit, more), check=False, limit=600)

    def begin(self, prompt: str, tokens: int, *, limit: float = 120.0) -> subprocess.Popen[str]:
        """Ask for a completion, and leave the client waiting for it."""
        return self.machine.spawn(*self._request(prompt, tokens, limit, {"ignore_eos": True}))

    def _request(
        self, prompt: str, tokens: int, limit: float, more: Mapping[str, object]
    ) -> list[str]:
        body = {
            "model": self.recipe["served_name"],
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
            **more,
        }
        url = f"http://127.0.0.1:{self.recipe['port']}/v1/chat/completions"
        header = "Content-Type: application/json"
        return ["curl", "-sS", "-m", f"{limit:g}", "-H", header, "-d", json.dumps(body), url]

    def metrics(self) -> str:
        """Read the engine's counters."""
        url = f"http://127.0.0.1:{self.recipe['port']}/metrics"
        return self.machine.run("curl", "-sS", "-m", "10", url, check=False).stdout

    # Faults.

    def inflict(self, fault: Fault, *, engine: str, prompt: str, tokens: int) -> Row:
        """Do what `fault` says, wait until the service is ready again, and time the way there.

        The service is restarted first where an earlier fault would hold the next launch off.
        """
        before = self.wait_ready()
        if before["restarts"]:
            self.verb("restart", limit=self.start_limit)
            before = self.wait_ready(after=before["run"])
        known = len(self.causes())
        client = self.begin(prompt, tokens) if fault.busy else None
        if client is not None:
            wait_until(self.generating, 30, "a generation is under way")
        old = set(self.pids()) - {int(before["pid"])}
        pid = self.pid_of(fault.role)
        began = time.monotonic()
        self.machine.run("kill", f"-{fault.signal}", str(pid))

        def passed() -> float:
            return time.monotonic() - began

        noticed = self._until(lambda: self.state().get("state") != "ready", passed, "it is noticed")
        vram = None
        if self._vram is not None:
            self._until(lambda: not old & set(self.pids()), passed, "the old tree is gone")
            vram = passed()
        new = self._until(
            lambda: self.state().get("engine_pid") not in {None, before["engine_pid"]},
            passed,
            "a new engine runs",
        )
        self.wait_ready(after=before["run"])
        ready = passed()
        if client is not None:
            client.communicate(timeout=30)
        assert not old & set(self.pids()), "a process of the old engine is left"
        (cause, *_) = self.causes()[known:]
        assert cause in fault.causes, f"the ledger names {cause}"
        return Row(engine, fault.title, noticed, cause, new, ready, vram)

    def generating(self) -> bool:
        """Whether the engine counts a running request."""
        running = (line for line in self.metrics().splitlines() if "running" in line)
        return any(
            line.rsplit(" ", 1)[-1] not in {"0", "0.0"} for line in running if line[0] != "#"
        )

    def _until(
        self, condition: Callable[[], bool], passed: Callable[[], float], what: str
    ) -> float:
        wait_until(condition, self.start_limit, what)
        return passed()

    def stop(self) -> float:
        """Stop it; return the seconds that took, after proving that nothing is left."""
        shm = self.shared_memory()
        began = time.monotonic()
        self.verb("stop")
        took = time.monotonic() - began
        assert self.pids() == {}
        left = {name for name in self.shared_memory() & shm if "psm" in name or "vllm" in name}
        assert not left, f"left in /dev/shm: {left}"
        if self._vram is not None and self.baseline is not None:
            vram, baseline = self._vram, self.baseline
            wait_until(lambda: vram() <= baseline + 128, 30, "the GPU's memory is back")
        return took

    def stop_while_generating(self, prompt: str, tokens: int) -> float:
        """Stop it with a request under way; return what `stop` does."""
        self.wait_ready()
        client = self.begin(prompt, tokens)
        wait_until(self.generating, 30, "a generation is under way")
        took = self.stop()
        client.communicate(timeout=30)
        return took


def vram() -> int:
    """MiB in use on the first GPU."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) >> 20
    finally:
        pynvml.nvmlShutdown()


@contextmanager
def on_gpu(
    name: str, recipe: Mapping[str, Any], *, roles: Mapping[str, str], start_limit: float
) -> Iterator[Live]:
    """Boot a machine with the small model and the profile; skip where there is no such engine."""
    if reason := why_not():
        pytest.skip(reason)
    if not recipe["executable"]:
        engine = recipe["engine"]
        pytest.skip(f"needs {engine}: LIVE_{engine.upper()} names its program")
    machine = Machine()
    try:
        machine.boot()
        machine.run("useradd", "--system", "--no-create-home", "servicekit")
        python = str(Path(recipe["executable"]).with_name("python3"))
        machine.run("mkdir", "-p", TINY)
        machine.run(python, str(TESTS_INSIDE / "gpu/tiny.py"), TINY, limit=120)
        live = Live(machine, name, recipe, roles=roles, start_limit=start_limit, vram=vram)
        live.write()
        yield live
        live.verb("uninstall", "--purge", check=False)
    finally:
        machine.remove()
