"""Programs that are run for what they print: each answer, and each way to have none."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from machines.waiting import wait_until

from servicekit.host import procfs
from servicekit.host.programs import NotRunError, run

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 20.0


def test_a_program_is_given_text_and_answers() -> None:
    """Both streams and the exit code come back apart."""
    done = run(["sh", "-c", "cat; echo no >&2; exit 3"], limit=LIMIT, text="yes")
    assert (done.stdout, done.stderr, done.status.code, done.failed) == ("yes", "no\n", 3, True)


def test_a_program_that_is_not_installed_is_named_so(tmp_path: Path) -> None:
    """What is missing is told from what cannot be run."""
    with pytest.raises(NotRunError, match="is not installed") as missing:
        run(["no-such-program"], limit=LIMIT)
    assert missing.value.missing
    (tmp_path / "data").write_text("no program")
    with pytest.raises(NotRunError, match="cannot be run: permission denied") as refused:
        run([str(tmp_path / "data")], limit=LIMIT)
    assert not refused.value.missing


def test_a_late_program_is_killed_with_what_it_started(tmp_path: Path) -> None:
    """Its children hold nothing up, and do not stay."""
    script = f"sleep 600 & echo $! >{tmp_path}/pid; sleep 600"
    with pytest.raises(NotRunError, match=r"did not finish within 0\.5 s"):
        run(["sh", "-c", script], limit=0.5)
    pid = int((tmp_path / "pid").read_text())
    wait_until(
        lambda: (stat := procfs.stat(pid)) is None or not stat.alive, LIMIT, "the child ends"
    )


def test_a_grandchild_that_lives_on_holds_nobody_up(tmp_path: Path) -> None:
    """The answer is there when the program has ended, whoever still has its output open."""
    done = run(["sh", "-c", f"sleep 600 & echo $! >{tmp_path}/pid; echo done"], limit=LIMIT)
    assert done.stdout == "done\n"
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_the_environment_is_as_given_without_what_is_meant_for_us() -> None:
    """No child may speak to the service manager in our name."""
    show = "import os; print(sorted(os.environ))"
    environment = {"PATH": os.environ["PATH"], "NOTIFY_SOCKET": "/run/x", "A": "1"}
    done = run([sys.executable, "-c", show], limit=LIMIT, environment=environment)
    assert "'A'" in done.stdout
    assert "NOTIFY_SOCKET" not in done.stdout
