"""A host with one profile that runs, on a fake Supervisor, with a model that a test writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from machines.scripted import scripted
from unit.cli.cli_runs import Ran, invoke
from unit.managers.fake_supervisord import FakeSupervisord
from unit.models.sound_model import CONTEXT, spoken

from servicekit.engines import engine
from servicekit.host import procfs
from servicekit.models.hub_cache import Repository
from servicekit.profiles.vocabulary import EngineName
from servicekit.watchdog.publish import State, write_state

if TYPE_CHECKING:
    from pathlib import Path

    from machines.driver import Driver
    from unit.models.sound_model import Model

EFFECTIVE = next(
    tokens
    for tokens in range(CONTEXT, CONTEXT + 99)
    if engine(EngineName.SGLANG).usable_input(tokens) == CONTEXT - 1
)
"""Tokens of context with which SGLang takes prompts of as many words as the model here."""
SECRET = "sk-not-for-evidence"


class Host:
    """A host with one profile, installed and running: its watchdog is a process that waits."""

    def __init__(self, home: Path, driver: Driver) -> None:
        self.home, self.driver = home, driver
        self.published = "127.0.0.1"
        self.supervisord = FakeSupervisord(home / "s.sock")
        self.config = self.write(
            "servicekit.toml",
            f'root = "{home}"\nmanager = "supervisor"\nsupervisor_socket = "{home}/s.sock"\n'
            'allow = ["here"]\n',
        )
        packages = home / "env/lib/python3.12/site-packages"
        packages.mkdir(parents=True)
        self.write("env/pyvenv.cfg", "")
        self.write("env/bin/python3.12", "#!/bin/sh\n", 0o755)
        (home / "env/bin/python").symlink_to("python3.12")
        self.engine = self.write("env/bin/sglang", f"#!{home}/env/bin/python\n", 0o755)
        self.release("0.5.16")
        self.repository = Repository(home / "hub", "a/b")
        self.commit("c0ffee00")
        self.profile()
        self.supervisord.added.append("servicekit-here")
        done = self.run("install", "here", "--anyway")  # its key is one that SGLang cannot read
        assert done.code == 0, done.err
        # Files have the time of the last tick of the kernel, and the process has its own.
        self.age(home / "wrappers/here", self.engine)
        self.watchdog = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        self.supervisord.pid = self.watchdog.pid
        self.supervisord.program("servicekit-here", "RUNNING")

    def close(self) -> None:
        """End what runs."""
        self.watchdog.communicate(b"\n")
        self.supervisord.close()

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        """Write a file below the home."""
        file = self.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(mode)
        return file

    def age(self, *files: Path, seconds: float = 3600.0) -> None:
        """Make files older, or newer, than they are."""
        for file in files:
            os.utime(file, (time.time() - seconds,) * 2)  # noqa: TID251 - a file's own clock

    def profile(self, more: str = "") -> None:
        """Write the profile."""
        self.write(
            "profiles.d/here.toml",
            f'extends = "balanced"\nmodel = "a/b"\nsecrets = ["KEY"]\napi_key = "KEY"\n'
            f'executable = "{self.engine}"\n{more}\n'
            f'[environment]\nHF_HUB_CACHE = "{self.home}/hub"\n',
        )
        self.write("secrets/here/KEY", f"{SECRET}\n", 0o600)

    def release(self, version: str) -> None:
        """Install a version of the engine."""
        packages = self.home / "env/lib/python3.12/site-packages"
        for old in packages.iterdir():
            old.rmdir()
        (packages / f"sglang-{version}.dist-info").mkdir()

    def commit(self, beginning: str) -> None:
        """Have a commit of the model."""
        ref = self.repository.ref("main")
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(beginning.ljust(40, "0"))

    def serve_at(self, base: str) -> None:
        """Publish that it is ready at this address."""
        stat = procfs.stat(self.watchdog.pid)
        assert stat is not None
        at = "2026-01-31T12:00:00+00:00"
        told: dict[str, object]
        told = {"profile": "here", "state": "ready", "phase": "serving", "since": at, "updated": at}
        told |= {"run": "r1", "pid": stat.pid, "pid_started": stat.started, "why": "answering"}
        told |= {"host": self.published, "port": int(base.rpartition(":")[2])}
        told |= {"context": {"effective": EFFECTIVE}}
        state = State.parse(json.dumps(told))
        assert state is not None
        write_state(self.home / "run/here/state.json", state)

    def run(self, *words: str) -> Ran:
        """Run a command line."""
        return invoke("--user", "--config", self.config, *words, env=self.driver.variables)

    def verify(self, model: Model, *words: str) -> Ran:
        """Verify it while this model answers."""
        with scripted(spoken(model)) as base:
            self.serve_at(base)
            return self.run("verify", "here", "--repeats", "4", *words)

    @property
    def kept(self) -> list[str]:
        """The text of each file that is kept."""
        folder = self.home / "state/here/verifications"
        return [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.json"))]

    def standings(self) -> set[str]:
        """How it stands, in the words of all who tell; one, where they agree."""
        shown = self.run("show", "here").out.splitlines()
        status = self.run("status", "here").out.splitlines()
        return {
            json.loads(self.run("status", "here", "--json").out)["verified"],
            json.loads(self.run("show", "here", "--json").out)["verified"],
            next(line for line in shown if line.startswith("#")).removeprefix("# "),
            next(line for line in status if "verified:" in line).partition(":")[2].strip(),
        }
