"""Files that runs leave behind: whole, and read without following anybody anywhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from servicekit import kept

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_no_file_of_ours_is_passed_over(tmp_path: Path) -> None:
    """Neither a pipe, which would wait for ever, nor a link, nor half a file is read."""
    assert list(kept.read(tmp_path / "none", "runs")) == []
    kept.write(tmp_path / "state", "runs", "b.json", "two")
    kept.write(tmp_path / "state", "runs", "a.json", "one")
    folder = tmp_path / "state/runs"
    os.mkfifo(folder / "pipe.json")
    (folder / "link.json").symlink_to(tmp_path / "secret")
    (folder / ".half.json").touch()
    (folder / "note.txt").touch()
    (folder / "folder.json").mkdir()
    assert list(kept.read(tmp_path / "state", "runs")) == [("a.json", "one"), ("b.json", "two")]
    assert (folder / "a.json").stat().st_mode & 0o777 == 0o644


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """Nothing is written behind it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="runs"):
        kept.write(tmp_path, "runs", "a.json", "one")
    assert list((tmp_path / "elsewhere").iterdir()) == []
