"""A hostile account: what it puts in the place of its files stops, leads and breaks no reader."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hostile.records import LINE, STATE

from servicekit.engines.versions import look
from servicekit.errors import UserError
from servicekit.host import procfs, untrusted
from servicekit.host.removal import remove_tree
from servicekit.managers import Seen
from servicekit.models.hub_cache import Repository
from servicekit.models.weights import _read as read_index
from servicekit.places import below
from servicekit.profiles.vocabulary import EngineName
from servicekit.service.access import script_faults
from servicekit.service.manifest import Manifest
from servicekit.watchdog import ledger
from servicekit.watchdog.publish import read_state
from servicekit.watchdog.status import status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servicekit.places import Places

MANIFEST = Manifest(
    profile="x",
    servicekit="1",
    manager="systemd",
    user_name=None,
    port=18000,
    gpus=(),
    enabled=True,
    files=(),
    directories=(),
)


def _link(path: Path) -> None:
    path.with_name("elsewhere").write_text("{}")
    path.symlink_to("elsewhere")


def _second_name(path: Path) -> None:
    path.with_name("elsewhere").write_text("{}")
    path.hardlink_to(path.with_name("elsewhere"))


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2 << 30)


def _of_another(path: Path) -> None:
    path.write_text("{}")
    os.chown(path, 12345, 12345)


FORGERIES = [
    os.mkfifo,
    Path.mkdir,
    _link,
    _second_name,
    _sparse,
    pytest.param(
        _of_another, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives away")
    ),
]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Places below a directory of the test, with the directories of profile x."""
    found = below(str(tmp_path))
    for folder in (found.state / "x", found.runtime / "x"):
        Path(folder).mkdir(parents=True)
    return found


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Let this process take no more than half a GiB beyond what it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 29), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("forge", FORGERIES)
def test_only_a_plain_small_file_of_its_owner_is_read(
    places: Places, forge: Callable[[Path], object]
) -> None:
    """Whatever stands in the place of state or history, that profile's status says so at once."""
    for file in (places.state_file("x"), places.ledger("x")):
        forge(Path(file))
        found = status_of(MANIFEST, places, Seen("inactive"))
        assert f'"{file}" cannot be read: ' in found.why
        assert found.remedy
        assert found.state in {"configured", "stopped"}
        os.rename(file, f"{file}.was")  # noqa: PTH104 - of a link as well


@pytest.mark.parametrize("forge", FORGERIES)
def test_a_reference_that_is_no_plain_file_is_none(
    tmp_path: Path, forge: Callable[[Path], object]
) -> None:
    """What stands in the place of a branch's file in the hub's cache is not waited for."""
    repository = Repository(tmp_path, "a/b")
    ref = repository.ref("main")
    ref.parent.mkdir(parents=True)
    forge(ref)
    assert repository.commit("main") is None
    assert repository.listing("main") is None


def test_an_index_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """The index of a model's weights is read only where it is a plain file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "index").symlink_to("pipe")
    assert read_index(tmp_path / "index") == {}


@pytest.fixture
def abyss(tmp_path: Path) -> Iterator[Path]:
    """Nest 3,000 directories, each with a file in it: deeper than a path can name."""
    top = tmp_path / "top"
    top.mkdir()
    within = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=within)
        inner = os.open("d", os.O_RDONLY, dir_fd=within)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        os.close(within)
        within = inner
    os.close(within)
    yield top
    if top.exists():
        _remove(top)


def test_a_cache_that_is_nested_without_end_is_listed(tmp_path: Path, abyss: Path) -> None:
    """Folders deeper than in any model are left out of its list, and end nobody's stack."""
    repository = Repository(tmp_path, "a/b")
    top = repository.snapshot("1" * 40)
    top.mkdir(parents=True)
    (top / "config.json").write_text("{}")
    abyss.rename(top / "d")
    listing = repository.listing("1" * 40)
    (top / "d").rename(abyss)
    assert listing is not None
    assert listing.files[0].name == "config.json"
    assert len(listing.files) < 20


def _remove(top: Path) -> None:
    parent = os.open(top.parent, os.O_RDONLY)
    try:
        remove_tree(parent, top.name)
    finally:
        os.close(parent)


def test_a_tree_of_any_depth_is_removed_and_no_link_followed(tmp_path: Path, abyss: Path) -> None:
    """Removing a profile's directory ends with everything in it gone, and nothing else."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    (abyss / "out").symlink_to(kept)
    _remove(abyss)
    assert not abyss.exists()
    assert (kept / "file").read_text() == "x"
    (tmp_path / "link").symlink_to(kept)
    with pytest.raises(NotADirectoryError):
        _remove(tmp_path / "link")


@pytest.mark.parametrize(
    "line",
    [
        {"cause": ["x"]},
        {"kind": "gone", "code": ["x"]},
        {"kind": "gone", "code": 1.5},
        {"kind": "started", "pid1_started": {}},
        {"kind": "launched", "baseline": {"gpu": "much"}},
        {"run": ["r"]},
        {"at": "0001-01-01T00:00:00+14:00"},
        {"at": 5},
        {"kind": "phase", "boot": {}},
        {"kind": "ready", "seconds": float("nan")},
    ],
)
def test_a_line_of_the_wrong_types_is_passed_over(places: Places, line: dict[str, object]) -> None:
    """A line that no watchdog writes counts for nothing, and the lines around it do."""
    path = Path(places.ledger("x"))
    lines = [LINE | {"cause": "hung", "sentence": "it hung"}, LINE | line]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    (record,) = ledger.read(path)
    assert record.sentence == "it hung"
    assert status_of(MANIFEST, places, Seen("failed")).why == "it hung"


def test_a_time_without_a_zone_and_not_a_number_are_refused(places: Places) -> None:
    """A state whose time cannot be compared, or whose number is none, is not a state."""
    path = Path(places.state_file("x"))
    for more in ({"since": "2026-11-30T10:00:00"}, {"ready_seconds": float("nan")}):
        path.write_text(json.dumps(STATE | more))
        with pytest.raises(UserError, match="cannot be read"):
            read_state(path)


def test_what_is_read_can_be_shown(places: Places) -> None:
    """Control characters in another account's words are spelt out, and long words are cut."""
    path = Path(places.state_file("x"))
    path.write_text(json.dumps(STATE | {"why": "\x1b[2J\x07gone", "remedy": "a" * 100_000}))
    state = read_state(path)
    assert state is not None
    assert state.why == r"\x1b[2J\x07gone"
    assert len(state.remedy) <= untrusted.LONGEST_TEXT + 1


def test_a_state_of_a_process_that_is_not_the_managers_is_not_believed(places: Places) -> None:
    """A state that names some living process makes no service ready that the manager stopped."""
    path = Path(places.state_file("x"))
    for pid in (1, os.getpid()):
        stat = procfs.stat(pid)
        assert stat is not None
        path.write_text(json.dumps(STATE | {"pid": pid, "pid_started": stat.started}))
        assert status_of(MANIFEST, places, Seen("inactive")).state == "configured"
        path.write_text(json.dumps(STATE | {"pid": pid, "pid_started": stat.started, "code": 0}))
        assert status_of(MANIFEST, places, Seen("inactive")).state == "configured"


def test_the_files_beside_an_engine_are_read_within_bounds(tmp_path: Path) -> None:
    """A huge file, a pipe or links in a circle beside the engine's program stop no verb."""
    python = tmp_path / "bin/python3.11"
    python.parent.mkdir()
    python.symlink_to("python3")
    python.with_name("python3").symlink_to(python.name)
    engine = tmp_path / "engine"
    engine.write_text(f"#!{python}\n")
    engine.chmod(0o755)
    settings = tmp_path / "pyvenv.cfg"
    with settings.open("wb") as file:
        file.truncate(1 << 40)
    assert look(EngineName.VLLM, str(engine)).packages == {}
    settings.unlink()
    engine.unlink()
    os.mkfifo(engine)
    assert list(script_faults("the engine", engine)) == []
    assert look(EngineName.VLLM, str(engine)).packages == {}
