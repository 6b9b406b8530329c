"""A tunnel from install to uninstall, under a real systemd and a real supervisord."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from machines.sshd import configuration, require_sshd
from machines.waiting import wait_until

if TYPE_CHECKING:
    from machines.sshd import Sshd
    from machines.supervisor import Supervisor
    from machines.systemd import Machine

pytestmark = pytest.mark.sshd

PROGRAM = str(Path(sys.executable).with_name("servicekit"))
UNIT = "servicekit-tunnel@home.service"
SSHD = "sshd-of-the-test.service"
AWAY = "100.64.0.7"
"""An address as Tailscale gives them."""
LIMIT = 40.0
"""Seconds for a tunnel to be up again: it holds off for five after a fault, ten after the next."""
HARDENED = 1.5
"""Exposure by `systemd-analyze security`, of 10."""


class Server:
    """An OpenSSH server inside a machine, on its loopback and at an address that comes and goes."""

    def __init__(self, machine: Machine) -> None:
        require_sshd()
        self.machine = machine
        machine.run("ip", "link", "set", "lo", "up")
        machine.run("useradd", "--create-home", "ada")
        # An account without any password is not let in at all, which is not what is tested.
        machine.run("usermod", "--password", "*", "ada")
        machine.run("mkdir", "/srv/sshd")
        machine.write("/srv/sshd/authorized_keys", "")
        self.make_host_key()
        config = configuration(Path("/srv/sshd"), 2222, "0.0.0.0")
        machine.write("/srv/sshd/sshd_config", config)
        machine.write(
            f"/etc/systemd/system/{SSHD}",
            "[Service]\nRuntimeDirectory=sshd\n"
            "ExecStart=/usr/sbin/sshd -D -e -f /srv/sshd/sshd_config\n"
            "[Install]\nWantedBy=multi-user.target\n",
        )
        machine.run("systemctl", "enable", "--now", SSHD)

    def make_host_key(self) -> None:
        """Give it a host key, another one each time."""
        key = "/srv/sshd/host_key"
        self.machine.run("rm", "-f", key, f"{key}.pub")
        self.machine.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its host key."""
        said = self.machine.run("ssh-keygen", "-lf", "/srv/sshd/host_key.pub").stdout
        return said.split()[1]

    def authorize(self, said: str) -> None:
        """Let in whom an install said to let in."""
        self.machine.write("/srv/sshd/authorized_keys", line_for_the_server(said))

    def kill(self) -> None:
        """End it and all of its connections."""
        self.machine.run("systemctl", "kill", "--signal=KILL", SSHD)


def line_for_the_server(said: str) -> str:
    """Find the line for `authorized_keys` in what an install says."""
    (line,) = (line for line in said.splitlines() if line.startswith("restrict,"))
    return f"{line}\n"


def tree(machine: Machine) -> set[str]:
    """Every file and directory that an install could have made."""
    places = ("/etc", "/usr/local", "/var/lib", "/var/log", "/var/cache", "/run/servicekit")
    found = machine.run("find", *places, check=False).stdout
    own = ("/var/lib/systemd/", "/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-")
    return {line for line in found.splitlines() if not line.startswith(own)}


def status(machine: Machine) -> dict[str, Any]:
    """What `tunnel status --json` says; its exit code says whether the tunnel is up."""
    done = machine.run("servicekit", "tunnel", "status", "home", "--json", check=False)
    said: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if said["state"] == "up" else 1)
    return said


def becomes(machine: Machine, name: str, value: str) -> None:
    """Wait until a property of the unit has a value."""
    wait_until(lambda: machine.show(UNIT, name) == value, LIMIT, f"{name} is {value}")


INSTALL = ("servicekit", "tunnel", "install", "home")
SERVER = ("--to", "ada@127.0.0.1", "--ssh-port", "2222", "--local", "18000")


@pytest.mark.systemd
def test_an_install_is_asked_for_the_host_key_and_leaves_no_trace(fresh_machine: Machine) -> None:
    """What is installed, what is not without a confirmed host key, and what an uninstall leaves."""
    machine = fresh_machine
    machine.boot()
    server = Server(machine)
    before = tree(machine)

    # Nobody is there to look at the host key, or it is another one: nothing is installed.
    refused = machine.run(*INSTALL, *SERVER, check=False)
    assert refused.returncode == 1
    assert server.fingerprint in refused.stderr
    assert "name the right one with --fingerprint" in refused.stderr
    other = f"SHA256:{'A' * 43}"
    assert machine.run(*INSTALL, *SERVER, "--fingerprint", other, check=False).returncode == 78

    planned = machine.run(*INSTALL, *SERVER, "--dry-run").stdout
    assert "PRIVATE KEY" not in planned
    assert tree(machine) ^ before == set()
    said = machine.run(*INSTALL, *SERVER, "--fingerprint", server.fingerprint).stdout
    created = {line for line in said.splitlines() if line.startswith("create ")}
    assert created == {line for line in planned.splitlines() if line.startswith("create ")}

    key = machine.run("stat", "-c", "%a %U", "/etc/servicekit/tunnels/home/key").stdout
    assert key == "600 servicekit-tunnel\n"
    done = machine.run("systemd-analyze", "verify", UNIT, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    threshold = f"--threshold={HARDENED * 10:.0f}"
    done = machine.run("systemd-analyze", "security", threshold, UNIT, check=False)
    assert done.returncode == 0, done.stdout
    assert "tailscaled.service" in machine.show(UNIT, "After")
    assert machine.run("systemctl", "is-enabled", UNIT).stdout == "enabled\n"

    # No verb for profiles meets a tunnel.
    assert "no service is installed" in machine.run("servicekit", "status").stderr
    assert machine.run("servicekit", "uninstall", "home", check=False).returncode == 1
    assert status(machine)["state"] == "stopped"
    assert "ada@127.0.0.1" in machine.run("servicekit", "tunnel", "list").stdout

    machine.run("servicekit", "tunnel", "uninstall", "home")
    assert machine.show(UNIT, "LoadState") == "not-found"
    assert tree(machine) ^ before == set()


@pytest.mark.systemd
@pytest.mark.timeout(300)
def test_a_tunnel_lives_through_everything_under_systemd(fresh_machine: Machine) -> None:
    """Not let in, cut, cheated, booted, waiting for an address, gone."""
    machine = fresh_machine
    machine.boot()
    server = Server(machine)
    before = tree(machine)

    # The server does not know the key yet.
    new = (*INSTALL, *SERVER, "--fingerprint", server.fingerprint, "--now")
    failed = machine.run(*new, check=False)
    assert failed.returncode == 1
    assert '"127.0.0.1" rejects the tunnel\'s key for account "ada"' in failed.stdout
    becomes(machine, "ActiveState", "failed")
    server.authorize(failed.stdout)
    again = machine.run(*INSTALL, "--now").stdout
    assert again.startswith("nothing to do\n")
    assert "home: up after" in again
    assert machine.show(UNIT, "StatusText").startswith("up: 127.0.0.1:18000 here -> ")
    pid = machine.show(UNIT, "MainPID")
    owner = machine.run("ps", "-o", "user:20=", "-p", pid).stdout.strip()
    assert owner == "servicekit-tunnel"
    assert status(machine)["state"] == "engine-down"

    # Cut, and connected to again.
    server.kill()
    becomes(machine, "ActiveState", "activating")
    assert status(machine)["state"] == "down"
    machine.run("systemctl", "start", SSHD)
    becomes(machine, "ActiveState", "active")
    assert int(machine.show(UNIT, "NRestarts")) >= 1
    assert machine.messages(SERVICEKIT_TUNNEL="home", SERVICEKIT_CAUSE="lost")

    # Another host key: not a loop, and pinned by its fingerprint.
    server.kill()
    server.make_host_key()
    machine.run("systemctl", "start", SSHD)
    becomes(machine, "ActiveState", "failed")
    assert machine.show(UNIT, "ExecMainStatus") == "78"
    found = status(machine)
    assert (found["state"], found["cause"]) == ("down", "host-key")
    assert server.fingerprint in found["remedy"]
    renewed = machine.run(*INSTALL, "--fingerprint", server.fingerprint, "--now").stdout
    assert "replace  /etc/servicekit/tunnels/home/known_hosts" in renewed
    assert "home: up after" in renewed

    # Boot: up by itself.
    machine.reboot()
    becomes(machine, "ActiveState", "active")

    # An address that is not there yet when the tunnel is started.
    machine.run("ip", "address", "add", f"{AWAY}/32", "dev", "lo")
    away = ("--to", f"ada@{AWAY}", "--fingerprint", server.fingerprint)
    assert "home: up after" in machine.run(*INSTALL, *away, "--now").stdout
    machine.run("ip", "address", "delete", f"{AWAY}/32", "dev", "lo")
    machine.run("systemctl", "restart", "--no-block", UNIT)
    becomes(machine, "ActiveState", "activating")
    wait_until(lambda: status(machine)["cause"] == "unreachable", LIMIT, "the address is not there")
    machine.run("ip", "address", "add", f"{AWAY}/32", "dev", "lo")
    becomes(machine, "ActiveState", "active")

    machine.run("servicekit", "tunnel", "uninstall", "home")
    assert tree(machine) ^ before == set()


@pytest.mark.systemd
def test_a_tunnel_obeys_orders_and_shows_its_log(fresh_machine: Machine) -> None:
    """It is stopped, started and read as a profile's service is."""
    machine = fresh_machine
    machine.boot()
    server = Server(machine)
    new = (*INSTALL, *SERVER, "--fingerprint", server.fingerprint)
    server.authorize(machine.run(*new).stdout)

    def order(verb: str) -> str:
        done = machine.run("servicekit", "tunnel", verb, "home")
        return done.stdout + done.stderr

    assert "home: up after" in order("start")
    assert "is up already" in order("start")
    pid = machine.show(UNIT, "MainPID")
    assert "home: up after" in order("restart")
    assert machine.show(UNIT, "MainPID") != pid
    assert order("stop") == "home: stopped\n"
    assert status(machine)["state"] == "stopped"
    log = machine.run("servicekit", "tunnel", "logs", "home", "--since", "-1h").stdout
    assert log.count("up: 127.0.0.1:18000 here ->") >= 2

    server.authorize("restrict,nothing\n")
    refused = machine.run("servicekit", "tunnel", "start", "home", check=False)
    assert refused.returncode == 1
    assert "  remedy: add the line that" in refused.stdout
    grave = machine.run("servicekit", "tunnel", "logs", "home", "-p", "err").stdout
    assert "rejects" in grave
    assert "up: " not in grave


@pytest.mark.systemd
def test_a_server_that_is_silent_does_not_hold_the_boot(fresh_machine: Machine) -> None:
    """The boot is over before a tunnel connects, which takes as long as its server likes."""
    machine = fresh_machine
    machine.boot()
    server = Server(machine)
    machine.run(*INSTALL, *SERVER, "--fingerprint", server.fingerprint)
    # From now on, something takes connections there and says nothing.
    machine.run("systemctl", "disable", "--now", SSHD)
    silent = "import signal, socket; s = socket.create_server(('', 2222)); signal.pause()"
    machine.write(
        "/etc/systemd/system/silent.service",
        f'[Service]\nExecStart=/usr/bin/env python3 -c "{silent}"\n'
        "[Install]\nWantedBy=multi-user.target\n",
    )
    machine.run("systemctl", "enable", "silent.service")
    machine.reboot()
    state = machine.run("systemctl", "is-system-running", "--wait", check=False).stdout.strip()
    assert state in {"running", "degraded"}
    becomes(machine, "ActiveState", "activating")
    began = int(machine.show(UNIT, "InactiveExitTimestampMonotonic"))
    over = machine.run("systemctl", "show", "--value", "-p", "FinishTimestampMonotonic").stdout
    reached = int(machine.show("multi-user.target", "ActiveEnterTimestampMonotonic"))
    assert 0 < reached <= int(over) < began
    assert status(machine)["state"] == "down"


@pytest.mark.systemd
def test_a_users_own_systemd_runs_a_tunnel(fresh_machine: Machine) -> None:
    """Below a home, by its owner, without root."""
    machine = fresh_machine
    machine.boot()
    server = Server(machine)
    bob = machine.add_user("bob")
    words = ("servicekit", "--user", "tunnel")
    install = (*words, "install", "home", *SERVER, "--fingerprint", server.fingerprint)
    said = machine.run(*install, user="bob", env=bob).stdout
    assert "create   /home/bob/.config/systemd/user/servicekit-tunnel@home.service" in said
    server.authorize(said)
    again = machine.run(*words, "install", "home", "--now", user="bob", env=bob).stdout
    assert "home: up after" in again
    seen = machine.run(*words, "status", "home", user="bob", env=bob, check=False).stdout
    assert seen.startswith("home: engine-down")
    machine.run(*words, "uninstall", "home", user="bob", env=bob)
    left = machine.run("find", "/home/bob", "/run/user", "-name", "*servicekit*").stdout
    assert left == ""


def answered(command: list[str], answer: str) -> str:
    """Run a command on a terminal and answer its question; give what was on the screen."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            os.close(theirs)
            os.write(ours, f"{answer}\n".encode())
            screen = b""
            # At the end of the last one that has it open, a terminal's reader gets an error.
            with contextlib.suppress(OSError):
                while piece := os.read(ours, 4096):
                    screen += piece
        assert process.returncode == 1
    finally:
        os.close(ours)
    return screen.decode()


@pytest.mark.supervisord
@pytest.mark.timeout(200)
def test_from_install_to_uninstall_under_supervisord(supervisord: Supervisor, sshd: Sshd) -> None:
    """The same service does the same: it holds off, comes back, and stays down where it must."""
    home = supervisord.home
    config = home / "servicekit.toml"
    config.write_text(
        f'root = "{home}"\nmanager = "supervisor"\nsupervisor_socket = "{supervisord.socket}"\n'
        f'[places]\nsupervisor = "{supervisord.include}"\n'
    )
    config.chmod(0o644)

    def files() -> set[str]:
        own = {"supervisord.log", "supervisord.pid", "supervisor.sock", "console.log"}
        return {str(path.relative_to(home)) for path in home.rglob("*")} - own

    def run(*words: str, code: int = 0) -> str:
        done = subprocess.run(
            [PROGRAM, "--user", "--config", str(config), "tunnel", *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def state() -> str:
        file = home / "run/tunnel@home/state.json"
        return str(json.loads(file.read_text())["phase"]) if file.exists() else ""

    program = "servicekit-tunnel@home"
    before = files()
    server = ("--to", f"{sshd.user}@127.0.0.1", "--ssh-port", str(sshd.port))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])

    # A person who does not know the key by sight says no, and nothing is installed.
    asking = [PROGRAM, "--user", "--config", str(config), "tunnel", "install", "home", *server]
    assert sshd.fingerprint in answered(asking, "n")
    assert files() == before

    local = ("--local", port, "--fingerprint", sshd.fingerprint)
    said = run("install", "home", *server, *local, "--now", code=1)
    assert "home: down: " in said
    wait_until(lambda: supervisord.state(program) == "EXITED", LIMIT, "it stays down")

    sshd.authorize(line_for_the_server(said))
    assert "home: up after" in run("install", "home", "--now")
    assert supervisord.state(program) == "RUNNING"
    assert "nothing listens on 127.0.0.1:18000" in run("status", "home", code=1)
    assert "home" in run("list")

    sshd.kill()
    wait_until(lambda: state() == "waiting", LIMIT, "it holds off")
    found = json.loads(run("status", "--json"))[0]
    assert (found["state"], found["faults"] > 0) == ("down", True)
    assert found["cause"] in {"lost", "unreachable"}
    sshd.start()
    wait_until(lambda: state() == "up", LIMIT, "it is up again")

    assert run("stop", "home") == "home: stopped\n"
    assert supervisord.state(program) == "STOPPED"
    assert "home: up after" in run("restart", "home")
    log = run("logs", "home", "--since", "-1h", "-p", "notice")
    assert "up: " in log
    assert "level=info" not in log
    sshd.kill()
    wait_until(lambda: state() == "waiting", LIMIT, "it holds off")
    assert "  the service keeps retrying" in run("start", "home", code=1)

    run("uninstall", "home")
    assert supervisord.state(program) == "ERROR"
    assert files() == before
