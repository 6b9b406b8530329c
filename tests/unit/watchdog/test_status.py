"""A status is what a living watchdog says, or else what manager and ledger agree on."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from servicekit.host import procfs
from servicekit.install.manifest import Manifest
from servicekit.managers import Seen
from servicekit.places import below
from servicekit.watchdog.ledger import Kind, Record
from servicekit.watchdog.publish import State, write_state
from servicekit.watchdog.status import conclude, status_of

if TYPE_CHECKING:
    from servicekit.places import Places

BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)


def record(kind: Kind, run: str = "r1", after: float = 0, **fields: object) -> Record:
    """A record of the ledger, so many seconds after the beginning."""
    return Record(BEGAN + timedelta(seconds=after), "boot", run, kind, fields)


def published(**more: object) -> State:
    """A state as a watchdog publishes it."""
    fields = {
        "profile": "x",
        "state": "ready",
        "phase": "serving",
        "since": BEGAN.isoformat(),
        "updated": BEGAN.isoformat(),
        "run": "r1",
        "pid": 1,
        "pid_started": 1,
        "engine_pid": 2,
        "why": "answering",
        "host": "127.0.0.1",
        "port": 18000,
        **more,
    }
    state = State.parse(json.dumps(fields))
    assert state is not None
    return state


FAULT = (
    record(Kind.STARTED),
    record(Kind.FAULT, after=5, cause="hung", sentence="it hung"),
    record(Kind.GONE, after=6, code=75),
)
STOP = (
    record(Kind.STARTED),
    record(Kind.STOPPING, after=5, cause="stop-requested", sentence="asked"),
    record(Kind.GONE, after=6, code=0),
)


@pytest.mark.parametrize(
    ("seen", "records", "state", "why"),
    [
        (None, (), "configured", "it has not been started yet"),
        (Seen("inactive"), (), "configured", "it has not been started yet"),
        (
            Seen("failed", exit_code=203),
            (),
            "failed",
            "its watchdog could not begin (exit code 203)",
        ),
        (Seen("failed", text="no python"), (), "failed", "no python"),
        (
            Seen("failed", exit_code=78),
            STOP,
            "failed",
            "its watchdog could not begin (exit code 78)",
        ),
        (Seen("failed", exit_code=75), FAULT, "failed", "it hung"),
        (Seen("activating"), (), "starting", "its watchdog is about to start"),
        (Seen("active"), STOP, "starting", "its watchdog is about to start"),
        (Seen("activating"), FAULT, "starting", "starting again after: it hung"),
        (Seen("failed"), FAULT, "failed", "it hung"),
        (None, FAULT, "failed", "it hung"),
        (Seen("inactive"), STOP, "stopped", "asked"),
        (None, STOP, "stopped", "asked"),
        (Seen("failed"), FAULT[:1], "failed", "its watchdog ended without a word"),
        (Seen("inactive"), FAULT[:1], "stopped", "stopped"),
    ],
)
def test_without_a_living_watchdog_manager_and_ledger_decide(
    seen: Seen | None, records: tuple[Record, ...], state: str, why: str
) -> None:
    """Each case in which nobody publishes any more has one state and one reason."""
    found = conclude("x", None, seen, records)
    assert (found.state, found.why) == (state, why)


def test_the_last_word_of_a_finished_run_counts() -> None:
    """What a watchdog said when nothing was left is told, without its process."""
    last = published(state="failed", phase="gone", code=69, cause="port-busy", why="busy")
    found = conclude("x", last, Seen("failed", exit_code=69), FAULT)
    assert (found.state, found.why, found.cause) == ("failed", "busy", "port-busy")
    assert (found.pid, found.engine_pid) == (None, None)


def test_a_last_word_that_a_later_run_overtook_does_not_count() -> None:
    """A state file of an earlier run than the ledger's last is history."""
    last = published(state="stopped", phase="gone", code=0, run="r0", why="asked")
    found = conclude("x", last, Seen("failed"), FAULT)
    assert (found.state, found.why) == ("failed", "it hung")


def test_ready_is_not_believed_of_a_dead_watchdog() -> None:
    """A watchdog that was killed leaves a state file that says ready, and it is not."""
    found = conclude("x", published(), Seen("failed"), FAULT[:1])
    assert found.state == "failed"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Places below a directory of the test."""
    return below(str(tmp_path))


MANIFEST = Manifest(
    profile="x",
    servicekit="1",
    manager="systemd",
    user_name=None,
    port=18000,
    gpus=(),
    enabled=True,
    files=(),
    directories=(),
)


def test_a_living_watchdog_is_believed(places: Places) -> None:
    """A living watchdog that is the manager's main process is repeated word for word."""
    stat = procfs.stat(os.getpid())
    assert stat is not None
    state = published(pid=os.getpid(), pid_started=stat.started, context={"effective": 2048})
    write_state(Path(places.state_file("x")), state)
    found = status_of(MANIFEST, places, Seen("activating", pid=os.getpid(), enabled=False))
    assert (found.state, found.why, found.pid) == ("ready", "answering", os.getpid())
    assert (found.manager_state, found.enabled) == ("activating", False)
    assert found.url == "http://127.0.0.1:18000/v1"
    assert found.context == {
        "requested": None,
        "declared": None,
        "physical": None,
        "effective": 2048,
    }


def test_a_reused_pid_is_not_the_watchdog(places: Places) -> None:
    """Another process that has the watchdog's number now, began at another time."""
    write_state(Path(places.state_file("x")), published(pid=os.getpid(), pid_started=1))
    assert status_of(MANIFEST, places, Seen("inactive")).state == "configured"


def test_without_a_manager_the_install_says_what_starts_at_boot(places: Places) -> None:
    """When the manager cannot be asked, the manifest tells whether the service is enabled."""
    found = status_of(MANIFEST, places, None)
    assert (found.enabled, found.manager, found.manager_state) == (True, "systemd", None)


def test_json_has_every_promised_field() -> None:
    """Scripts find the fields that the documentation names."""
    promised = (
        "profile state since run pid engine_pid cause reason context ready_seconds restarts "
        "phase why remedy"
    )
    told = conclude("x", None, None, ()).as_json()
    assert set(promised.split()) <= told.keys()
    assert set(told["context"]) == {"requested", "declared", "physical", "effective"}
    assert json.loads(json.dumps(told)) == {
        **told,
        "reasons": [],
        "drift": [],
        "overruled": [],
    }
    assert asdict(conclude("x", None, None, ())) == told
