"""A directory that root filled is given to an account, and nothing of others with it."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from servicekit.install.rootfs import Tree

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
ACCOUNT = (4242, 4243)
OTHER = 4711


def test_what_root_left_is_handed_over(tmp_path: Path) -> None:
    """Files, links and directories of root's change their owner; links are not followed."""
    outside = tmp_path / "outside"
    outside.write_text("x")
    top = tmp_path / "top"
    (top / "below").mkdir(parents=True)
    (top / "below/file").write_text("x")
    (top / "link").symlink_to(outside)
    (top / "same").hardlink_to(outside)
    (top / "theirs").mkdir()
    (top / "theirs/file").write_text("x")
    os.chown(top / "theirs", OTHER, OTHER)
    (top / "shared").mkdir()
    (top / "shared").chmod(0o777)
    (top / "shared/file").write_text("x")
    Tree(str(tmp_path)).hand_over(PurePosixPath("/top"), ACCOUNT)
    owners = {
        str(path.relative_to(tmp_path)): path.lstat().st_uid for path in sorted(tmp_path.rglob("*"))
    }
    assert owners == {
        "outside": 0,
        "top": 4242,
        "top/below": 4242,
        "top/below/file": 4242,
        "top/link": 4242,
        "top/same": 0,
        "top/shared": 0,
        "top/shared/file": 0,
        "top/theirs": OTHER,
        "top/theirs/file": 0,
    }
    assert (top / "below/file").stat().st_gid == ACCOUNT[1]


def test_an_accounts_own_directory_is_left_alone(tmp_path: Path) -> None:
    """What another account may have made stays whose it is, and what is not there is no error."""
    top = tmp_path / "top"
    top.mkdir()
    (top / "file").write_text("x")
    os.chown(top, *ACCOUNT)
    tree = Tree(str(tmp_path))
    tree.hand_over(PurePosixPath("/top"), (OTHER, OTHER))
    tree.hand_over(PurePosixPath("/none"), (OTHER, OTHER))
    assert (top.stat().st_uid, (top / "file").stat().st_uid) == (ACCOUNT[0], 0)
