"""Brings models into the hub's cache: whole, checked, and taken up where it was broken off. Disk.

Files become visible to engines all together, once the last of them is whole, so that a fetch which
was broken off leaves nothing that looks like a model.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from servicekit.errors import UserError
from servicekit.host import untrusted
from servicekit.host.procfs import account
from servicekit.models.hub import ByteListener
from servicekit.models.memory.units import short

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from servicekit.models.hub_cache import File, Listing, Repository
    from servicekit.models.weights import Need

CHUNK: Final = 1 << 20
"""Bytes read at once to be checked."""
SHA256_DIGITS: Final = 64


class Source(Protocol):
    """Where files come from; `servicekit.hub.Hub` is one."""

    def read(
        self, need: Need, commit: str, file: File, into: BinaryIO, watcher: ByteListener
    ) -> None:
        """See `servicekit.hub.Hub.read`."""


class ProgressListener(ByteListener, Protocol):
    """Who is told what is being done."""

    def checking(self, file: File) -> None:
        """Take it that a file which is here is being compared with its checksum."""

    def loading(self, file: File) -> None:
        """Take it that a file is being fetched, or what is missing of it."""


@dataclass(frozen=True, slots=True)
class FetchState:
    """How much of one model is here."""

    need: Need
    repository: Repository
    listing: Listing
    """Of the files that the engine reads."""
    whole: frozenset[str]
    """Digests of files that are here and as they should be."""
    damaged: frozenset[str]
    """Digests of files that are here and are not."""
    begun: int
    """Bytes of files that are here in part, and will be gone on from."""
    named: bool
    """Whether engines find every file under its name, at the revision that they ask for."""

    @property
    def wanting(self) -> tuple[File, ...]:
        """Files that are not here as they should be, each once."""
        files = {file.digest: file for file in self.listing.files if file.digest not in self.whole}
        return tuple(files.values())

    @property
    def left(self) -> int:
        """Bytes to fetch."""
        return sum(file.size for file in self.wanting) - self.begun

    def completed(self) -> FetchState:
        """Return what it is once `complete` has come to its end."""
        whole = frozenset(file.digest for file in self.listing.files)
        return replace(self, whole=whole, damaged=frozenset(), begun=0, named=True)


def stand(
    need: Need, repository: Repository, listing: Listing, spectator: ProgressListener
) -> FetchState:
    """Compare what is here with its checksums. Reads every file of it."""
    whole: set[str] = set()
    damaged: set[str] = set()
    begun = 0
    for file in {file.digest: file for file in listing.files}.values():
        blob, partial = repository.blob(file.digest), repository.partial(file.digest)
        if blob.is_file():
            spectator.checking(file)
            (whole if is_whole(blob, file, spectator) else damaged).add(file.digest)
        elif partial.is_file() and (size := partial.stat().st_size) <= file.size:
            begun += size
    named = _is_published(repository, need.revision, listing)
    return FetchState(need, repository, listing, frozenset(whole), frozenset(damaged), begun, named)


def is_whole(path: Path, file: File, watcher: ByteListener) -> bool:
    """Whether the file at `path` has the size and the checksum that it must have."""
    if path.stat().st_size != file.size:
        return False
    if len(file.digest) == SHA256_DIGITS:
        sums = hashlib.sha256()
    else:
        sums = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with os.fdopen(untrusted.open_linked(path), "rb") as stream:
        while chunk := stream.read(CHUNK):
            sums.update(chunk)
            watcher.moved(len(chunk))
    return sums.hexdigest() == file.digest


def free_bytes(path: Path) -> int:
    """Bytes that may still be written at `path`, or where it would be made."""
    there = next(each for each in (path, *path.parents) if each.exists())
    return shutil.disk_usage(there).free


def check_space(standings: Iterable[FetchState], cache: Path) -> None:
    """Raise `UserError` if what is left to fetch does not fit on the disk."""
    left, free = sum(standing.left for standing in standings), free_bytes(cache)
    if left > free:
        raise UserError(
            f'{short(left)} are to be fetched, and {short(free)} are free at "{cache}"',
            hint=f"free {short(left - free)}, or set HF_HOME in the profile's environment to a "
            "larger disk",
        )


def complete(standing: FetchState, source: Source, spectator: ProgressListener) -> None:
    """Fetch what is wanting, then let engines see all of it.

    Raises `UserError`. Whatever came until then stays, and the next call goes on from it.
    """
    repository = standing.repository
    try:
        repository.blobs.mkdir(parents=True, exist_ok=True)
        with _alone(repository):
            for file in standing.wanting:
                repository.blob(file.digest).unlink(missing_ok=True)
                spectator.loading(file)
                _load(standing, file, source, spectator)
            _publish(repository, standing.need.revision, standing.listing)
    except OSError as error:
        raise _refusal(error, repository) from None


def _load(standing: FetchState, file: File, source: Source, spectator: ProgressListener) -> None:
    """Fetch one file; one that was begun earlier and turns out to be wrong, once more from zero."""
    repository, need = standing.repository, standing.need
    partial = repository.partial(file.digest)
    while True:
        with open(partial, "r+b", opener=_make) as stream:
            if stream.seek(0, os.SEEK_END) > file.size:
                stream.truncate(stream.seek(0))
            begun = stream.tell()
            source.read(need, standing.listing.commit, file, stream, spectator)
            stream.flush()
            os.fsync(stream.fileno())
        spectator.checking(file)
        if is_whole(partial, file, _Deaf()):
            partial.replace(repository.blob(file.digest))
            return
        partial.unlink()
        spectator.moved(-file.size)
        if not begun:
            raise UserError(
                f'"{file.name}" of "{need.repo}" came with a wrong checksum, and was thrown away',
                hint="run it again; if it stays so, what lies between this host and the hub "
                "changes files",
            )


class _Deaf:
    """A watcher of what has been counted already."""

    def moved(self, size: int) -> None:
        pass

    def broke_off(self) -> None:
        pass


def _make(path: str, _flags: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def _publish(repository: Repository, revision: str, listing: Listing) -> None:
    """Link the files under their names, then say that `revision` is this commit."""
    snapshot = repository.snapshot(listing.commit)
    for file in listing.files:
        link = snapshot / file.name
        link.parent.mkdir(parents=True, exist_ok=True)
        target = os.path.relpath(repository.blob(file.digest), link.parent)
        if not (link.is_symlink() and str(link.readlink()) == target):
            with _instead_of(link) as new:
                new.symlink_to(target)
    if revision != listing.commit and repository.commit(revision) != listing.commit:
        ref = repository.ref(revision)
        ref.parent.mkdir(parents=True, exist_ok=True)
        with _instead_of(ref) as new:
            new.write_text(listing.commit, encoding="ascii")


def _is_published(repository: Repository, revision: str, listing: Listing) -> bool:
    """Whether `_publish` has been here, and nobody else since."""
    top = repository.snapshot(listing.commit)
    return repository.commit(revision) == listing.commit and all(
        (top / file.name).resolve() == repository.blob(file.digest).resolve()
        for file in listing.files
    )


@contextmanager
def _instead_of(path: Path) -> Iterator[Path]:
    """Give a name to write to, and then put what was written in the place of `path` at once."""
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


@contextmanager
def _alone(repository: Repository) -> Iterator[None]:
    """Keep out a second fetch of the same model."""
    descriptor = os.open(repository.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f'another fetch is busy in "{repository.folder}"', hint="wait until it is done"
            ) from None
        except OSError:
            pass  # a network file system without locks; two fetches would only do double work
        yield
    finally:
        os.close(descriptor)


def _refusal(error: OSError, repository: Repository) -> UserError:
    where = error.filename or repository.folder
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return UserError(
                f'the disk is full at "{repository.folder}"',
                hint="free some space and run it again: it goes on from what is here",
            )
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return UserError(
                f'"{where}" cannot be written by "{account(os.geteuid())}"',
                hint="let that account own it, or run it as root, or with --user",
            )
        case _:
            reason = (error.strerror or type(error).__name__).lower()
            return UserError(f'"{where}" cannot be written: {reason}')
