"""A hostile account and a hostile engine under both managers: root's verbs are led nowhere."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from servicekit.places import system_places

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines.systemd import Machine

pytestmark = pytest.mark.systemd

STATE = "/run/servicekit/wild"
HOME = "/var/lib/servicekit/wild"
VICTIM = "/root/victim"
LIMIT = 30.0
# Asked for its version or options, it says who asks; as an engine it does nothing for ever.
ENGINE = """#!/bin/sh
case "$1$2" in *-version*|*-help*)
    { id -u; grep -E 'NoNewPrivs|CapEff' /proc/self/status; env; } >>/srv/asked/"$(id -u)"
    ;;
esac
exec sleep 600
"""


SUPERVISORD = "/etc/supervisord.conf"
CONFIGURATION = """\
[unix_http_server]
file=/run/supervisor.sock
[supervisord]
logfile=/run/supervisord.log
pidfile=/run/supervisord.pid
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix:///run/supervisor.sock
[include]
files=/etc/supervisor/conf.d/*.conf
"""
RESTART = {
    "systemd": ("systemctl", "restart", "--no-block", "servicekit-wild"),
    "supervisor": ("supervisorctl", "-c", SUPERVISORD, "restart", "servicekit-wild"),
}


@pytest.fixture(scope="module", params=["systemd", "supervisor"])
def manager(request: pytest.FixtureRequest) -> str:
    """The service manager, which runs as root."""
    return str(request.param)


@pytest.fixture(scope="module")
def machine(systemd_machine: Machine, manager: str) -> Iterator[Machine]:
    """A machine with the service of a program that anybody may write, installed and stopped.

    What an earlier root left in the service's directories stands in its way: the install gives it
    to the account.
    """
    machine = systemd_machine
    machine.write("/etc/servicekit/servicekit.toml", f'allow = ["wild"]\nmanager = "{manager}"\n')
    if manager == "supervisor":
        machine.write(SUPERVISORD, CONFIGURATION)
        machine.run(
            *("systemd-run", "--unit=supervisord", "/opt/servicekit/bin/supervisord"),
            *("-n", "-c", SUPERVISORD),
        )
        machine.wait_until(machine.path("/run/supervisor.sock").exists, LIMIT, "supervisord runs")
        machine.write(f"{HOME}/history.jsonl", "", 0o600)
    machine.write("/opt/wild", ENGINE, 0o755)
    machine.run("rm", "-rf", "/srv/asked")
    machine.run("install", "-d", "-m", "1777", "/srv/asked")
    machine.write(
        "/etc/servicekit/profiles.d/wild.toml", 'extends = "demo"\nexecutable = "/opt/wild"\n'
    )
    machine.run("servicekit", "install", "wild", "--no-enable")
    machine.run("servicekit", "start", "wild", "--no-wait")
    machine.wait_until(machine.path(f"{STATE}/state.json").exists, LIMIT, "it has begun")
    machine.run("servicekit", "stop", "wild")
    yield machine
    machine.run("servicekit", "uninstall", "wild", "--purge", check=False)
    if manager == "supervisor":
        machine.run("systemctl", "stop", "supervisord")


def test_a_service_runs_as_its_account(machine: Machine) -> None:
    """The watchdog, and so its engine, is not root."""
    machine.run("servicekit", "start", "wild", "--no-wait")

    def pid() -> int | None:
        found = json.loads(machine.run("servicekit", "status", "wild", "--json").stdout)["pid"]
        return None if found is None else int(found)

    watchdog = machine.wait_until(pid, LIMIT, "its watchdog runs")
    status = machine.run("cat", f"/proc/{watchdog}/status").stdout
    account = machine.run("id", "-u", "servicekit").stdout.strip()
    assert f"Uid:\t{account}\t{account}\t{account}\t{account}" in status
    machine.run("servicekit", "stop", "wild")
    assert machine.path(f"{HOME}/history.jsonl").stat().st_uid == int(account)


@pytest.mark.parametrize("manager", ["supervisor"], indirect=True)
def test_logs_of_supervisor_are_for_root_alone(machine: Machine) -> None:
    """An install closes the directory that an older one left open; each new log is closed, too."""
    folder, log = "/var/log/servicekit", machine.path("/var/log/servicekit/wild.log")

    def modes() -> tuple[int, int]:
        found = machine.path(folder).stat(), log.stat()
        return found[0].st_mode & 0o777, found[1].st_mode & 0o777

    assert modes() == (0o750, 0o640)
    assert machine.run("cat", f"{folder}/wild.log", user="nobody", check=False).returncode != 0
    machine.run("chmod", "755", folder)
    machine.run("servicekit", "install", "wild", "--no-enable")
    machine.run("supervisorctl", "-c", SUPERVISORD, "clear", "servicekit-wild")
    machine.wait_until(log.exists, LIMIT, "supervisord has made a new log")
    assert modes() == (0o750, 0o640)


@pytest.mark.parametrize("manager", ["supervisor"], indirect=True)
def test_doctor_names_a_service_that_supervisor_runs_as_root(machine: Machine) -> None:
    """A service that an older servicekit installed without an account is not called protected."""
    plan = machine.path(system_places().plan("wild"))
    kept = plan.read_text()

    def protection() -> str:
        done = machine.run("servicekit", "doctor", "wild", "--json", check=False, limit=120)
        (check,) = (c for c in json.loads(done.stdout)["checks"] if c["code"] == "protection")
        return f"{check['verdict']}: {check['what']}"

    assert protection() == "ok: no weakenings"
    plan.write_text(json.dumps(json.loads(kept) | {"user": None}))
    assert protection() == "warn: Supervisor runs the engine and the model's code as root"
    plan.write_text(kept)


def test_a_hostile_line_in_the_history_stops_no_verb(machine: Machine) -> None:
    """Values of wrong types are left out, by root's verbs and by the watchdog that starts."""
    history = machine.path(f"{HOME}/history.jsonl")
    kept = history.read_text()
    began = kept.count('"kind":"started"')
    *_, last = (json.loads(line) for line in kept.splitlines())
    lines = (last | {"cause": ["x"]}, last | {"code": ["x"]}, last | {"at": "2026-01-01T00:00:00"})
    history.write_text(kept + "".join(f"{json.dumps(line)}\n" for line in lines))
    machine.run("servicekit", "status")
    machine.run("servicekit", "history", "wild")
    machine.run("servicekit", "start", "wild", "--no-wait")
    machine.wait_until(
        lambda: history.read_text().count('"kind":"started"') == began + 1,
        LIMIT,
        "the watchdog has begun",
    )
    machine.run("servicekit", "stop", "wild")
    history.write_text(kept)


def test_a_history_that_is_a_link_is_not_written(machine: Machine) -> None:
    """`start` as root leaves alone what the account linked its history to, and still resets."""
    machine.write(VICTIM, "precious\n", 0o600)
    history = machine.path(f"{HOME}/history.jsonl")
    kept = history.read_text()
    history.unlink()
    history.symlink_to(VICTIM)
    machine.run("servicekit", "start", "wild", "--no-wait")
    machine.run("servicekit", "stop", "wild", check=False)
    assert machine.path(VICTIM).read_text() == "precious\n"
    assert machine.path(VICTIM).stat().st_mode & 0o777 == 0o600
    history.unlink()
    history.write_text(kept)
    os.chown(history, machine.path(HOME).stat().st_uid, -1)


def test_an_order_to_reset_is_obeyed_once(machine: Machine, manager: str) -> None:
    """What an operator's start says reaches the watchdog, and a restart by itself says nothing."""

    def resets() -> int:
        lines = machine.path(f"{HOME}/history.jsonl").read_text().splitlines()
        return sum('"kind":"reset"' in line for line in lines)

    def starts() -> int:
        return machine.path(f"{HOME}/history.jsonl").read_text().count('"kind":"started"')

    before, began = resets(), starts()
    machine.run("servicekit", "start", "wild", "--no-wait")
    machine.wait_until(lambda: resets() == before + 1, LIMIT, "the order is obeyed")
    machine.run(*RESTART[manager])
    machine.wait_until(lambda: starts() == began + 2, LIMIT, "it has begun again")
    assert resets() == before + 1
    machine.run("servicekit", "stop", "wild")
    assert machine.path(f"{HOME}/../.resets").stat().st_uid == 0


def test_watch_by_hand_as_root_is_refused(machine: Machine) -> None:
    """Root does not run by hand what was installed for an account, in that account's directory."""
    done = machine.run("servicekit", "watch", "wild", check=False)
    assert done.returncode == 78
    assert 'installed for account "servicekit" and does not run as root' in done.stderr
    assert "servicekit start wild" in done.stderr


def test_a_forged_state_is_not_believed(machine: Machine) -> None:
    """A state of pid 1 makes no service ready: the manager's main process decides."""
    file = machine.path(f"{STATE}/state.json")
    kept = file.read_text()
    words = machine.path("/proc/1/stat").read_text().rpartition(")")[2].split()
    forged: dict[str, Any] = json.loads(kept) | {
        "pid": 1,
        "pid_started": int(words[19]),
        "state": "ready",
        "phase": "serving",
        "why": "answering",
        "host": "127.0.0.1",
        "port": 80,
        "code": None,
    }
    file.write_text(json.dumps(forged))
    said = json.loads(machine.run("servicekit", "status", "wild", "--json").stdout)
    assert said["state"] == "stopped"
    done = machine.run("servicekit", "probe", "wild", check=False)
    assert done.returncode == 1
    assert not done.stdout.startswith("healthy")
    started = machine.run("servicekit", "start", "wild", "--no-wait")
    assert "is already running" not in started.stderr
    machine.run("servicekit", "stop", "wild")
    file.write_text(json.dumps(forged | {"host": "192.0.2.1"}))
    said = machine.run("servicekit", "status", "wild").stdout
    assert "cannot be read" in said
    file.write_text(kept)


def test_the_engines_program_is_asked_without_roots_rights(machine: Machine) -> None:
    """Whoever may write the program runs nothing as root, in whatever verb asks it."""
    machine.run("servicekit", "check", "wild", check=False, env={"SECRET": "hush"})
    machine.run("servicekit", "doctor", "wild", check=False, env={"SECRET": "hush"}, limit=120)
    account = machine.run("id", "-u", "servicekit").stdout.strip()
    asked = machine.path("/srv/asked")
    # An install that finds no account asks as nobody.
    assert {account} <= {each.name for each in asked.iterdir()} <= {account, "65534"}
    text = (asked / account).read_text()
    assert set(text.splitlines()) >= {account, "NoNewPrivs:\t1", "CapEff:\t0000000000000000"}
    assert "hush" not in text
    assert not machine.run("pgrep", "-f", "/opt/wild", check=False).stdout


@pytest.mark.parametrize("manager", ["systemd"], indirect=True)
def test_an_alert_is_sent_by_an_account_of_its_own(machine: Machine) -> None:
    """The alert command gets what `status` reads, in a sandbox not as the engine's account."""
    alert = "servicekit-alert@servicekit-wild.service"
    settings = "/etc/servicekit/servicekit.toml"
    kept = machine.path(settings).read_text()
    machine.write("/opt/page", "#!/bin/sh\nid -u\ncat\n", 0o755)
    machine.write(settings, f'{kept}alert_command = ["/opt/page"]\n')
    plan = machine.path(system_places().plan("wild"))
    sound = plan.read_text()
    plan.write_text("{")
    machine.run("systemctl", "start", "servicekit-wild", check=False)
    machine.wait_until(
        lambda: machine.show(alert, "ExecMainExitTimestampMonotonic") != "0", LIMIT, "it was sent"
    )
    plan.write_text(sound)
    lines = machine.messages(alert)
    assert machine.show(alert, "Result") == "success", "\n".join(lines)
    (uid,) = (line for line in lines if line.isdigit())
    (sent,) = (line for line in lines if line.startswith("{"))
    fields = json.loads(sent)
    assert fields["profile"] == "wild"
    assert uid not in {"0", machine.run("id", "-u", "servicekit").stdout.strip()}
    machine.write(settings, kept)


def test_one_broken_history_does_not_hide_the_others(machine: Machine) -> None:
    """A pipe in the place of one profile's history is that profile's trouble alone."""
    history = machine.path(f"{HOME}/history.jsonl")
    history.rename(history.with_suffix(".kept"))
    state = machine.path(f"{STATE}/state.json")
    state.unlink()
    os.mkfifo(history)
    said = machine.run("servicekit", "status", limit=20).stdout
    assert "cannot be read: it is not a regular file" in said
    assert machine.run("servicekit", "stop", "wild", limit=30, check=False).returncode == 0
    history.unlink()
    history.with_suffix(".kept").rename(history)


def test_a_purge_ends_whatever_was_nested(machine: Machine) -> None:
    """`uninstall --purge` removes 3,000 directories below each other, and follows no link."""
    machine.write(VICTIM, "precious\n", 0o600)
    machine.run(
        *("setpriv", "--reuid=servicekit", "--clear-groups", "python3", "-c"),
        "import os\nos.chdir('" + HOME + "')\n"
        "os.symlink('" + VICTIM + "', 'link')\n"
        "for _ in range(3000):\n os.mkdir('d')\n os.chdir('d')\n",
    )
    machine.run("servicekit", "uninstall", "wild", "--purge")
    assert not machine.path(HOME).exists()
    assert machine.path(VICTIM).read_text() == "precious\n"
    # Nothing of it is left, so that the account that its install made goes, too.
    assert "servicekit:" not in machine.path("/etc/passwd").read_text()
