"""The ledger: what is written survives, and what is concluded from it is what happened."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicekit.diagnosis.causes import Cause
from servicekit.errors import ExitCode, UserError
from servicekit.profiles.model import Restart
from servicekit.watchdog.clock import Moment
from servicekit.watchdog.history import (
    FIRST_ANSWER,
    IMPORTS,
    UNSEEN,
    baselines,
    eta,
    holdoff,
    phase_times,
    runs,
    unfinished,
)
from servicekit.watchdog.ledger import (
    HOLD_OFFS,
    Kind,
    Ledger,
    Record,
    newest,
    parse,
    read,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BEGIN = datetime(2026, 11, 30, 10, 0, tzinfo=UTC)
POLICY = Restart()


def record(seconds: float, run: str, kind: Kind, **fields: Any) -> Record:  # noqa: ANN401 - JSON
    """Make a record at so many seconds."""
    return Record(BEGIN + timedelta(seconds=seconds), "boot-1", run, kind, fields)


def failing(run: str, began: float, *, at: float, cause: Cause = Cause.HUNG) -> list[Record]:
    """Make the records of a run that was never ready, failed, and asked for a restart."""
    return [
        record(began, run, Kind.STARTED),
        record(at, run, Kind.FAULT, cause=cause, sentence="no answer"),
        record(at + 1, run, Kind.GONE, code=75),
    ]


def at(seconds: float) -> datetime:
    """Give a moment."""
    return BEGIN + timedelta(seconds=seconds)


def moment(seconds: float) -> Moment:
    """Give a moment of another boot than any record's, so that the wall clock counts."""
    return Moment(at(seconds), "now")


# The file.


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    """Open a ledger of a profile named demo."""
    opened = Ledger(tmp_path / "demo/history.jsonl", boot_id="boot-1", run="run-1")
    yield opened
    opened.close()


@pytest.mark.parametrize("name", ["lock", "history.jsonl"])
@pytest.mark.parametrize("kind", ["link", "second name", "pipe"])
def test_no_file_of_another_is_written(name: str, kind: str, tmp_path: Path) -> None:
    """An account that had the directory before cannot lead the next one's watchdog elsewhere."""
    victim, trap = tmp_path / "victim", tmp_path / "demo" / name
    victim.write_text("precious")
    victim.chmod(0o600)
    trap.parent.mkdir()
    match kind:
        case "link":
            trap.symlink_to(victim)
        case "second name":
            trap.hardlink_to(victim)
        case _:
            os.mkfifo(trap)
    with pytest.raises(UserError, match="must belong to the account") as refused:
        Ledger(tmp_path / "demo/history.jsonl", boot_id="boot-1", run="run-1")
    assert refused.value.code is ExitCode.CONFIG
    assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("precious", 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_directory_of_another_account_is_refused(tmp_path: Path) -> None:
    """What its account may still put there, such as compiled kernels, is not used."""
    (tmp_path / "demo").mkdir()
    os.chown(tmp_path / "demo", 65534, 65534)
    with pytest.raises(UserError, match="its directory belongs to another account") as refused:
        Ledger(tmp_path / "demo/history.jsonl", boot_id="boot-1", run="run-1")
    assert refused.value.code is ExitCode.CONFIG
    assert list((tmp_path / "demo").iterdir()) == []


def test_what_is_written_is_read(book: Ledger) -> None:
    """A record comes back as it was, without the fields that say nothing."""
    written = book.write(Kind.FAULT, cause=Cause.HUNG, sentence="", engine_pid=None, reasons=["a"])
    assert read(book.path) == (written,)
    assert (written.run, written.cause) == ("run-1", Cause.HUNG)
    assert dict(written.fields) == {"cause": "hung", "reasons": ["a"]}
    line = json.loads(book.path.read_text())
    assert line["boot_id"] == "boot-1"
    assert datetime.fromisoformat(line["at"]).tzinfo is not None


def test_everyone_may_read_it_whatever_the_umask(tmp_path: Path) -> None:
    """`servicekit history` is for everyone, also where the unit's umask is 077."""
    before = os.umask(0o077)
    try:
        book = Ledger(tmp_path / "history.jsonl", boot_id="b", run="r")
    finally:
        os.umask(before)
    book.close()
    assert stat.S_IMODE(book.path.stat().st_mode) == 0o644


def test_a_second_watchdog_of_the_same_profile_is_refused(book: Ledger) -> None:
    """Two watchdogs would sweep each other's engine: the second one does not begin."""
    with pytest.raises(UserError, match=f'"demo" is already being watched by pid {os.getpid()}'):
        Ledger(book.path, boot_id="boot-1", run="run-2")


def test_a_history_that_cannot_be_written_is_a_mistake_to_mend(tmp_path: Path) -> None:
    """Where the history belongs to somebody else, the user is told which file it is."""
    (tmp_path / "demo").write_text("no directory")
    with pytest.raises(UserError, match=r'"[^"]+/demo" cannot be written') as raised:
        Ledger(tmp_path / "demo/history.jsonl", boot_id="b", run="r")
    assert raised.value.code is ExitCode.CONFIG


def test_the_words_of_an_older_version_are_read() -> None:
    """A start by an operator was written as `forgiven` before it was called `reset`."""
    line = '{"at":"2026-11-30T10:00:00+00:00","boot_id":"b","run":"","kind":"forgiven"}'
    (old,) = parse(line)
    assert old.kind is Kind.RESET


def test_after_a_torn_line_the_next_one_is_whole(book: Ledger) -> None:
    """What a power cut tore does not swallow what is written afterwards."""
    book.write(Kind.STARTED)
    book.close()
    with book.path.open("ab") as file:
        file.write(b'{"at":"2026-11-30T10:')
    again = Ledger(book.path, boot_id="boot-2", run="run-2")
    again.write(Kind.STARTED)
    again.write(Kind.GONE, run="run-1", code=0)
    again.close()
    told = [(one.run, one.kind) for one in read(book.path)]
    assert told == [("run-1", "started"), ("run-2", "started"), ("run-1", "gone")]
    book._lock = os.dup(0)
    book._file = os.dup(0)


def test_a_full_disk_is_an_error_and_what_follows_is_readable(book: Ledger) -> None:
    """A write that the disk does not take raises, and tears nothing but itself."""
    book.write(Kind.STARTED)
    kept, book._file = book._file, os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match="No space left"):
        book.write(Kind.LAUNCHED)
    os.close(book._file)
    book._file = kept
    os.write(book._file, b'{"at":"20')
    book.write(Kind.READY)
    assert [one.kind for one in read(book.path)] == ["started", "ready"]


def test_it_stays_bounded(tmp_path: Path) -> None:
    """A ledger that has grown too long is written anew with its newest records."""
    book = Ledger(tmp_path / "demo/history.jsonl", boot_id="boot-1", run="run-1", size_limit=4000)
    book.write(Kind.STARTED, pid=1)
    for number in range(200):
        book.write(Kind.DEGRADED, number=number)
    told = read(book.path)
    assert book.path.stat().st_size <= 4000
    assert told[0].kind is Kind.STARTED
    assert told[-1].fields["number"] == 199
    assert list(book.path.parent.glob("*.new")) == []
    book.close()


def test_there_is_none_yet(tmp_path: Path) -> None:
    """A profile that never ran has an empty history."""
    assert read(tmp_path / "history.jsonl") == ()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_ledger_is_named(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A directory or a pipe in its place is said at once, and holds nobody up."""
    path = tmp_path / "history.jsonl"
    make(path)
    with pytest.raises(UserError, match=r'history ".*" cannot be read: it is not a regular file; '):
        read(path)


def test_the_last_reset_is_kept_when_the_ledger_is_written_anew() -> None:
    """The newest records hold the last order that was obeyed, however old: it is obeyed once."""
    old = record(0, "", Kind.RESET, order="a")
    last = record(1, "", Kind.RESET, order="b")
    rest = [record(number, "r", Kind.DEGRADED) for number in range(2, 40)]
    kept = newest([old, last, *rest], 500)
    assert kept[0] == last
    assert old not in kept


RECORDS = st.builds(
    record,
    st.integers(0, 10_000_000),
    st.text(),
    st.sampled_from(list(Kind)),
    sentence=st.text(),
    code=st.integers(0, 255),
    context=st.dictionaries(st.text(), st.none() | st.integers(0, 2**31)),
)


@given(st.lists(RECORDS, max_size=5), st.data())
def test_any_truncation_is_readable(records: list[Record], data: st.DataObject) -> None:
    """Wherever a ledger is cut off, all lines before the cut are read, and nothing raises."""
    whole = "".join(f"{one.line()}\n" for one in records).encode(errors="replace")
    cut = data.draw(st.integers(0, len(whole)))
    found = parse(whole[:cut].decode(errors="replace"))
    expected = parse(whole.decode())
    assert len(expected) == len(records)
    assert found == expected[: len(found)]
    complete = whole[:cut].count(b"\n")
    assert len(found) in {complete, complete + 1}


@given(st.text())
def test_any_text_is_readable(text: str) -> None:
    """A ledger that holds something else altogether is passed over, not fallen over."""
    holdoff(parse(text), moment(0), POLICY)
    unfinished(parse(text), boot_id="b", pid1_started=1, on_wsl=False)


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        '"at"',
        "{}",
        '{"at":1,"boot_id":"b","run":"r","kind":"started"}',
        '{"at":"2026-11-30","boot_id":"b","run":"r","kind":"of a later version"}',
        "[" * 100_000,
    ],
)
def test_what_is_not_understood_is_passed_over(line: str) -> None:
    """A line of another shape, or of a later version, is no reason to stop."""
    assert parse(f"{line}\n{record(0, 'r', Kind.GONE).line()}") == (record(0, "r", Kind.GONE),)


def test_a_cause_of_a_later_version_is_unknown() -> None:
    """A cause that this version does not have is taken for unknown, and none for none."""
    assert record(0, "r", Kind.FAULT, cause="of-tomorrow").cause is Cause.UNKNOWN
    assert record(0, "r", Kind.FAULT).cause is None


# Hold-off.


@pytest.mark.parametrize("faults", range(12))
def test_the_delay_grows_with_faults_in_a_row(faults: int) -> None:
    """After n faults in a row the launch waits 0, 0, 5, 10, 20 … 300 s from the last one."""
    records = [r for n in range(faults) for r in failing(f"run-{n}", n * 10, at=n * 10 + 5)]
    last = (faults - 1) * 10 + 5
    held = holdoff(records, moment(last), POLICY)
    assert held.delay_seconds == HOLD_OFFS[min(faults, len(HOLD_OFFS) - 1)]
    assert (held.faults, held.restarts) == (faults, faults)
    assert held.faults_left == max(0, POLICY.budget - faults)
    assert held.last_cause is (Cause.HUNG if faults else None)
    assert held.last_sentence == ("no answer" if faults else "")


@dataclass(frozen=True)
class Story:
    """Records, and the hold-off that follows them at a moment."""

    records: list[Record]
    now: float
    delay: float
    faults: int
    left: int = POLICY.budget


TWO = failing("a", 0, at=10) + failing("b", 20, at=30)

STORIES = {
    "the time since the fault counts": Story(TWO, 33, 2.0, 2, 3),
    "the wait may be over": Story(TWO, 100, 0.0, 2, 3),
    "a clock that was set back makes no longer wait": Story(TWO, -5000, 5.0, 2, 3),
    "an operator's start forgives": Story([*TWO, record(40, "", Kind.RESET)], 41, 0.0, 0),
    "a healthy spell forgives what was before": Story(
        [
            *TWO,
            record(40, "c", Kind.STARTED),
            record(50, "c", Kind.READY),
            record(50 + POLICY.healthy, "c", Kind.FAULT, cause=Cause.HUNG),
            record(51 + POLICY.healthy, "c", Kind.GONE, code=75),
        ],
        51 + POLICY.healthy,
        0.0,
        1,
        4,
    ),
    "a spell that was too short does not": Story(
        [
            *TWO,
            record(40, "c", Kind.READY),
            record(39 + POLICY.healthy, "c", Kind.FAULT, cause=Cause.HUNG),
        ],
        39 + POLICY.healthy,
        10.0,
        3,
        2,
    ),
    "a stop on request ends the chain": Story(
        [*TWO, record(40, "c", Kind.STARTED), record(50, "c", Kind.GONE, code=0)], 51, 0.0, 0
    ),
    "a spent budget ends it: the next start is an operator's": Story(
        [*TWO, *failing("c", 40, at=50)[:-1], record(51, "c", Kind.GONE, code=69)], 52, 0.0, 0
    ),
    "so does a configuration that must change": Story(
        [*TWO, *failing("c", 40, at=50)[:-1], record(51, "c", Kind.GONE, code=78)], 52, 0.0, 0
    ),
    "faults outside the window cost nothing of the budget": Story(
        TWO, 10 + POLICY.window + 1, 0.0, 2, 4
    ),
    "what came from outside is no fault of the engine": Story(
        failing("a", 0, at=10, cause=Cause.IDLE_KILL) + failing("b", 20, at=30), 30, 0.0, 1, 4
    ),
    "a run has one fault, its first": Story(
        [*failing("a", 0, at=10), record(12, "a", Kind.FAULT, cause=Cause.BUDGET_SPENT)],
        12,
        0.0,
        1,
        4,
    ),
    "an end that nobody wrote counts once it is written": Story(
        [
            record(0, "a", Kind.STARTED),
            record(5, "a", Kind.FAULT, cause=Cause.WATCHDOG_KILLED),
            *failing("b", 6, at=7),
        ],
        7,
        5.0,
        2,
        3,
    ),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_holding_off(story: Story) -> None:
    """Each story's hold-off follows from its records alone."""
    held = holdoff(story.records, moment(story.now), POLICY)
    assert (held.delay_seconds, held.faults, held.faults_left) == (
        story.delay,
        story.faults,
        story.left,
    )


@given(st.lists(RECORDS, max_size=30), st.integers(-1000, 10_000_000))
def test_a_hold_off_is_bounded_whatever_the_ledger_says(records: list[Record], now: int) -> None:
    """No history, in whatever order, makes a launch wait for longer than the longest hold-off."""
    held = holdoff(records, moment(now), POLICY)
    assert 0 <= held.delay_seconds <= HOLD_OFFS[-1]
    assert 0 <= held.faults_left <= POLICY.budget


# Endings that nobody wrote.


# Clocks that are wrong, and hosts that go down.

YEAR = 365 * 86400.0


def on(boot: str, up: float, run: str, kind: Kind, *, wall: float = 0, **fields: Any) -> Record:  # noqa: ANN401 - JSON
    """Make a record of a boot that has been up for so long, with any wall clock."""
    return Record(at(wall), boot, run, kind, fields, boottime=up)


def fault_on(boot: str, up: float, run: str, *, wall: float = 0) -> list[Record]:
    """Make the records of a run that failed `up` seconds after the boot."""
    return [
        on(boot, up - 1, run, Kind.STARTED, wall=wall),
        on(boot, up, run, Kind.FAULT, wall=wall, cause=Cause.HUNG, sentence="no answer"),
        on(boot, up, run, Kind.GONE, wall=wall, code=75),
    ]


@pytest.mark.parametrize("then", [-YEAR, 0, YEAR])
@pytest.mark.parametrize("now", [-YEAR, 0, YEAR])
def test_clocks_that_are_wrong_by_a_year_change_nothing(then: float, now: float) -> None:
    """Within one boot its own clock decides about hold-off and budget, whatever the dates say."""
    records = [*fault_on("a", 100, "1", wall=then), *fault_on("a", 200, "2", wall=then)]
    held = holdoff(records, Moment(at(now), "a", 202), POLICY)
    assert (held.delay_seconds, held.faults, held.faults_left) == (3.0, 2, POLICY.budget - 2)
    late = Moment(at(now), "a", 201 + POLICY.window)
    assert holdoff(records, late, POLICY).faults_left == POLICY.budget


@pytest.mark.parametrize("wall", [-YEAR, 0, YEAR])
def test_faults_of_earlier_boots_age_by_the_time_that_the_host_was_up(wall: float) -> None:
    """Without a clock that survives a boot, the boots' own times add up."""
    records = [*fault_on("a", 100, "1"), *fault_on("b", 1000, "2", wall=wall)]
    records.append(on("b", 1500, "3", Kind.STARTED, wall=wall))
    held = holdoff(records, Moment(at(0), "c", 4), POLICY)
    assert (held.delay_seconds, held.faults_left) == (0.0, POLICY.budget - 2)
    later = Moment(at(0), "c", POLICY.window - 1499)
    assert holdoff(records, later, POLICY).faults_left == POLICY.budget - 1


@pytest.mark.parametrize("wall", [-YEAR, YEAR])
def test_only_a_runs_own_records_show_that_it_was_healthy(wall: float) -> None:
    """The fault of a run that was cut off is written after the next boot, with any date."""
    faults = [*fault_on("a", 100, "1"), *fault_on("a", 200, "2")]
    run = [on("a", 210, "3", Kind.LAUNCHED), on("a", 220, "3", Kind.READY)]
    cut = on("b", 9000, "3", Kind.FAULT, wall=wall, cause=Cause.POWER_LOSS)
    held = holdoff([*faults, *run, cut], Moment(at(wall), "b", 9000), POLICY)
    assert held.faults == 2
    steady = on("a", 220 + POLICY.healthy, "3", Kind.STEADY)
    held = holdoff([*faults, *run, steady, cut], Moment(at(wall), "b", 9000), POLICY)
    assert held.faults == 0


def death(number: int, *more: Record, cause: Cause = Cause.POWER_LOSS) -> list[Record]:
    """Make the records of a run that was launched, and ended with its host."""
    run = str(number)
    return [
        on(run, 10, run, Kind.STARTED),
        on(run, 20, run, Kind.LAUNCHED),
        *more,
        on(str(number + 1), 10, run, Kind.FAULT, cause=cause),
    ]


def ready_for(number: int, seconds: float) -> tuple[Record, ...]:
    """Make the records of a run that was ready, and recorded that it lasted."""
    run = str(number)
    return (on(run, 30, run, Kind.READY), on(run, 30 + seconds, run, Kind.STEADY))


DEATHS: dict[str, tuple[list[Record], int]] = {
    "while loading": ([*death(1), *death(2), *death(3)], 3),
    "just after it was ready": (
        [*death(1), *death(2, on("2", 30, "2", Kind.READY)), *death(3, *ready_for(3, 119))],
        3,
    ),
    "WSL ends": ([*death(1, cause=Cause.IDLE_KILL), *death(2)], 2),
    "one outlasted the load": ([*death(1), *death(2, *ready_for(2, 120)), *death(3)], 1),
    "an operator started it": ([*death(1), *death(2), on("3", 1, "", Kind.RESET)], 0),
    "nothing was launched": ([death(1)[0], death(1)[-1], *death(2)], 1),
    "the watchdog was killed": ([*death(1, cause=Cause.WATCHDOG_KILLED), *death(2)], 1),
    "one was ready, and ended": (
        [
            *death(1),
            on("2", 20, "2", Kind.LAUNCHED),
            on("2", 30, "2", Kind.READY),
            on("2", 40, "2", Kind.GONE, code=75),
        ],
        0,
    ),
    "one was refused for that": (
        [
            *[one for number in (1, 2, 3) for one in death(number)],
            on("4", 20, "4", Kind.FAULT, cause=Cause.HOST_DIES_UNDER_LOAD),
            on("4", 20, "4", Kind.GONE, code=69),
        ],
        3,
    ),
}


@pytest.mark.parametrize(("records", "deaths"), DEATHS.values(), ids=DEATHS)
def test_deaths_of_the_host_under_load_are_counted(records: list[Record], deaths: int) -> None:
    """They count in a row, from launch to two minutes after ready, until an operator's start."""
    assert holdoff(records, Moment(at(0), "9", 5), POLICY).host_deaths == deaths


def test_a_restarted_wsl_distribution_has_no_boot_of_its_own() -> None:
    """The next run's clock says nothing about how long the one before it was ready."""
    ready = on("1", 30, "1", Kind.READY)
    late = on("1", 9000, "1", Kind.FAULT, cause=Cause.IDLE_KILL)
    records = [*death(1, ready)[:-1], late]
    assert holdoff(records, Moment(at(0), "1", 9000), POLICY).host_deaths == 1


def ended(records: list[Record], **now: Any) -> tuple[str, Cause] | None:  # noqa: ANN401 - keywords
    """Tell how the last run must have ended."""
    known = {"boot_id": "boot-1", "pid1_started": 3, "on_wsl": False, **now}
    found = unfinished(records, **known)
    return None if found is None else (found[0], found[1].cause)


CUT = [
    *failing("a", 0, at=10),
    record(20, "b", Kind.STARTED, pid1_started=3),
    record(30, "b", Kind.READY),
]


def test_a_run_with_an_ending_needs_no_explanation() -> None:
    """An empty ledger, a run that is over and one whose fault is known are not unfinished."""
    assert ended([]) is None
    assert ended(failing("a", 0, at=10)) is None
    assert ended(failing("a", 0, at=10)[:-1]) is None


def test_the_watchdog_was_killed_when_nothing_else_was() -> None:
    """Same boot and same first process: only our own process can have gone."""
    assert ended(CUT) == ("b", Cause.WATCHDOG_KILLED)
    assert ended(CUT[:3] + CUT[4:]) == ("b", Cause.WATCHDOG_KILLED), "the start may be compacted"


@pytest.mark.parametrize("now", [{"boot_id": "boot-2"}, {"pid1_started": 4}])
def test_the_host_went_down(now: dict[str, Any]) -> None:
    """On WSL another boot or first process is the idle-kill; elsewhere a boot is a power loss."""
    assert ended(CUT, on_wsl=True, **now) == ("b", Cause.IDLE_KILL)
    same = "boot_id" not in now
    assert ended(CUT, **now) == ("b", Cause.WATCHDOG_KILLED if same else Cause.POWER_LOSS)


def test_a_killed_container_is_not_the_host() -> None:
    """A later first process of the same boot is a container that was killed, and counts."""
    found = unfinished(CUT, boot_id="boot-1", pid1_started=4, on_wsl=False)
    assert found is not None
    assert found[1].sentence.startswith("the container was killed; last record at ")


def test_a_stop_that_was_cut_off_is_still_a_stop() -> None:
    """A run that was stopping when it was cut off ended for the reason that it was stopping for."""
    stopping = record(40, "b", Kind.STOPPING, cause=Cause.HOST_SHUTDOWN)
    assert ended([*CUT, stopping], boot_id="boot-2") == ("b", Cause.HOST_SHUTDOWN)


def test_an_operators_word_is_no_run() -> None:
    """A line that belongs to no run does not hide the run before it."""
    assert ended([*CUT, record(50, "", Kind.RESET)]) == ("b", Cause.WATCHDOG_KILLED)


# Sums.


BOOT = [
    record(0, "a", Kind.STARTED),
    record(1, "a", Kind.LAUNCHED, baseline={"GPU-1": 600, "GPU-2": 10}),
    record(2, "a", Kind.PHASE, boot="loading weights"),
    record(32, "a", Kind.PHASE, boot="capturing graphs"),
    record(37, "a", Kind.PHASE, boot="loading weights"),
    record(38, "a", Kind.PHASE, boot="capturing graphs"),
    record(40, "a", Kind.READY),
    record(90, "a", Kind.STOPPING, cause=Cause.STOP_REQUESTED, sentence="asked by pid 1"),
    record(95, "a", Kind.GONE, code=0),
]


def test_a_run_is_summed_up() -> None:
    """When a run began and ended, why, and how long each phase of its start took."""
    (run,) = runs(BOOT)
    assert (run.began, run.ended, run.code) == (at(0), at(95), 0)
    assert (run.cause, run.sentence) == (Cause.STOP_REQUESTED, "asked by pid 1")
    assert run.ready_seconds == 39
    assert run.phases == {IMPORTS: 1, "loading weights": 31, "capturing graphs": 7}


@pytest.mark.parametrize(
    ("boot", "name"),
    [(["loading weights", FIRST_ANSWER], IMPORTS), ([FIRST_ANSWER], UNSEEN), ([], UNSEEN)],
)
def test_the_time_before_the_first_phase_has_a_row(boot: list[str], name: str) -> None:
    """The phases of a start add up to its time: the imports of an engine are one of them."""
    phases = [record(30 + number, "b", Kind.PHASE, boot=one) for number, one in enumerate(boot)]
    (run,) = runs([record(1, "b", Kind.LAUNCHED), *phases, record(40, "b", Kind.READY)])
    assert next(iter(run.phases.items())) == (name, 29 if boot else 39)
    assert sum(run.phases.values()) == run.ready_seconds


def test_a_run_that_lasts_has_no_end() -> None:
    """A run that is under way, or was cut off, has neither end nor code."""
    (run,) = runs(BOOT[:2])
    assert (run.ended, run.code, run.ready_seconds, run.phases) == (None, None, None, {})


def test_the_next_start_is_expected_to_take_what_the_last_ones_took() -> None:
    """The median of the last starts is the expectation; without any there is none."""
    quick = [
        record(200, "b", Kind.LAUNCHED),
        record(200, "b", Kind.PHASE, boot="loading weights"),
        record(211, "b", Kind.READY),
    ]
    assert eta([]) is None
    assert eta(BOOT) == 39
    assert eta(BOOT + quick) == 25


def test_a_slow_phase_of_the_last_start_stands_out() -> None:
    """The phases of the last start are compared with the usual ones of the starts before."""
    slow = [
        record(300, "c", Kind.LAUNCHED),
        record(301, "c", Kind.PHASE, boot="loading weights"),
        record(391, "c", Kind.READY),
    ]
    assert phase_times([]) == ()
    _, alone = phase_times(slow)
    assert (alone.seconds, alone.usual, alone.slow) == (90, None, False)
    _, loading = phase_times([*BOOT, *slow])
    assert loading.usual is not None
    assert loading.usual < 45
    assert loading.slow
    assert not any(phase.slow for phase in phase_times([*BOOT, *BOOT]))


def test_the_baseline_is_the_least_of_this_boot() -> None:
    """Memory that nobody uses is remembered over runs, but not over a reboot."""
    later = record(100, "b", Kind.LAUNCHED, baseline={"GPU-1": 500, "GPU-2": 20})
    assert baselines([*BOOT, later], "boot-1") == {"GPU-1": 500, "GPU-2": 10}
    assert baselines([*BOOT, later], "boot-2") == {}


def test_the_newest_records_are_kept_with_the_beginning_of_their_runs() -> None:
    """What is dropped first is the middle of long runs, and runs of long ago."""
    flapping = [record(50 + n, "a", Kind.DEGRADED) for n in range(50)]
    kept = newest(failing("old", 0, at=1) + BOOT[:7] + flapping, limit=500)
    assert [one.run for one in kept] == ["a"] * len(kept)
    assert [one.kind for one in kept[:4]] == ["started", "launched", "ready", "degraded"]
