"""Questions that may never be answered: each has a bound, and none is waited for longer."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

import pytest
from machines.waiting import wait_until

from servicekit.host import procfs
from servicekit.host.bounded import BoundedCalls, NoReplyError, call, output

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path
    from typing import Any

LIMIT = 20.0
"""Seconds for what takes none on an idle machine."""


def ask(*argv: str, limit: float = LIMIT, most: int = 1 << 20) -> str:
    """Ask a program."""
    return asyncio.run(output(argv, limit=limit, most=most))


def heard(*words: tuple[str, ...]) -> None:
    """Be told what is waited for, and keep it to oneself."""


def test_a_program_is_asked_for_what_it_prints() -> None:
    """Its output is the answer, however it exits and whatever it complains about."""
    assert ask("sh", "-c", "echo one; echo no >&2; echo two; exit 3") == "one\ntwo\n"


def test_bytes_that_are_no_text_are_replaced() -> None:
    """An old code page does not end the question."""
    assert ask("printf", r"a\377b") == "a\ufffdb"


def test_a_program_that_is_late_is_killed(tmp_path: Path) -> None:
    """Whoever asks goes on after the limit, and nothing is left running."""
    note = tmp_path / "pid"
    script = f"echo $$ >{note}; echo word; exec sleep 600"
    with pytest.raises(NoReplyError, match=r'"sh" did not finish within 0\.5 s'):
        ask("sh", "-c", script, limit=0.5)
    pid = int(note.read_text(encoding="utf-8"))
    wait_until(lambda: (seen := procfs.stat(pid)) is None or not seen.alive, LIMIT, "it is dead")


def test_a_child_that_keeps_the_pipe_open_is_not_waited_for() -> None:
    """What a program left behind cannot hold the question open beyond its limit."""
    with pytest.raises(NoReplyError, match="did not finish"):
        ask("sh", "-c", "sleep 5 & echo word", limit=0.2)


def test_a_program_that_is_not_here_is_no_answer(tmp_path: Path) -> None:
    """It is named as a person knows it, with what the system says."""
    with pytest.raises(NoReplyError, match='"none-such" is not installed'):
        ask(str(tmp_path / "none-such"))
    (tmp_path / "data").touch()
    with pytest.raises(NoReplyError, match='"data" cannot be run: permission denied'):
        ask(str(tmp_path / "data"))


def test_a_program_that_prints_without_end_is_stopped() -> None:
    """Memory is bounded, too."""
    with pytest.raises(NoReplyError, match="prints more than 1 MiB"):
        ask("yes")


def test_no_descriptor_is_left_open() -> None:
    """Answered, late or missing: a question costs nothing when it is over."""
    ask("true")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are all that is needed
    ask("true")
    for late in (("sleep", "600"), ("/none-such",)):
        with pytest.raises(NoReplyError):
            ask(*late, limit=0.1)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above


def test_a_function_is_called_in_a_thread() -> None:
    """What it returns or raises is what the caller gets."""

    def fail() -> None:
        raise PermissionError(13, "Permission denied", "/x")

    assert asyncio.run(call(threading.current_thread)) is not threading.current_thread()
    with pytest.raises(PermissionError):
        asyncio.run(call(fail))


def board(limit: float, *questions: tuple[str, Coroutine[Any, Any, object]]) -> list[object]:
    """Put questions on a board; give each answer, or why there is none."""

    async def put() -> list[object]:
        asked = BoundedCalls(limit)
        pending = [asked.ask(what, question) for what, question in questions]
        await asked.settle(heard)
        answers: list[object] = []
        for one in pending:
            try:
                answers.append(one.answer())
            except NoReplyError as error:
                answers.append(str(error))
        return answers

    return asyncio.run(put())


async def value(of: object) -> object:
    """Answer at once."""
    return of


async def refuse(error: Exception) -> object:
    """Raise."""
    raise error


def test_a_board_gives_every_answer_or_why_there_is_none() -> None:
    """One that is late or fails costs no other one its answer."""
    never = threading.Event()
    try:
        answers = board(
            0.3,
            ("one", value(1)),
            ("mute", refuse(NoReplyError("nobody is there"))),
            ("closed", refuse(PermissionError(13, "Permission denied", "/x"))),
            ("broken", refuse(OSError("no number"))),
            ("stuck", call(never.wait)),
            ("late", asyncio.sleep(600)),
        )
    finally:
        never.set()
    assert answers == [
        1,
        "nobody is there",
        'permission denied: "/x"',
        "no number",
        "no answer within 0.3 s",
        "no answer within 0.3 s",
    ]


def test_a_mistake_of_ours_is_no_missing_answer() -> None:
    """An error that is not the system's is raised, and not hidden behind a skip."""
    with pytest.raises(ZeroDivisionError):
        board(1, ("wrong", refuse(ZeroDivisionError())))


def test_what_is_waited_for_is_told_when_it_takes_long() -> None:
    """Nobody is told of what is quick; of what is not, each name once, again when it is less."""
    told: list[tuple[str, ...]] = []

    async def story() -> None:
        asked = BoundedCalls(LIMIT, first_word=0.05)
        first, second = asyncio.Event(), asyncio.Event()
        asked.ask("quick", value(0))
        asked.ask("disk", first.wait())
        asked.ask("disk", first.wait())
        asked.ask("driver", second.wait())

        def tell(what: tuple[str, ...]) -> None:
            told.append(what)
            (first if len(told) == 1 else second).set()

        await asked.settle(tell)

    asyncio.run(story())
    assert told == [("disk", "driver"), ("driver",)]


def test_a_quick_board_tells_nothing() -> None:
    """Two seconds of silence are no news."""

    async def story() -> list[object]:
        told: list[object] = []
        asked = BoundedCalls(LIMIT)
        asked.ask("quick", value(0))
        await asked.settle(told.append)
        return told

    assert asyncio.run(story()) == []
