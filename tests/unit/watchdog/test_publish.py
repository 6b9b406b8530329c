"""What is published: over a real notify socket, in a real file, to a real datagram socket."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicekit.errors import ExitCode, UserError
from servicekit.watchdog.publish import (
    STATUS_LENGTH,
    Notifier,
    NotifyError,
    State,
    ascii_line,
    read_state,
    write_state,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Manager:
    """Receives notifications as a service manager does."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(5)

    def heard(self) -> str:
        """Return the next message."""
        return self.socket.recv(4096).decode("ascii")

    def silent(self) -> bool:
        """Tell whether there is none."""
        self.socket.settimeout(0)
        try:
            self.socket.recv(4096)
        except BlockingIOError:
            return True
        return False


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    """Listen on a notify socket that the environment names."""
    path = tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    manager = Manager(path)
    with manager.socket:
        yield manager


@contextmanager
def notifying() -> Iterator[Notifier]:
    """Speak to the manager that the environment names."""
    told = Notifier()
    yield told
    told.close()


def test_ready_is_told_together_with_the_status(manager: Manager) -> None:
    """READY=1 and what is ready arrive in one message, so neither can be lost alone."""
    with notifying() as told:
        told.ready("ready: answering")
    assert manager.heard() == "READY=1\nSTATUS=ready: answering"


def test_the_end_of_a_ready_service_is_announced(manager: Manager) -> None:
    """systemd shows the service as `deactivating` while its engine ends."""
    with notifying() as told:
        told.stopping()
    assert manager.heard() == "STOPPING=1"


def test_a_status_is_one_line_of_ascii_whatever_it_says(manager: Manager) -> None:
    """Quotes of an engine's log, with any letters and lines, cannot lose the message."""
    with notifying() as told:
        told.ready("n\u00e4h\u2026 \u201cok\u201d \u2192 \U0001f680\nSTATUS=x\u2028\x07")
        assert manager.heard() == 'READY=1\nSTATUS=nah... "ok" -> ? STATUS=x ?'
        told.status("x" * 10_000)
    assert len(manager.heard()) < 4096


@given(st.text())
def test_any_text_becomes_a_printable_line(text: str) -> None:
    """Whatever is said fits into one line of the protocol."""
    line = ascii_line(text)
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= STATUS_LENGTH


def test_only_news_is_told(manager: Manager) -> None:
    """The same status is not sent twice."""
    with notifying() as told:
        told.status("starting")
        told.status("starting")
        told.extend(2.5)
    heard = [manager.heard() for _ in range(2)]
    assert heard == ["STATUS=starting", "EXTEND_TIMEOUT_USEC=2500000"]


def test_a_lost_ready_is_an_error(manager: Manager) -> None:
    """A manager that cannot be told would kill a healthy service: the run says so and ends."""
    with notifying() as told:
        manager.socket.close()
        told.status("starting")
        assert told.lost == 1
        with pytest.raises(NotifyError, match="that the service is ready") as raised:
            told.ready("ready")
    assert raised.value.code is ExitCode.TEMPFAIL


def test_a_manager_that_does_not_read_cannot_stop_the_watchdog(manager: Manager) -> None:
    """When the manager's queue is full, messages are lost, and nothing waits for long."""
    with notifying() as told:
        assert told._notifier is not None
        told._notifier.socket.settimeout(0.05)
        for number in range(10_000):
            told.status(f"starting {number}")
            if told.lost:
                break
        assert told.lost == 1
        with pytest.raises(NotifyError):
            told.ready("ready")
    manager.heard()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_manager_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that is named and cannot be reached ends the run at its beginning."""
    monkeypatch.setenv("NOTIFY_SOCKET", "/nonexistent/notify")
    with pytest.raises(NotifyError, match="NOTIFY_SOCKET"):
        Notifier()


def test_without_a_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under Supervisor and by hand nobody listens, and that is no error."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    with notifying() as told:
        told.ready("ready")
        told.keep_alive()
        assert (told.lost, told.interval) == (0, None)


@pytest.mark.parametrize(
    ("usec", "pid", "interval"),
    [
        ("60000000", str(os.getpid()), 30.0),
        ("60000000", None, 30.0),
        ("60000000", "1", None),
        ("0", None, None),
        ("soon", None, None),
        (None, None, None),
    ],
)
def test_the_managers_watchdog_is_served_when_it_is_ours(
    usec: str | None,
    pid: str | None,
    interval: float | None,
    manager: Manager,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of WATCHDOG_USEC is kept, but only when WATCHDOG_PID is this process."""
    for name, value in (("WATCHDOG_USEC", usec), ("WATCHDOG_PID", pid)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    with notifying() as told:
        told.keep_alive()
        assert told.interval == interval
    assert (manager.silent() if interval is None else manager.heard() == "WATCHDOG=1") is True


def test_the_abstract_socket_of_a_container_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket whose name begins with @ has no file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0servicekit-test-{os.getpid()}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@servicekit-test-{os.getpid()}")
        with notifying() as told:
            told.ready("ready")
        assert manager.recv(100) == b"READY=1\nSTATUS=ready"


# state.json

STATE = State(
    profile="demo",
    state="ready",
    phase="serving",
    since="2026-11-30T10:00:00.000+00:00",
    updated="2026-11-30T10:00:01.000+00:00",
    run="run-1",
    pid=812,
    pid_started=4711,
    engine_pid=813,
    context={"requested": 2048, "declared": 2048, "physical": None, "effective": 2048},
    figures={"weights_gib": 20.14, "kv_tokens": 38688},
    ready_seconds=1.5,
    reasons=("too-slow",),
    port=18001,
)


def test_the_state_reads_back(tmp_path: Path) -> None:
    """What is written is read, by everyone, whatever the umask."""
    path = tmp_path / "demo/state.json"
    before = os.umask(0o077)
    try:
        write_state(path, STATE)
    finally:
        os.umask(before)
    assert read_state(path) == STATE
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(path.parent) == ["state.json"]  # noqa: PTH208 - hidden files, too


def test_the_state_of_another_version_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    """Unknown keys are passed over; what is not a state is refused."""
    path = tmp_path / "state.json"
    assert read_state(path) is None
    write_state(path, STATE)
    path.write_text(json.dumps({**json.loads(path.read_text()), "of_tomorrow": 1}))
    assert read_state(path) == STATE
    older = State.parse(json.dumps({**json.loads(path.read_text()), "phase": "ailing"}))
    assert older is not None
    assert older.phase == "degraded"
    for text in ("", "[]", "{}", '{"profile": 1', "[" * 100_000):
        with pytest.raises(ValueError, match=r"."):
            State.parse(text)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("since", "x"),
        ("since", None),
        ("pid", "812"),
        ("context", 7),
        ("reasons", 5),
        ("context", {"effective": "x"}),
        ("context", {"physical": 1.5}),
        ("context", {"effective": -5}),
        ("context", {"effective": 10**30}),
        ("figures", {"weights_gib": "20"}),
        ("port", -1),
        ("port", 99999),
        ("why", ["a"]),
        ("ready_seconds", "x"),
        ("restarts", "many"),
        ("cause", {}),
        ("since", "2026-11-30T12:00:00"),
        ("host", "192.0.2.1"),
        ("state", "fine"),
    ],
)
def test_a_state_with_a_wrong_value_is_refused(tmp_path: Path, key: str, value: object) -> None:
    """Whoever shows a state need not ask what its values are."""
    path = tmp_path / "state.json"
    write_state(path, STATE)
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(UserError, match="cannot be read: "):
        read_state(path)


def test_a_pipe_in_the_place_of_the_state_holds_nobody_up(tmp_path: Path) -> None:
    """The file's directory is the service's: what it puts there must not stop root's `status`."""
    path = tmp_path / "state.json"
    os.mkfifo(path)
    with pytest.raises(UserError, match="cannot be read: it is not a regular file"):
        read_state(path)


def test_a_reader_never_sees_half_a_state(tmp_path: Path) -> None:
    """Reading while it is replaced over and over gives a whole state every time."""
    path = tmp_path / "state.json"
    write_state(path, STATE)
    reader = """
import json, sys
for _ in range(2000):
    json.load(open(sys.argv[1]))
print("whole")
"""
    with subprocess.Popen(
        [sys.executable, "-c", reader, str(path)], stdout=subprocess.PIPE, text=True
    ) as reading:
        number = 0
        while reading.poll() is None:
            number += 1
            write_state(path, replace(STATE, why="x" * (number % 5000)))
        assert reading.stdout is not None
        assert reading.stdout.read() == "whole\n"
