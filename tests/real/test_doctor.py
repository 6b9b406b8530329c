"""`servicekit doctor` on a real host with a real systemd, as root and as anybody else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from machines.systemd import Machine

pytestmark = pytest.mark.systemd

READY_LIMIT = 60.0
"""Seconds for the demo's model to be ready on two busy cores."""


def examine(
    machine: Machine, *words: str, user: str = "", env: Mapping[str, str] | None = None
) -> tuple[dict[str, dict[str, Any]], int]:
    """Run the doctor inside; give its checks by code, and its exit code."""
    done = machine.run("servicekit", "doctor", *words, "--json", check=False, user=user, env=env)
    assert done.stderr == ""
    said = json.loads(done.stdout)
    assert said["seconds"] < 10
    assert done.returncode == (1 if said["verdict"] == "fail" else 0)
    return {check["code"]: check for check in said["checks"]}, done.returncode


def line(checks: dict[str, dict[str, Any]], code: str) -> str:
    """Give verdict and words of one check."""
    return f"{checks[code]['verdict']}: {checks[code]['what']}; {checks[code]['remedy']}"


def test_a_host_with_systemd_is_understood(systemd_machine: Machine) -> None:
    """The manager's own version, control groups, logind and journal are seen as they are."""
    checks, _ = examine(systemd_machine, "demo")
    version = systemd_machine.run("systemctl", "--version").stdout.split("(")[1].split(")")[0]
    assert checks["manager"]["verdict"] == "ok"
    assert checks["manager"]["what"].startswith(f"systemd {version} runs")
    assert checks["cgroups"]["verdict"] == "ok"
    assert checks["kill-user-processes"]["verdict"] == "ok"
    assert checks["gpu-containers"]["verdict"] == "ok"
    assert checks["journal-access"]["verdict"] == "ok"
    assert checks["clock"]["verdict"] == "ok"
    assert "its wall clock was not set" in checks["clock"]["what"]
    for code in ("engine", "options", "model", "disk", "port", "profile"):
        assert checks[code]["verdict"] == "ok", checks[code]
    assert checks["storage"]["verdict"] == "warn", "the machine's disk is thrown away"
    assert not [code for code in checks if code.startswith("wsl-")]


def test_nobody_needs_root(systemd_machine: Machine) -> None:
    """Anybody gets every line; what only root may see says so, and fails nothing."""
    as_root, _ = examine(systemd_machine, "demo")
    as_nobody, code = examine(systemd_machine, "demo", user="nobody", env={"HOME": "/"})
    assert as_nobody.keys() == as_root.keys()
    assert code == 0
    assert line(as_nobody, "gpu-containers") == "skip: run as root to see containers; "
    assert "`usermod -aG systemd-journal nobody`" in line(as_nobody, "journal-access")
    differs = {c for c in as_root if as_root[c]["verdict"] != as_nobody[c]["verdict"]}
    assert differs <= {"gpu-containers", "journal-access", "shared-memory", "engine"}
    # An account without a name, as containers give, is told by its number.
    nameless = ("setpriv", "--reuid", "12345", "--clear-groups", "--")
    done = systemd_machine.run(*nameless, "servicekit", "doctor", "demo", env={"HOME": "/"})
    assert '"uid 12345" may not read' in done.stdout


def test_a_journal_is_judged_as_journald_behaves(fresh_machine: Machine) -> None:
    """Drop-ins count as they do for journald itself, which then keeps its journal in memory."""
    machine = fresh_machine
    machine.boot()
    machine.run("rm", "/etc/systemd/journald.conf.d/99-test.conf")
    machine.run("mkdir", "-p", "/var/log/journal")
    checks, _ = examine(machine, "demo")
    assert line(checks, "journal").startswith("ok: persistent")
    machine.write("/usr/lib/systemd/journald.conf.d/20-x.conf", "[Journal]\nStorage=none\n")
    machine.write("/etc/systemd/journald.conf.d/20-x.conf", "[Journal]\nStorage=volatile\n")
    machine.write("/run/systemd/journald.conf.d/10-y.conf", "[Journal]\nStorage=persistent\n")
    machine.write("/run/systemd/journald.conf.d/30-z.conf", "[Journal]\nSystemMaxUse=8M\n")
    told = machine.run("systemd-analyze", "cat-config", "systemd/journald.conf").stdout
    own = [row for row in told.splitlines() if row.startswith(("Storage=", "SystemMaxUse="))]
    assert own == ["Storage=persistent", "Storage=volatile", "SystemMaxUse=8M"]
    checks, _ = examine(machine, "demo")
    assert line(checks, "journal").startswith("warn: the journal is in memory")
    machine.write("/etc/systemd/journald.conf.d/40-w.conf", "[Journal]\nStorage=persistent\n")
    checks, _ = examine(machine, "demo")
    assert line(checks, "journal").startswith("warn: the journal is limited to 8 MiB")


def test_lingering_decides_over_a_users_services(fresh_machine: Machine) -> None:
    """With it all is well; without it services end with the session, and the doctor fails."""
    machine = fresh_machine
    machine.boot()
    env = machine.add_user("ada")
    checks, code = examine(machine, "demo", "--user", user="ada", env=env)
    assert line(checks, "manager").startswith("ok: systemd")
    assert line(checks, "lingering") == 'ok: "ada" has lingering enabled; '
    assert checks["journal-access"]["verdict"] == "ok"
    assert code == 0
    machine.write("/etc/systemd/logind.conf.d/kill.conf", "[Login]\nKillUserProcesses=yes\n")
    machine.run("rm", "/var/lib/systemd/linger/ada")
    checks, code = examine(machine, "demo", "--user", user="ada", env=env)
    assert "`loginctl enable-linger ada`" in line(checks, "lingering")
    assert "logind kills processes at logout" in line(checks, "kill-user-processes")
    assert code == 1
    # As after su: the user's own systemd is there, but cannot be found.
    lost = {"HOME": "/home/ada", "XDG_RUNTIME_DIR": ""}
    checks, code = examine(machine, "demo", "--user", user="ada", env=lost)
    assert 'the user manager of "ada" does not' in line(checks, "manager")
    assert code == 1


def test_wsl_is_asked_about_where_it_is_one(fresh_machine: Machine) -> None:
    """A machine that systemd takes for WSL has seven lines more, whatever cannot be seen of it."""
    machine = fresh_machine
    machine.boot(container="wsl")
    machine.write("/etc/wsl.conf", "[boot]\nsystemd=true\n[automount]\nroot=/windows\n")
    config = "/windows/c/Users/ada/.wslconfig"
    machine.write(config, "[wsl2]\nvmIdleTimeout=-1 # for ever\n[general]\ninstanceIdleTimeout=9\n")
    checks, _ = examine(machine, "demo")
    verdicts = {code: c["verdict"] for code, c in checks.items() if code.startswith("wsl-")}
    assert verdicts == {
        "wsl-systemd": "ok",
        "wsl-instance-idle": "warn",
        "wsl-vm-idle": "ok",
        "wsl-memory-reclaim": "warn",
        "wsl-networking": "skip",
        "wsl-keepalive": "skip",
        "wsl-cuda": "fail",
    }
    rendered = machine.run(
        *("servicekit", "wsl", "render", "--out", "/windows/c/Users/ada/out"),
        *("--distribution", "Debian", "--account", "pc\\ada"),
    )
    assert r"'C:\Users\ada\out\.wslconfig'" in rendered.stdout
    machine.run("cp", "/windows/c/Users/ada/out/.wslconfig", config)
    checks, _ = examine(machine, "demo")
    for code in ("wsl-instance-idle", "wsl-vm-idle", "wsl-memory-reclaim"):
        assert checks[code]["verdict"] == "ok", checks[code]
    assert "# for ever" in machine.path(config).read_text(encoding="utf-8")


@pytest.mark.llama
@pytest.mark.timeout(240)
def test_a_running_service_is_no_stranger_on_its_port(fresh_machine: Machine) -> None:
    """Who holds the port is known to be the profile's own engine, to anybody; a stranger fails."""
    machine = fresh_machine
    machine.boot()
    machine.run("servicekit", "install", "demo", "--now")
    for user in ("", "nobody"):
        checks, _ = examine(machine, user=user, env={"HOME": "/"})
        assert line(checks, "port") == "ok: 127.0.0.1:18001 is used by its own service; "
        assert line(checks, "profile").startswith("ok: valid, allowed and installed")
    machine.run("servicekit", "stop", "demo")
    checks, _ = examine(machine)
    assert line(checks, "port") == "ok: 127.0.0.1:18001 is free; "
    stranger = machine.spawn("python3", "-m", "http.server", "18001", "--bind", "127.0.0.1")
    try:
        machine.wait_until(
            lambda: "18001" in machine.run("ss", "-ltnH").stdout, READY_LIMIT, "it listens"
        )
        checks, code = examine(machine)
        assert "is used by pid " in line(checks, "port")
        assert "http.server" in line(checks, "port")
        assert code == 1
    finally:
        stranger.terminate()
        stranger.communicate()
