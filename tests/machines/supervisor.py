"""A real, private supervisord for tests: its own folder, a Unix socket, no privileges needed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from machines.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CONFIGURATION = """\
[unix_http_server]
file={home}/supervisor.sock
[supervisord]
nodaemon=true
logfile={home}/supervisord.log
loglevel=info
pidfile={home}/supervisord.pid
childlogdir={home}
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{home}/supervisor.sock
[include]
files={home}/conf.d/*.conf
"""

LIMIT = 15.0
"""Seconds for supervisord to start or to stop all its programs."""


class Supervisor:
    """One supervisord: put programs into `include`, `start` it, `ctl` it, `stop` it."""

    def __init__(self) -> None:
        # Not pytest's folder: a Unix socket's path may have 107 bytes at most.
        self.home = Path(tempfile.mkdtemp(prefix="supervisor-"))
        self.include = self.home / "conf.d"
        self.include.mkdir()
        self.configuration = self.home / "supervisord.conf"
        self.configuration.write_text(CONFIGURATION.format(home=self.home), encoding="utf-8")
        self.socket = self.home / "supervisor.sock"
        self._daemon: subprocess.Popen[bytes] | None = None

    @staticmethod
    def _program(name: str) -> str:
        return str(Path(sys.executable).with_name(name))

    @property
    def pid(self) -> int:
        """The pid of supervisord."""
        assert self._daemon is not None, "supervisord was not started"
        return self._daemon.pid

    def start(self, env: Mapping[str, str] | None = None) -> None:
        """Start supervisord with `env` in its environment, and wait until it takes orders."""
        with (self.home / "console.log").open("wb") as console:
            self._daemon = subprocess.Popen(
                [self._program("supervisord"), "-n", "-c", str(self.configuration)],
                stdout=console,
                stderr=console,
                stdin=subprocess.DEVNULL,
                env=os.environ | dict(env or {}),
                start_new_session=True,
            )
        wait_until(
            lambda: self.ctl("pid").stdout.strip() == str(self.pid) or self._gone(),
            LIMIT,
            "supervisord takes orders",
        )

    def _gone(self) -> bool:
        if self._daemon is not None and self._daemon.poll() is not None:
            pytest.fail(f"supervisord ended:\n{self.log()}")
        return False

    def ctl(self, *order: str, limit: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run supervisorctl with an order; its exit code is the caller's to judge."""
        return subprocess.run(
            [self._program("supervisorctl"), "-c", str(self.configuration), *order],
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def add(self, name: str, text: str) -> None:
        """Write a program's configuration and have supervisord take it up."""
        (self.include / f"{name}.conf").write_text(text, encoding="utf-8")
        self.ctl("update")

    def state(self, program: str) -> str:
        """Give supervisord's own word for a program: RUNNING, STOPPED, EXITED, FATAL ..."""
        words = self.ctl("status", program).stdout.split()
        return words[1] if len(words) > 1 else ""

    def log(self) -> str:
        """Give supervisord's own log, and what it said on its console before it had one."""
        files = (self.home / "console.log", self.home / "supervisord.log")
        return "".join(f.read_text(encoding="utf-8") for f in files if f.exists())

    def stop(self) -> None:
        """Stop supervisord, which stops its programs first; it may be stopped already."""
        if self._daemon is not None and self._daemon.poll() is None:
            self._daemon.send_signal(signal.SIGTERM)
            self._daemon.wait(LIMIT)

    def remove(self) -> None:
        """Stop it and delete its folder; kill it when it does not stop."""
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            assert self._daemon is not None
            self._daemon.kill()
            self._daemon.wait()
            raise
        finally:
            shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture
def supervisord() -> Iterator[Supervisor]:
    """Give a running supervisord without programs."""
    supervisor = Supervisor()
    try:
        supervisor.start()
        yield supervisor
    finally:
        supervisor.remove()
