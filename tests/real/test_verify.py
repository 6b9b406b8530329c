"""A real model through the gates, from the command line, under a real supervisord."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from machines.supervisor import Supervisor

pytestmark = [pytest.mark.llama, pytest.mark.supervisord, pytest.mark.timeout(300)]


class Host:
    """A directory with one profile for one supervisord."""

    def __init__(self, supervisord: Supervisor, port: int) -> None:
        self.home = supervisord.home
        self.config = self._write(
            "servicekit.toml",
            f'root = "{self.home}"\nmanager = "supervisor"\n'
            f'supervisor_socket = "{supervisord.socket}"\nallow = ["here"]\n'
            f'[places]\nsupervisor = "{supervisord.include}"\n',
        )
        (self.home / "profiles.d").mkdir()
        context = "[context]\nrequested = 512\n"
        self._write("profiles.d/here.toml", f'extends = "demo"\nport = {port}\n{context}')

    def _write(self, name: str, text: str) -> Path:
        file = self.home / name
        file.write_text(text, encoding="utf-8")
        file.chmod(0o644)
        return file

    def argv(self, *words: str) -> list[str]:
        """Give the command line that runs servicekit."""
        program = str(Path(sys.executable).with_name("servicekit"))
        return [program, "--user", "--config", str(self.config), *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run servicekit."""
        return subprocess.run(
            self.argv(*words),
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )


def test_an_interrupt_keeps_what_was_done(supervisord: Supervisor, free_port: int) -> None:
    """^C ends the asking, keeps the findings so far, and leaves a running service running."""
    host = Host(supervisord, free_port)
    assert host.run("install", "here").returncode == 0
    assert host.run("start", "here").returncode == 0
    asking = subprocess.Popen(
        host.argv("verify", "here", "--only", "text", "--only", "stability", "--repeats", "4000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert asking.stderr is not None
    for line in asking.stderr:
        if "[1/2] text: pass" in line:
            break
    asking.send_signal(signal.SIGINT)
    out, err = asking.communicate(timeout=60)
    assert asking.returncode == 130, err
    assert "interrupted: 1 of 2 gates were asked" in err
    assert "3 known answers" in out
    (kept,) = (host.home / "state/here/verifications").iterdir()
    told = json.loads(kept.read_text())
    assert [each["gate"] for each in told["findings"]] == ["text"]
    assert not told["complete"]
    status = json.loads(host.run("status", "here", "--json").stdout)
    assert (status["state"], status["verified"]) == ("ready", "not verified")
