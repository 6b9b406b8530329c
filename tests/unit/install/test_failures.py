"""The table of docs/install.md: what is on disk after a failure at any step of an install."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from unit.install.test_transaction import (
    ORDERS,
    Counting,
    fail,
    install,
    snapshot,
    steps_of,
    visible,
)

from servicekit.errors import UserError
from servicekit.install.rootfs import Tree

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[3] / "docs/install.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
Row = tuple[str, str, str]
"""What is on disk after an I/O error, after a SIGKILL, and after the call that follows that."""


def made(folder: Path, order: str, *, last: bool = True) -> Path:
    """A root in which an order was carried out, or all of it but its last step."""
    root = Path(tempfile.mkdtemp(dir=folder))
    (root / "srv/sk").mkdir(parents=True)
    for artifacts in ORDERS[order] if last else ORDERS[order][:-1]:
        install(Tree(str(root)), artifacts)
    return root


def state(root: Path, before: Path, after: Path, *, half: str = "MIXED") -> str:
    """Which state the files that a service manager sees are in."""
    now = visible(snapshot(root / "srv"))
    if now == visible(snapshot(before / "srv")):
        return "old"
    return "new" if now == visible(snapshot(after / "srv")) else half


def outcome(folder: Path, order: str, at: int) -> Row:
    """Inject both failures before one step."""
    before, after = made(folder, order, last=False), made(folder, order)
    last = ORDERS[order][-1]

    failed = made(folder, order, last=False)
    with suppress(UserError):
        install(Counting(str(failed), at, fail(errno.EIO)), last)

    killed = made(folder, order, last=False)
    pid = os.fork()
    if pid == 0:
        kill = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731 - the child's last act
        try:
            install(Counting(str(killed), at, kill), last)
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    at_once = state(killed, before, after, half="half-way, by the journal")
    install(Tree(str(killed)), [], profile="other")
    return state(failed, before, after), at_once, state(killed, before, after)


def table(folder: Path) -> Iterator[str]:
    """Give the table, consecutive steps with the same outcome in one row."""
    yield "| order | before step | I/O error, disk full | SIGKILL | the call after the SIGKILL |"
    yield "|---|---|---|---|---|"
    for order in ORDERS:
        (folder / order).mkdir()
        verbs = [step.split(" /")[0] for step in steps_of(folder / order, ORDERS[order])]
        rows = [(outcome(folder / order, order, at), at) for at in range(len(verbs))]
        for row, group in itertools.groupby(rows, key=lambda each: each[0]):
            steps = [at for _, at in group]
            what = ", ".join(dict.fromkeys(verbs[at] for at in steps))
            yield f"| {order} | {steps[0] + 1} to {steps[-1] + 1}: {what} | {' | '.join(row)} |"


def test_no_failure_leaves_a_mixture(tmp_path: Path) -> None:
    """After an error it is the old state or the new; after a SIGKILL the next call makes it so.

    The table of the handbook is what this test finds; `WRITE_GOLDEN=1` writes it anew.
    """
    found = "\n".join(table(tmp_path)) + "\n"
    assert "MIXED" not in found
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    written, _, after = rest.partition(END)
    if os.environ.get("WRITE_GOLDEN"):
        PAGE.write_text(f"{before}{BEGIN}{found}{END}{after}", encoding="utf-8")
        written = found
    assert written == found
