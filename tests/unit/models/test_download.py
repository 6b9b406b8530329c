"""Files get into the hub's cache whole, checked and all at once, whatever the source does."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading
from typing import TYPE_CHECKING, BinaryIO

import pytest
from typing_extensions import override

from servicekit.errors import UserError
from servicekit.models.download import check_space, complete, free_bytes, is_whole, stand
from servicekit.models.hub import HubUnreachableError
from servicekit.models.hub_cache import File, Listing, Repository
from servicekit.models.weights import Need

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from servicekit.models.download import FetchState
    from servicekit.models.hub import ByteListener

COMMIT = "c" * 40
NEED = Need("model", "owner/name")
CONTENTS = {
    "config.json": b"{}",
    "model.safetensors": b"weights" * 1000,
    "sub/copy.safetensors": b"weights" * 1000,
    "empty.txt": b"",
}


def file(name: str, content: bytes) -> File:
    """A file as the hub lists it: small ones by git's checksum, large ones by their own."""
    if name.endswith(".safetensors"):
        return File(name, len(content), hashlib.sha256(content).hexdigest())
    named = b"blob %d\0" % len(content) + content
    return File(name, len(content), hashlib.sha1(named).hexdigest())  # noqa: S324 - git's


LISTING = Listing(COMMIT, tuple(file(*entry) for entry in CONTENTS.items()))


class Source:
    """Gives contents by name, and records what it was asked for: each name, and from where on."""

    def __init__(self, **exchanged: bytes) -> None:
        self.contents = {**CONTENTS, **exchanged}
        self.asked: list[tuple[str, int]] = []
        self.meant: set[tuple[Need, str]] = set()
        self.before: Callable[[], None] = lambda: None

    def read(
        self, need: Need, commit: str, file: File, into: BinaryIO, watcher: ByteListener
    ) -> None:
        self.meant.add((need, commit))
        self.asked.append((file.name, into.tell()))
        self.before()
        rest = self.contents[file.name][into.tell() :]
        watcher.moved(into.write(rest))


class Recorder:
    """Records what it is told, sizes added up."""

    def __init__(self) -> None:
        self.checked: list[str] = []
        self.loaded: list[str] = []
        self.total = 0

    def moved(self, size: int) -> None:
        self.total += size

    def broke_off(self) -> None:
        raise AssertionError

    def checking(self, file: File) -> None:
        self.checked.append(file.name)

    def loading(self, file: File) -> None:
        self.loaded.append(file.name)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Give the place of a model in an empty cache."""
    return Repository(tmp_path / "cache", "owner/name")


def standing(repository: Repository) -> FetchState:
    """How much is here."""
    return stand(NEED, repository, LISTING, Recorder())


def fetched(repository: Repository, source: Source) -> Recorder:
    """Look and complete, as a fetch does, but one file after the other."""
    recorder = Recorder()
    complete(standing(repository), source, recorder, connections=1)
    return recorder


def test_a_fetch_leaves_what_engines_look_for(repository: Repository) -> None:
    """Names lead to checked contents, and `main` to the commit."""
    source = Source()
    recorder = fetched(repository, source)
    snapshot = repository.snapshot(COMMIT)
    assert {name: (snapshot / name).read_bytes() for name in CONTENTS} == CONTENTS
    assert all((snapshot / name).is_symlink() for name in CONTENTS)
    assert (snapshot / "config.json").readlink().parts[:3] == ("..", "..", "blobs")
    assert repository.ref("main").read_text() == COMMIT
    assert repository.begun() == 0
    # What the repository has under two names comes once.
    assert source.asked == [("config.json", 0), ("sub/copy.safetensors", 0), ("empty.txt", 0)]
    assert source.meant == {(NEED, COMMIT)}
    assert recorder.total == LISTING.size == 7002


def test_what_is_here_is_not_fetched_again(repository: Repository) -> None:
    """A second fetch reads every file, compares it, and asks for nothing."""
    fetched(repository, Source())
    again, recorder = Source(), Recorder()
    found = stand(NEED, repository, LISTING, recorder)
    assert (found.left, found.wanting, found.damaged) == (0, (), frozenset())
    assert (len(recorder.checked), recorder.total) == (3, LISTING.size)
    complete(found, again, recorder)
    assert again.asked == []


def test_a_broken_off_fetch_goes_on(repository: Repository) -> None:
    """Bytes that came are not asked for again, and nothing is visible until all is here."""
    source = Source()

    def break_off() -> None:
        if source.asked[-1][0].endswith(".safetensors"):
            raise HubUnreachableError("the hub cannot be reached")

    source.before = break_off
    with pytest.raises(HubUnreachableError):
        fetched(repository, source)
    assert not repository.snapshot(COMMIT).exists()
    assert repository.commit("main") is None
    partial = repository.partial(LISTING.files[1].digest)
    partial.write_bytes(CONTENTS["model.safetensors"][:4000])
    found = standing(repository)
    assert (found.begun, found.left) == (4000, 3000)
    again = Source()
    recorder = fetched(repository, again)
    assert again.asked == [("sub/copy.safetensors", 4000), ("empty.txt", 0)]
    assert recorder.total == 3000
    assert standing(repository).left == 0


def test_files_are_downloaded_beside_each_other(repository: Repository) -> None:
    """A file waits for no other: all of them are asked for before the first has come."""
    source, together = Source(), threading.Barrier(len(standing(repository).wanting))

    def wait() -> None:
        together.wait(20)

    source.before = wait
    recorder = Recorder()
    complete(standing(repository), source, recorder)
    assert recorder.total == sum(len(CONTENTS[name]) for name, _ in source.asked)
    assert standing(repository).left == 0


def test_the_first_failure_ends_the_others(repository: Repository) -> None:
    """What still comes is cut off at its next piece, and its part is kept."""
    source, together = Source(), threading.Barrier(len(standing(repository).wanting))

    def fail_first() -> None:
        if together.wait(20) == 0:
            raise HubUnreachableError("the hub cannot be reached")

    source.before = fail_first
    with pytest.raises(HubUnreachableError):
        complete(standing(repository), source, Recorder())
    assert not repository.snapshot(COMMIT).exists()


def test_what_was_begun_wrong_is_begun_anew(repository: Repository) -> None:
    """A part that turns out to be damaged, or longer than the whole, is thrown away."""
    partial = repository.partial(LISTING.files[1].digest)
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"x" * 100)
    source = Source()
    recorder = fetched(repository, source)
    asked = [start for name, start in source.asked if name.endswith(".safetensors")]
    assert asked == [100, 0]
    assert recorder.total == LISTING.size - 100
    repository.blob(LISTING.files[1].digest).unlink()
    partial.write_bytes(b"x" * 8000)
    assert standing(repository).begun == 0
    source = Source()
    fetched(repository, source)
    assert source.asked == [("sub/copy.safetensors", 0)]


@pytest.mark.parametrize("damage", [b"", b"WEIGHTS" * 1000])
def test_a_damaged_file_is_found_and_replaced(repository: Repository, damage: bytes) -> None:
    """One that is cut short, and one of the right size whose content is not."""
    fetched(repository, Source())
    blob = repository.blob(LISTING.files[1].digest)
    blob.write_bytes(damage)
    found = standing(repository)
    assert found.damaged == {LISTING.files[1].digest}
    assert [each.name for each in found.wanting] == ["sub/copy.safetensors"]
    assert found.left == 7000
    fetched(repository, Source())
    assert blob.read_bytes() == CONTENTS["model.safetensors"]


def test_a_wrong_checksum_is_refused(repository: Repository) -> None:
    """What is not what the hub lists is kept in no form, and not asked for twice."""
    source = Source(**{"config.json": b"[]"})
    with pytest.raises(UserError) as refused:
        fetched(repository, source)
    assert str(refused.value).startswith(
        '"config.json" of "owner/name" has a wrong checksum and was deleted; run the command'
    )
    assert source.asked == [("config.json", 0)]
    assert list(repository.blobs.iterdir()) == []


class Writer(Recorder):
    """Appends to a file as fast as it is read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    @override
    def moved(self, size: int) -> None:
        super().moved(size)
        with self.path.open("ab") as stream:
            stream.write(bytes(size))


def test_a_file_that_grows_while_it_is_checked_is_not_read_for_ever(tmp_path: Path) -> None:
    """An engine's account may write to its cache: what is longer than listed is not whole."""
    growing = tmp_path / "blob"
    growing.write_bytes(bytes(3 << 20))
    writer = Writer(growing)
    assert not is_whole(growing, file("model.gguf", bytes(3 << 20)), writer)
    assert writer.total == (3 << 20) + 1


def test_a_branch_that_moved_is_followed(repository: Repository) -> None:
    """`main` becomes another commit, what both share is not fetched again, the old one stays."""
    fetched(repository, Source())
    config = file("config.json", b"[]")
    newer = Listing("d" * 40, (config, *LISTING.files[1:]))
    source = Source(**{"config.json": b"[]"})
    found = stand(NEED, repository, newer, Recorder())
    complete(found, source, Recorder())
    assert repository.commit("main") == "d" * 40
    assert (repository.snapshot("d" * 40) / "config.json").read_bytes() == b"[]"
    assert (repository.snapshot(COMMIT) / "config.json").read_bytes() == b"{}"


def test_a_commit_needs_no_ref(repository: Repository) -> None:
    """A revision that is a commit is found by itself."""
    need = Need("model", "owner/name", COMMIT)
    found = stand(need, repository, LISTING, Recorder())

    source = Source()
    complete(found, source, Recorder())
    assert source.meant == {(need, COMMIT)}
    assert repository.find(COMMIT, "config.json") is not None
    assert not repository.ref(COMMIT).parent.exists()


def test_a_link_that_leads_elsewhere_is_replaced(repository: Repository) -> None:
    """Names in the snapshot lead to what was checked, whatever they were before."""
    fetched(repository, Source())
    config = repository.snapshot(COMMIT) / "config.json"
    config.unlink()
    config.write_bytes(b"other")
    fetched(repository, Source())
    assert config.read_bytes() == b"{}"


def test_two_fetches_do_not_meet(repository: Repository) -> None:
    """While one is busy with a model, another one says so."""
    repository.blobs.mkdir(parents=True)
    busy = os.open(repository.folder, os.O_RDONLY)
    try:
        fcntl.flock(busy, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another fetch is running in"):
            fetched(repository, Source())
    finally:
        os.close(busy)
    fetched(repository, Source())


def test_a_link_in_the_place_of_a_part_is_not_followed(
    repository: Repository, tmp_path: Path
) -> None:
    """Nobody gets a fetch to write into a file outside the cache."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    partial = repository.partial(LISTING.files[1].digest)
    partial.parent.mkdir(parents=True)
    partial.symlink_to(victim)
    with pytest.raises(UserError, match="cannot write"):
        fetched(repository, Source())
    assert victim.read_bytes() == b""


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "the disk is full at"),
        (errno.EDQUOT, "the disk is full at"),
        (errno.EACCES, "as "),
        (errno.EROFS, "as "),
        (errno.EIO, "cannot write .*: input/output error"),
    ],
)
def test_the_disks_refusals_are_one_line(repository: Repository, number: int, said: str) -> None:
    """What the disk says becomes a sentence; parts that are here stay."""
    source = Source()

    def refuse() -> None:
        raise OSError(number, os.strerror(number))

    source.before = refuse
    with pytest.raises(UserError, match=said) as refused:
        fetched(repository, source)
    assert "\n" not in str(refused.value)
    assert repository.partial(LISTING.files[0].digest).exists()


def test_what_does_not_fit_is_not_begun(repository: Repository, tmp_path: Path) -> None:
    """The space is compared with what is left of all models, and what to do is said."""
    huge = Listing(COMMIT, (File("model.safetensors", 1 << 60, "e" * 64),))
    found = stand(NEED, repository, huge, Recorder())
    with pytest.raises(UserError) as refused:
        check_space([found], tmp_path / "not/made/yet")
    text = str(refused.value)
    assert ": 1073741824.0 GiB needed, " in text
    assert f'not enough disk space at "{tmp_path}/not/made/yet": ' in text
    check_space([standing(repository)], tmp_path)
    assert free_bytes(tmp_path / "not/made/yet") > 0
