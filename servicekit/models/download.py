"""Downloads models into the hub's cache: complete, verified, and resumable. Disk.

Files become visible to engines all together, once the last of them is complete, so an interrupted
fetch leaves nothing that looks like a model.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pwd
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from servicekit.errors import UserError, reason
from servicekit.host import untrusted
from servicekit.host.files import instead_of, try_lock
from servicekit.models.hub import ByteListener
from servicekit.models.memory.units import short

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from servicekit.models.hub_cache import File, Listing, Repository
    from servicekit.models.weights import Need

CHUNK: Final = 1 << 20
SHA256_DIGITS: Final = 64
CONNECTIONS: Final = 4  # the hub limits each of them, and a home's line carries no more


class Source(Protocol):
    """Where files come from: the hub, `servicekit.models.hub.Hub`."""

    def read(
        self, need: Need, commit: str, file: File, into: BinaryIO, listener: ByteListener
    ) -> None:
        """See `Hub.read`."""


class ProgressListener(ByteListener, Protocol):
    """Receives the progress of a fetch."""

    def checking(self, file: File) -> None:
        """A file on disk is being compared with its checksum."""

    def loading(self, file: File) -> None:
        """A file, or the rest of one, is being downloaded."""


@dataclass(frozen=True, slots=True)
class FetchState:
    """How much of a model is on disk."""

    need: Need
    repository: Repository
    listing: Listing  # the files that the engine reads
    whole: frozenset[str]  # digests of files that are complete and correct
    damaged: frozenset[str]  # digests of files with a wrong size or checksum
    begun: int  # bytes of partial files, from which a fetch resumes
    named: bool  # whether engines find every file by its name, at the revision that they ask for

    @property
    def wanting(self) -> tuple[File, ...]:
        files = {file.digest: file for file in self.listing.files if file.digest not in self.whole}
        return tuple(files.values())

    @property
    def left(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.wanting) - self.begun

    def completed(self) -> FetchState:
        whole = frozenset(file.digest for file in self.listing.files)
        return replace(self, whole=whole, damaged=frozenset(), begun=0, named=True)


def stand(
    need: Need, repository: Repository, listing: Listing, listener: ProgressListener
) -> FetchState:
    """Compare the files on disk with their checksums; reads every file."""
    whole: set[str] = set()
    damaged: set[str] = set()
    begun = 0
    for file in {file.digest: file for file in listing.files}.values():
        blob, partial = repository.blob(file.digest), repository.partial(file.digest)
        if blob.is_file():
            listener.checking(file)
            (whole if is_whole(blob, file, listener) else damaged).add(file.digest)
        elif partial.is_file() and (size := partial.stat().st_size) <= file.size:
            begun += size
    named = _is_published(repository, need.revision, listing)
    return FetchState(need, repository, listing, frozenset(whole), frozenset(damaged), begun, named)


def is_whole(path: Path, file: File, listener: ByteListener | None = None) -> bool:
    """Whether the file at `path` has the right size and checksum."""
    if path.stat().st_size != file.size:
        return False
    if len(file.digest) == SHA256_DIGITS:
        sums = hashlib.sha256()
    else:
        sums = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with os.fdopen(untrusted.open_linked(path), "rb") as stream:
        left = file.size + 1  # one that grows meanwhile is not read for ever
        while chunk := stream.read(min(CHUNK, left)):
            left -= len(chunk)
            sums.update(chunk)
            if listener is not None:
                listener.moved(len(chunk))
    return sums.hexdigest() == file.digest


def free_bytes(path: Path) -> int:
    there = next(each for each in (path, *path.parents) if each.exists())
    return shutil.disk_usage(there).free


def check_space(states: Iterable[FetchState], cache: Path) -> None:
    """Raise `UserError` if the rest of the download does not fit on the disk."""
    left, free = sum(state.left for state in states), free_bytes(cache)
    if left > free:
        raise UserError(
            f'not enough disk space at "{cache}": {short(left)} needed, {short(free)} free',
            hint=f"free {short(left - free)}, or set HF_HOME in the profile's environment to a "
            "larger disk",
        )


def complete(
    state: FetchState,
    source: Source,
    listener: ProgressListener,
    *,
    connections: int = CONNECTIONS,
) -> None:
    """Download what is missing, then make all files visible to engines.

    Raises `UserError`; what was downloaded is kept, and the next call resumes from it.
    """
    repository = state.repository
    try:
        repository.blobs.mkdir(parents=True, exist_ok=True)
        with _alone(repository):
            for file in state.wanting:
                repository.blob(file.digest).unlink(missing_ok=True)
            _load_all(state, source, _Shared(listener), connections)
            _publish(repository, state.need.revision, state.listing)
    except OSError as error:
        raise _refusal(error, repository) from None


class _StoppedError(Exception):
    """Another download failed, or the user gave up."""


class _Shared:
    """The listener of several downloads, called by one at a time; `stopped` ends them."""

    def __init__(self, listener: ProgressListener) -> None:
        self._listener, self._lock = listener, Lock()
        self.stopped = False

    def checking(self, file: File) -> None:
        with self._lock:
            self._listener.checking(file)

    def loading(self, file: File) -> None:
        self._go_on()
        with self._lock:
            self._listener.loading(file)

    def moved(self, size: int) -> None:
        self._go_on()
        with self._lock:
            self._listener.moved(size)

    def _go_on(self) -> None:
        if self.stopped:
            raise _StoppedError

    def broke_off(self) -> None:
        with self._lock:
            self._listener.broke_off()


def _load_all(state: FetchState, source: Source, listener: _Shared, connections: int) -> None:
    """Download what is missing over several connections; the first failure ends all of them.

    The threads are daemons: a user who gives up does not wait for a server that sends nothing.
    """
    files, ended = iter(state.wanting), SimpleQueue[BaseException | None]()

    def work() -> None:
        error = None
        try:
            for file in files:  # each is taken by one thread
                _load(state, file, source, listener)
        except BaseException as caught:  # noqa: BLE001 - it is raised where it is waited for
            listener.stopped, error = True, caught
        ended.put(error)

    threads = [Thread(target=work, daemon=True) for _ in range(connections)]
    try:
        for thread in threads:
            thread.start()
        for _ in threads:
            error = ended.get()
            if error is not None and not isinstance(error, _StoppedError):
                raise error
    finally:
        listener.stopped = True


def _load(state: FetchState, file: File, source: Source, listener: ProgressListener) -> None:
    """Download one file; if a resumed file turns out wrong, download it again from the start."""
    repository, need = state.repository, state.need
    partial = repository.partial(file.digest)
    listener.loading(file)
    while True:
        with open(partial, "r+b", opener=_make) as stream:
            if stream.seek(0, os.SEEK_END) > file.size:
                stream.truncate(stream.seek(0))
            begun = stream.tell()
            source.read(need, state.listing.commit, file, stream, listener)
            stream.flush()
            os.fsync(stream.fileno())
        listener.checking(file)
        if is_whole(partial, file):
            partial.replace(repository.blob(file.digest))
            return
        partial.unlink()
        listener.moved(-file.size)
        if not begun:
            raise UserError(
                f'"{file.name}" of "{need.repo}" has a wrong checksum and was deleted',
                hint="run the command again; if that does not help, a proxy between this host and "
                "the hub changes files",
            )


def _make(path: str, _flags: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def _publish(repository: Repository, revision: str, listing: Listing) -> None:
    """Link the files under their names, then point `revision` to this commit."""
    snapshot = repository.snapshot(listing.commit)
    for file in listing.files:
        link = snapshot / file.name
        link.parent.mkdir(parents=True, exist_ok=True)
        target = os.path.relpath(repository.blob(file.digest), link.parent)
        if not (link.is_symlink() and str(link.readlink()) == target):
            with instead_of(link) as new:
                new.symlink_to(target)
    if revision != listing.commit and repository.commit(revision) != listing.commit:
        ref = repository.ref(revision)
        ref.parent.mkdir(parents=True, exist_ok=True)
        with instead_of(ref) as new:
            new.write_text(listing.commit, encoding="ascii")


def _is_published(repository: Repository, revision: str, listing: Listing) -> bool:
    top = repository.snapshot(listing.commit)
    return repository.commit(revision) == listing.commit and all(
        # Unlike `Path.resolve`, it does not fail for links that lead to each other.
        os.path.realpath(top / file.name) == os.path.realpath(repository.blob(file.digest))
        for file in listing.files
    )


@contextmanager
def _alone(repository: Repository) -> Iterator[None]:
    """Keep out another fetch of the same model."""
    descriptor = os.open(repository.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks; two fetches would only work twice
            if not try_lock(descriptor):
                raise UserError(
                    f'another fetch is running in "{repository.folder}"',
                    hint="wait until it is finished",
                )
        yield
    finally:
        os.close(descriptor)


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _refusal(error: OSError, repository: Repository) -> UserError:
    where = error.filename or repository.folder
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return UserError(
                f'the disk is full at "{repository.folder}"',
                hint="free some space and run the command again: the download resumes",
            )
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return UserError(
                f'cannot write "{where}" as "{_user()}"',
                hint="make that account its owner, or run the command as root or with --user",
            )
        case _:
            why = f'cannot write "{where}": {reason(error)}'
            return UserError(why, hint="check the disk and run it again")
