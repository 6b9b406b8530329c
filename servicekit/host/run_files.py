"""Files that runs leave below a profile's state directory, each written once. Disk.

The directory is a service's own, and the writer or reader may be root, who must not be led
astray by what that service put there: every step is taken relative to a directory that is open and
was no link, and what is not a regular file is passed over.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from errno import EACCES, EEXIST
from typing import TYPE_CHECKING, Final

from servicekit.host import untrusted
from servicekit.host.files import try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUFFIX: Final = ".json"
LARGEST: Final = 8 << 20  # bytes of a file that are read at most; one of ours has some hundred KiB
MOST: Final = 64 << 20  # bytes of all files of a folder that are read at most, the newest first
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def prepare(state: Path, folder: str) -> None:
    """Make `folder` below `state`; raise `OSError` where nothing can be written there.

    Where `state` is not, it is left to its future owner.
    """
    if not state.exists():
        return
    with _opened(state, folder, make=True) as within:
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=within, effective_ids=True):
            raise PermissionError(EACCES, os.strerror(EACCES), str(state / folder))


def write(state: Path, folder: str, name: str, text: str) -> None:
    """Write `text` as `name`, which ends in `.json`, to `folder` below `state`: whole, or not.

    Raises `OSError`, and leaves nothing of it then. No file is ever replaced: where a clock was set
    back, an earlier run may have the name.
    """
    with _opened(state, folder, make=True) as within:
        beside = f".{name}"
        with suppress(FileNotFoundError):  # what a run left that was killed
            os.unlink(beside, dir_fd=within)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        if name in os.listdir(within):  # noqa: PTH208 - of a descriptor
            raise FileExistsError(EEXIST, os.strerror(EEXIST), name)
        opened = os.open(beside, flags, 0o644, dir_fd=within)
        try:
            with os.fdopen(opened, "w", encoding="utf-8") as file:
                os.fchmod(opened, 0o644)  # `servicekit compare` is for everyone, whatever the umask
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.rename(beside, name, src_dir_fd=within, dst_dir_fd=within)
        except BaseException:
            with suppress(OSError):
                os.unlink(beside, dir_fd=within)
            raise
        os.fsync(within)


@contextmanager
def alone(state: Path) -> Iterator[bool]:
    """Lock the profile with this state directory; return whether no other process has it.

    Two measurements at once disturb each other. Where nothing can be locked, none is refused.
    """
    try:
        opened = os.open(state, _OPEN)
    except OSError:
        yield True
        return
    try:
        free = True
        with suppress(OSError):
            free = try_lock(opened)
        yield free
    finally:
        os.close(opened)


def read(state: Path, folder: str) -> Iterator[tuple[str, str]]:
    """Give name and text of each file in `folder` below `state`, in the order of the names.

    Raises `PermissionError` for what may not be read: without it, an older run would pass for the
    latest one.
    """
    with suppress(FileNotFoundError, NotADirectoryError), _opened(state, folder) as within:
        for name in _newest(within):
            text = _read(name, within, state / folder)
            if text is not None:
                yield name, text


def names(state: Path, folder: str) -> tuple[str, ...]:
    """Give the names alone, of what may turn out to be no file of ours, in their order."""
    with suppress(FileNotFoundError, NotADirectoryError), _opened(state, folder) as within:
        return _names(within)
    return ()


def _names(within: int) -> tuple[str, ...]:
    names = os.listdir(within)
    ours = (name for name in names if name.endswith(SUFFIX) and not name.startswith("."))
    return tuple(sorted(filter(str.isprintable, ours)))


def _newest(within: int) -> Iterator[str]:
    """Yield the newest names, oldest first, as far as their files have `MOST` bytes together."""
    left, names = MOST, _names(within)
    first = len(names)
    while first:
        with suppress(OSError):
            left -= os.stat(names[first - 1], dir_fd=within, follow_symlinks=False).st_size
        if left < 0:
            break
        first -= 1
    yield from names[first:]


def _read(name: str, within: int, where: Path) -> str | None:
    try:
        return untrusted.read_at(within, name, limit=LARGEST)
    except PermissionError as error:
        raise PermissionError(error.errno, error.strerror, str(where / name)) from None
    except OSError:  # no plain file of the expected owner, or gone meanwhile
        return None


@contextmanager
def _opened(state: Path, folder: str, *, make: bool = False) -> Iterator[int]:
    """Open `folder` below `state`, made where that is wanted."""
    if make:
        state.mkdir(parents=True, exist_ok=True)
    above, made = os.open(state, _OPEN), False
    try:
        if make:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700, dir_fd=above)
                made = True
        within = os.open(folder, _OPEN, dir_fd=above)
    except PermissionError as error:
        raise PermissionError(error.errno, error.strerror, str(state / folder)) from None
    finally:
        os.close(above)
    try:
        if made:
            os.fchmod(within, 0o755)
        yield within
    finally:
        os.close(within)
