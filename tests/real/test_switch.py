"""One profile in another's place, and back again when that fails, under both managers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from machines.waiting import wait_until

if TYPE_CHECKING:
    from machines.supervisor import Supervisor
    from machines.systemd import Machine

pytestmark = [pytest.mark.llama, pytest.mark.timeout(300)]

SITE = {
    "first": 'extends = "demo"\nserved_name = "first"\n',
    "second": 'extends = "demo"\nserved_name = "second"\n',
    "broken": 'extends = "demo"\nexecutable = "/bin/false"\n',
}
"""Profiles that share the demo's port, the last of which cannot start."""


class Host(Protocol):
    """Where servicekit runs, with the profiles of `SITE`."""

    def run(self, *words: str, code: int = 0) -> str:
        """Run servicekit; give what it printed."""


def states(host: Host) -> dict[str, tuple[str, bool]]:
    """How each profile is, and whether it starts at boot."""
    every: list[dict[str, Any]] = json.loads(host.run("status", "--json"))
    return {one["profile"]: (one["state"], one["enabled"]) for one in every}


def play(host: Host) -> None:
    """Switch there, fail to switch, switch with what starts at boot, and remove all of it."""
    for name in SITE:
        host.run("install", name)
    host.run("start", "first")

    said = host.run("switch", "second").splitlines()
    (stopped,) = [line for line in said if line.startswith("first: stopped: ")]
    assert re.fullmatch(
        r"first: stopped: requested by `servicekit .*switch second` \(\w+\)", stopped
    )
    refusal = host.run("verify", "first", code=1)
    assert '"first" cannot be verified now: "second" runs' in refusal
    assert any(line.startswith("second: ready after ") for line in said)
    assert states(host) == {
        "broken": ("configured", False),
        "first": ("stopped", True),
        "second": ("ready", False),
    }

    text = host.run("switch", "broken", code=1)
    said = text.splitlines()
    assert any(line.startswith("second: stopped: ") for line in said)
    assert "broken: failed after" in text
    assert "logs broken" in text
    assert "second: starting again" in said
    assert said[-1].startswith("second: ready after ")
    assert states(host)["second"] == ("ready", False)
    assert states(host)["broken"][0] in {"stopped", "failed"}

    said = host.run("switch", "first", "--timeout", "0", code=1).splitlines()
    assert any("was not ready within 0.0 s" in line for line in said)
    assert states(host)["second"] == ("ready", False)

    host.run("switch", "second", "--enable")
    assert {name: at_boot for name, (_, at_boot) in states(host).items()} == {
        "broken": False,
        "first": False,
        "second": True,
    }
    host.run("uninstall", "--all", "--purge")
    assert states(host) == {}


class OnSystemd:
    """A machine with the profiles."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        names = json.dumps(list(SITE))
        machine.write("/etc/servicekit/servicekit.toml", f"allow = {names}\n")
        for name, text in SITE.items():
            machine.write(f"/etc/servicekit/profiles.d/{name}.toml", text)

    def run(self, *words: str, code: int = 0) -> str:
        """Run servicekit inside."""
        done = self.machine.run("servicekit", *words, check=False, limit=150)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if code else "")


class OnSupervisor:
    """A directory with the profiles, for one supervisord."""

    def __init__(self, supervisord: Supervisor, port: int) -> None:
        home = supervisord.home
        self.config = home / "servicekit.toml"
        self._write(
            self.config,
            f'root = "{home}"\nmanager = "supervisor"\nsupervisor_socket = "{supervisord.socket}"\n'
            f'allow = {json.dumps(list(SITE))}\n[places]\nsupervisor = "{supervisord.include}"\n',
        )
        for name, text in SITE.items():
            self._write(home / f"profiles.d/{name}.toml", f"{text}port = {port}\n")

    @staticmethod
    def _write(file: Path, text: str) -> None:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o644)

    def run(self, *words: str, code: int = 0) -> str:
        """Run servicekit as an ordinary user would."""
        program = str(Path(sys.executable).with_name("servicekit"))
        done = subprocess.run(
            [program, "--user", "--config", str(self.config), *words],
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if code else "")


@pytest.mark.systemd
def test_switching_under_systemd(systemd_machine: Machine) -> None:
    """The old service is down before the new one starts, whoever orders it, and comes back."""
    host = OnSystemd(systemd_machine)
    for name in ("first", "second", "broken"):
        host.run("install", name)
    host.run("start", "first")
    started = systemd_machine.run("servicekit", "start", "second", limit=150)
    assert 'stopping "first", which uses the same GPU or port as "second"' in started.stderr
    assert "requested by `servicekit start second` (root)" in host.run("status", "first")
    host.run("uninstall", "--all", "--purge")
    play(host)


@pytest.mark.systemd
def test_a_stop_in_the_pause_of_a_crash_loop_succeeds(systemd_machine: Machine) -> None:
    """Whenever the stop comes, the service is stopped and no alert is sent."""
    host = OnSystemd(systemd_machine)
    host.run("install", "broken")
    for number in range(1, 7):
        host.run("start", "broken", "--no-wait")

        def ended(ends: int = number) -> bool:
            records: list[dict[str, Any]] = json.loads(host.run("history", "broken", "--json"))
            return [one["kind"] for one in records].count("gone") >= ends

        wait_until(ended, 60, "a run ended")
        said = host.run("stop", "broken").splitlines()
        assert said[-1].startswith("broken: stopped: ")
    alert = "servicekit-alert@servicekit-broken.service"
    log = systemd_machine.run("journalctl", "--quiet", f"--unit={alert}", check=False).stdout
    assert log == ""
    host.run("uninstall", "broken", "--purge")


@pytest.mark.supervisord
def test_switching_under_supervisor(supervisord: Supervisor, free_port: int) -> None:
    """Supervisor knows of no exclusion: the order is servicekit's own."""
    play(OnSupervisor(supervisord, free_port))
