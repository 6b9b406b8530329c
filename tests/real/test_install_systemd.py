"""The main job under a real systemd: install, start, crash, stop, boot, uninstall."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from machines.systemd import Machine

pytestmark = [pytest.mark.systemd, pytest.mark.llama]

UNIT = "servicekit-demo.service"
WSL_BOOT_LIMIT = 10.0
"""Seconds that WSL's init waits for the end of a boot, by default."""
READY_LIMIT = 120.0
"""Seconds for the demo's model to be ready on two busy cores; two are usual."""


def status(machine: Machine) -> dict[str, Any]:
    """What `servicekit status demo --json` says."""
    said: dict[str, Any] = json.loads(machine.run("servicekit", "status", "demo", "--json").stdout)
    return said


def is_ready_after(machine: Machine, run: str) -> bool:
    """Whether a later run than `run` is ready; a read costs less than asking servicekit."""
    try:
        said = json.loads(machine.path("/run/servicekit/demo/state.json").read_text())
    except FileNotFoundError:
        return False
    return bool(said["state"] == "ready" and said["run"] != run)


def tree(machine: Machine) -> set[str]:
    """Every file and directory that an install could have made."""
    places = ("/etc", "/usr/local", "/var/lib", "/var/log", "/var/cache", "/run/servicekit")
    found = machine.run("find", *places, check=False).stdout
    # systemd's own memory of what it saw and compiled, and the backups of the account database.
    own = ("/var/lib/systemd/", "/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-")
    return {line for line in found.splitlines() if not line.startswith(own)}


@pytest.mark.timeout(300)
def test_from_install_to_uninstall(fresh_machine: Machine) -> None:
    """A new user's whole day: every promise of the README, on one machine, in order."""
    machine = fresh_machine
    machine.boot()
    before = tree(machine)

    said = machine.run("servicekit", "install", "demo", "--now").stdout
    assert "create   /etc/systemd/system/servicekit-demo.service" in said
    assert "demo: ready after" in said
    assert machine.show(UNIT, "ActiveState") == "active"
    first = status(machine)
    assert first["state"] == "ready"
    assert first["context"]["effective"] == 2048
    assert first["enabled"] is True
    assert machine.run("systemctl", "is-enabled", UNIT).stdout.strip() == "enabled"
    owner = machine.run("ps", "-o", "user:20=", "-p", str(first["engine_pid"])).stdout.strip()
    assert owner == "servicekit"

    # A second install has nothing to do, and leaves the service alone.
    assert machine.run("servicekit", "install", "demo", "--now").stdout.startswith("nothing to do")
    assert status(machine)["run"] == first["run"]

    # The engine dies: a new one, and everybody knows why.
    machine.run("kill", "-9", str(first["engine_pid"]))
    machine.wait_until(
        lambda: is_ready_after(machine, first["run"]),
        READY_LIMIT,
        "a new engine is ready",
    )
    assert machine.show(UNIT, "NRestarts") == "1"
    assert status(machine)["restarts"] == 1
    history = machine.run("servicekit", "history", "demo").stdout
    assert "SIGKILL" in history
    assert any("SIGKILL" in said for said in machine.messages(SERVICEKIT_PROFILE="demo"))
    log = machine.run("servicekit", "logs", "demo", "-n", "1000").stdout
    assert "listening on" in log

    by_run = machine.run("servicekit", "logs", "demo", "--run", first["run"], "--since", "-1h")
    assert "listening on" in by_run.stdout
    by_cause = machine.run("servicekit", "logs", "demo", "--cause", "outside-kill").stdout
    assert "SIGKILL" in by_cause
    assert "listening on" not in by_cause
    assert "SIGKILL" in machine.run("servicekit", "logs", "demo", "-p", "err").stdout

    said = machine.run("servicekit", "stop", "demo").stdout
    assert "demo: stopped: " in said
    assert machine.show(UNIT, "Result") == "success"
    assert machine.run("ss", "-ltnH", "sport = :18001", check=False).stdout == ""

    # Boot: it comes up by itself, and does not hold the boot up.
    machine.reboot(wait=False)
    machine.wait_until(lambda: is_ready_after(machine, ""), READY_LIMIT, "ready after boot")
    assert status(machine)["state"] == "ready"

    boot, ready = (
        int(machine.show(unit, "ActiveEnterTimestampMonotonic"))
        for unit in ("multi-user.target", UNIT)
    )
    assert 0 < boot < ready

    machine.run("servicekit", "uninstall", "demo", "--purge")
    assert tree(machine) == before
    assert machine.run("id", "servicekit", check=False).returncode == 1


@pytest.mark.parametrize("container", ["test-machine", "wsl"])
def test_a_model_that_loads_for_long_does_not_hold_the_boot(
    fresh_machine: Machine, container: str
) -> None:
    """The boot is over before a model begins to load, which WSL waits for ten seconds only."""
    machine, unit = fresh_machine, "servicekit-slow.service"
    machine.boot(container=container)
    machine.write("/etc/servicekit/servicekit.toml", 'allow = ["slow"]\n')
    machine.write("/opt/slow", "#!/bin/sh\nexec sleep 600\n", 0o755)
    machine.write(
        "/etc/servicekit/profiles.d/slow.toml", 'extends = "demo"\nexecutable = "/opt/slow"\n'
    )
    machine.run("servicekit", "install", "slow")
    machine.reboot(container=container)
    state = machine.run("systemctl", "is-system-running", "--wait", check=False).stdout.strip()
    assert state in {"running", "degraded"}
    machine.wait_until(
        lambda: machine.show(unit, "ActiveState") == "activating", READY_LIMIT, "it loads"
    )
    assert machine.run("systemctl", "is-system-running", check=False).stdout.strip() == state
    began = int(machine.show(unit, "InactiveExitTimestampMonotonic"))
    userspace, over = (
        int(machine.run("systemctl", "show", "--value", "-p", f"{name}TimestampMonotonic").stdout)
        for name in ("Userspace", "Finish")
    )
    assert userspace < over < began
    assert over - userspace < WSL_BOOT_LIMIT * 1e6


def test_an_engine_in_a_home_runs_where_the_profile_opens_homes(fresh_machine: Machine) -> None:
    """Hidden, it is named with what would do; with home = "read-only" it serves from there.

    Ada can replace it, so the install needs --trust.
    """
    machine = fresh_machine
    machine.boot()
    machine.run("useradd", "--create-home", "ada")
    machine.path("/home/ada").chmod(0o755)
    engine = "/home/ada/venv/bin/serve"
    machine.write(engine, '#!/bin/sh\nexec /usr/local/bin/servicekit-llama-server "$@"\n', 0o755)
    machine.write("/etc/servicekit/servicekit.toml", 'allow = ["home"]\n')
    profile = f'extends = "demo"\nexecutable = "{engine}"\n'
    machine.write("/etc/servicekit/profiles.d/home.toml", profile)
    refused = machine.run("servicekit", "install", "home", "--trust", check=False)
    assert refused.returncode == 1
    assert f'the engine "{engine}" is below /home, which the unit hides' in refused.stderr
    assert 'set service.home = "read-only" in the profile' in refused.stderr
    replaceable = (
        'servicekit: warning: executable: "ada" can change what the engine runs, in "/home/ada"'
    )
    opened = f'{profile}[service]\nhome = "read-only"\n'
    machine.write("/etc/servicekit/profiles.d/home.toml", opened)
    done = machine.run("servicekit", "install", "home", "--trust", "--now", limit=READY_LIMIT)
    assert done.stderr.splitlines() == [
        "servicekit: warning: service.home: the engine can read the files of all users",
        replaceable,
    ]
    assert "home: ready after" in done.stdout


def test_systemd_itself_finds_nothing_wrong(systemd_machine: Machine) -> None:
    """`systemd-analyze verify` prints nothing about what was installed."""
    systemd_machine.run("servicekit", "install", "demo")
    try:
        for unit in (UNIT, "servicekit-boot.service", "servicekit.target"):
            done = systemd_machine.run("systemd-analyze", "verify", unit, check=False)
            assert (done.returncode, done.stdout + done.stderr) == (0, "")
    finally:
        systemd_machine.run("servicekit", "uninstall", "demo", "--purge")
