"""Ways to keep a model server alive, each around the same fake engine: ours and the usual ones.

Every one of them is set up as its manual shows it, with the periods and bounds that it ships with.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import tomli_w
from machines.fake import PROGRAM
from machines.supervisor import Supervisor
from machines.systemd import TESTS_INSIDE
from machines.waiting import wait_until
from typing_extensions import override

from benchmarks import seen
from servicekit.watchdog import ledger
from servicekit.watchdog.ledger import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from machines.systemd import Machine

    from benchmarks.seen import Processes
    from servicekit.host.procfs import Stat
    from servicekit.watchdog.ledger import Record

START_LIMIT: Final = 150.0
"""Seconds for an engine to be there and to listen: monit's first look comes within two minutes."""
NOTHING: Final[Mapping[str, object]] = MappingProxyType({})
LISTENED: Final = "/v1/models"
"""What is asked for where a manager can ask by HTTP, as the recipes do."""
WRAPPER: Final = """\
#!/bin/sh
export {variables}
exec {engine} serve --model-path lab/model --host 127.0.0.1 --port {port} --served-model-name bench
"""


def free_port() -> int:
    """Find a port of loopback that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


class Keeper(ABC):
    """One fake engine, kept alive by something. What it plays is in a file beside it."""

    name: str

    def __init__(
        self, processes: Processes, folder: Path, inside: str, script: Mapping[str, object]
    ) -> None:
        self._processes = processes
        self._inside = inside
        self.folder = folder
        self.token = secrets.token_hex(8)
        self.port = free_port()
        self._script = dict(script)
        self._closed = False
        self.play()

    @abstractmethod
    def start(self) -> None:
        """Set it up and start it, without waiting for the engine."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it and the engine, and remove what it wrote."""

    @abstractmethod
    def residents(self) -> set[int]:
        """Pids of what runs for its sake beside the engine, all the time."""

    @property
    def variables(self) -> dict[str, str]:
        """What the engine needs in its environment."""
        return {seen.TOKEN: self.token, "FAKE_ENGINE": f"@{self._inside}/script.json"}

    def play(self, **script: object) -> None:
        """Change what engines play from their start on."""
        self._script |= script
        self._write(self._script)

    def tell(self, **script: object) -> None:
        """Have the living engine play something else."""
        self._write(self._script | {"told": script})
        os.kill(self.engine.pid, signal.SIGUSR1)

    def _write(self, script: Mapping[str, object]) -> None:
        new = self.folder / "script.new"
        new.write_text(json.dumps(script), encoding="utf-8")
        new.chmod(0o644)
        new.replace(self.folder / "script.json")

    def wrapper(self, engine: str) -> str:
        """The script of the recipes, which becomes the engine."""
        variables = " ".join(f"{name}='{value}'" for name, value in self.variables.items())
        return WRAPPER.format(variables=variables, engine=engine, port=self.port)

    @property
    def engines(self) -> list[Stat]:
        """Living engines, newest last."""
        return self._processes.engines(self.token)

    @property
    def engine(self) -> Stat:
        """The newest living engine; waits for it where a keeper is just replacing one."""
        return wait_until(lambda: self.engines, START_LIMIT, f"{self.name}: an engine")[-1]

    def orphans(self, before: float) -> list[Stat]:
        """What engines that were started before (seconds since boot) have left behind."""
        return self._processes.orphans(self.token, before)

    def close(self) -> None:
        """Stop it, and end what that leaves; nothing happens the second time."""
        if self._closed:
            return
        self._closed = True
        try:
            self.stop()
        finally:
            for process in (*self.engines, *self.orphans(seen.boot_time())):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)

    def wait_replaced(self, old: Stat, limit: float) -> Stat | None:
        """Wait for the engine that is started after `old`; `None` where there is none in time."""

        def newer() -> list[Stat]:
            return [one for one in self.engines if one.started > old.started]

        try:
            return wait_until(newer, limit, f"{self.name}: another engine")[0]
        except AssertionError:
            return None

    def wait_listening(self) -> None:
        """Wait until the engine listens."""
        wait_until(self.listens, START_LIMIT, f"{self.name}: the engine listens")

    def listens(self) -> bool:
        """Tell whether somebody listens on the engine's port, as seen by the engine."""
        if not self.engines:
            return False
        try:
            table = Path(f"/proc/{self.engine.pid}/net/tcp").read_text(encoding="ascii")
        except OSError:
            return False
        rows = (line.split() for line in table.splitlines()[1:])
        return any(row[1].endswith(f":{self.port:04X}") and row[3] == "0A" for row in rows)


class Ours(Keeper):
    """servicekit, told apart by its manager; its history says what it noticed, and when."""

    profile_name = "bench"

    def profile(self, engine: str, changes: Mapping[str, Any]) -> str:
        """The profile: everything as shipped but what `changes` says."""
        data: dict[str, Any] = {
            "summary": "the fake engine",
            "engine": "sglang",
            "executable": engine,
            "model": "lab/model",
            "served_name": "bench",
            "port": self.port,
            "gpus": [],
            "environment": self.variables,
            "context": {"requested": 4096},
        }
        return tomli_w.dumps(data | dict(changes))

    @property
    @abstractmethod
    def history(self) -> Path:
        """The ledger."""

    def records(self, kind: Kind, since: datetime | None = None) -> list[Record]:
        """Read the ledger."""
        return [
            record
            for record in ledger.read(self.history)
            if record.kind is kind and (since is None or record.at >= since)
        ]

    @property
    def watchdog(self) -> int:
        """Pid of the watchdog, as seen from here."""
        return self.engine.parent

    def is_ready(self) -> bool:
        """Whether the newest engine is ready."""
        launched, ready = self.records(Kind.LAUNCHED), self.records(Kind.READY)
        return bool(launched and ready and launched[-1].run == ready[-1].run)

    @override
    def wait_listening(self) -> None:
        wait_until(self.is_ready, START_LIMIT, f"{self.name}: the service is ready")


class OursUnderSystemd(Ours):
    """servicekit as a system service of a real systemd."""

    name = "servicekit, systemd"

    def __init__(
        self,
        processes: Processes,
        machine: Machine,
        name: str = "bench",
        changes: Mapping[str, Any] | None = None,
        script: Mapping[str, object] = NOTHING,
    ) -> None:
        self.profile_name = name
        self._changes = changes or {}
        self.machine = machine
        self.unit = f"servicekit-{name}.service"
        super().__init__(processes, *_room(machine), script)

    @override
    def start(self) -> None:
        profiles = "/etc/servicekit/profiles.d"
        text = self.profile(f"{TESTS_INSIDE}/fake_engine.py", self._changes)
        self.machine.write(f"{profiles}/{self.profile_name}.toml", text)
        names = [file.stem for file in self.machine.path(profiles).glob("*.toml")]
        self.machine.write("/etc/servicekit/servicekit.toml", tomli_w.dumps({"allow": names}))
        self.machine.run("servicekit", "install", self.profile_name)
        self.machine.run("systemctl", "start", "--no-block", self.unit)

    @override
    def stop(self) -> None:
        self.machine.run("servicekit", "uninstall", self.profile_name, "--purge", check=False)

    @override
    def residents(self) -> set[int]:
        return seen.below(self.watchdog, without=[self.engine.pid])

    @property
    @override
    def history(self) -> Path:
        return self.machine.path(f"/var/lib/servicekit/{self.profile_name}/history.jsonl")


class OursUnderSupervisor(Ours):
    """servicekit below a supervisord of its own."""

    name = "servicekit, Supervisor"

    def __init__(
        self,
        processes: Processes,
        changes: Mapping[str, Any] | None = None,
        script: Mapping[str, object] = NOTHING,
    ) -> None:
        self._changes = changes or {}
        self.supervisor = Supervisor()
        self._home = self.supervisor.home
        super().__init__(processes, self._home, str(self._home), script)

    @property
    def surroundings(self) -> dict[str, str]:
        """What supervisord has in its environment, and so the watchdog."""
        return {}

    @override
    def start(self) -> None:
        self.supervisor.start(self.surroundings)
        config = self._home / "servicekit.toml"
        settings = {"root": str(self._home), "manager": "supervisor", "allow": [self.profile_name]}
        settings["supervisor_socket"] = str(self.supervisor.socket)
        settings["places"] = {"supervisor": str(self.supervisor.include)}  # type: ignore[assignment]
        profile = self._home / f"profiles.d/{self.profile_name}.toml"
        profile.parent.mkdir()
        for file, text in (
            (config, tomli_w.dumps(settings)),
            (profile, self.profile(str(PROGRAM), self._changes)),
        ):
            file.write_text(text, encoding="utf-8")
            file.chmod(0o644)
        program = Path(sys.executable).with_name("servicekit")
        words = ["install", self.profile_name]
        run([str(program), "--user", "--config", str(config), *words])
        self.supervisor.ctl("update")
        self.supervisor.ctl("start", f"servicekit-{self.profile_name}")

    @override
    def stop(self) -> None:
        self.supervisor.remove()

    @override
    def residents(self) -> set[int]:
        return seen.below(self.supervisor.pid, without=[self.engine.pid])

    @property
    @override
    def history(self) -> Path:
        return self._home / f"state/{self.profile_name}/history.jsonl"


class OursWithGpu(OursUnderSupervisor):
    """The same with a GPU, whose driver is the fake one of the tests."""

    name = "servicekit, Supervisor, GPU"
    UUID: Final = "GPU-0123456789abcdef"

    def __init__(self, processes: Processes) -> None:
        super().__init__(processes, {"gpus": [self.UUID]})
        card = {"uuid": self.UUID, "pci": "00000000:03:00.0", "used": 600, "total": 32607}
        driver = {"gpus": [card | {"held_by": "FAKE_VRAM"}]}
        (self.folder / "driver.json").write_text(json.dumps(driver), encoding="utf-8")

    @property
    @override
    def variables(self) -> dict[str, str]:
        return super().variables | {"FAKE_VRAM": "20000"}

    @property
    @override
    def surroundings(self) -> dict[str, str]:
        drivers = PROGRAM.with_name("drivers")
        return {"PYTHONPATH": str(drivers), "FAKE_NVML": str(self.folder / "driver.json")}


class PlainUnit(Keeper):
    """The unit of the recipes: `Restart=on-failure`, and no look at what it runs."""

    name = "plain unit, systemd"
    UNIT: Final = """\
[Unit]
Description=A model server
After=network.target
[Service]
Type=simple
ExecStart={wrapper}
Restart=on-failure
RestartSec=15
KillMode=mixed
TimeoutStopSec=60
TimeoutStartSec=600
[Install]
WantedBy=multi-user.target
"""

    def __init__(
        self, processes: Processes, machine: Machine, script: Mapping[str, object]
    ) -> None:
        self.machine = machine
        super().__init__(processes, *_room(machine), script)
        self._unit = f"plain-{self.token}.service"

    @override
    def start(self) -> None:
        wrapper = f"{self._inside}/wrapper"
        self.machine.write(wrapper, self.wrapper(f"{TESTS_INSIDE}/fake_engine.py"), 0o755)
        unit = self.UNIT.format(wrapper=wrapper)
        self.machine.write(f"/etc/systemd/system/{self._unit}", unit)
        self.machine.run("systemctl", "daemon-reload")
        self.machine.run("systemctl", "start", "--no-block", self._unit)

    @override
    def stop(self) -> None:
        # A process that stands still cannot obey, and would be waited for.
        self.machine.run("systemctl", "kill", "--signal=KILL", self._unit, check=False)
        self.machine.run("systemctl", "stop", self._unit, check=False)

    @override
    def residents(self) -> set[int]:
        return set()  # PID 1 is there in any case


class Httpok(Keeper):
    """Supervisor, with superlance's `httpok` asking the engine every minute."""

    CONFIGURATION: Final = """\
[program:engine]
command={home}/wrapper
autorestart=true
stopasgroup=true
killasgroup=true
redirect_stderr=true
stdout_logfile={home}/engine.log
[eventlistener:httpok]
command={httpok} -p engine http://127.0.0.1:{port}{path}
events=TICK_60
stderr_logfile={home}/httpok.log
"""

    def __init__(self, processes: Processes, path: str, script: Mapping[str, object]) -> None:
        self.name = f"Supervisor + httpok {path}"
        self._path = path
        self.supervisor = Supervisor()
        super().__init__(processes, self.supervisor.home, str(self.supervisor.home), script)

    @override
    def start(self) -> None:
        executable(self.folder / "wrapper", self.wrapper(str(PROGRAM)))
        text = self.CONFIGURATION.format(
            home=self.folder,
            httpok=Path(sys.executable).with_name("httpok"),
            port=self.port,
            path=self._path,
        )
        (self.supervisor.include / "engine.conf").write_text(text, encoding="utf-8")
        self.supervisor.start()

    @override
    def stop(self) -> None:
        for engine in self.engines:
            os.kill(engine.pid, signal.SIGCONT)
        self.supervisor.remove()

    @override
    def residents(self) -> set[int]:
        return seen.below(self.supervisor.pid, without=[self.engine.pid])


class Monit(Keeper):
    """Debian's monit, looking every two minutes, as Debian has it."""

    name = f"monit {LISTENED}"
    CONFIGURATION: Final = """\
set daemon 120
set log {home}/monit.log
set pidfile {home}/monit.pid
set idfile {home}/monit.id
set statefile {home}/monit.state
check process engine with pidfile {home}/engine.pid
  start program = "{home}/start"
  stop program = "{home}/stop"
  if failed host 127.0.0.1 port {port} protocol http request "{path}" with timeout 10 seconds
    then restart
"""
    START: Final = """\
#!/bin/sh
exec start-stop-daemon --start --background --make-pidfile --pidfile {home}/engine.pid \\
  --startas {home}/wrapper
"""
    STOP: Final = """\
#!/bin/sh
exec start-stop-daemon --stop --pidfile {home}/engine.pid --retry TERM/10/KILL/5
"""

    def __init__(self, processes: Processes, program: Path, script: Mapping[str, object]) -> None:
        self._program = program
        self._monit: subprocess.Popen[bytes] | None = None
        home = Path(tempfile.mkdtemp(prefix="monit-"))
        super().__init__(processes, home, str(home), script)

    @override
    def start(self) -> None:
        executable(self.folder / "wrapper", self.wrapper(str(PROGRAM)))
        executable(self.folder / "start", self.START.format(home=self.folder))
        executable(self.folder / "stop", self.STOP.format(home=self.folder))
        configuration = self.folder / "monitrc"
        text = self.CONFIGURATION.format(home=self.folder, port=self.port, path=LISTENED)
        configuration.write_text(text, encoding="utf-8")
        configuration.chmod(0o600)
        with (self.folder / "console.log").open("wb") as console:
            self._monit = subprocess.Popen(
                [str(self._program), "-I", "-c", str(configuration)],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )

    @override
    def stop(self) -> None:
        if self._monit is not None:
            self._monit.terminate()
            self._monit.wait()
        shutil.rmtree(self.folder)

    @override
    def residents(self) -> set[int]:
        return {self._monit.pid} if self._monit is not None else set()


def find_monit(folder: Path) -> Path | None:
    """Find monit, or unpack Debian's package into `folder` without installing it."""
    installed = shutil.which("monit")
    if installed:
        return Path(installed)
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return None
    try:
        run(["apt-get", "download", "--quiet", "monit"], folder)
        run(["dpkg", "--extract", *map(str, folder.glob("monit_*.deb")), str(folder)])
        program = folder / "usr/bin/monit"
        run([str(program), "--version"])
    except (OSError, RuntimeError):
        return None
    return program


def executable(file: Path, text: str) -> None:
    """Write a program."""
    file.write_text(text, encoding="utf-8")
    file.chmod(0o755)


def run(argv: Sequence[str], folder: Path | None = None) -> None:
    """Run a command to its end; raise with what it said where it fails."""
    done = subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise RuntimeError(f"{argv} exited {done.returncode}: {done.stdout}{done.stderr}")


def _room(machine: Machine) -> tuple[Path, str]:
    """Make a directory inside the machine; give its path as seen from here, and from there."""
    inside = f"/srv/{secrets.token_hex(4)}"
    folder = machine.path(inside)
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    return folder, inside
