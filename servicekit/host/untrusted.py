"""Files that a service's account may put anything into, read by whoever asks. Disk."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path) -> str:
    """Read a regular file, whatever its bytes are.

    Raise `OSError` for all else: a named pipe would hold up root for ever.
    """
    with open(path, encoding="utf-8", errors="replace", opener=_open) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        return file.read()


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
