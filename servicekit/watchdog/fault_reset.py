"""An operator's order to forget a profile's earlier faults, left for its watchdog. Disk.

The order lies where only root (or the user whose services they are) writes, never in the directory
of the service's account, which could lead a writer elsewhere by a link. It is a token, which the
watchdog notes in the ledger when it obeys, so that it obeys once.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from servicekit.host import untrusted

if TYPE_CHECKING:
    from pathlib import Path

_TOKEN: Final = re.compile(r"[0-9a-f]{32}")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def order_reset(file: Path) -> None:
    """Leave an order in `file` (`Places.reset`) for the profile's next watchdog; raise `OSError`.

    Where nothing has run yet there is nothing to forget.
    """
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
        token = os.urandom(16).hex()
        new = os.open(f".{token}", _NEW, 0o644, dir_fd=within)
        with os.fdopen(new, "w", encoding="ascii") as stream:
            os.fchmod(new, 0o644)
            stream.write(token)
        os.rename(f".{token}", file.name, src_dir_fd=within, dst_dir_fd=within)
    finally:
        os.close(within)


def _refuse_shared(directory: int, name: Path) -> None:
    """Refuse a directory that another account than ours or root's can write to."""
    found = os.fstat(directory)
    if found.st_uid not in {0, os.geteuid()} or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(errno.EPERM, "others can write to its directory", str(name))


def ordered_reset(file: Path) -> str:
    """Return the token of the last order in `file`; empty where there is none."""
    try:
        token = untrusted.read(file, limit=64)
    except OSError:
        return ""
    return token if _TOKEN.fullmatch(token) else ""
