"""What people read is aligned, and coloured only where that helps."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from datetime import UTC, datetime

import pytest
from typing_extensions import override

from servicekit.cli.output import duration, folded, local, paint, table


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0.04, "0.0 s"),
        (0.7, "0.7 s"),
        (9.99, "10.0 s"),
        (42.4, "42 s"),
        (59.9, "1 min 0 s"),
        (185, "3 min 5 s"),
        (7800, "2 h 10 min"),
        (273600, "3 d 4 h"),
    ],
)
def test_durations_are_said_as_people_do(seconds: float | None, text: str) -> None:
    """Two units at most, and tenths only where they count."""
    assert duration(seconds) == text


def test_a_table_is_aligned_without_trailing_space(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns begin one below the other, and the last one ends where its text ends."""
    table(("A", "LONGER"), [("x", "y"), ("longest", "")])
    assert capsys.readouterr().out == "A        LONGER\nx        y\nlongest\n"


def test_a_cell_cannot_lead_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """What a service wrote into its history is shown, and not carried out."""
    table(("A",), [("\x1b[2Jgone\nb",)])
    assert capsys.readouterr().out == "A\n\\x1b[2Jgone\\nb\n"


@pytest.mark.parametrize(
    ("line", "folds"),
    [
        ("  why:    answering", ["  why:    answering"]),
        (
            "  why:    nothing listens on port 18001 of this host",
            ["  why:    nothing listens on", "          port 18001 of this", "          host"],
        ),
        (
            "  \x1b[31mfail\x1b[0m  driver  no NVIDIA driver is loaded",
            ["  \x1b[31mfail\x1b[0m  driver  no NVIDIA driver is", " " * 16 + "loaded"],
        ),
        (
            "a sentence that has no columns at all",
            ["a sentence that has no", "  columns at all"],
        ),
        ("x" * 40, ["x" * 40]),
    ],
)
def test_a_long_line_continues_below_its_last_column(line: str, folds: list[str]) -> None:
    """No word is broken, and the columns stay columns."""
    assert folded(line, 30 if "fail" not in line else 40).split("\n") == folds


class Terminal(io.StringIO):
    """A standard output that says that it is a terminal."""

    @override
    def isatty(self) -> bool:
        return True


def test_what_is_too_long_for_a_terminal_is_cut_or_stands_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A list is cut to stay one; a reason is read to its end, and no line is too wide."""
    monkeypatch.setenv("COLUMNS", "30")
    rows = [("one", "a reason that is longer than any line"), ("two", "short")]
    for whole, expected in (
        (False, "RUN  WHY\none  a reason that is longe...\ntwo  short\n"),
        (True, "RUN  WHY\none\n  a reason that is longer than\n  any line\ntwo  short\n"),
    ):
        with redirect_stdout(Terminal()) as terminal:
            table(("RUN", "WHY"), rows, whole=whole)
        assert terminal.getvalue() == expected


def test_what_is_no_terminal_gets_no_colours() -> None:
    """A word that has a colour is plain where it goes to a file."""
    assert paint("ready") == "ready"
    assert paint("ready", "ready   ") == "ready   "


def test_times_are_on_the_readers_clock() -> None:
    """A time of the ledger, which is in UTC, is shown in the local zone."""
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert local(at) == at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
