"""An install is all or nothing, whatever fails and whenever: injected, and by a real SIGKILL."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from servicekit.errors import UserError
from servicekit.install import present, transaction
from servicekit.install.changes import changes, record
from servicekit.install.rootfs import Tree
from servicekit.places import below
from servicekit.service.manifest import Manifest, inherited
from servicekit.service.render import Artifact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from servicekit.install.changes import Change
    from servicekit.install.transaction import Directory

PLACES = below("/srv/sk")
SYMLINK = stat.S_IFLNK | 0o777
UNIT = PurePosixPath("/srv/sk/units/servicekit-x.service")
WRAPPER = PurePosixPath("/srv/sk/wrappers/x")
DROPPED = PurePosixPath("/srv/sk/units/dropped.conf")
WANTS = PurePosixPath("/srv/sk/units/multi-user.target.wants/servicekit-x.service")

FIRST = (
    Artifact(UNIT, 0o644, "unit 1\n", None),
    Artifact(DROPPED, 0o644, "dropped\n", None),
    Artifact(WRAPPER, 0o755, "#!/bin/sh\n", None),
    Artifact(WANTS, SYMLINK, "../servicekit-x.service", None),
)
SECOND = (
    Artifact(UNIT, 0o600, "unit 2\n", None),
    Artifact(WRAPPER, 0o755, "#!/bin/sh\n# 2\n", None),
    Artifact(PurePosixPath("/srv/sk/new/dir/file"), 0o640, "new\n", None),
)
"""Replaces two files, one with its mode; creates one with two directories; removes two."""


def nothing() -> None:
    """A service manager that has no objection."""


def install(
    tree: Tree,
    artifacts: Iterable[Artifact],
    *,
    profile: str = "x",
    force: bool = False,
    directories: tuple[Directory, ...] = (),
    then: Callable[[], None] = nothing,
    undone: Callable[[], None] = nothing,
) -> tuple[tuple[Change, ...], str]:
    """Install `artifacts`, or uninstall where there are none; the changes and what was undone."""
    artifacts = tuple(artifacts)
    with transaction.turn(tree, PLACES, patience=5) as mine:
        known = present.manifests(tree, PLACES)
        own = known.pop(profile, None)
        others = tuple(known.values())
        listed = own.files if own else ()
        there = present.look(tree, [*(a.path for a in artifacts), *(w.path for w in listed)])
        made = changes(artifacts, there, own, others, force=force)
        manifest = Manifest(
            profile=profile,
            servicekit="1",
            manager="systemd",
            user_name=None,
            port=1,
            gpus=(),
            enabled=True,
            files=record(made, own),
            directories=inherited([a.path for a in artifacts], others),
        )
        transaction.apply(
            mine,
            profile,
            made,
            manifest if artifacts else None,
            directories=directories,
            then=then,
            undone=undone,
        )
        return made, mine.undone


def snapshot(root: Path) -> dict[str, object]:
    """Everything below `root`: type, mode, owner and content of each entry."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content: object = None
        if path.is_symlink():
            content = path.readlink()
        elif path.is_file():
            content = path.read_bytes()
        found[str(path.relative_to(root))] = (
            oct(status.st_mode),
            status.st_uid,
            status.st_gid,
            content,
        )
    return found


def visible(entries: dict[str, object]) -> dict[str, object]:
    """Files that a service manager would see: without directories and what is hidden."""
    return {
        name: entry
        for name, entry in entries.items()
        if isinstance(entry, tuple)
        and not entry[0].startswith("0o4")
        and not name.rpartition("/")[2].startswith(".")
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty root."""
    (tmp_path / "srv/sk").mkdir(parents=True)
    return tmp_path


class Counting(Tree):
    """A tree that counts its steps and does something of its own before the one called `at`."""

    def __init__(self, root: str, at: int = -1, act: Callable[[], None] = nothing) -> None:
        super().__init__(root)
        self.steps: list[str] = []
        self.at = at
        self.act = act

    def _step(self, verb: str, path: PurePosixPath) -> None:
        self.steps.append(f"{verb} {path}")
        if len(self.steps) - 1 == self.at:
            self.act()

    @override
    def make_directory(
        self, path: PurePosixPath, mode: int = 0o755, ids: tuple[int, int] | None = None
    ) -> None:
        self._step("make", path)
        super().make_directory(path, mode, ids)

    @override
    def stage(
        self, path: PurePosixPath, content: bytes, mode: int, ids: tuple[int, int] | None = None
    ) -> None:
        self._step("stage", path)
        super().stage(path, content, mode, ids)

    @override
    def back_up(self, path: PurePosixPath, to: PurePosixPath) -> None:
        self._step("back up", path)
        super().back_up(path, to)

    @override
    def move(self, path: PurePosixPath, to: PurePosixPath) -> None:
        self._step("move", path)
        super().move(path, to)

    @override
    def delete(self, path: PurePosixPath) -> None:
        self._step("delete", path)
        super().delete(path)

    @override
    def delete_directory(self, path: PurePosixPath) -> bool:
        self._step("rmdir", path)
        return super().delete_directory(path)

    @override
    def sync(self, directory: PurePosixPath) -> None:
        self._step("sync", directory)
        super().sync(directory)

    @override
    def lock(self, path: PurePosixPath) -> int | None:
        self._step("lock", path)
        return super().lock(path)


def steps_of(tmp_path: Path, orders: Iterable[tuple[Artifact, ...]]) -> list[str]:
    """Steps of the last of `orders`, each installed after the other in a root of its own."""
    scratch = tmp_path / "scratch"
    (scratch / "srv/sk").mkdir(parents=True)
    tree = Counting(str(scratch))
    for artifacts in orders:
        tree.steps.clear()
        install(tree, artifacts)
    return tree.steps


ORDERS: dict[str, tuple[tuple[Artifact, ...], ...]] = {
    "install": (FIRST,),
    "upgrade": (FIRST, SECOND),
    "uninstall": (FIRST, ()),
}
MOST_STEPS = 60
"""No order has more steps; a test asserts it."""


def fail(code: int) -> Callable[[], None]:
    """Let a step fail with this error number."""

    def act() -> None:
        raise OSError(code, os.strerror(code), "/injected")

    return act


def test_an_install_writes_everything_with_its_mode(root: Path) -> None:
    """Files, their modes, the enabling link and the manifest are there, and nothing else."""
    install(Tree(str(root)), FIRST)
    assert {
        name: entry[0]
        for name, entry in snapshot(root / "srv/sk").items()
        if isinstance(entry, tuple)
    } == {
        "installed": "0o40755",
        "installed/x.json": "0o100644",
        "units": "0o40755",
        "units/dropped.conf": "0o100644",
        "units/multi-user.target.wants": "0o40755",
        "units/multi-user.target.wants/servicekit-x.service": "0o120777",
        "units/servicekit-x.service": "0o100644",
        "wrappers": "0o40755",
        "wrappers/x": "0o100755",
    }


def test_a_second_install_does_nothing(root: Path) -> None:
    """What is as it should be is not written again, and the service manager is not told."""
    told: list[str] = []
    install(Tree(str(root)), FIRST, then=lambda: told.append("1"))
    before = snapshot(root)
    inode = (root / "srv/sk/installed/x.json").stat().st_ino
    made, _ = install(Tree(str(root)), FIRST, then=lambda: told.append("2"))
    assert {change.act.value for change in made} == {"keep"}
    assert snapshot(root) == before
    assert (root / "srv/sk/installed/x.json").stat().st_ino == inode
    assert told == ["1"]


def test_an_uninstall_leaves_nothing(root: Path) -> None:
    """After install, upgrade and uninstall the tree is as it was before."""
    before = snapshot(root)
    for artifacts in (FIRST, SECOND, ()):
        install(Tree(str(root)), artifacts)
    assert snapshot(root) == before


def test_the_last_of_two_profiles_removes_what_the_first_one_made(root: Path) -> None:
    """Directories that the first install made go with whoever is uninstalled last."""
    before = snapshot(root)
    shared = Artifact(PurePosixPath("/srv/sk/units/servicekit.target"), 0o644, "t\n", None)
    other = Artifact(PurePosixPath("/srv/sk/wrappers/y"), 0o755, "#!/bin/sh\n", None)
    install(Tree(str(root)), [*FIRST, shared])
    install(Tree(str(root)), [other, shared], profile="y")
    install(Tree(str(root)), [])
    assert (root / "srv/sk/units/servicekit.target").read_text() == "t\n"
    install(Tree(str(root)), [], profile="y")
    assert snapshot(root) == before


def test_what_others_put_beside_stays(root: Path) -> None:
    """A directory of ours that somebody else uses by now is not removed."""
    install(Tree(str(root)), FIRST)
    (root / "srv/sk/units/other.service").write_text("x")
    install(Tree(str(root)), [])
    assert sorted(snapshot(root / "srv/sk")) == ["units", "units/other.service"]


def test_drift_is_kept_and_known_until_forced(root: Path) -> None:
    """A hand-edited file survives installs, stays drifted, and is saved when forced."""
    install(Tree(str(root)), FIRST)
    unit = root / "srv/sk/units/servicekit-x.service"
    unit.write_text("mine\n")
    for artifacts in (FIRST, SECOND, SECOND):
        made, _ = install(Tree(str(root)), artifacts)
        assert [c.act.value for c in made if c.path == UNIT] == ["drifted"]
        assert unit.read_text() == "mine\n"
    install(Tree(str(root)), SECOND, force=True)
    assert unit.read_text() == "unit 2\n"
    assert unit.with_name("servicekit-x.service.servicekit-old").read_text() == "mine\n"


def test_a_masked_unit_is_replaced_by_force_without_touching_its_target(root: Path) -> None:
    """A symbolic link in our place is replaced, never written through."""
    target = root / "target"
    target.write_text("untouched")
    unit = root / "srv/sk/units/servicekit-x.service"
    unit.parent.mkdir()
    unit.symlink_to(target)
    made, _ = install(Tree(str(root)), FIRST)
    assert next(c.act.value for c in made if c.path == UNIT) == "drifted"
    install(Tree(str(root)), FIRST, force=True)
    assert target.read_text() == "untouched"
    assert unit.read_text() == "unit 1\n"
    assert not unit.is_symlink()
    assert unit.with_name("servicekit-x.service.servicekit-old").readlink() == target


@pytest.mark.parametrize("order", ORDERS)
def test_the_steps_of_an_order_are_counted(order: str, tmp_path: Path) -> None:
    """The injections below reach every step of every order."""
    assert 15 < len(steps_of(tmp_path, ORDERS[order])) < MOST_STEPS


@pytest.mark.parametrize("at", range(MOST_STEPS))
@pytest.mark.parametrize("order", ORDERS)
def test_a_failing_step_changes_nothing(order: str, at: int, root: Path, tmp_path: Path) -> None:
    """Whichever step fails, the tree is as before or as it should be, and the next try succeeds."""
    earlier, last = ORDERS[order][:-1], ORDERS[order][-1]
    for artifacts in earlier:
        install(Tree(str(root)), artifacts)
    before = snapshot(root / "srv")
    tree = Counting(str(root), at, fail(errno.EIO))
    try:
        install(tree, last)
    except UserError as error:
        assert "/injected" in str(error)  # noqa: PT017 - not every step's failure is an error
    wanted = tmp_path / "wanted"
    (wanted / "srv/sk").mkdir(parents=True)
    for artifacts in ORDERS[order]:
        install(Tree(str(wanted)), artifacts)
    after = snapshot(wanted / "srv")
    assert visible(snapshot(root / "srv")) in (visible(before), visible(after))
    install(Tree(str(root)), last)
    assert snapshot(root / "srv") == after


@pytest.mark.parametrize("at", range(MOST_STEPS))
@pytest.mark.parametrize("order", ORDERS)
def test_a_sigkill_at_any_step_is_mended_by_the_next_call(
    order: str, at: int, root: Path, tmp_path: Path
) -> None:
    """A process killed at any step leaves what the next call makes the old or the new state."""
    earlier, last = ORDERS[order][:-1], ORDERS[order][-1]
    for artifacts in earlier:
        install(Tree(str(root)), artifacts)
    before = snapshot(root / "srv")
    pid = os.fork()
    if pid == 0:
        kill = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731 - the child's last act
        try:
            install(Counting(str(root), at, kill), last)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    # The next call is about another profile and changes nothing of its own.
    install(Tree(str(root)), [], profile="other")
    mended = snapshot(root / "srv")
    wanted = tmp_path / "wanted"
    (wanted / "srv/sk").mkdir(parents=True)
    for artifacts in ORDERS[order]:
        install(Tree(str(wanted)), artifacts)
    after = snapshot(wanted / "srv")
    if os.WIFSIGNALED(status):
        assert mended in (before, after)
    else:
        assert mended == after
    install(Tree(str(root)), last)
    assert snapshot(root / "srv") == after


def test_a_manager_that_refuses_restores_the_old_state(root: Path) -> None:
    """When the manager cannot be told, everything is put back, and the manager is told again."""
    install(Tree(str(root)), FIRST)
    before = snapshot(root)
    told: list[str] = []

    def refuse() -> None:
        told.append((root / "srv/sk/units/servicekit-x.service").read_text())
        raise UserError("systemctl daemon-reload: no")

    def undone() -> None:
        told.append((root / "srv/sk/units/servicekit-x.service").read_text())

    with pytest.raises(UserError, match="daemon-reload"):
        install(Tree(str(root)), SECOND, then=refuse, undone=undone)
    assert told == ["unit 2\n", "unit 1\n"]
    assert snapshot(root) == before


def test_control_c_restores_the_old_state(root: Path) -> None:
    """An interrupt in the middle is a failure like any other."""
    before = snapshot(root)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install(Tree(str(root)), FIRST, then=interrupt)
    assert snapshot(root) == before


def test_the_next_call_says_what_it_undid(root: Path) -> None:
    """Who comes after an interrupted install is told that it was undone."""
    steps = len(steps_of(root, [FIRST]))
    pid = os.fork()
    if pid == 0:
        kill = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731 - the child's last act
        install(Counting(str(root), steps // 2, kill), FIRST)
        os._exit(0)
    os.waitpid(pid, 0)
    _, undone = install(Tree(str(root)), [], profile="other")
    assert undone == 'an earlier change of "x" was interrupted; it has been undone'


def test_where_no_directory_can_be_made_nobody_waits() -> None:
    """Below /proc there is no other install to wait for, whatever the kernel's words suggest."""
    with (
        pytest.raises(UserError, match=r'cannot write "/srv": no such file'),
        transaction.turn(Tree("/proc"), PLACES),
    ):
        pass


@pytest.mark.parametrize("name", [".journal", ".journal-done"])
@pytest.mark.parametrize("text", ["", "[]", '{"profile": "x", "operations": [{"path": "/a"}]}'])
def test_a_damaged_journal_is_named(root: Path, name: str, text: str) -> None:
    """What cannot be undone is said in one line, and nothing is changed."""
    install(Tree(str(root)), FIRST)
    journal = root / "srv/sk/installed" / name
    journal.write_text(text)
    with pytest.raises(UserError, match=rf'journal "/srv/sk/installed/{name}" .* cannot be read'):
        install(Tree(str(root)), SECOND)
    assert (root / "srv/sk/units/servicekit-x.service").read_text() == "unit 1\n"


def test_what_is_no_file_is_drift_and_no_manifest(root: Path) -> None:
    """A directory in the place of a file is told, by all who look."""
    tree = Tree(str(root))
    install(tree, FIRST)
    unit = root / "srv/sk/units/servicekit-x.service"
    unit.unlink()
    unit.mkdir()
    found = present.drifted(tree, tuple(present.manifests(tree, PLACES).values()))
    assert found["x"] == (f"{UNIT}: not a regular file; move it away",)
    (root / "srv/sk/installed/y.json").mkdir()
    with pytest.raises(UserError, match=r'manifest "/srv/sk/installed/y.json" cannot be read: '):
        present.manifests(tree, PLACES)


def test_a_text_edited_after_an_interruption_is_saved(root: Path) -> None:
    """Undoing an interrupted install does not lose what somebody wrote since."""
    install(Tree(str(root)), FIRST)
    unit = root / "srv/sk/units/servicekit-x.service"

    class Dying(Counting):
        @override
        def move(self, path: PurePosixPath, to: PurePosixPath) -> None:
            super().move(path, to)
            if to == UNIT:
                os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if pid == 0:
        install(Dying(str(root)), SECOND)
        os._exit(0)
    os.waitpid(pid, 0)
    assert unit.read_text() == "unit 2\n"
    unit.write_text("mine\n")
    install(Tree(str(root)), [], profile="other")
    assert unit.read_text() == "unit 1\n"
    assert unit.with_name("servicekit-x.service.servicekit-old").read_text() == "mine\n"


def test_two_installs_do_not_interleave(root: Path) -> None:
    """The second of two installs waits for the first one's end."""
    inside, go = threading.Event(), threading.Event()
    order: list[str] = []

    def slow() -> None:
        inside.set()
        assert go.wait(10)
        order.append("first")

    first = threading.Thread(target=install, args=(Tree(str(root)), FIRST), kwargs={"then": slow})
    first.start()
    assert inside.wait(10)
    second = threading.Thread(
        target=install,
        args=(Tree(str(root)), SECOND),
        kwargs={"then": lambda: order.append("second")},
    )
    second.start()
    assert not order
    go.set()
    first.join(10)
    second.join(10)
    assert order == ["first", "second"]
    assert (root / "srv/sk/units/servicekit-x.service").read_text() == "unit 2\n"


def test_an_install_that_waits_too_long_says_for_what(root: Path) -> None:
    """Patience with another install has an end, with a line that names the lock."""
    tree = Tree(str(root))
    impatient = transaction.turn(tree, PLACES, patience=0)
    message = r'another servicekit has held ".*\.lock" for 0 s'
    with transaction.turn(tree, PLACES), pytest.raises(UserError, match=message), impatient:
        pass


def test_many_installs_at_once_all_succeed(root: Path) -> None:
    """Locks that are made and removed all the time let everyone in, one by one."""
    before = snapshot(root)
    failures: list[BaseException] = []

    def flip(name: str) -> None:
        mine = Artifact(PurePosixPath(f"/srv/sk/wrappers/{name}"), 0o755, "x", None)
        try:
            for _ in range(5):
                install(Tree(str(root)), [mine], profile=name)
                install(Tree(str(root)), [], profile=name)
        except BaseException as error:  # noqa: BLE001 - reported by the test
            failures.append(error)

    threads = [threading.Thread(target=flip, args=(f"p{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert snapshot(root) == before


def test_links_never_lead_out_of_the_root(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Absolute links and dots are resolved as the image's own system would, inside the root."""
    outside = tmp_path_factory.mktemp("outside")
    (root / "srv/sk/units").symlink_to("/etc/units")
    (root / "srv/sk/wrappers").symlink_to("../" * 30 + str(outside).lstrip("/"))
    (root / "etc/units").mkdir(parents=True)
    (root / str(outside).lstrip("/")).mkdir(parents=True)
    install(Tree(str(root)), FIRST)
    assert (root / "etc/units/servicekit-x.service").read_text() == "unit 1\n"
    assert (root / str(outside).lstrip("/") / "x").exists()
    assert list(outside.iterdir()) == []


def test_a_loop_of_links_is_refused(root: Path) -> None:
    """Links that lead to each other end in one clear line."""
    (root / "srv/sk/units").symlink_to("/srv/sk/wrappers")
    (root / "srv/sk/wrappers").symlink_to("/srv/sk/units")
    with pytest.raises(UserError, match="too many levels of symbolic links; nothing was changed"):
        install(Tree(str(root)), FIRST)


def test_a_directory_in_the_way_is_refused(root: Path) -> None:
    """What is no file is not replaced, not even by force."""
    (root / "srv/sk/units/servicekit-x.service").mkdir(parents=True)
    with pytest.raises(
        UserError, match=r"servicekit-x\.service.*not a regular file.*nothing was changed"
    ):
        install(Tree(str(root)), FIRST, force=True)


def test_a_file_where_a_directory_should_be_is_refused(root: Path) -> None:
    """A file in the place of one of our directories is named."""
    (root / "srv/sk/units").write_text("")
    with pytest.raises(UserError, match="not a directory; nothing was changed"):
        install(Tree(str(root)), FIRST)
    assert sorted(snapshot(root / "srv/sk")) == ["units"]


@contextmanager
def tiny_disk(at: Path) -> Iterator[None]:
    """A real file system with room for four pages."""
    command = ["mount", "-t", "tmpfs", "-o", "size=16k,nr_inodes=64", "tmpfs", str(at)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", str(at)], check=True)


@pytest.mark.parametrize("free", range(4))
def test_a_full_disk_changes_nothing(root: Path, free: int) -> None:
    """With any number of pages left, a real full disk leaves the tree as it was."""
    small = [Artifact(a.path, a.mode, a.text, a.owner) for a in FIRST]
    large = [Artifact(a.path, a.mode, a.text * 9000, a.owner) for a in SECOND]
    with tiny_disk(root):
        (root / "srv/sk").mkdir(parents=True)
        try:
            install(Tree(str(root)), small)
        except UserError:
            assert snapshot(root / "srv/sk") == {}
        for page in range(4 - free):
            try:
                (root / f"filler{page}").write_bytes(b"x" * 4096)
            except OSError:
                break
        before = snapshot(root / "srv")
        with pytest.raises(UserError, match="no space left on device; nothing was changed"):
            install(Tree(str(root)), large)
        assert snapshot(root / "srv") == before


def test_a_read_only_directory_changes_nothing(root: Path) -> None:
    """Where one directory cannot be written, nothing is written anywhere."""
    install(Tree(str(root)), FIRST)
    before = snapshot(root)
    wrappers = root / "srv/sk/wrappers"
    subprocess.run(["mount", "--bind", str(wrappers), str(wrappers)], check=False)
    try:
        mounted = subprocess.run(
            ["mount", "-o", "remount,ro,bind", str(wrappers)], check=False, capture_output=True
        )
        if mounted.returncode:
            pytest.skip("needs the right to mount a file system")
        with pytest.raises(UserError, match=r'cannot write ".*/wrappers/.*": read-only'):
            install(Tree(str(root)), SECOND)
        assert snapshot(root) == before
    finally:
        subprocess.run(["umount", str(wrappers)], check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_owner_and_mode_are_right_from_the_start(root: Path) -> None:
    """A directory of the service's account and a file of it are its own, by the image's passwd."""
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nllm:x:4242:4343::/:/bin/false\n")
    state = transaction.Directory(PurePosixPath("/srv/sk/state/x"), 0o750, "llm")
    owned = Artifact(PurePosixPath("/srv/sk/secrets/x"), 0o400, "s", "llm")
    install(Tree(str(root)), [*FIRST, owned], directories=(state,))
    status = (root / "srv/sk/state/x").stat()
    assert (oct(status.st_mode), status.st_uid, status.st_gid) == ("0o40750", 4242, 4343)
    status = (root / "srv/sk/secrets/x").stat()
    assert (oct(status.st_mode), status.st_uid, status.st_gid) == ("0o100400", 4242, 4343)


def test_a_user_without_the_right_is_told_what_would_do(root: Path) -> None:
    """Whoever may not write is pointed to root and --user."""

    def deny() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/etc/servicekit")

    with pytest.raises(UserError) as caught:
        install(Counting(str(root), 0, deny), FIRST)
    assert str(caught.value) == (
        'cannot write "/etc/servicekit": permission denied; nothing was changed; '
        "run it as root, or with --user for services of your own"
    )
