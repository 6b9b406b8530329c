"""The file system below one root, which no path and no symbolic link can lead out of.

Each method is one step that a transaction makes, so a test can let any of them fail. Paths are
absolute as the system below the root sees them: with `--root DIR`, `/etc/x` is `DIR/etc/x`, and a
symbolic link to `/usr/x` leads to `DIR/usr/x`, as it will once the image is booted. Every directory
on the way is opened by itself, so a link that is swapped in meanwhile leads nowhere else.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import struct
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from servicekit.host.files import try_lock
from servicekit.host.removal import remove_tree
from servicekit.install.changes import Present
from servicekit.service.manifest import is_link

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST_LINKS: Final = 40
"""Symbolic links followed on one path before it is called a loop: the kernel's own bound."""
SYMLINK: Final = stat.S_IFLNK | 0o777  # mode that a symbolic link is recorded with

_DIRECTORY: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STEP: Final = os.O_PATH | _DIRECTORY


class Tree:
    """All files below `root`. Raises `OSError` with the path as the caller named it."""

    def __init__(self, root: str = "/") -> None:
        self.root = str(Path(root).absolute())

    @property
    def is_image(self) -> bool:
        """Whether this is another system's tree, so that none of its programs may run."""
        return self.root != "/"

    def account(self, name: str) -> tuple[int, int] | None:
        """User and group id of an account of the system below the root, `None` if there is none."""
        if not self.is_image:
            try:
                account = pwd.getpwnam(name)
            except KeyError:
                return None
            return account.pw_uid, account.pw_gid
        passwd = self.look(PurePosixPath("/etc/passwd"))
        for line in passwd.content.decode(errors="replace").splitlines() if passwd else ():
            match line.split(":"):
                case [entry, _, uid, gid, *_] if entry == name:
                    return int(uid), int(gid)
                case _:
                    pass
        return None

    def look(self, path: PurePosixPath) -> Present | None:
        """Read the file or link at `path`; `None` where there is none."""
        try:
            with self._at(path) as (directory, name):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if stat.S_ISLNK(status.st_mode):
                    return Present(os.readlink(name, dir_fd=directory).encode(), SYMLINK)
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(errno.EEXIST, "not a regular file; move it away")
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
                with os.fdopen(file, "rb") as stream:
                    return Present(stream.read(), stat.S_IMODE(status.st_mode))
        except FileNotFoundError:
            return None

    def names(self, directory: PurePosixPath) -> tuple[str, ...]:
        """Names in `directory`, sorted; none where there is no such directory."""
        try:
            with self._about(directory):
                descriptor = self._open(directory)
                try:
                    readable = os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=descriptor)
                finally:
                    os.close(descriptor)
                try:
                    return tuple(sorted(os.listdir(readable)))  # noqa: PTH208 - of a descriptor
                finally:
                    os.close(readable)
        except FileNotFoundError:
            return ()

    def missing(self, directories: Iterable[PurePosixPath]) -> tuple[PurePosixPath, ...]:
        """Which of `directories` and of those above them do not exist, outermost first."""
        known: dict[PurePosixPath, bool] = {}
        for directory in directories:
            for path in (*reversed(directory.parents), directory):
                if path not in known:
                    known[path] = self._is_directory(path)
        lacking = (path for path, exists in known.items() if not exists)
        return tuple(sorted(lacking, key=lambda path: len(path.parts)))

    def make_directory(
        self, path: PurePosixPath, mode: int = 0o755, ids: tuple[int, int] | None = None
    ) -> None:
        """Make one directory, with exactly this mode and owner."""
        with self._at(path) as (parent, name):
            os.mkdir(name, 0o700, dir_fd=parent)
            made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            try:
                if ids is not None:
                    os.fchown(made, *ids)
                os.fchmod(made, mode)
            finally:
                os.close(made)

    def restrict(self, path: PurePosixPath, mode: int) -> None:
        """Set the mode of a directory of ours, and have new files in it get the same rights.

        A default ACL replaces the umask of the process that makes a file, so log rotation keeps it.
        """
        with suppress(FileNotFoundError), self._at(path) as (parent, name):
            directory = os.open(name, os.O_RDONLY | _DIRECTORY, dir_fd=parent)
            try:
                if os.fstat(directory).st_uid == os.geteuid():
                    os.fchmod(directory, mode)
                    with suppress(OSError):  # a file system without ACLs
                        os.setxattr(directory, "system.posix_acl_default", _acl(mode))
            finally:
                os.close(directory)

    def hand_over(self, path: PurePosixPath, ids: tuple[int, int]) -> None:
        """Give a directory of root's, with what root alone can have put there, to an account."""
        with suppress(FileNotFoundError), self._at(path) as (parent, name):
            _hand_over(parent, name, ids)

    def stage(
        self, path: PurePosixPath, content: bytes, mode: int, ids: tuple[int, int] | None = None
    ) -> None:
        """Write a new file, complete and on disk, at no time readable by more than `mode` says."""
        with self._at(path) as (directory, name):
            if is_link(mode):
                os.symlink(content, name, dir_fd=directory)
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, 0o600, dir_fd=directory), "wb") as stream:
                stream.write(content)
                stream.flush()
                if ids is not None:
                    os.fchown(stream.fileno(), *ids)
                os.fchmod(stream.fileno(), mode)
                os.fsync(stream.fileno())

    def back_up(self, path: PurePosixPath, to: PurePosixPath) -> None:
        """Keep what is at `path` as `to` beside it, so that restoring it needs no space."""
        with self._at(path) as (directory, name):
            try:
                os.link(
                    name,
                    to.name,
                    src_dir_fd=directory,
                    dst_dir_fd=directory,
                    follow_symlinks=False,
                )
            except OSError as error:
                # Not every file system has hard links.
                if error.errno not in {errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK}:
                    raise
                owner = os.stat(name, dir_fd=directory, follow_symlinks=False)
                here = self.look(path)
                if here is not None:
                    self.stage(to, here.content, here.mode, (owner.st_uid, owner.st_gid))

    def move(self, path: PurePosixPath, to: PurePosixPath) -> None:
        """Rename within one directory, replacing what is there: one atomic step."""
        with self._at(path) as (directory, name):
            os.rename(name, to.name, src_dir_fd=directory, dst_dir_fd=directory)

    def delete(self, path: PurePosixPath) -> None:
        """Remove a file or link where there is one."""
        with suppress(FileNotFoundError), self._at(path) as (directory, name):
            # A read-only file system refuses before it says that there is nothing to remove.
            os.stat(name, dir_fd=directory, follow_symlinks=False)
            os.unlink(name, dir_fd=directory)

    def delete_directory(self, path: PurePosixPath) -> bool:
        """Remove a directory if it is there and empty; return whether it is gone."""
        try:
            with self._at(path) as (parent, name):
                os.rmdir(name, dir_fd=parent)
        except FileNotFoundError:
            return True
        except OSError as error:
            # A mount point is busy; one that is a link or full is not ours to remove.
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY}:
                return False
            raise
        return True

    def delete_tree(self, path: PurePosixPath) -> None:
        """Remove a directory with all that is in it, where there is one; links are not followed."""
        with suppress(FileNotFoundError), self._at(path) as (parent, name):
            remove_tree(parent, name)

    def sync(self, directory: PurePosixPath) -> None:
        """Make the names in `directory` survive a power loss."""
        with self._about(directory):
            descriptor = self._open(directory)
            try:
                readable = os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=descriptor)
                try:
                    os.fsync(readable)
                finally:
                    os.close(readable)
            finally:
                os.close(descriptor)

    def lock(self, path: PurePosixPath) -> int | None:
        """Lock the file `path`, made where it is missing; its descriptor, or `None` if taken."""
        with self._at(path) as (directory, name):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(name, flags, 0o600, dir_fd=directory)
            try:
                locked = try_lock(descriptor)
                # Whoever had it may have removed it in between: then it locks nothing any more.
                named = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if locked and os.path.samestat(named, os.fstat(descriptor)):
                    return descriptor
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            return None

    def _is_directory(self, path: PurePosixPath) -> bool:
        try:
            with self._about(path):
                os.close(self._open(path))
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def _about(self, path: PurePosixPath) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None

    @contextmanager
    def _at(self, path: PurePosixPath) -> Iterator[tuple[int, str]]:
        with self._about(path):
            directory = self._open(path.parent)
            try:
                yield directory, path.name
            finally:
                os.close(directory)

    def _open(self, directory: PurePosixPath) -> int:
        """Open `directory`, resolving links as a system whose root is `self.root` would."""
        way = [os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
        todo = list(reversed(directory.parts[1:]))
        links = 0
        try:
            while todo:
                part = todo.pop()
                if part == "..":
                    if len(way) > 1:
                        os.close(way.pop())
                    continue
                try:
                    way.append(os.open(part, _STEP, dir_fd=way[-1]))
                    continue
                except NotADirectoryError:
                    target = PurePosixPath(_target(part, way[-1]))
                links += 1
                if links > MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                if target.is_absolute():
                    while len(way) > 1:
                        os.close(way.pop())
                todo.extend(reversed([p for p in target.parts if p != "/"]))
            return os.dup(way[-1])
        finally:
            for descriptor in way:
                os.close(descriptor)


def _hand_over(parent: int, name: str, ids: tuple[int, int]) -> None:
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if status.st_uid != 0:
        return
    if stat.S_ISDIR(status.st_mode):
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return
        directory = os.open(name, os.O_RDONLY | _DIRECTORY, dir_fd=parent)
        try:
            for each in os.listdir(directory):  # noqa: PTH208 - of a descriptor
                _hand_over(directory, each, ids)
            os.fchown(directory, *ids)
        finally:
            os.close(directory)
    elif status.st_nlink == 1:  # another name of the file may be where the account cannot go
        os.chown(name, *ids, dir_fd=parent, follow_symlinks=False)


def _acl(mode: int) -> bytes:
    """Encode the rights of owner, group and others as the kernel stores an ACL."""
    tags = {0x01: mode >> 6, 0x04: mode >> 3, 0x20: mode}
    entries = (struct.pack("<HHi", tag, bits & 0o7, -1) for tag, bits in tags.items())
    return struct.pack("<I", 2) + b"".join(entries)


def _target(name: str, directory: int) -> str:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        raise
