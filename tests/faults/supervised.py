"""Rows under a real supervisord."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from faults.local import Local
from faults.rows import SUPERVISORD
from faults.stage import DRIVER, DRIVERS, OWN_LIMIT
from machines.fake import PROGRAM
from typing_extensions import override

from servicekit.managers.supervisor import Supervisor as Manager
from servicekit.places import below
from servicekit.watchdog.ledger import Kind

if TYPE_CHECKING:
    from faults.rows import Row
    from machines.supervisor import Supervisor

ORDER_LIMIT = 60.0
"""Seconds for an order to servicekit beside many others."""


class Supervised(Local):
    """A program of supervisord."""

    manager = SUPERVISORD

    def __init__(self, row: Row, supervisord: Supervisor) -> None:
        super().__init__(row)
        self._supervisord = supervisord
        self._unit = f"servicekit-{row.name}"
        self._log = self.folder / "log" / f"{row.name}.log"
        self._manager = Manager(below(str(self.folder)), f"unix://{supervisord.socket}")

    def _order(self, *words: str) -> None:
        program = str(Path(sys.executable).with_name("servicekit"))
        done = subprocess.run(
            [program, "--user", "--config", str(self.config), *words],
            capture_output=True,
            text=True,
            timeout=ORDER_LIMIT,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"

    @override
    def install(self) -> None:
        socket, include = self._supervisord.socket, self._supervisord.include
        self.configure(
            f'manager = "supervisor"\nsupervisor_socket = "{socket}"\n'
            f'[places]\nsupervisor = "{include}"\n'
        )
        self._order("install", self.name, "--force", "--no-enable", "--anyway")
        self.after.callback(self._order, "uninstall", self.name, "--force", "--purge")
        if self.row.gpu:
            with (include / f"{self._unit}.conf").open("a", encoding="utf-8") as program:
                driver = f'PYTHONPATH="{PROGRAM.with_name(DRIVERS)}"'
                program.write(f'environment={driver},FAKE_NVML="{self.folder / DRIVER}"\n')

    @override
    def start(self) -> None:
        # As an install, it must not refuse what the row breaks, such as the port.
        self._order("start", self.name, "--no-wait", "--anyway")

    @override
    def stop(self) -> None:
        self._manager.stop(self._unit, limit=ORDER_LIMIT)

    def outlive_supervisord(self) -> None:
        """Kill supervisord, which must be this row's own, and start it anew when we are gone."""
        os.kill(self._supervisord.pid, signal.SIGKILL)
        self.now()
        self.wait(lambda: self.records(Kind.GONE), OWN_LIMIT, "the run is over")
        self._supervisord.stop()
        self._supervisord.start()

    @property
    @override
    def manager_pid(self) -> int:
        return self._supervisord.pid

    @override
    def is_over(self) -> bool:
        return self._manager.look([self._unit])[self._unit].active in {"failed", "inactive"}

    @override
    def view(self) -> str:
        code = self._manager.look([self._unit])[self._unit].exit_code
        state = self._supervisord.state(self._unit)
        return state if code is None else f"{state} ({code})"

    @override
    def told(self) -> str:
        return self.log().replace('\\"', '"')

    @override
    def log(self) -> str:
        if not self._log.exists():
            return ""
        return self._log.read_text(encoding="utf-8", errors="replace")
