"""Runs a command with little memory, in a control group of its own, where one can be made.

    limited.py NAME MEBIBYTES COMMAND...

What is left of the group can be removed when the command has ended.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
HIERARCHIES = (
    # Version 1, and version 2 where its root hands memory on.
    (ROOT / "memory", "memory.limit_in_bytes", lambda root: root.is_dir()),
    (
        ROOT,
        "memory.max",
        lambda root: "memory" in _text(root / "cgroup.subtree_control"),
    ),
)


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii") if path.exists() else ""


def found() -> tuple[Path, str] | None:
    """Find the directory that groups can be made in, and the name of the limit; `None` without."""
    return next(
        (
            (root, limit)
            for root, limit, there in HIERARCHIES
            if there(root) and os.access(root, os.W_OK)
        ),
        None,
    )


def group(name: str) -> Path:
    """Name a group."""
    place = found()
    assert place is not None, "no control group can be made here"
    return place[0] / f"servicekit-{name}"


def main(name: str, mebibytes: str, *argv: str) -> None:
    """Join a new group and become the command."""
    place = found()
    assert place is not None, "no control group can be made here"
    own = group(name)
    own.mkdir(exist_ok=True)
    (own / place[1]).write_text(str(int(mebibytes) << 20), encoding="ascii")
    (own / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    os.execvp(argv[0], argv)  # noqa: S606 - that is what it is for


if __name__ == "__main__":
    main(*sys.argv[1:])
