"""Labelled failures get their cause, and healthy logs with noise in them get none."""

from __future__ import annotations

import pytest
from diagnosis_sets import Case, cases, false_cause, noisy_logs
from hypothesis import given
from hypothesis import strategies as st

from servicekit.diagnosis.reader import LogReader
from servicekit.diagnosis.verdict import diagnose

LOGS = list(noisy_logs())
KNOWN_LIMITS = 2
"""Cases of the seen set that are wrong: an assertion without text, and a compiler's word."""
UNSEEN_RIGHT = 41
"""The score of the unseen set; its rows are not looked at."""


def _is_right(case: Case) -> bool:
    reader = LogReader()
    reader.feed(case.log.encode())
    return diagnose(reader).cause in case.causes


def test_seen_failures_get_their_cause() -> None:
    """All but the known limits of the labelled failures are named rightly."""
    wrong = [case for case in cases("seen") if not _is_right(case)]
    assert len(wrong) <= KNOWN_LIMITS, [case.log for case in wrong]


def test_training_failures_get_their_cause() -> None:
    """Every failure that signatures were made for is named rightly."""
    wrong = [case for case in cases("training") if not _is_right(case)]
    assert [case.log for case in wrong] == []


def test_unseen_failures_keep_their_score() -> None:
    """Of the failures that no signature was made for, no fewer are named rightly than before."""
    right = sum(map(_is_right, cases("unseen")))
    assert right >= UNSEEN_RIGHT


def test_there_is_enough_noise() -> None:
    """The noise table has at least sixty healthy and noisy logs."""
    assert len(LOGS) >= 60


@given(st.sampled_from(LOGS), st.floats(0, 1))
def test_noise_is_no_cause_wherever_the_log_ends(log: tuple[str, list[str]], part: float) -> None:
    """An engine that is killed anywhere in a healthy, noisy log gets no cause from its lines."""
    _, lines = log
    reader = LogReader()
    for line in lines[: round(part * len(lines))]:
        reader.feed_line(line)
    assert false_cause(reader.reading()) is None


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log[0])
def test_noise_is_no_cause_at_the_end(log: tuple[str, list[str]]) -> None:
    """Each noisy log as a whole shows no cause."""
    reader = LogReader()
    reader.feed("\n".join(log[1]).encode())
    reader.close()
    assert false_cause(reader.reading()) is None
