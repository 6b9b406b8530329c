"""Files are replaced as a whole, and a lock has one holder."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from servicekit.host.files import replace, try_lock

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_replaced_with_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    """Nothing is left beside it."""
    file = tmp_path / "state.json"
    file.write_text("old")
    before = os.umask(0o077)
    try:
        replace(file, "new", mode=0o644, durable=True)
    finally:
        os.umask(before)
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert [one.name for one in tmp_path.iterdir()] == ["state.json"]


def test_a_failed_replacement_leaves_the_old_file(tmp_path: Path) -> None:
    """A name that is a directory cannot be replaced, and no half of the new file stays."""
    (tmp_path / "state.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace(tmp_path / "state.json", "new")
    assert [one.name for one in tmp_path.iterdir()] == ["state.json"]


def test_a_lock_has_one_holder_until_it_is_closed(tmp_path: Path) -> None:
    """A second opener is told that it is taken."""
    first, second = (os.open(tmp_path, os.O_RDONLY) for _ in "12")
    assert try_lock(first)
    assert not try_lock(second)
    os.close(first)
    assert try_lock(second)
    os.close(second)
