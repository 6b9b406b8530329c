"""A real model as a service of one directory, under a private supervisord, by the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from machines.supervisor import Supervisor

LIMIT = 800
"""Seconds for one command; on two cores with nothing else to do the longest takes a minute."""
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


def recipe(port: int, context: int, more: str = "", options: str = "") -> str:
    """Spell a profile with the demo's model."""
    begin = f'extends = "demo"\nport = {port}\n{more}\n[context]\nrequested = {context}\n'
    return f"{begin}{PATIENT}{options}\n"


class Host:
    """A directory with one profile, `here`, for one supervisord."""

    def __init__(
        self,
        supervisord: Supervisor,
        port: int,
        *,
        context: int,
        more: str = "",
        options: str = "",
    ) -> None:
        self.home = supervisord.home
        self.config = self.write(
            "servicekit.toml",
            f'root = "{self.home}"\nmanager = "supervisor"\n'
            f'supervisor_socket = "{supervisord.socket}"\nallow = ["here"]\n'
            f'[places]\nsupervisor = "{supervisord.include}"\n',
        )
        (self.home / "profiles.d").mkdir()
        self.text = recipe(port, context, more, options)
        self.profile(self.text)

    def profile(self, text: str) -> None:
        """Write the profile anew."""
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

    def done(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run servicekit to an end with this exit code."""
        done = subprocess.run(
            self.argv(*words), capture_output=True, text=True, timeout=LIMIT, check=False
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def run(self, *words: str, code: int = 0) -> str:
        """Run servicekit; give what it printed."""
        return self.done(*words, code=code).stdout

    def told(self, *words: str, code: int = 0) -> Any:  # noqa: ANN401 - JSON
        """Run servicekit; give the JSON that it printed."""
        return json.loads(self.run(*words, "--json", code=code))
