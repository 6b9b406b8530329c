"""What was installed is what runs, whatever becomes of profile, settings and package meanwhile.

Every case is a service of its own beside the others; a crash, a restart and a boot happen to all of
them at once, and each must be ready again as it was installed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from machines.fake import PROGRAM
from machines.supervisor import Supervisor
from machines.systemd import TESTS_INSIDE
from machines.waiting import wait_until
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines.systemd import Machine

pytestmark = pytest.mark.timeout(300)

LIMIT: Final = 120.0
"""Seconds for all services to be ready; on two idle cores it takes five."""
PROFILE: Final = """
summary = "a stub"
engine = "openai"
model = "lab/model"
served_name = "{name}"
executable = "{program}"
arguments = ["--port", "{{port}}", "--served-model-name", "{{served_name}}"]
port = {port}
gpus = []
[options]
batch = 2
[context]
requested = 4096
[watch]
interval = 1
survey = 1
"""
CHANGED: Final = "profile changed since it was installed: "
REFUSED: Final = "profile or settings are refused, and the service runs as installed: "
OLD: Final = "installed by servicekit 0.1.0"
CASES: Final = {
    "as-installed": "",
    "port": CHANGED,
    "served-name": CHANGED,
    "option": CHANGED,
    "typo": REFUSED,
    "not-toml": REFUSED,
    "mode-0600": "",
    "closed-directory": "",
    "deleted": REFUSED,
    "first-release": OLD,
}
"""Names of profiles, and what `status` says of each once its case has happened."""
PROBED: Final = ("port", "deleted")
# Under Supervisor all files are one user's, whatever their modes.
FILES_ALIKE: Final = ("mode-0600", "closed-directory", "served-name", "not-toml")
EVENTS: Final = ("crash", "restart", "boot")


class Host(ABC):
    """A manager that runs a service for each case."""

    def __init__(self, ports: dict[str, int], program: str) -> None:
        self.ports, self.program = ports, program
        self.cases = tuple(ports)
        self.runs: dict[str, str] = {}
        """The run of each service before the last event."""
        self.now: dict[str, dict[str, Any]] = {}
        """What `status` said after it."""

    @property
    @abstractmethod
    def profiles(self) -> Path:
        """The directory of the profiles, as this process sees it."""

    @abstractmethod
    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run servicekit to its end."""

    @abstractmethod
    def kill(self, pid: int) -> None:
        """Kill a process of a service."""

    @abstractmethod
    def boot(self) -> None:
        """Stop the manager with all of its services, and start it again."""

    @abstractmethod
    def settings(self, more: str = "") -> None:
        """Write the settings."""

    @abstractmethod
    def age(self, name: str) -> None:
        """Make an installation what version 0.1.0 left."""

    def text(self, name: str) -> str:
        """The profile of a case as it is installed."""
        return PROFILE.format(name=name, program=self.program, port=self.ports[name])

    def write(self, name: str, text: str) -> None:
        """Write a profile."""
        file = self.profiles / f"{name}.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o644)

    def install(self) -> None:
        """Install and start every case, then let it happen."""
        self.settings()
        for name in self.cases:
            self.write(name, self.text(name))
        for name in self.cases:
            done = self.command("install", name)
            assert done.returncode == 0, done.stderr
        for name in self.cases:
            done = self.command("start", name, "--no-wait")
            assert done.returncode == 0, done.stderr
        self.settle()
        for name in self.cases:
            self.change(name, self.text(name))

    def change(self, name: str, text: str) -> None:
        """Let the case `name` happen to its service."""
        match name:
            case "port":
                self.write(name, text.replace("port = ", "port = 1234 #"))
            case "served-name":
                self.write(name, text.replace('"served-name"', '"other"'))
            case "option":
                self.write(name, text.replace("batch = 2", "batch = 3"))
            case "typo":
                self.write(name, text.replace("summary", "sumary"))
            case "not-toml":
                self.write(name, "oops")
            case "mode-0600":
                (self.profiles / f"{name}.toml").chmod(0o600)
            case "deleted":
                (self.profiles / f"{name}.toml").unlink()
            case "first-release":
                self.age(name)
            case _:
                assert name == "as-installed"

    def status(self) -> dict[str, dict[str, Any]]:
        """What `status` says of each service."""
        done = self.command("status", "--json")
        every: list[dict[str, Any]] = json.loads(done.stdout)
        return {each["profile"]: each for each in every}

    def _all_ready_anew(self) -> bool:
        now = self.status()
        return all(
            each["state"] == "ready" and each["run"] != self.runs.get(name)
            for name, each in now.items()
        )

    def settle(self) -> None:
        """Wait until every service is ready in a new run."""
        try:
            wait_until(self._all_ready_anew, LIMIT, "every service is ready anew")
        except pytest.fail.Exception:
            why = {name: (each["state"], each["why"]) for name, each in self.status().items()}
            pytest.fail(f"not every service is ready anew: {why}")
        self.now = self.status()
        self.runs = {name: each["run"] for name, each in self.now.items()}

    def happen(self, event: str) -> None:
        """Let an event happen to every service, and wait until they are ready again."""
        if event == "boot":
            self.boot()
        for name, each in self.now.items():
            if event == "crash":
                self.kill(each["engine_pid"])
            elif event == "restart":
                done = self.command("restart", name, "--no-wait")
                assert done.returncode == 0, done.stderr
        self.settle()


class OnSystemd(Host):
    """A booted machine, with the services of the system."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(
            {name: 18100 + number for number, name in enumerate(CASES)},
            str(TESTS_INSIDE / "fake_engine.py"),
        )
        self.machine = machine

    @property
    @override
    def profiles(self) -> Path:
        return self.machine.path("/etc/servicekit/profiles.d")

    @override
    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.machine.run("servicekit", *words, check=False)

    @override
    def kill(self, pid: int) -> None:
        self.machine.run("kill", "-KILL", str(pid))

    @override
    def boot(self) -> None:
        self.machine.reboot()

    @override
    def settings(self, more: str = "") -> None:
        names = json.dumps(list(CASES))
        self.machine.write("/etc/servicekit/servicekit.toml", f"allow = {names}\n{more}\n")

    @override
    def change(self, name: str, text: str) -> None:
        if name != "closed-directory":
            super().change(name, text)
            return
        # Where its service's account cannot go, with a link in its place.
        file = f"/etc/servicekit/profiles.d/{name}.toml"
        self.machine.run("install", "-d", "-m", "0700", "/root/closed")
        self.machine.run("mv", file, f"/root/closed/{name}.toml")
        self.machine.run("ln", "-s", f"/root/closed/{name}.toml", file)

    @override
    def age(self, name: str) -> None:
        unit = self.machine.path(f"/etc/systemd/system/servicekit-{name}.service")
        text = unit.read_text(encoding="utf-8")
        unit.write_text(_without_plan(text), encoding="utf-8")
        self.machine.path(f"/usr/local/lib/servicekit/wrappers/{name}.plan.json").unlink()
        self.machine.run("systemctl", "daemon-reload")


class OnSupervisor(Host):
    """A private supervisord, with the services of a user."""

    def __init__(self, supervisord: Supervisor, ports: list[int]) -> None:
        cases = (name for name in CASES if name not in FILES_ALIKE)
        super().__init__(dict(zip(cases, ports, strict=False)), str(PROGRAM))
        self.supervisord, self.home = supervisord, supervisord.home
        self.config = self.home / "servicekit.toml"

    @property
    @override
    def profiles(self) -> Path:
        return self.home / "profiles.d"

    @override
    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("servicekit"))
        return subprocess.run(
            [program, "--user", "--config", str(self.config), *words],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )

    @override
    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    @override
    def boot(self) -> None:
        self.supervisord.ctl("stop", "all")  # all at once, where its own end is one by one
        self.supervisord.stop()
        shutil.rmtree(self.home / "run")  # as what is below /run is gone
        self.supervisord.start()

    @override
    def settings(self, more: str = "") -> None:
        self.config.write_text(
            f'root = "{self.home}"\nmanager = "supervisor"\n'
            f'supervisor_socket = "{self.supervisord.socket}"\nallow = {json.dumps(list(CASES))}\n'
            f'{more}\n[places]\nsupervisor = "{self.supervisord.include}"\n'
        )
        self.config.chmod(0o644)

    @override
    def age(self, name: str) -> None:
        program = self.supervisord.include / f"servicekit-{name}.conf"
        program.write_text(_without_plan(program.read_text(encoding="utf-8")), encoding="utf-8")
        (self.home / f"wrappers/{name}.plan.json").unlink()
        self.supervisord.ctl("update")


def _without_plan(text: str) -> str:
    """A unit or program as 0.1.0 wrote it, whose command named no plan."""
    lines = text.splitlines()
    return "\n".join(line.partition(" --plan ")[0] for line in lines) + "\n"


@pytest.fixture(scope="module")
def on_systemd(systemd_machine: Machine) -> Host:
    """Give a machine on which every case has happened to a running service."""
    host = OnSystemd(systemd_machine)
    host.install()
    return host


@pytest.fixture(scope="module")
def on_supervisor(free_ports: list[int]) -> Iterator[Host]:
    """Give a supervisord under which every case has happened to a running service."""
    supervisord = Supervisor()
    try:
        supervisord.start()
        host = OnSupervisor(supervisord, free_ports)
        host.install()
        yield host
    finally:
        supervisord.remove()


@pytest.fixture(scope="module")
def free_ports() -> list[int]:
    """Give a port for each case."""
    from faults.local import free_port

    return [free_port() for _ in CASES]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("systemd", marks=pytest.mark.systemd),
        pytest.param("supervisor", marks=pytest.mark.supervisord),
    ],
)
def host(request: pytest.FixtureRequest) -> Host:
    """Give each manager in turn."""
    found: Host = request.getfixturevalue(f"on_{request.param}")
    return found


@pytest.fixture(scope="module", params=EVENTS)
def event(request: pytest.FixtureRequest, host: Host) -> str:
    """Let each event happen in turn."""
    host.happen(request.param)
    return str(request.param)


@pytest.fixture(scope="module", params=EVENTS)
def event_under_broken_settings(request: pytest.FixtureRequest, host: Host) -> str:
    """Let each event happen while the settings have a typo.

    Without a plan, as 0.1.0 left it, a service needs sound settings: that one is gone before.
    """
    if "first-release" in host.now:
        assert host.command("uninstall", "first-release").returncode == 0
        host.now = host.status()
    host.settings("alow = []")
    host.happen(request.param)
    return str(request.param)


def check(host: Host, name: str, words: str) -> None:
    """See that a service serves as it was installed, and what `status` says of its profile."""
    now = host.now[name]
    assert (now["state"], now["served_name"]) == ("ready", name)
    assert now["url"] == f"http://127.0.0.1:{host.ports[name]}/v1"
    assert now["restarts"] <= 1, host.command("history", name).stdout
    assert now["outdated"].startswith(words) if words else now["outdated"] == ""
    if name in PROBED:
        probe = host.command("probe", name, "--deep")
        assert probe.returncode == 0, probe.stdout


@pytest.mark.parametrize("name", CASES)
def test_what_was_installed_runs(host: Host, event: str, name: str) -> None:
    """After a crash, a restart and a boot a service is ready as it was installed."""
    assert event in EVENTS
    if name not in host.cases:
        # A private supervisord and its services are one user's, who may read all of these files.
        assert name in FILES_ALIKE
        return
    check(host, name, CASES[name])


def test_doctor_names_what_has_changed(host: Host, event: str) -> None:
    """`doctor --json` names each profile that changed since its install."""
    assert event in EVENTS
    found = json.loads(host.command("doctor", "--json").stdout)
    told = {name: words.startswith(CHANGED) for name, words in found["outdated"].items()}
    changed = [name for name in host.cases if CASES[name] == CHANGED]
    assert told == dict.fromkeys(changed, True) | {"first-release": False}


@pytest.mark.parametrize("name", ["as-installed", "port", "deleted"])
def test_broken_settings_stop_nothing(
    host: Host, event_under_broken_settings: str, name: str
) -> None:
    """A typo in the settings is said by the verbs, and no service minds."""
    assert event_under_broken_settings in EVENTS
    check(host, name, REFUSED)
