"""Rows under a real systemd, as the system's services, with all that their units forbid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from faults.rows import SYSTEMD
from faults.stage import DRIVER, DRIVERS, Stage
from machines.systemd import TESTS_INSIDE
from typing_extensions import override

from servicekit.service.unit import own_group
from servicekit.watchdog.ledger import Kind

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable

    from faults.rows import Row
    from machines.systemd import Machine

ACCOUNT: Final = "servicekit"
FETCH: Final = (
    "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=10).read().decode())"
)
FIRST_PORT: Final = 18100


def prepare(machine: Machine, rows: Iterable[Row]) -> None:
    """Allow the profiles of `rows`, and make what every host has: the account, and a bus."""
    machine.run("systemctl", "start", "dbus.socket")
    names = json.dumps([row.name for row in rows])
    machine.write("/etc/servicekit/servicekit.toml", f"allow = {names}\n")
    machine.run("useradd", "--system", "--no-create-home", ACCOUNT)


class Inside(Stage):
    """A unit of a machine."""

    manager = SYSTEMD

    def __init__(self, row: Row, machine: Machine, number: int) -> None:
        super().__init__(row, FIRST_PORT + number)
        self.machine = machine
        self._unit = f"servicekit-{row.name}.service"
        self.folder.mkdir(parents=True)

    @property
    @override
    def folder(self) -> Path:
        return self.machine.path(self.inside)

    @property
    @override
    def inside(self) -> str:
        return f"/srv/faults/{self.name}"

    @override
    def install(self) -> None:
        self.machine.write(f"/etc/servicekit/profiles.d/{self.name}.toml", self.profile())
        words = ("--force", "--no-enable", "--anyway")
        self.machine.run("servicekit", "install", self.name, *words)
        if self.row.alone:
            # ProtectKernelTunables= would show the boot id of the host that the machine runs on.
            bind = "BindReadOnlyPaths=/run/boot-id:/proc/sys/kernel/random/boot_id"
            path = f"/etc/systemd/system/{self._unit}.d/boot.conf"
            self.machine.write(path, f"[Service]\n{bind}\n")
            self.machine.run("systemctl", "daemon-reload")
        if self.row.gpu:
            variables = f"PYTHONPATH={TESTS_INSIDE / DRIVERS} FAKE_NVML={self.inside}/{DRIVER}"
            text = f"[Service]\nEnvironment={variables}\n"
            self.machine.write(f"/etc/systemd/system/{self._unit}.d/driver.conf", text)
            self.machine.run("systemctl", "daemon-reload")

    @override
    def start(self) -> None:
        # As under Supervisor: the watchdog, not the verb, must see what a row breaks.
        self.machine.run("servicekit", "start", self.name, "--no-wait", "--anyway")

    @override
    def stop(self) -> None:
        self.machine.run("systemctl", "stop", self._unit)

    @property
    @override
    def manager_pid(self) -> int:
        return 1

    def _show(self, *names: str) -> dict[str, str]:
        options = [f"-p{name}" for name in names]
        said = self.machine.run("systemctl", "show", self._unit, *options).stdout
        return dict(line.partition("=")[::2] for line in said.splitlines())

    @override
    def is_over(self) -> bool:
        return self._show("ActiveState")["ActiveState"] in {"failed", "inactive"}

    @override
    def view(self) -> str:
        said = self._show("ActiveState", "SubState", "Result", "ExecMainStatus", "NRestarts")
        words = f"{said['ActiveState']} ({said['SubState']})"
        if said["ActiveState"] == "failed":
            words += f", {said['Result']} {said['ExecMainStatus']}"
        restarts = said["NRestarts"]
        return words if restarts == "0" else f"{words}, restarts {restarts}"

    @override
    def told(self) -> str:
        return "\n".join(self.machine.messages(SERVICEKIT_PROFILE=self.name))

    @override
    def own_lines(self) -> list[str]:
        return self.machine.messages(SERVICEKIT_PROFILE=self.name)

    @property
    def _become(self) -> tuple[str, ...]:
        group = own_group(self.name)
        return ("setpriv", f"--reuid={ACCOUNT}", f"--regid={group}", "--clear-groups")

    @override
    def order(self, *argv: str, own: bool = False) -> None:
        self.machine.run(*(self._become if own else ()), *argv)

    @override
    def send(self, pid: int, signal: str) -> None:
        self.order("kill", f"-{signal}", str(pid))

    @override
    def spawn(self, *argv: str, own: bool = False, **environment: str) -> subprocess.Popen[str]:
        # Who changes the account must be the command itself, else it would outlive what we kill.
        words = (*self._become, "--pdeathsig", "KILL", *argv) if own else argv
        return self.machine.spawn(*words, env=environment)

    @override
    def fetch(self, path: str) -> Any:
        url = f"http://127.0.0.1:{self.port}{path}"
        return json.loads(self.machine.run("python3", "-c", FETCH, url).stdout)

    @property
    @override
    def root(self) -> Path:
        return self.machine.path("/")

    @property
    @override
    def sockets(self) -> Path:
        return Path(f"/proc/{self.machine.pid1}/net/tcp")

    @property
    @override
    def cache(self) -> Path:
        return self.machine.path("/var/cache/servicekit")

    @property
    @override
    def watch(self) -> tuple[str, ...]:
        return ("servicekit", "watch", self.name)

    @property
    @override
    def home(self) -> str:
        return f"/var/lib/servicekit/{self.name}"

    @property
    @override
    def ledger_file(self) -> Path:
        return self.machine.path(f"{self.home}/history.jsonl")

    @property
    @override
    def state_file(self) -> Path:
        return self.machine.path(f"/run/servicekit/{self.name}/state.json")

    @property
    @override
    def fake_engine(self) -> str:
        return str(TESTS_INSIDE / "fake_engine.py")

    @property
    @override
    def real_engine(self) -> str:
        return "/usr/local/bin/servicekit-llama-server"

    @override
    def shared_memory(self) -> list[str]:
        found = super().shared_memory()
        for launched in self.records(Kind.LAUNCHED)[-1:]:  # each engine has a directory of its own
            own = self.root / f"proc/{launched.fields['engine_pid']}/root/dev/shm"
            found += [file.name for file in own.glob(f"*{self.token}*")]
        return found

    @override
    def log(self) -> str:
        return "\n".join(self.machine.messages(self._unit))
