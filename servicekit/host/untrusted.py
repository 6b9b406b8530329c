"""The one reader of files that another account may have written, and of the JSON in them. Disk.

Root reads what a service's account wrote: the account may replace a file by a link, a named pipe, a
huge sparse file, or by text made to break its reader. A file is opened below a directory that is
open already, never through a link and never waiting; what fails is an `OSError` or a `ValueError`
whose text completes "cannot be read: …".
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

from servicekit.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

LARGEST: Final = 4 << 20
"""Bytes of a file that are read at most, where a reader sets no bound of its own."""
LONGEST_TEXT: Final = 4000  # characters of one string; the rest is cut off
LARGEST_NUMBER: Final = 2**62
FIRST_YEAR: Final = 1970
LAST_YEAR: Final = 9000
"""Years between which times can be added, compared and shown in every time zone."""
_TOO_LARGE: Final = "it is larger than {} KiB"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def directory(path: Path, *below: str) -> Iterator[int]:
    """Open the directory `path`, then each name of `below` in turn; none of them may be a link."""
    opened = os.open(path, _DIRECTORY)
    try:
        for name in below:
            inner = os.open(name, _DIRECTORY, dir_fd=opened)
            os.close(opened)
            opened = inner
        yield opened
    finally:
        os.close(opened)


def read(path: Path, *, limit: int = LARGEST) -> str:
    """Read the file `path`, whatever its bytes are; raise `OSError` for all but a plain file."""
    with directory(path.parent) as within:
        return read_at(within, path.name, limit=limit)


def read_at(within: int, name: str, *, limit: int = LARGEST) -> str:
    """Read the file `name` in the open directory `within`."""
    with os.fdopen(open_at(within, name, limit=limit), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:  # it grew meanwhile
        raise OSError(errno.EFBIG, _TOO_LARGE.format(limit >> 10), name)
    return content.decode("utf-8", errors="replace")


def open_at(within: int, name: str, *, limit: int = LARGEST) -> int:
    """Open `name` in the open directory `within` for reading: a plain file of the expected owner.

    Raises `OSError` for a link, a pipe or device, a file with a second name, one of another account
    than root, the reader and the owner of the directory, and one of more than `limit` bytes.
    """
    try:
        opened = os.open(name, _FILE, dir_fd=within)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", name) from None
        raise
    why = _flaw(os.fstat(opened), os.fstat(within), limit)
    if why:
        os.close(opened)
        raise OSError(errno.EINVAL, why, name)
    return opened


def _flaw(file: os.stat_result, within: os.stat_result, limit: int) -> str:
    """Why a file is not read; empty where it is."""
    if not stat.S_ISREG(file.st_mode):
        return "it is not a regular file"
    if file.st_nlink > 1:
        return "it has more than one hard link"
    if file.st_uid not in {0, os.geteuid(), within.st_uid}:
        return f"it belongs to user id {file.st_uid}"
    return _TOO_LARGE.format(limit >> 10) if file.st_size > limit else ""


def open_linked(path: Path) -> int:
    """Open a plain file that links may lead to, as they do in a model's cache; never wait for it.

    What is read of it is believed only as a model's: its size, and what the engine will load.
    """
    # A device may act when it is opened, so what the path leads to is looked at before that.
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(place)


# JSON, made harmless.


def parse(text: str) -> dict[str, Any]:
    """Parse a JSON object; raise `ValueError` for anything else.

    Its numbers are finite and its strings printable and short, so that they can be shown as they
    are.
    """
    try:
        value = _harmless(json.loads(text, parse_float=_finite, parse_constant=_refuse))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - as all that is wrong with it
    return value


def _harmless(value: Any) -> Any:  # noqa: ANN401 - JSON
    match value:
        case str():
            return words(value)
        case bool() | None | float():
            return value
        case int():
            if abs(value) > LARGEST_NUMBER:
                raise ValueError("it holds a number that is too large")
            return value
        case list():
            return [_harmless(item) for item in value]
        case _:
            return {words(key): _harmless(item) for key, item in value.items()}


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("it holds a number that is too large")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}, which is not a number")


def words(text: str) -> str:
    """Return `text` short and printable."""
    cut = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
    return printable(cut)


def moment(text: object) -> datetime:
    """Parse a time in ISO 8601, in UTC where it names no zone; raise `ValueError` for others."""
    if not isinstance(text, str):
        raise ValueError("a time is not a string")  # noqa: TRY004 - as all that is wrong with it
    at = datetime.fromisoformat(text)
    if not FIRST_YEAR < at.year < LAST_YEAR:
        raise ValueError(f"the year {at.year} is out of range")
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)


# Schemas: what each value of an object must be.


def is_text(value: object) -> bool:
    """Whether it is a string."""
    return isinstance(value, str)


def is_count(value: object) -> bool:
    """Whether it is a whole number that is not negative; `True` is none."""
    return type(value) is int and value >= 0


def is_number(value: object) -> bool:
    """Whether it is a number; `True` is none."""
    return type(value) in {int, float}


def is_texts(value: object) -> bool:
    """Whether it is a list of strings."""
    return isinstance(value, list | tuple) and all(map(is_text, value))


def each(check: Callable[[object], bool]) -> Callable[[object], bool]:
    """Whether it is an object whose values all pass `check`."""
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def optional(check: Callable[[object], bool]) -> Callable[[object], bool]:
    """Whether it is `None`, or passes `check`."""
    return lambda value: value is None or check(value)


def refuse_misfit(data: Mapping[str, Any], schema: Mapping[str, Callable[[object], bool]]) -> None:
    """Raise `ValueError` where a value of `data` is not what `schema` says; others may be there."""
    for name, check in schema.items():
        if name in data and not check(data[name]):
            raise ValueError(f'its "{name}" is not what it must be')
