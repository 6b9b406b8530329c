"""Rows without a service manager: the watchdog is a child of the test, which restarts it on 75."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from faults.local import Local
from faults.rows import BARE
from faults.stage import DRIVER, DRIVERS, OWN_LIMIT
from machines.fake import PROGRAM
from typing_extensions import override

from servicekit.engines.llama_server import find_model
from servicekit.errors import ExitCode
from servicekit.places import Scope
from servicekit.profiles.catalog import Catalog
from servicekit.profiles.settings import load_settings, places_of
from servicekit.service.plan import Host, make_plan
from servicekit.service.render import wrapper

if TYPE_CHECKING:
    from faults.rows import Row

WATCHDOG: Final = 20.0
"""Seconds within which the watchdog must tell that its loop turns."""
FINAL: Final = {ExitCode.OK, ExitCode.UNAVAILABLE, ExitCode.CONFIG}


class Bare(Local):
    """A watchdog below the test, which hears what it tells its manager."""

    manager = BARE

    def __init__(self, row: Row) -> None:
        super().__init__(row)
        self._process: subprocess.Popen[bytes] | None = None
        self._ended: list[int] = []
        """Exit codes of the runs so far."""
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._lines: list[bytes] = []
        """What the watchdog printed."""
        self._heard: list[tuple[float, str]] = []
        """What it told its manager, and when, by the wall clock."""
        self._ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ears.bind(str(self.folder / "notify"))
        self.after.callback(self._ears.close)
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        try:
            while data := self._ears.recv(8192):
                now = time.clock_gettime(time.CLOCK_REALTIME)
                self._heard.append((now, data.decode()))
        except OSError:
            return

    @override
    def install(self) -> None:
        self.configure("")
        settings = load_settings(self.config, {}, scope=Scope.USER)
        places = places_of(settings, {}, scope=Scope.USER)
        profile = Catalog(settings, places).get(self.name)
        program = profile.executable or ""
        model = str(find_model(profile.model)) if self.row.real else profile.model
        host = Host(places, ("servicekit",), program, model, user=None)
        script = wrapper(make_plan(profile, host))
        target = Path(script.path)
        target.parent.mkdir(exist_ok=True)
        target.write_text(script.text, encoding="utf-8")
        target.chmod(script.mode)

    @override
    def start(self) -> None:
        self._stopping = False
        self._spawn()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _spawn(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "INVOCATION_ID"}
        environment |= {"NOTIFY_SOCKET": str(self.folder / "notify")}
        environment |= {"WATCHDOG_USEC": str(int(WATCHDOG * 1_000_000))}
        if self.row.gpu:
            environment |= {"PYTHONPATH": str(PROGRAM.with_name(DRIVERS))}
            environment |= {"FAKE_NVML": str(self.folder / DRIVER)}
        reading, writing = os.pipe()
        threading.Thread(target=self._read, args=(reading,), daemon=True).start()
        self._process = subprocess.Popen(
            [*self.row.launcher, *self.watch],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            env=environment,
        )
        os.close(writing)

    def _read(self, log: int) -> None:
        with open(log, "rb") as lines:
            self._lines.extend(lines)

    def _keep(self) -> None:
        """Start it again whenever it asks for that, or was killed, as a manager does."""
        while self._process is not None:
            code = self._process.wait()
            self._ended.append(code)
            if self._stopping or code in FINAL:
                return
            self._spawn()

    @override
    def stop(self) -> None:
        self._stopping = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        if self._thread is not None:
            self._thread.join(OWN_LIMIT)
            assert not self._thread.is_alive(), f"it does not stop\n{self.story()}"

    @property
    @override
    def manager_pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @override
    def is_over(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    @override
    def view(self) -> str:
        return f"exited {self._ended[-1]}" if self.is_over() else "running"

    @override
    def told(self) -> str:
        return "\n".join(message for _, message in self._heard)

    def heard(self, message: str) -> float:
        """When the watchdog told its manager something that begins so; 0 if it has not yet."""
        return next((at for at, each in self._heard if each.startswith(message)), 0.0)

    @override
    def log(self) -> str:
        return b"".join(self._lines).decode(errors="replace")
