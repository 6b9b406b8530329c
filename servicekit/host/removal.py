"""Removes a directory with all that is in it, however deep an account has nested it. Disk."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import Final

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ROUNDS: Final = 100_000
"""Times that a tree is gone through before its account is taken to fill it meanwhile."""


def remove_tree(parent: int, name: str) -> None:
    """Remove `name` in the open directory `parent`; raise `OSError` where that cannot be done.

    Links are removed, not followed. Neither the call stack nor the number of open files grows with
    the depth: a directory inside another is first moved up to the top, then emptied like the rest.
    """
    if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
    top = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        for _ in range(_ROUNDS):
            inside = os.listdir(top)  # noqa: PTH208 - of a descriptor
            if not inside:
                break
            for each in inside:
                _remove(top, each)
        else:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), name)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


def _remove(top: int, name: str) -> None:
    """Remove a file; move up what a directory holds, and remove that."""
    with suppress(FileNotFoundError):
        if not _is_directory(top, name):
            os.unlink(name, dir_fd=top)
            return
        within = os.open(name, _DIRECTORY, dir_fd=top)
        try:
            for each in os.listdir(within):  # noqa: PTH208 - of a descriptor
                if _is_directory(within, each):
                    os.rename(each, f".{os.urandom(16).hex()}", src_dir_fd=within, dst_dir_fd=top)
                else:
                    os.unlink(each, dir_fd=within)
        finally:
            os.close(within)
        with suppress(OSError):  # filled again meanwhile: the next round finds it
            os.rmdir(name, dir_fd=top)


def _is_directory(within: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=within, follow_symlinks=False).st_mode)
