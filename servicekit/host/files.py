"""Files that are replaced as a whole, and locks. Disk.

For directories of our own. Where another account may put things in a file's way, `run_files` and an
install's `rootfs` take every step relative to an open directory instead.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def instead_of(path: Path) -> Iterator[Path]:
    """Yield a new name beside `path`, then put what was written there in its place at once."""
    # No other account can have laid a link at this name, and it is not too long for a name.
    new = path.with_name(f".servicekit-{os.urandom(8).hex()}")
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def replace(path: Path, text: str, *, mode: int | None = None, durable: bool = False) -> None:
    """Replace a file: a reader sees the old text or the new one, never a part of it.

    `mode` holds whatever the umask is; `None` leaves it to the umask. `durable` survives a power
    cut. Raises `OSError`, and then the old file is still there.
    """
    with instead_of(path) as new, new.open("x", encoding="utf-8", errors="replace") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.write(text)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; return whether no other process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
