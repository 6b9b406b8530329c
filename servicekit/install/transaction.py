"""Carries changes out: all of them, or none.

A transaction has four parts, and a journal on disk that says which files it is about:

1. *staging*: every new text is written beside its place, every old one is kept by a hard link.
   Whatever needs disk space happens here, while nothing has changed yet.
2. *switching*: renames, each atomic.
3. *settling*: the service manager is informed (`then`), and may refuse.
4. *commit*: the journal is renamed. Until this moment any failure, or a SIGKILL met by the next
   call, restores the old state; from it on, the next call only finishes the cleaning.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from servicekit.errors import UserError, reason
from servicekit.install.changes import Act
from servicekit.install.present import manifests
from servicekit.service.manifest import Manifest, sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from servicekit.install.changes import Change, Present
    from servicekit.install.rootfs import Tree
    from servicekit.places import Places

PATIENCE: Final = 60.0  # seconds to wait for another install to end
LOCK_EVERY: Final = 0.05
MOST_VANISHED: Final = 20
"""Times that a directory may vanish before it is locked: each takes a whole install of another."""

PRIVATE: Final = 0o750
"""Mode of the directory of logs: an engine's lines are not for every user."""

Path = PurePosixPath


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that must exist before the service starts."""

    path: Path
    mode: int
    owner: str | None


@dataclass(slots=True)
class Turn:
    """The right to change what is installed, held by one process at a time."""

    tree: Tree
    places: Places
    undone: str = ""
    """What an earlier, interrupted call had left half-done and this one undid; empty if nothing."""
    made: list[Path] = field(default_factory=list)
    """Directories to remove again at the end if they are empty, outermost first."""

    @property
    def journal(self) -> Path:
        """Where a transaction under way is described."""
        return self.places.manifests / ".journal"

    @property
    def journal_done(self) -> Path:
        """The same, once it is committed."""
        return self.places.manifests / ".journal-done"


@dataclass(frozen=True, slots=True)
class _Operation:
    path: Path
    digest: str | None  # hash of the new content; `None` removes
    mode: int
    replaces: bool
    content: bytes = b""  # not in the journal: going back needs no more than the hash
    ids: tuple[int, int] | None = None

    @property
    def new(self) -> Path:
        return self.path.with_name(f".{self.path.name}.servicekit-new")

    @property
    def undo(self) -> Path:
        return self.path.with_name(f".{self.path.name}.servicekit-undo")

    def is_done(self, here: Present) -> bool:
        return here.mode == self.mode and sha256(here.content) == self.digest


def _writing(
    path: Path, content: bytes, mode: int, *, replaces: bool, ids: tuple[int, int] | None = None
) -> _Operation:
    return _Operation(path, sha256(content), mode, replaces, content, ids)


def saved(path: Path) -> Path:
    """Where the text that force overwrites is kept."""
    return path.with_name(f"{path.name}.servicekit-old")


@contextmanager
def turn(tree: Tree, places: Places, *, patience: float = PATIENCE) -> Iterator[Turn]:
    """Take the lock on what is installed, and undo what an interrupted command left."""
    held = Turn(tree, places)
    lock = places.manifests / ".lock"
    descriptor = _take(held, lock, patience)
    try:
        held.undone = _recover(held)
        yield held
    except OSError as error:
        raise _unwritable(error) from error
    finally:
        # What cannot be removed here does no harm. The lock file is deleted while it is locked: a
        # waiting command notices and makes a new one.
        with suppress(OSError):
            tree.delete(lock)
        os.close(descriptor)
        with suppress(OSError):
            _prune(tree, [*_by_name(places), *held.made])


def apply(
    held: Turn,
    profile: str,
    made: Sequence[Change],
    manifest: Manifest | None,
    *,
    directories: Sequence[Directory] = (),
    then: Callable[[], None] = lambda: None,
    undone: Callable[[], None] = lambda: None,
) -> Manifest | None:
    """Carry out `made` and write `manifest` (`None` removes it): all of it or nothing.

    `then` runs when the files are in place and may raise, which restores them; `undone` runs after
    that. Neither runs if there is nothing to do. Returns the manifest as written. Raises
    `UserError` when nothing was changed.
    """
    tree, places = held.tree, held.places
    earlier = manifests(tree, places).get(profile)
    parents = [change.path.parent for change in made if change.acts]
    missing = tree.missing([*parents, *(d.path for d in directories)])
    if manifest is not None:
        listed = dict.fromkeys((*manifest.directories, *held.made, *missing))
        if earlier is not None:
            listed |= dict.fromkeys(earlier.directories)
        by_depth = sorted(listed, key=lambda path: len(path.parts))
        manifest = replace(manifest, directories=tuple(by_depth))
    operations = [*_operations(tree, made), *_manifest(tree, places, profile, manifest)]
    gone = earlier.directories if earlier is not None and manifest is None else ()
    if not operations and not missing:
        return manifest
    try:
        _write_journal(held, profile, operations, missing, gone)
        _make(tree, missing, directories)
        _stage(tree, operations)
        _switch(tree, operations)
        then()
        tree.move(held.journal, held.journal_done)
    except BaseException as error:
        try:
            _roll_back(held, operations, missing)
        except OSError as second:
            raise UserError(
                f'cannot restore "{second.filename}": {reason(second)} (after {_words(error)})',
                hint="fix that and run the same command again: it restores the rest first",
            ) from error
        undone()
        if isinstance(error, OSError):
            raise _unwritable(error) from error
        raise
    _finish(held, operations, gone)
    held.made = list(gone)
    return manifest


def _operations(tree: Tree, made: Iterable[Change]) -> Iterator[_Operation]:
    for change in made:
        if not change.acts:
            continue
        if change.saved and change.before is not None:
            kept = saved(change.path)
            replaced = tree.look(kept) is not None
            # A link is kept as a link: what it leads to is not ours to read.
            yield _writing(kept, change.before.content, change.before.mode, replaces=replaced)
        replaces = change.before is not None
        if change.act is Act.REMOVE or change.after is None:
            yield _Operation(change.path, None, 0, replaces)
            continue
        after = change.after
        ids = _ids(tree, after.owner)
        yield _writing(after.path, after.text.encode(), after.mode, replaces=replaces, ids=ids)


def _manifest(
    tree: Tree, places: Places, profile: str, manifest: Manifest | None
) -> Iterator[_Operation]:
    path = places.manifest(profile)
    here = tree.look(path)
    if manifest is None:
        if here is not None:
            yield _Operation(path, None, 0, replaces=True)
        return
    text = manifest.to_json().encode()
    if here is None or here.content != text:
        yield _writing(path, text, 0o644, replaces=here is not None)


def _ids(tree: Tree, owner: str | None) -> tuple[int, int] | None:
    return tree.account(owner) if owner is not None and os.geteuid() == 0 else None


def _make(tree: Tree, missing: Iterable[Path], directories: Iterable[Directory]) -> None:
    wanted = {directory.path: directory for directory in directories}
    for path in missing:
        make_directory(tree, wanted.get(path, Directory(path, 0o755, None)))


def make_directory(tree: Tree, directory: Directory) -> None:
    """Make one directory with its mode and, where we may, its owner."""
    tree.make_directory(directory.path, directory.mode, _ids(tree, directory.owner))


def _stage(tree: Tree, operations: Iterable[_Operation]) -> None:
    for operation in operations:
        if operation.digest is not None:
            tree.stage(operation.new, operation.content, operation.mode, operation.ids)
            if operation.replaces:
                tree.back_up(operation.path, operation.undo)


def _switch(tree: Tree, operations: Iterable[_Operation]) -> None:
    parents = set()
    for operation in operations:
        if operation.digest is None:
            tree.move(operation.path, operation.undo)
        else:
            tree.move(operation.new, operation.path)
        parents.add(operation.path.parent)
    for parent in sorted(parents):
        tree.sync(parent)


def _roll_back(held: Turn, operations: Sequence[_Operation], missing: Sequence[Path]) -> None:
    tree = held.tree
    for operation in reversed(operations):
        tree.delete(operation.new)
        here, before = tree.look(operation.path), tree.look(operation.undo)
        if before is None:
            if not operation.replaces and here is not None and operation.is_done(here):
                tree.delete(operation.path)
        elif here == before:
            # Still the old file: two names of one file cannot be renamed onto each other.
            tree.delete(operation.undo)
        else:
            if here is not None and not operation.is_done(here):
                tree.move(operation.path, saved(operation.path))
            tree.move(operation.undo, operation.path)
    _prune(tree, missing)
    tree.delete(_staged_journal(held))
    tree.delete(held.journal)


def _finish(held: Turn, operations: Iterable[_Operation], gone: Iterable[Path]) -> None:
    # It is done already: what cannot be cleaned now, the next call cleans.
    with suppress(OSError):
        held.tree.sync(held.places.manifests)
        for operation in operations:
            held.tree.delete(operation.undo)
        _prune(held.tree, gone)
        held.tree.delete(held.journal_done)


def _recover(held: Turn) -> str:
    tree = held.tree
    tree.delete(_staged_journal(held))
    done = tree.look(held.journal_done)
    if done is not None:
        entry = _read(done.content, held.journal_done)
        _finish(held, entry.operations, entry.gone)
        held.made = entry.gone
        return ""
    begun = tree.look(held.journal)
    if begun is None:
        return ""
    entry = _read(begun.content, held.journal)
    _roll_back(held, entry.operations, entry.missing)
    return f'an earlier change of "{entry.profile}" was interrupted; it has been undone'


def _staged_journal(held: Turn) -> Path:
    return held.journal.with_name(".journal-new")


def _write_journal(
    held: Turn,
    profile: str,
    operations: Iterable[_Operation],
    missing: Iterable[Path],
    gone: Iterable[Path],
) -> None:
    data = {
        "profile": profile,
        "operations": [
            {
                "path": str(operation.path),
                "sha256": operation.digest,
                "mode": operation.mode,
                "replaces": operation.replaces,
            }
            for operation in operations
        ],
        "missing": [str(path) for path in missing],
        "gone": [str(path) for path in gone],
    }
    held.tree.stage(_staged_journal(held), json.dumps(data).encode(), 0o600)
    held.tree.move(_staged_journal(held), held.journal)
    held.tree.sync(held.places.manifests)


class _Begun(NamedTuple):
    """A transaction as its journal describes it."""

    profile: str
    operations: tuple[_Operation, ...]
    missing: list[Path]
    gone: list[Path]


def _read(content: bytes, where: Path) -> _Begun:
    try:
        journal = json.loads(content)
        return _Begun(
            str(journal["profile"]),
            tuple(
                _Operation(Path(each["path"]), each["sha256"], each["mode"], each["replaces"])
                for each in journal["operations"]
            ),
            [Path(path) for path in journal["missing"]],
            [Path(path) for path in journal["gone"]],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f'journal "{where}" of an interrupted change cannot be read: {type(error).__name__}',
            hint="remove it, and install again what `servicekit diff` shows",
        ) from None


def _take(held: Turn, lock: Path, patience: float) -> int:
    deadline = time.monotonic() + patience
    vanished = 0
    while True:
        try:
            for directory in held.tree.missing([lock.parent]):
                held.tree.make_directory(directory)
                held.made.append(directory)
            descriptor = held.tree.lock(lock)
        except FileExistsError:
            descriptor = None  # the other one made the directory in between
        except FileNotFoundError as error:
            descriptor = None  # the other one removed the directory in between
            vanished += 1
            if vanished > MOST_VANISHED:  # there is no other one: nothing can be made there
                raise _unwritable(error) from error
        except OSError as error:
            _prune(held.tree, held.made)
            raise _unwritable(error) from error
        if descriptor is not None:
            return descriptor
        if time.monotonic() > deadline:
            raise UserError(
                f'another servicekit has held "{lock}" for {patience:g} s',
                hint="wait for it to end and try again",
            )
        time.sleep(LOCK_EVERY)


def _by_name(places: Places) -> list[Path]:
    """Directories that only servicekit has a use for: removed when empty."""
    own = [path for path in places.manifests.parents if path.name == "servicekit"]
    return [*own, places.manifests]


def _prune(tree: Tree, directories: Iterable[Path]) -> None:
    for directory in sorted(set(directories), key=lambda path: -len(path.parts)):
        tree.delete_directory(directory)


def _unwritable(error: OSError) -> UserError:
    denied = isinstance(error, PermissionError)
    hint = "run it as root, or with --user for services of your own" if denied else ""
    why = reason(error)
    return UserError(f'cannot write "{error.filename}": {why}; nothing was changed', hint=hint)


def _words(error: BaseException) -> str:
    return f'"{error}"' if str(error) else type(error).__name__
