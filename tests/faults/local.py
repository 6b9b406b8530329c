"""Rows on this machine: a folder for each, and everything in reach."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from faults.stage import OWN_LIMIT, Stage
from machines.fake import PROGRAM
from typing_extensions import override

if TYPE_CHECKING:
    from faults.rows import Row

PORTS: Final = itertools.count(20000 + os.getpid() % 100 * 100)
"""Below what the kernel gives to clients: rows side by side would take each other's ports."""


def free_port() -> int:
    """Find a port of loopback that is free, and that no other row gets."""
    for port in PORTS:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError


class Local(Stage):
    """A service whose files are all below one folder."""

    def __init__(self, row: Row) -> None:
        super().__init__(row, free_port())
        self.home_folder = Path(tempfile.mkdtemp(prefix="fault-"))
        self.after.callback(shutil.rmtree, self.home_folder, ignore_errors=True)
        self.config = self.folder / "servicekit.toml"

    def configure(self, settings: str) -> None:
        """Write settings and profile."""
        self.config.write_text(f'root = "{self.folder}"\nallow = ["{self.name}"]\n{settings}')
        file = self.folder / f"profiles.d/{self.name}.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(self.profile(), encoding="utf-8")
        for written in (self.config, file):
            written.chmod(0o644)

    @property
    @override
    def folder(self) -> Path:
        return self.home_folder

    @property
    @override
    def inside(self) -> str:
        return str(self.folder)

    @property
    @override
    def fake_engine(self) -> str:
        return str(PROGRAM)

    @property
    @override
    def real_engine(self) -> str:
        return str(Path(sys.executable).with_name("servicekit-llama-server"))

    @property
    @override
    def root(self) -> Path:
        return Path("/")

    @property
    @override
    def sockets(self) -> Path:
        return Path("/proc/net/tcp")

    @property
    @override
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    @override
    def watch(self) -> tuple[str, ...]:
        words = ("--user", "--config", str(self.config), "watch", self.name)
        return (sys.executable, "-m", "servicekit", *words)

    @property
    @override
    def home(self) -> str:
        return str(self.folder / "state" / self.name)

    @property
    @override
    def ledger_file(self) -> Path:
        return self.folder / "state" / self.name / "history.jsonl"

    @property
    @override
    def state_file(self) -> Path:
        return self.folder / "run" / self.name / "state.json"

    @override
    def order(self, *argv: str, own: bool = False) -> None:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=OWN_LIMIT, check=False)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"

    @override
    def send(self, pid: int, signal: str) -> None:
        self.order("sh", "-c", f"kill -{signal} {pid}")

    @override
    def spawn(self, *argv: str, own: bool = False, **environment: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | environment,
            start_new_session=True,
        )

    @override
    def fetch(self, path: str) -> Any:
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)
