"""A watchdog asks its supervisord for a fast restart, and whether it missed a SIGTERM."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from machines.waiting import wait_until
from unit.managers.fake_supervisord import FakeSupervisord

from servicekit.host.procfs import children, snapshot
from servicekit.managers.supervised import lost_stop
from servicekit.places import system_places

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT = 20.0
PROGRAM = """
import sys
from servicekit.managers.supervised import request_fast_restart
from servicekit.places import system_places
request_fast_restart(system_places(), {variables!r})
print("lives", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def supervisord(tmp_path: Path) -> Iterator[FakeSupervisord]:
    """A supervisord that records what it is asked."""
    fake = FakeSupervisord(tmp_path / "s.sock")
    yield fake
    fake.close()


def program(**variables: str) -> subprocess.Popen[str]:
    """A process that has called `request_fast_restart`, and ends when its input does."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(variables=variables)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_supervisord_is_asked_when_we_have_ended(supervisord: FakeSupervisord) -> None:
    """It is asked once, after our end and not before, and then our output ends."""
    with program(SUPERVISOR_SERVER_URL=f"unix://{supervisord.path}") as ours:
        assert ours.stdout is not None
        assert ours.stdin is not None
        assert ours.stdout.readline() == "lives\n"
        assert len([*children(ours.pid, snapshot().values())]) == 1
        assert supervisord.calls == []
        ours.stdin.close()
        assert ours.stdout.read() == ""
    wait_until(lambda: supervisord.calls == ["getSupervisorVersion"], LIMIT, "it is asked")


@pytest.mark.parametrize("variables", [{}, {"SUPERVISOR_SERVER_URL": "unix:///nowhere/s.sock"}])
def test_without_a_supervisord_nothing_is_said(variables: dict[str, str]) -> None:
    """Under another manager, or where the socket is not ours to use, all ends quietly."""
    done, _ = program(**variables).communicate(timeout=LIMIT)
    assert done == "lives\n"


def test_a_stop_ordered_before_we_were_executed_is_seen(supervisord: FakeSupervisord) -> None:
    """Our own program's state says that we are to stop; without an answer we are not."""
    supervisord.program("servicekit-x", "STOPPING")
    url = {"SUPERVISOR_SERVER_URL": f"unix://{supervisord.path}"}
    assert lost_stop(system_places(), url | {"SUPERVISOR_PROCESS_NAME": "servicekit-x"})
    assert not lost_stop(system_places(), url | {"SUPERVISOR_PROCESS_NAME": "servicekit-y"})
    assert not lost_stop(system_places(), {"SUPERVISOR_SERVER_URL": "unix:///nowhere/s.sock"})
    assert not lost_stop(system_places(), {})
