"""A real model as a service of one directory, under a private supervisord, by the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from machines.supervisor import Supervisor

LIMIT = 800
"""Seconds for one command; on two cores with nothing else to do the longest takes twenty."""
PATIENT = """
[probe]
deadline = 60
[start]
stall = 200
limit = 250
[watch]
interval = 30
stall = 200
[options]
threads = 1
threads-batch = 1
"""
"""For a machine that has other things to do: long bounds, and no threads that wait for another."""


class Hosted:
    """The demo's model as the profile `here`, with so many tokens of context."""

    def __init__(self, supervisord: Supervisor, port: int, *, context: int) -> None:
        self.home = supervisord.home
        self.config = self.write(
            "servicekit.toml",
            f'root = "{self.home}"\nmanager = "supervisor"\n'
            f'supervisor_socket = "{supervisord.socket}"\nallow = ["here"]\n'
            f'[places]\nsupervisor = "{supervisord.include}"\n',
        )
        (self.home / "profiles.d").mkdir()
        text = f'extends = "demo"\nport = {port}\n[context]\nrequested = {context}\n{PATIENT}'
        self.write("profiles.d/here.toml", text)

    def write(self, name: str, text: str) -> Path:
        """Write a file below the directory, as nobody else can."""
        file = self.home / name
        file.write_text(text, encoding="utf-8")
        file.chmod(0o644)
        return file

    def argv(self, *words: str) -> list[str]:
        """Give the command line that runs servicekit."""
        program = str(Path(sys.executable).with_name("servicekit"))
        return [program, "--user", "--config", str(self.config), *words]

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run servicekit, which ends with `code`."""
        done = subprocess.run(
            self.argv(*words), capture_output=True, text=True, timeout=LIMIT, check=False
        )
        assert done.returncode == code, f"{done.returncode}:\n{done.stdout}{done.stderr}"
        return done
