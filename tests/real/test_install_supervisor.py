"""The main job under a real supervisord, by an ordinary user below one directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from machines.waiting import wait_until

from servicekit.host.procfs import snapshot

if TYPE_CHECKING:
    from machines.supervisor import Supervisor

pytestmark = [pytest.mark.supervisord]

READY_LIMIT = 120.0
"""Seconds for the demo's model to be ready on two busy cores; two are usual."""
FAULTS = 3
UNKNOWN = "ERROR"
"""What supervisorctl says of a program that supervisord does not know."""


class Host:
    """A directory with servicekit's settings for one supervisord."""

    def __init__(self, supervisord: Supervisor, port: int) -> None:
        self.home = supervisord.home
        self.supervisord = supervisord
        self.config = self.home / "servicekit.toml"
        self.config.write_text(
            f'root = "{self.home}"\nmanager = "supervisor"\n'
            f'supervisor_socket = "{supervisord.socket}"\nallow = ["here"]\n'
            f'[places]\nsupervisor = "{supervisord.include}"\n'
        )
        self.config.chmod(0o644)
        (self.home / "profiles.d").mkdir()
        self.profile(f'extends = "demo"\nport = {port}\n')

    def profile(self, text: str) -> None:
        """Write the profile `here`."""
        file = self.home / "profiles.d/here.toml"
        file.write_text(text)
        file.chmod(0o644)

    def break_plan(self) -> None:
        """Damage what was installed, so that no watchdog can even begin."""
        (plan,) = self.home.rglob("here.plan.json")
        plan.write_text("{")

    def argv(self, *words: str) -> list[str]:
        """Give the command line of a verb."""
        program = str(Path(sys.executable).with_name("servicekit"))
        return [program, "--user", "--config", str(self.config), *words]

    def run(self, *words: str, code: int = 0) -> str:
        """Run servicekit; give what it printed."""
        done = subprocess.run(
            self.argv(*words),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def status(self) -> dict[str, Any]:
        """What `status --json` says of it."""
        said: dict[str, Any] = json.loads(self.run("status", "here", "--json"))
        return said

    def is_ready_after(self, run: str) -> bool:
        """Whether a later run than `run` is ready; a read costs less than asking servicekit."""
        try:
            state = json.loads((self.home / "run/here/state.json").read_text())
        except FileNotFoundError:
            return False
        return bool(state["state"] == "ready" and state["run"] != run)

    def files(self) -> set[str]:
        """Everything below the directory but supervisord's own."""
        own = {"supervisord.log", "supervisord.pid", "supervisor.sock", "console.log"}
        found = {str(path.relative_to(self.home)) for path in self.home.rglob("*")}
        return found - own


@pytest.fixture
def host(supervisord: Supervisor, free_port: int) -> Host:
    """Settings and one profile, on a port of its own."""
    return Host(supervisord, free_port)


@pytest.mark.llama
@pytest.mark.timeout(300)
def test_from_install_to_uninstall(host: Host) -> None:
    """Install, start, crash, stop and uninstall, with a real model, as `make demo` shows them."""
    before = host.files()
    assert "no service is installed" in host.run("status")
    said = host.run("install", "here")
    assert f"create   {host.supervisord.include}/servicekit-here.conf" in said
    # Installed is not started, although supervisord could see the file.
    assert host.status()["state"] == "configured"
    assert host.supervisord.state("servicekit-here") == UNKNOWN

    said = host.run("start", "here")
    assert "here: ready after" in said
    first = host.status()
    assert (first["state"], first["context"]["effective"]) == ("ready", 2048)
    assert host.supervisord.state("servicekit-here") == "RUNNING"
    assert host.run("probe", "here", "--deep").startswith("healthy: ")

    os.kill(first["engine_pid"], signal.SIGKILL)
    wait_until(
        lambda: host.is_ready_after(first["run"]),
        READY_LIMIT,
        "a new engine is ready",
    )
    assert "SIGKILL" in host.run("history", "here")
    assert "listening on" in host.run("logs", "here", "-n", "1000")

    # What dies with the watchdog is a lie in its state file.
    second = host.status()
    os.kill(second["pid"], signal.SIGKILL)
    wait_until(lambda: host.status()["state"] != "ready", 5, "a dead watchdog is not ready")
    wait_until(
        lambda: host.is_ready_after(second["run"]),
        READY_LIMIT,
        "ready after the watchdog was killed",
    )

    third = host.status()
    assert "here: stopped: " in host.run("stop", "here")
    assert third["engine_pid"] not in snapshot()
    assert host.run("probe", "here", code=1).startswith("not healthy: ")

    host.run("uninstall", "here", "--purge")
    assert host.supervisord.state("servicekit-here") == UNKNOWN
    assert host.files() == before


@pytest.mark.llama
@pytest.mark.timeout(300)
def test_a_start_continues_without_its_viewer(host: Host) -> None:
    """^C ends the display with 130 and one line that says so; the service becomes ready."""
    host.run("install", "here")
    starting = subprocess.Popen(
        host.argv("start", "here"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert starting.stdout is not None
    for line in starting.stdout:
        if line.startswith("here: starting: "):
            break
    starting.send_signal(signal.SIGINT)
    rest, _ = starting.communicate(timeout=READY_LIMIT)
    assert starting.returncode == 130
    assert rest.splitlines()[-1] == (
        "servicekit: the start continues: `servicekit --user status here` shows it, and "
        "`servicekit --user stop here` ends it"
    )
    wait_until(lambda: host.is_ready_after(""), READY_LIMIT, "it is ready")
    host.run("stop", "here")


def test_quick_faults_are_neither_fatal_nor_a_tight_loop(host: Host, free_port: int) -> None:
    """An engine that ends at once is started again a few times with pauses, then no more."""
    host.profile(
        f'extends = "demo"\nport = {free_port}\nexecutable = "/bin/false"\n'
        f"[restart]\nbudget = {FAULTS}\n"
    )
    host.run("install", "here")
    said = host.run("start", "here", code=1)
    assert "here: failed after" in said
    assert host.supervisord.state("servicekit-here") == "EXITED"
    log = (host.home / "supervisord.log").read_text()
    assert "FATAL" not in log
    assert log.count("spawned: 'servicekit-here'") == FAULTS
    assert host.status()["state"] == "failed"
    assert "\ncause: " in host.run("diagnose", "here")
    host.run("uninstall", "here", "--purge")


SLOW_EXEC = """
import os, time
from pathlib import Path
from supervisor.rpcinterface import make_main_rpcinterface

def wait():
    while not Path({go!r}).exists():
        time.sleep(0.01)

def make(supervisord, **_):
    os.register_at_fork(after_in_child=wait)
    return make_main_rpcinterface(supervisord)
"""


def test_a_stop_between_fork_and_exec_leaves_no_engine(host: Host, free_port: int) -> None:
    """A SIGTERM that supervisord loses before it executes the watchdog still stops the service.

    Python's handler takes it in supervisord's child. Without it the watchdog would run until
    supervisord kills it, and its engine would be left.
    """
    go, supervisord = host.home / "go", host.supervisord
    hangs = host.home / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    host.profile(f'extends = "demo"\nport = {free_port}\nexecutable = "{hangs}"\n')
    host.run("install", "here", "--anyway")
    supervisord.stop()
    (host.home / "slow_exec.py").write_text(SLOW_EXEC.format(go=str(go)))
    factory = "supervisor.rpcinterface_factory=slow_exec:make"
    (supervisord.include / "slow.conf").write_text(f"[rpcinterface:slow]\n{factory}\n")
    supervisord.start({"PYTHONPATH": str(host.home)})
    supervisord.ctl("start", "servicekit-here")
    wait_until(lambda: "spawned: 'servicekit-here'" in supervisord.log(), READY_LIMIT, "a fork")
    os.kill(supervisord.pid, signal.SIGTERM)
    dying = "waiting for servicekit-here to die"
    wait_until(lambda: dying in supervisord.log(), READY_LIMIT, "supervisord sent SIGTERM")
    go.touch()
    ended = "stopped: servicekit-here (exit status 0)"
    wait_until(lambda: ended in supervisord.log(), READY_LIMIT, "the watchdog stopped")
    assert "with SIGKILL" not in supervisord.log()
    left = [
        process
        for process in psutil.process_iter(["environ"])
        if str(host.home) in (process.info["environ"] or {}).get("SERVICEKIT_RUN", "")
    ]
    assert left == []


def test_who_is_named_is_told_once_of_each_failure(host: Host, free_port: int) -> None:
    """State, cause and remedy reach the command when it stays down, and only then."""
    told = host.home / "told"
    script = f'tr -d "\\n" >>"{told}"; echo >>"{told}"'
    settings = host.config.read_text()
    host.config.write_text(f"alert_command = {json.dumps(['/bin/sh', '-c', script])}\n{settings}")

    def alerts() -> list[dict[str, Any]]:
        text = told.read_text() if told.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    # Two faults with a restart between them are one failure.
    broken = f'extends = "demo"\nport = {free_port}\nexecutable = "/bin/false"\n'
    host.profile(f"{broken}[restart]\nbudget = 2\n")
    host.run("install", "here")
    host.run("start", "here", code=1)
    (first,) = alerts()
    assert (first["profile"], first["state"], first["cause"]) == ("here", "failed", "budget-spent")
    assert first["remedy"]
    assert first["run"]
    assert {key: host.status()[key] for key in first} == first

    # A watchdog that cannot even begin, after one that did.
    host.break_plan()
    host.supervisord.ctl("start", "servicekit-here")
    wait_until(lambda: len(alerts()) == 2, READY_LIMIT, "it is told again")
    second = alerts()[1]
    assert (second["state"], second["cause"]) == ("failed", None)
    assert second["why"] == "its watchdog could not begin (exit code 78)"

    # A stop that was asked for is no failure, and neither is anything where nobody is named.
    hangs = host.home / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    host.profile(f'extends = "demo"\nport = {free_port}\nexecutable = "{hangs}"\n')
    assert "install here --force`" in host.run("start", "here", code=78)
    host.run("install", "here", "--force")
    host.run("start", "here", "--no-wait")
    wait_until(lambda: host.status()["phase"] == "loading", READY_LIMIT, "it is launched")
    host.run("stop", "here")
    host.config.write_text(settings)
    host.break_plan()
    host.supervisord.ctl("start", "servicekit-here")
    wait_until(
        lambda: host.supervisord.state("servicekit-here") == "EXITED", READY_LIMIT, "it failed"
    )
    assert len(alerts()) == 2
    host.run("uninstall", "here", "--purge")


def test_a_configuration_that_supervisord_cannot_read_restores_all(host: Host) -> None:
    """When supervisord refuses, nothing is installed, and what was broken before is named."""
    (host.supervisord.include / "broken.conf").write_text("[program:x]\n")
    before = host.files()
    said = host.run("install", "here", code=1)
    assert "cannot read its configuration" in said
    assert host.files() == before


def test_a_supervisord_that_includes_other_files_is_noticed(host: Host) -> None:
    """Where supervisord does not look, nothing is installed, and the line to add is told."""
    text = host.config.read_text().replace(str(host.supervisord.include), f"{host.home}/elsewhere")
    host.config.write_text(text)
    before = host.files()
    said = host.run("install", "here", code=1)
    assert f'does not include "{host.home}/elsewhere"; add [include] files = ' in said
    assert host.files() == before
