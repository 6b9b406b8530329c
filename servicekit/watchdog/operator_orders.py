"""An operator's orders for a profile's watchdog: forget earlier faults, and who stops it. Disk.

An order lies where only root (or the user whose services they are) writes, never in the directory
of the service's account, which could lead a writer elsewhere by a link. A reset is a token, which
the watchdog notes in the ledger when it obeys, so that it obeys once.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from servicekit.host import untrusted
from servicekit.text import printable
from servicekit.watchdog import clock

if TYPE_CHECKING:
    from pathlib import Path

STOP_LASTS: Final = 60.0
"""Seconds after the command in which a signal of the manager is attributed to it."""
_TOKEN: Final = re.compile(r"[0-9a-f]{32}")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def order_reset(file: Path) -> None:
    """Leave an order in `file` (`Places.reset`) for the profile's next watchdog; raise `OSError`.

    Where nothing has run yet there is nothing to forget.
    """
    _leave(file, os.urandom(16).hex())


def announce_stop(file: Path, by: str) -> None:
    """Leave in `file` (`Places.stop_note`) by which command the watchdog is about to be stopped."""
    _leave(file, f"{clock.boottime()} {by}")


def stopped_by(file: Path, since: float) -> str:
    """Return the command that ordered a stop just now; empty if none did.

    `since` is when the watchdog began, in seconds since the boot: an older order was for another.
    """
    try:
        at, _, by = untrusted.read(file, limit=512).partition(" ")
        seconds = float(at)
    except (OSError, ValueError):
        return ""
    ago = (clock.boottime() or 0.0) - seconds
    return printable(by) if seconds >= since and ago <= STOP_LASTS else ""


def _leave(file: Path, text: str) -> None:
    folder = file.parent
    try:
        above = os.open(folder.parent, _DIRECTORY)
    except FileNotFoundError:
        return
    try:
        _refuse_shared(above, folder.parent)
        with suppress(FileExistsError):
            os.mkdir(folder.name, 0o755, dir_fd=above)
        within = os.open(folder.name, _DIRECTORY, dir_fd=above)
    finally:
        os.close(above)
    try:
        _refuse_shared(within, folder)
        os.fchmod(within, 0o755)  # the watchdog reads it, whatever our umask
        name = f".{os.urandom(16).hex()}"
        new = os.open(name, _NEW, 0o644, dir_fd=within)
        with os.fdopen(new, "w", encoding="utf-8") as stream:
            os.fchmod(new, 0o644)
            stream.write(text)
        os.rename(name, file.name, src_dir_fd=within, dst_dir_fd=within)
    finally:
        os.close(within)


def _refuse_shared(directory: int, name: Path) -> None:
    """Refuse a directory that another account than ours or root's can write to."""
    status = os.fstat(directory)
    if status.st_uid not in {0, os.geteuid()} or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(errno.EPERM, "others can write to its directory", str(name))


def ordered_reset(file: Path) -> str:
    """Return the token of the last order in `file`; empty where there is none."""
    try:
        token = untrusted.read(file, limit=64)
    except OSError:
        return ""
    return token if _TOKEN.fullmatch(token) else ""
