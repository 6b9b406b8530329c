"""A plain log file answers the questions that a journal does, as far as its lines tell."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from servicekit.errors import UserError
from servicekit.managers import LogQuery
from servicekit.managers.logfile import matching, moment, of_run

HERE = timezone(timedelta(hours=2))
NOW = datetime(2026, 1, 31, 14, 30, tzinfo=HERE)


def ours(clock: str, run: str = "r1", level: str = "info", cause: str = "") -> bytes:
    """A line of servicekit's own at a time of day in UTC."""
    because = f" cause={cause}" if cause else ""
    text = f"time=2026-01-31T{clock}+00:00 level={level} event=x{because} profile=x run={run}\n"
    return text.encode()


LOG = (
    b"an old engine\n",
    ours("10:00:00.000"),
    b"loading\n",
    ours("12:00:00.000", level="error", cause="hung"),
    b"ERROR: CUDA error: out of memory\n",
    ours("12:20:00.000", run="r2"),
    b"INFO: loading again\n",
)


def as_json(line: bytes) -> bytes:
    """The same event as `log_format = "json"` writes it; an engine's line as it is."""
    if not line.startswith(b"time="):
        return line
    return (json.dumps(dict(word.split("=") for word in line.decode().split())) + "\n").encode()


JSON_LOG = tuple(map(as_json, LOG))


def test_a_log_of_json_lines_is_filtered_alike() -> None:
    """Each filter picks the same lines, whichever form the log has."""
    for query in (
        LogQuery(run="r2"),
        LogQuery(cause="hung"),
        LogQuery(since="14:20"),
        LogQuery(priority="err"),
    ):
        expected = [as_json(line) for line in matching(LOG, query, NOW)]
        assert 0 < len(expected) < len(LOG)
        assert list(matching(JSON_LOG, query, NOW)) == expected


def test_a_runs_lines_are_cut_out_of_a_log_of_many() -> None:
    """What lies between a run's first line and that of the next one is its log."""
    assert list(of_run(LOG, "r1")) == list(LOG[1:5])
    assert list(of_run(LOG, "r2")) == list(LOG[5:])
    assert list(of_run(LOG, "r3")) == []
    assert list(of_run((*LOG[1:3], b"engine of run=7\n"), "r1"))[-1] == b"engine of run=7\n"


@pytest.mark.parametrize(
    ("query", "first", "last"),
    [
        (LogQuery(), 0, 7),
        # An engine's line is as old as the line of ours before it, at least.
        (LogQuery(since="11:59"), 0, 7),
        (LogQuery(since="-2h"), 2, 7),
        (LogQuery(since="14:20"), 4, 7),
        (LogQuery(since="-5min"), 6, 7),
        (LogQuery(since="2026-01-30"), 0, 7),
        (LogQuery(since="-2h", run="r1"), 3, 5),
        (LogQuery(cause="hung"), 3, 4),
        (LogQuery(priority="err"), 3, 5),
        (LogQuery(priority="3", since="-1h", run="r2"), 5, 5),
    ],
)
def test_lines_are_picked_by_time_level_run_and_cause(
    query: LogQuery, first: int, last: int
) -> None:
    """Whatever is asked for together holds for each line that is shown."""
    assert list(matching(LOG, query, NOW)) == list(LOG[first:last])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", "2026-01-31 14:30"),
        ("today", "2026-01-31 00:00"),
        ("yesterday", "2026-01-30 00:00"),
        ("-1h", "2026-01-31 13:30"),
        ("-1h 30min", "2026-01-31 13:00"),
        ("2 days ago", "2026-01-29 14:30"),
        ("90s ago", "2026-01-31 14:28:30"),
        ("12:00", "2026-01-31 12:00"),
        ("2026-01-02", "2026-01-02 00:00"),
        ("2026-01-02 03:04:05", "2026-01-02 03:04:05"),
    ],
)
def test_a_time_is_read_as_journalctl_reads_it(text: str, expected: str) -> None:
    """On the clock of whoever asks."""
    assert moment(text, NOW) == datetime.fromisoformat(expected).replace(tzinfo=HERE)


def test_a_time_may_name_its_zone() -> None:
    """Then it is meant."""
    assert moment("2026-01-31T12:00:00Z", NOW) == datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize("text", ["sometime", "-1 parsec", "1h", "25:00", "2026-13-01", "-", ""])
def test_what_is_no_time_is_refused(text: str) -> None:
    """One line says what would be one."""
    with pytest.raises(UserError, match='is not a valid time; use "-1h"'):
        moment(text, NOW)


@pytest.mark.parametrize("text", ["loud", "8", "-1"])
def test_what_is_no_level_is_refused(text: str) -> None:
    """One line names them all."""
    with pytest.raises(UserError, match="is not a valid level; use emerg, alert, crit"):
        list(matching(LOG, LogQuery(priority=text), NOW))
