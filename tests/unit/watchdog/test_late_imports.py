"""What a watchdog loads, and when: an upgrade below a running one must not mix two versions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from machines.fake import PROGRAM
from machines.waiting import wait_until
from unit.cli.cli_runs import environment, servicekit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

WATCHED = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

state, late = sys.argv[1:3]

class Finder:
    '''Notes each module that is looked for on disk once the state is ready.'''

    @staticmethod
    def find_spec(name, path=None, target=None):
        if BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name):
            return None
        try:
            with open(state, encoding="utf-8") as file:
                begun = '"ready_seconds": null' not in file.read()
        except OSError:
            begun = False
        if begun:
            with open(late, "a", encoding="utf-8") as file:
                print(name, file=file)
        return None

sys.meta_path.insert(0, Finder)
sys.argv[1:] = sys.argv[3:]
from servicekit.cli import main
main()
"""
PROFILE = """
summary = "a stub"
engine = "openai"
model = "lab/model"
served_name = "here"
executable = "{program}"
arguments = ["--port", "{{port}}", "--served-model-name", "{{served_name}}"]
port = {port}
gpus = []
[context]
requested = 4096
[watch]
interval = 1
survey = 1
[restart]
budget = 2
[stop]
grace = 2
"""


class Site:
    """A profile below one folder, watched by a process that notes what it loads late."""

    def __init__(self, home: Path, port: int) -> None:
        self.home, self.late = home, home / "late"
        self.config = self.write("servicekit.toml", f'root = "{home}"\nallow = ["here"]\n')
        self.write("profiles.d/here.toml", PROFILE.format(program=PROGRAM, port=port))
        words = ("--manager", "supervisor", "--root", "/")
        done = servicekit("--user", "--config", self.config, "install", "here", *words)
        assert done.code == 0, done.err

    def write(self, name: str, text: str) -> Path:
        """Write a file that is believed."""
        file = self.home / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o644)
        return file

    @property
    def state(self) -> dict[str, object]:
        """What is published."""
        file = self.home / "run/here/state.json"
        published: dict[str, object] = json.loads(file.read_text()) if file.exists() else {}
        return published

    def watch(self, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start the watchdog, and wait until its engine serves."""
        plan = self.home / "wrappers/here.plan.json"
        words = ("--user", "--config", self.config, "watch", "here", "--plan", plan)
        process = subprocess.Popen(
            [sys.executable, "-c", WATCHED, self.home / "run/here/state.json", self.late, *words],
            env=environment(more),
            stdout=subprocess.DEVNULL,
        )
        wait_until(lambda: self.state.get("state") == "ready", 30, "the engine serves")
        return process


@pytest.fixture
def site(tmp_path: Path, free_port: int) -> Site:
    """Give a host with one profile."""
    return Site(tmp_path, free_port)


@pytest.mark.parametrize("manager", ["none", "supervisor"])
@pytest.mark.parametrize("end", ["asked", "crash"])
def test_nothing_is_loaded_once_it_serves(site: Site, manager: str, end: str) -> None:
    """A ready service answers, is probed, fails or stops with what it has loaded before."""
    more = {}
    if manager == "supervisor":
        more = {
            "SUPERVISOR_ENABLED": "1",
            "SUPERVISOR_PROCESS_NAME": "servicekit-here",
            "SUPERVISOR_SERVER_URL": f"unix://{site.home}/none.sock",
        }
    process = site.watch(more)
    if end == "asked":
        process.send_signal(signal.SIGTERM)
    else:
        engine = site.state["engine_pid"]
        assert isinstance(engine, int)
        os.kill(engine, signal.SIGKILL)
    assert process.wait(30) == (0 if end == "asked" else 75)
    assert not site.late.exists(), site.late.read_text()
