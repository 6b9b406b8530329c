"""Bounded calls in an event loop: programs that may hang, and functions that may block.

A program is killed when it is late. A function that may block, on a dead network file system say,
runs in a daemon thread that is left behind: it ends with the process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from servicekit.host.child import Child, inherited

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

LONGEST: Final = 16 << 20  # bytes of output after which a program is killed
FIRST_WORD: Final = 2.0  # seconds after which it is shown what is still waited for

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class NoReplyError(Exception):
    """A call without a result; its text says why and reads well behind a colon."""

    def __init__(self, why: str, *, remedy: str = "") -> None:
        super().__init__(why)
        self.remedy = remedy


async def output(
    argv: Sequence[str],
    *,
    limit: float,
    environment: Mapping[str, str] | None = None,
    most: int = LONGEST,
) -> str:
    """Run a program for what it prints on stdout, whatever its exit code.

    Raises `NoReplyError` where it cannot be run, is late or prints too much.
    """
    name = argv[0].rpartition("/")[2]
    reading, writing = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    variables = inherited(os.environ if environment is None else environment)
    try:
        # In our session: one in another would be taken for what an engine left to us.
        child = Child.spawn(argv, variables, stdout=writing, stderr=null)
    except OSError as error:
        os.close(reading)
        missing = isinstance(error, FileNotFoundError)
        why = "is not installed" if missing else f"cannot be run: {(error.strerror or '').lower()}"
        raise NoReplyError(f'"{name}" {why}') from None
    finally:
        os.close(writing)
        os.close(null)
    try:
        async with asyncio.timeout(limit):
            return (await _read(reading, name, most)).decode("utf-8", errors="replace")
    except TimeoutError:
        raise NoReplyError(f'"{name}" did not finish within {limit:g} s') from None
    finally:
        if child.poll() is None:
            child.send(signal.SIGKILL)
            child.poll()
        child.close()
        os.close(reading)


async def _read(pipe: int, name: str, most: int) -> bytes:
    """Read a pipe to its end."""
    loop = asyncio.get_running_loop()
    os.set_blocking(pipe, False)
    readable = asyncio.Event()
    pieces: list[bytes] = []
    loop.add_reader(pipe, readable.set)
    try:
        while True:
            await readable.wait()
            readable.clear()
            with suppress(BlockingIOError):
                pieces.append(os.read(pipe, 1 << 16))
                if not pieces[-1]:
                    return b"".join(pieces)
                if sum(map(len, pieces)) > most:
                    raise NoReplyError(f'"{name}" prints more than {most >> 20} MiB')
    finally:
        loop.remove_reader(pipe)


async def call(function: Callable[[], T]) -> T:
    """Run a blocking call in a daemon thread; the caller applies the timeout."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(by: Callable[[], None]) -> None:
        if not answer.done():  # a cancelled one has no waiter any more
            by()

    def work() -> None:
        try:
            value = function()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            by = partial(answer.set_exception, error)
        else:
            by = partial(answer.set_result, value)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, by)

    threading.Thread(target=work, name="bounded call", daemon=True).start()
    return await answer


class Pending(Generic[T_co]):
    """One call; see `BoundedCalls`."""

    def __init__(self, what: str, task: asyncio.Task[T_co], limit: float) -> None:
        self.what = what
        self.task = task
        self._limit = limit

    def answer(self) -> T_co:
        """Return the result; raise `NoReplyError` where there is none."""
        try:
            return self.task.result()
        except asyncio.CancelledError:
            raise NoReplyError(f"no answer within {self._limit:g} s") from None
        except OSError as error:
            where = f': "{error.filename}"' if error.filename else ""
            raise NoReplyError(f"{(error.strerror or str(error)).lower()}{where}") from None


class BoundedCalls:
    """Calls that run at once and have `limit` seconds together."""

    def __init__(self, limit: float, *, first_word: float = FIRST_WORD) -> None:
        self._limit = limit
        self._first_word = first_word
        self._asked: list[Pending[Any]] = []

    def ask(self, what: str, question: Coroutine[Any, Any, T]) -> Pending[T]:
        """Start the call `question`, which is about `what`."""
        pending = Pending(what, asyncio.ensure_future(question), self._limit)
        self._asked.append(pending)
        return pending

    async def settle(self, report: Callable[[tuple[str, ...]], None]) -> None:
        """Wait for all results, or until the time is over.

        `report` is called with what is waited for: after two seconds, and whenever that is less.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limit
        wait, reported = self._first_word, 0
        while open_ones := [pending for pending in self._asked if not pending.task.done()]:
            left = deadline - loop.time()
            if left <= 0:
                break
            await asyncio.wait(
                [pending.task for pending in open_ones],
                timeout=min(wait, left),
                return_when=asyncio.ALL_COMPLETED if not reported else asyncio.FIRST_COMPLETED,
            )
            open_ones = [pending for pending in open_ones if not pending.task.done()]
            if open_ones and len(open_ones) != reported:
                report(tuple(dict.fromkeys(pending.what for pending in open_ones)))
                reported = len(open_ones)
        for pending in self._asked:
            pending.task.cancel()
        await asyncio.gather(*(pending.task for pending in self._asked), return_exceptions=True)
