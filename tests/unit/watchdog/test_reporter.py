"""The reporter: whatever is wrong with it, the engine goes on serving."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from machines.fake import PROGRAM
from machines.waiting import wait_until
from plans import plan

from servicekit.places import below
from servicekit.profiles.parsing import parse
from servicekit.service.installed import plan_text

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 20.0
DRIVER = Path(__file__).with_name("buggy_watchdog.py")


class Service:
    """One service below a folder; its watchdog reports to us, and has a bug."""

    def __init__(self, home: Path, port: int) -> None:
        self.home, self.port = home, port
        self.log = home / "log"
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(str(home / "notify"))
        self.manager.settimeout(LIMIT)
        self.process: subprocess.Popen[bytes] | None = None
        data = {
            "summary": "a fake",
            "engine": "sglang",
            "model": "a/b",
            "served_name": "model",
            "port": port,
            "gpus": [],
            "context": {"requested": 2048},
            "watch": {"interval": 1.0},
            "restart": {"healthy": 1.0},
        }
        made = plan(parse(data, name="demo", where="test"), below(str(home)))
        self.plan = home / "wrappers/demo.plan.json"
        self.plan.parent.mkdir()
        self.plan.write_text(plan_text(made), encoding="utf-8")
        wrapper = home / "wrappers/demo"
        wrapper.write_text(
            f"#!/bin/sh\nexec {sys.executable} {PROGRAM} --port {port} --script '{{}}'\n"
        )
        wrapper.chmod(0o755)

    def start(self, *bug: str, until: bytes = b"READY=1") -> None:
        """Start the watchdog, and wait until it says that it is ready, or something else."""
        environment = {name: value for name, value in os.environ.items() if name != "INVOCATION_ID"}
        environment["NOTIFY_SOCKET"] = str(self.home / "notify")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(DRIVER), str(self.plan), *bug], stderr=log, env=environment
            )
        while not self.manager.recv(8192).startswith(until):
            pass

    def ask(self) -> Any:  # noqa: ANN401 - JSON
        """Ask the engine who it is, and what it was asked."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/_fault", timeout=LIMIT) as reply:
            return json.load(reply)

    def close(self) -> None:
        """End what runs."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(LIMIT)
        self.manager.close()


@pytest.fixture
def service(tmp_path: Path, free_port: int) -> Iterator[Service]:
    """Give a service that is not started yet."""
    made = Service(tmp_path, free_port)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("part", "method", "concerns"),
    [
        ("book", "write", "the ledger"),
        ("events", "event", "the log"),
        ("events", "engine", "the engine's lines"),
        ("events", "flush", "the log"),
        ("notifier", "status", "the status line"),
        ("notifier", "extend", "the manager's timeout"),
        ("notifier", "stopping", "the manager's state"),
        ("notifier", "keep_alive", "the manager's watchdog"),
        ("write", "", "the state file"),
        ("reporter", "_state", "the state file"),
        ("reporter", "_record", "the ledger"),
        ("reporter", "_status", "the status line"),
        ("reporter", "_figures", "the figures of a start"),
        ("reporter", "_clean", "the ledger"),
        ("monitor", "read", "the reading of the engine's log"),
    ],
)
def test_a_bug_in_reporting_ends_no_service(
    service: Service, part: str, method: str, concerns: str
) -> None:
    """Each part fails in turn: the engine is ready, keeps answering, and stops when it is asked to.

    The bug is logged once.
    """
    service.start(part, method)
    before = service.ask()
    wait_until(
        lambda: service.ask()["asked"]["servicekit"]["begun"] > before_count(before),
        LIMIT,
        "the watchdog goes on probing",
    )
    assert service.ask()["pid"] == before["pid"]
    assert service.process is not None
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(LIMIT) == 0
    log = service.log.read_text()
    assert log.count(f"concerns {concerns}: ZeroDivisionError") == 1
    assert "Traceback" not in log


def test_how_long_it_has_been_ready_is_recorded(service: Service) -> None:
    """What the host stood is on disk before it can go down."""
    service.start("write", "never")
    history = service.home / "state/demo/history.jsonl"
    wait_until(lambda: '"kind":"steady"' in history.read_text(), LIMIT, "it is recorded")


def test_the_engines_pid_is_published_before_the_engine_says_anything(service: Service) -> None:
    """Imports of an engine take a minute in which its log has no boot phase."""
    wrapper = service.home / "wrappers/demo"
    wrapper.write_text(wrapper.read_text().replace("'{}'", """'{"stall": 0}'"""))
    service.start("book", "none", until=b"EXTEND_TIMEOUT_USEC")
    (file,) = service.home.glob("run/demo/state.json")

    def published() -> dict[str, Any]:
        state: dict[str, Any] = json.loads(file.read_text())
        return state if state.get("engine_pid") else {}

    state = wait_until(published, LIMIT, "the engine's pid is published")
    assert (state["state"], state["phase"]) == ("starting", "loading")


def before_count(answer: Any) -> int:  # noqa: ANN401 - JSON
    """How many completions the watchdog had asked for."""
    count: int = answer["asked"]["servicekit"]["begun"]
    return count


def test_a_fault_is_one_line_of_the_log(service: Service) -> None:
    """The phases of its end add nothing that a reader could use."""
    service.start("book", "none")
    os.kill(service.ask()["pid"], signal.SIGKILL)
    assert service.process is not None
    assert service.process.wait(LIMIT) == 75
    log = service.log.read_text()
    (line,) = [line for line in log.splitlines() if "level=error" in line]
    assert "failed: the engine was ended by SIGKILL" in line
