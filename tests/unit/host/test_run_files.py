"""Files that runs leave behind: whole, and read without following anybody anywhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from servicekit.host import run_files

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_no_file_of_ours_is_passed_over(tmp_path: Path) -> None:
    """Neither a pipe, which would wait for ever, nor a link, nor half a file is read."""
    assert list(run_files.read(tmp_path / "none", "runs")) == []
    run_files.write(tmp_path / "state", "runs", "b.json", "two")
    run_files.write(tmp_path / "state", "runs", "a.json", "one")
    folder = tmp_path / "state/runs"
    os.mkfifo(folder / "pipe.json")
    (folder / "link.json").symlink_to(tmp_path / "secret")
    (folder / ".half.json").touch()
    (folder / "note.txt").touch()
    (folder / "folder.json").mkdir()
    (folder / "\x1b[2J.json").write_text("{}")
    (tmp_path / "elsewhere").write_text("{}")
    (folder / "second-name.json").hardlink_to(tmp_path / "elsewhere")
    assert list(run_files.read(tmp_path / "state", "runs")) == [
        ("a.json", "one"),
        ("b.json", "two"),
    ]
    assert (folder / "a.json").stat().st_mode & 0o777 == 0o644


def test_many_large_files_take_no_more_memory_than_a_few(tmp_path: Path) -> None:
    """Of files that are too much together only the newest are read."""
    run_files.write(tmp_path, "runs", "00.json", "the oldest")
    for number in range(1, 20):
        with (tmp_path / f"runs/{number:02}.json").open("wb") as file:
            file.truncate(run_files.LARGEST)
    run_files.write(tmp_path, "runs", "99.json", "the newest")
    found = dict(run_files.read(tmp_path, "runs"))
    assert sum(map(len, found.values())) <= run_files.MOST
    assert (found["99.json"], found.get("00.json")) == ("the newest", None)


def test_no_run_replaces_another(tmp_path: Path) -> None:
    """Where a clock was set back, two have one name; and what was killed is in nobody's way."""
    run_files.write(tmp_path, "runs", "a.json", "one")
    with pytest.raises(FileExistsError, match=r"a\.json"):
        run_files.write(tmp_path, "runs", "a.json", "two")
    (tmp_path / "runs/.b.json").write_text("ha")
    run_files.write(tmp_path, "runs", "b.json", "whole")
    assert list(run_files.read(tmp_path, "runs")) == [("a.json", "one"), ("b.json", "whole")]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """Neither a file nor a part of one is there afterwards."""
    with pytest.raises(UnicodeEncodeError):
        run_files.write(tmp_path, "runs", "a.json", "half \ud800")
    assert list((tmp_path / "runs").iterdir()) == []


def test_runs_are_for_everyone(tmp_path: Path) -> None:
    """Whatever the umask of who measured: who cannot read a run would compare an older one."""
    before = os.umask(0o077)
    try:
        run_files.write(tmp_path, "runs", "a.json", "one")
    finally:
        os.umask(before)
    assert (tmp_path / "runs").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "runs/a.json").stat().st_mode & 0o777 == 0o644


def test_one_at_a_time(tmp_path: Path) -> None:
    """Who comes second is told so, until the first one is done; nobody waits for a folder."""
    with run_files.alone(tmp_path) as first:
        with run_files.alone(tmp_path) as second:
            assert (first, second) == (True, False)
        with run_files.alone(tmp_path / "other") as other:
            assert other
    with run_files.alone(tmp_path) as again:
        assert again


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """Nothing is written behind it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="runs"):
        run_files.write(tmp_path, "runs", "a.json", "one")
    assert list((tmp_path / "elsewhere").iterdir()) == []
