"""Several GPUs: who excludes whom, who is charged for what, and a GPU that comes late."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from machines.fake import PROGRAM
from machines.supervisor import Supervisor
from machines.waiting import wait_until

from servicekit.watchdog.publish import State, read_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines.driver import Driver

pytestmark = [pytest.mark.supervisord, pytest.mark.timeout(300)]

LIMIT = 100.0
"""Seconds for a fake engine to be ready on two busy cores; one is usual."""
PORTS = {"left": 20711, "right": 20712, "also-right": 20713}
GPUS = {"left": "0", "right": "1", "also-right": "GPU-22222222"}
HOLDS = {"left": "HOLDS_LEFT", "right": "HOLDS_RIGHT", "also-right": "HOLDS_RIGHT"}
"""Variable by which the driver sees that an engine holds memory of its GPU."""
FREE = 600
"""MiB that nobody holds on each."""
SMALL_POOL = "FAKE_ENGINE = '{\"pool\": 5000}'"
PROFILE = """\
summary = "on a GPU of two"
engine = "sglang"
executable = "{program}"
model = "lab/model"
served_name = "{name}"
port = {port}
gpus = ["{gpu}"]
[environment]
{variable} = "{mib}"
[context]
requested = 4096
[watch]
interval = 1
survey = 1
[stop]
grace = 2
kill = 3
settle = 10
"""


class Host:
    """A host with two GPUs, of which the second is known by two names."""

    def __init__(self, supervisord: Supervisor, driver: Driver) -> None:
        self.home, self.driver = supervisord.home, driver
        self.cards = [
            {"uuid": uuid, "pci": pci, "used": FREE, "total": 32607, "held_by": HOLDS[name]}
            for name, uuid, pci in (
                ("left", "GPU-11111111", "00000000:03:00.0"),
                ("right", "GPU-22222222", "00000000:04:00.0"),
            )
        ]
        self.config = self._write(
            "servicekit.toml",
            f'root = "{self.home}"\nmanager = "supervisor"\n'
            f'supervisor_socket = "{supervisord.socket}"\nallow = {json.dumps(list(PORTS))}\n'
            f'[places]\nsupervisor = "{supervisord.include}"\n',
        )
        for name, port in PORTS.items():
            text = PROFILE.format(
                program=PROGRAM,
                name=name,
                port=port,
                gpu=GPUS[name],
                variable=HOLDS[name],
                mib=2000 if name == "left" else 3000,
            )
            self._write(f"profiles.d/{name}.toml", text)

    def _write(self, name: str, text: str) -> Path:
        file = self.home / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o644)
        return file

    def run(self, *words: str, code: int = 0) -> str:
        """Run servicekit; give what it printed."""
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("servicekit")),
                *("--user", "--config", str(self.config)),
                *words,
            ],
            env=self.driver.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def state(self, name: str) -> State | None:
        """What the watchdog of a profile says."""
        return read_state(self.home / f"run/{name}/state.json")

    def becomes(self, name: str, state: str, why: str = "") -> None:
        """Wait until a profile is in a state, for a reason."""

        def is_so() -> bool:
            now = self.state(name)
            return now is not None and now.state == state and why in now.why

        wait_until(is_so, LIMIT, f"{name} is {state} {why}")

    def environment(self, name: str) -> dict[str, str]:
        """The environment of a profile's engine."""
        now = self.state(name)
        assert now is not None
        raw = Path(f"/proc/{now.engine_pid}/environ").read_text(encoding="utf-8")
        return dict(entry.partition("=")[::2] for entry in raw.split("\0") if entry)


@pytest.fixture
def host(driver: Driver) -> Iterator[Host]:
    """Give the host, with a supervisord whose services see its driver."""
    supervisord = Supervisor()
    try:
        supervisord.start(driver.variables)
        host = Host(supervisord, driver)
        driver.does(gpus=host.cards)
        yield host
        with suppress(AssertionError):
            host.run("uninstall", "--all", "--purge")
    finally:
        supervisord.remove()


def manifest(host: Host, name: str) -> dict[str, Any]:
    """What the install of a profile left."""
    found: dict[str, Any] = json.loads((host.home / f"installed/{name}.json").read_text())
    return found


def test_two_profiles_on_two_gpus_run_side_by_side(host: Host) -> None:
    """Each is charged for its own GPU alone, and only who shares one makes room."""
    for name in PORTS:
        host.run("install", name)
    assert manifest(host, "right")["gpus"] == ["1", "GPU-22222222"]
    assert [manifest(host, name)["enabled"] for name in PORTS] == [True, True, False]

    for name in ("left", "right"):
        assert f"{name}: ready after" in host.run("start", name)
    assert host.environment("left")["CUDA_VISIBLE_DEVICES"] == "GPU-11111111"
    assert host.environment("right")["CUDA_VISIBLE_DEVICES"] == "GPU-22222222"
    for name in ("left", "right"):
        first = host.state(name)
        assert first is not None
        assert (first.state, first.reasons) == ("ready", ())

    said = host.run("switch", "also-right")
    assert "right: stopped" in said
    assert "left" not in said
    assert host.environment("also-right")["CUDA_VISIBLE_DEVICES"] == "GPU-22222222"
    assert [state.state for name in PORTS if (state := host.state(name))] == [
        "ready",
        "stopped",
        "ready",
    ]


def test_who_shares_a_gpu_waits_for_it_without_a_switch(host: Host) -> None:
    """The GPU's lock keeps a second engine from being launched, and names who holds it."""
    for name in ("right", "also-right"):
        host.run("install", name)
    host.run("start", "right")
    host.run("start", "also-right", "--no-wait")
    host.becomes("also-right", "starting", "right")
    assert host.state("right") is not None
    host.run("stop", "right")
    host.becomes("also-right", "ready")


def test_a_pool_that_is_not_as_planned_is_said_at_ready(host: Host) -> None:
    """The line that says ready compares the engine's pool with the plan of the install."""
    file = host.home / "profiles.d/left.toml"
    planned = file.read_text().replace("lab/model", "RadixArk/Qwen3.8-27B-NVFP4")
    file.write_text(planned.replace("[environment]\n", f"[environment]\n{SMALL_POOL}\n"))
    host.run("install", "left")
    tokens = manifest(host, "left")["kv_tokens"]
    host.run("start", "left")
    drift = (
        f"the pool holds 5000 tokens, {1 - 5000 / tokens:.0%} fewer than the {tokens} of the plan"
    )
    (line,) = (
        line
        for line in (host.home / "log/left.log").read_text().splitlines()
        if "state=ready" in line
    )
    assert drift in line
    assert drift in host.run("status", "left")


def test_a_gpu_that_comes_late_is_waited_for(host: Host) -> None:
    """At boot the driver may come after the service: no engine is started without it."""
    host.run("install", "left")
    host.driver.does(error="DriverNotLoaded")
    host.run("start", "left", "--no-wait")
    host.becomes("left", "starting", "driver")
    now = host.state("left")
    assert now is not None
    assert now.engine_pid is None
    host.driver.does(gpus=host.cards)
    host.becomes("left", "ready")
