"""A status is what a living watchdog says, or else what manager and ledger agree on."""

from __future__ import annotations

import json
import os
import resource
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from servicekit.cli.status import why
from servicekit.host import procfs
from servicekit.managers import Seen
from servicekit.places import below
from servicekit.service.manifest import Manifest
from servicekit.watchdog.clock import Moment
from servicekit.watchdog.history import last_fault
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
            (
                "the program servicekit cannot be run: it or its interpreter is missing or not "
                "executable (systemd's exit code 203)"
            ),
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
        (Seen("failed"), FAULT[:1], "failed", "the watchdog exited without recording a cause"),
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


def test_a_start_is_shown_with_its_time_and_the_usual_one(places: Places) -> None:
    """Of a start, `status` shows the time since the launch and what is usual."""
    stat = procfs.stat(os.getpid())
    assert stat is not None
    own = {"pid": os.getpid(), "pid_started": stat.started, "launched_boottime": 0.0, "eta": 60.0}
    state = published(state="starting", phase="loading", why="loading weights", **own)
    write_state(Path(places.state_file("x")), state)
    found = status_of(MANIFEST, places, Seen("activating", pid=os.getpid()))
    assert found.starting_seconds is not None
    assert found.eta_seconds == 60
    began = replace(found, starting_seconds=12.0)
    assert why(began) == "loading weights (12 s of about 1 min 0 s)"
    assert why(replace(began, eta_seconds=None)) == "loading weights (12 s)"
    write_state(Path(places.state_file("x")), published(**own))
    ready = status_of(MANIFEST, places, Seen("active", pid=os.getpid()))
    assert (ready.starting_seconds, why(ready)) == (None, "answering")


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
        "trusted": [],
    }
    assert asdict(conclude("x", None, None, ())) == told


def later(kind: Kind, run: str, boottime: float, **fields: object) -> Record:
    """A record that carries the boot's clock."""
    return Record(BEGAN, "boot", run, kind, fields, boottime)


@pytest.mark.parametrize("years", [-1, 0, 1])
def test_the_newest_run_is_that_of_the_boots_clock(years: int) -> None:
    """A run that could not write to a full disk has the last word, whatever the wall clock says."""
    moved = (BEGAN + timedelta(days=365 * years)).isoformat()
    ledger = (later(Kind.STARTED, "r1", 100), later(Kind.GONE, "r1", 110, code=75))
    final = {"state": "failed", "phase": "gone", "code": 69, "why": "busy", "boot_id": "boot"}
    last = published(run="r2", since=moved, boottime=120.0, **final)
    assert conclude("x", last, Seen("failed", exit_code=69), ledger).why == "busy"
    old = published(run="r0", since=moved, boottime=90.0, **final)
    assert conclude("x", old, Seen("failed"), ledger).why != "busy"


@pytest.mark.parametrize(("here", "why"), [("new", "busy"), ("old", "it hung")])
def test_the_newest_run_is_that_of_this_boot(here: str, why: str) -> None:
    """Of two boots the present one is the later, with any clock."""
    hung = {"cause": "hung", "sentence": "it hung"}
    ledger = (Record(BEGAN, "old", "r1", Kind.FAULT, hung, 510.0),)
    final = {"state": "failed", "phase": "gone", "code": 69, "why": "busy", "boottime": 5.0}
    last = published(run="r2", boot_id="new", **final)
    told = conclude("x", last, Seen("failed"), ledger, now=Moment(BEGAN, here, 20.0))
    assert told.why == why


@pytest.mark.parametrize(
    ("kind", "state"),
    [(Kind.STARTED, "starting"), (Kind.READY, "ready"), (Kind.DEGRADED, "degraded")],
)
def test_the_ledger_tells_where_no_state_could_be_written(kind: Kind, state: str) -> None:
    """On a full /run the history of the manager's own process says how it is."""
    ledger = (record(Kind.STARTED, pid=7), record(kind, after=1, pid=7))
    assert conclude("x", None, Seen("active", pid=7, text="t"), ledger).state == state
    assert conclude("x", None, Seen("active", pid=8, text="t"), ledger).state == "unknown"


def test_what_nobody_could_write_is_unknown() -> None:
    """With state and history unwritten the manager's words are passed on; no state is made up."""
    told = conclude("x", None, Seen("active", pid=7, text="degraded: slow"), FAULT)
    assert told.state == "unknown"
    assert told.why.startswith("cannot tell: ")
    assert "degraded: slow" in told.why
    quiet = Seen("active", pid=7)  # Supervisor, which shows nothing
    assert conclude("x", None, quiet, FAULT).state == "starting"
    assert conclude("x", None, quiet, FAULT, has_begun=True).state == "unknown"


def test_a_process_of_another_namespace_is_believed_by_the_managers_word(places: Places) -> None:
    """Its pid says nothing here: the manager tells that it runs, and else nobody can."""
    write_state(Path(places.state_file("x")), published(pid=2**22, pid_namespace=1))
    assert status_of(MANIFEST, places, Seen("active", pid=2**22)).state == "ready"
    told = status_of(MANIFEST, places, None)
    assert (told.state, told.remedy[:14]) == ("unknown", "run it as root")


def test_a_state_that_cannot_be_replaced_is_removed(tmp_path: Path) -> None:
    """No old word stays where the new one could not be written."""
    file = tmp_path / "state.json"
    write_state(file, published())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # as on a full disk
    try:
        with pytest.raises(OSError, match="File too large"):
            write_state(file, published())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_secret_is_named_as_such() -> None:
    """systemd starts nothing without a credential, and says so by an exit code alone."""
    found = conclude("x", None, Seen("failed", exit_code=243), ())
    assert found.why.startswith("a secret of the service is missing or cannot be read")
    assert "`servicekit secret list x`" in found.remedy
    later = conclude("x", None, Seen("failed", exit_code=243), STOP)
    assert later.why == found.why


def test_the_last_fault_stays_in_sight_after_a_recovery() -> None:
    """A run that failed before, or a passing degradation of this one, since the last order."""
    slow = record(Kind.DEGRADED, "r2", 20, reasons=["too-slow"], sentence="too slow")
    now = (record(Kind.STARTED, "r2", 8), record(Kind.READY, "r2", 9))
    healed = record(Kind.RECOVERED, "r2", 30)
    assert last_fault(now, "r2") is None
    assert last_fault((*FAULT, *now), "r2") is FAULT[1]
    assert last_fault((*FAULT, *now, slow), "r2") is FAULT[1]
    assert last_fault((*FAULT, *now, slow, healed), "r2") is slow
    assert last_fault((*STOP, *now), "r2") is None
    assert last_fault((*FAULT, record(Kind.RESET), *now), "r2") is None


def test_a_service_stopped_before_its_next_start_is_stopped() -> None:
    """A stop in the pause between two runs succeeds, and says what the last run ended with."""
    crashed = published(state="failed", phase="gone", why="it hung", cause="hung", code=75)
    for last in (crashed, None):
        found = conclude("x", last, Seen("inactive"), FAULT)
        assert (found.state, found.cause) == ("stopped", "hung")
        assert found.why == "stopped before its next start, after: it hung"
    given_up = published(state="failed", phase="gone", why="no program", code=78)
    assert conclude("x", given_up, Seen("inactive"), ()).state == "failed"
