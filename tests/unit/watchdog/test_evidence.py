"""Evidence for endings: real signals from real senders, and what the kernel counts."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from machines.waiting import wait_until

from servicekit.diagnosis.causes import Cause
from servicekit.host import procfs
from servicekit.watchdog import clock, evidence
from servicekit.watchdog.evidence import (
    WATCHED,
    OomKills,
    Received,
    cause_of,
    oom_evidence,
    oom_kills,
    requester,
)
from servicekit.watchdog.operator_orders import announce_stop, stopped_by

if TYPE_CHECKING:
    import signal
    from pathlib import Path

    from machines.systemd import Machine

MANAGERS = {1, 700}
SI_KERNEL = 0x80
NOLOGIN = {"/run/nologin"}
USER_STOPS = 'case "$1" in --user) echo stopping;; *) echo degraded;; esac'


WATCHING = """
import dataclasses, json, queue
from servicekit.watchdog.evidence import SignalWatch
heard = queue.Queue()
watch = SignalWatch(heard.put)
print("watching", flush=True)
print(json.dumps(dataclasses.asdict(heard.get(timeout=20))), flush=True)
watch.close()
"""
"""A process that watches as the watchdog does: before it has any other thread."""


@pytest.mark.parametrize("number", WATCHED)
def test_the_sender_of_a_signal_is_known(number: signal.Signals) -> None:
    """Who sent a signal is named with its account and command line, though it is gone by now."""
    program = [sys.executable, "-c", WATCHING]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "watching\n"
        sender = f"import os, time; os.kill({watching.pid}, {int(number)}); time.sleep(0.2)"
        with subprocess.Popen([sys.executable, "-c", sender]) as sending:
            heard = Received(**json.loads(watching.stdout.readline()))
    assert watching.returncode == 0
    assert (heard.number, heard.pid, heard.uid) == (number, sending.pid, os.getuid())
    user = procfs.account(os.getuid())
    assert heard.named.startswith(f"{number.name} from pid {sending.pid} ({user}, {sys.executable}")
    assert cause_of(heard, MANAGERS) is Cause.OUTSIDE_KILL


@pytest.mark.parametrize(
    ("heard", "cause", "named"),
    [
        (Received(15, 0, 1, 0, "/sbin/init"), Cause.STOP_REQUESTED, "SIGTERM from pid 1 (root, /s"),
        (Received(15, 0, 700, 0), Cause.STOP_REQUESTED, "SIGTERM from pid 700 (root)"),
        (Received(15, 0, 0, 0), Cause.STOP_REQUESTED, "SIGTERM from outside the container"),
        (Received(2, SI_KERNEL, 0, 0), Cause.STOP_REQUESTED, "SIGINT from the terminal"),
        (Received(1, SI_KERNEL, 0, 0), Cause.SESSION_END, "SIGHUP from the terminal"),
        (Received(1, 0, 700, 0), Cause.STOP_REQUESTED, "SIGHUP from pid 700 (root)"),
        (Received(15, -6, 812, 0, "kill"), Cause.OUTSIDE_KILL, "SIGTERM from pid 812 (root, kill)"),
        (Received(2, 0, 812, 0), Cause.OUTSIDE_KILL, "SIGINT from pid 812 (root)"),
    ],
)
def test_only_a_manager_or_a_terminal_may_ask(heard: Received, cause: Cause, named: str) -> None:
    """A stop is requested by pid 1, our parent, who started the container, or the terminal."""
    assert cause_of(heard, MANAGERS) is cause
    assert heard.named.startswith(named)


def test_a_stop_names_the_service_manager_that_asks_for_it() -> None:
    """A person reads "systemd", not the number of its process."""
    by_pid1 = Received(15, 0, 1, 0, "/sbin/init")
    by_parent = Received(15, 0, os.getppid(), 0, "supervisord")
    assert requester(by_pid1, {"INVOCATION_ID": "a"}) == "systemd"
    assert requester(by_parent, {"SUPERVISOR_ENABLED": "1"}) == "Supervisor"
    assert requester(by_pid1, {}) == "SIGTERM from pid 1 (root, /sbin/init)"
    assert requester(Received(15, 0, 0, 0), {}) == "SIGTERM from outside the container"
    assert requester(Received(2, SI_KERNEL, 0, 0), {"INVOCATION_ID": "a"}).endswith("the terminal")


def test_a_stop_is_attributed_to_the_command_that_announced_it(tmp_path: Path) -> None:
    """Only to one that was given after the watchdog began, and not long ago."""
    file = tmp_path / ".stops/x"
    assert stopped_by(file, since=0.0) == ""
    announce_stop(file, "`servicekit stop x` (ada)")
    assert stopped_by(file, since=0.0) == "`servicekit stop x` (ada)"
    assert stopped_by(file, since=clock.boottime() + 1) == ""
    file.write_text("1.0 `servicekit stop x` (ada)\n")
    assert stopped_by(file, since=0.0) == ""
    file.write_text("now")
    assert stopped_by(file, since=0.0) == ""


def test_a_signal_that_comes_too_late_does_not_cut_the_end_short() -> None:
    """After the watch is over its signals stay blocked: the exit code is still ours."""
    program = """
import os, signal
from servicekit.watchdog.evidence import SignalWatch
SignalWatch(print).close()
os.kill(os.getpid(), signal.SIGTERM)
raise SystemExit(75)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False)
    assert ended.returncode == 75


def test_without_systemd_nobody_is_asked() -> None:
    """Where systemd does not run, no shutdown of it is under way."""
    nothing = evidence.going_down(user_manager=True, is_there=lambda _: False)
    assert asyncio.run(nothing) is None


class Systemctl:
    """Stands in for systemctl on PATH: it says a word, or never ends."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "systemctl"
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        self.files = {"/run/systemd/system"}

    def going_down(self, *, user_manager: bool = False, limit: float = 20.0) -> Cause | None:
        """Ask it, with these files there."""
        question = evidence.going_down(
            user_manager=user_manager, limit=limit, is_there=self.files.__contains__
        )
        return asyncio.run(question)

    def says(self, script: str) -> None:
        self.path.write_text(f"#!/bin/sh\n{script}\n")
        self.path.chmod(0o755)


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemctl:
    """Put a systemctl on PATH."""
    return Systemctl(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("script", "files", "managers", "cause"),
    [
        ("echo running", set(), "user", None),
        ("echo stopping; exit 1", set(), "system", Cause.HOST_SHUTDOWN),
        ("echo running", NOLOGIN, "system", None),
        ("exit 1", NOLOGIN, "system", Cause.HOST_SHUTDOWN),
        ("echo unknown; exit 1", NOLOGIN, "system", Cause.HOST_SHUTDOWN),
        ("exit 1", set(), "system", None),
        (USER_STOPS, set(), "system", None),
        (USER_STOPS, set(), "user", Cause.SESSION_END),
    ],
)
def test_the_host_or_the_session_goes_down(
    script: str, files: set[str], managers: str, cause: Cause | None, systemctl: Systemctl
) -> None:
    """Systemd's own word decides; where it does not answer, refused logins are the hint."""
    systemctl.says(script)
    systemctl.files |= files
    assert systemctl.going_down(user_manager=managers == "user") is cause


def test_a_manager_that_does_not_answer_is_not_waited_for(
    systemctl: Systemctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A systemctl that hangs, or is not there, costs a bounded time and proves nothing."""
    systemctl.says("exec sleep 600")
    assert systemctl.going_down(limit=0.1) is None
    systemctl.path.unlink()
    monkeypatch.setenv("PATH", str(systemctl.path.parent))
    assert systemctl.going_down() is None


def test_this_boot_and_this_first_process_have_names() -> None:
    """What tells one boot, container or distribution from the next is there."""
    assert len(clock.boot_id()) == 32
    first = procfs.stat(1)
    assert first is not None
    assert evidence.pid1_started() == first.started


@pytest.mark.parametrize(
    ("release", "container", "kind"),
    [
        ("6.6.87.2-microsoft-standard-WSL2", "", "wsl"),
        ("6.12.0-generic", "", "other"),
        ("6.12.0-generic", "wsl", "wsl"),
        ("6.12.0-generic", "docker", "other"),
    ],
)
def test_wsl_is_known_by_its_kernel(release: str, container: str, kind: str) -> None:
    """WSL's kernel says Microsoft; systemd knows the distribution as a container of that kind."""
    texts = {"/proc/sys/kernel/osrelease": release, "/run/systemd/container": container}
    assert evidence.on_wsl(texts.__getitem__) is (kind == "wsl")


@pytest.mark.parametrize(
    ("before", "after", "proof"),
    [
        (OomKills(0, 5), OomKills(1, 6), "in this service's control group"),
        (OomKills(None, 5), OomKills(None, 6), "on this host"),
        (OomKills(1, 5), OomKills(1, 5), ""),
        (OomKills(1, 5), OomKills(1, 6), ""),
        (OomKills(None, None), OomKills(None, None), ""),
        (OomKills(None, None), OomKills(0, 0), ""),
    ],
)
def test_only_a_counter_that_rose_proves_the_oom_killer(
    before: OomKills, after: OomKills, proof: str
) -> None:
    """Without a counter that rose there is no proof, whatever the exit status says."""
    found = oom_evidence(before, after)
    assert bool(proof) == bool(found)
    assert found is None or proof in found.sentence


def test_the_kernels_counters_are_read(tmp_path: Path) -> None:
    """The control group's own counter is taken, and the host's beside it."""
    (tmp_path / "memory.events").write_text("low 0\nmax 4\noom 2\noom_kill 3\noom_group_kill 0\n")
    kills = oom_kills(tmp_path)
    assert kills.group == 3
    assert kills.host is not None
    assert oom_kills(None).host == kills.host


@pytest.mark.systemd
def test_a_real_shutdown_is_told_from_a_stop(systemd_machine: Machine) -> None:
    """A real systemd says that it is stopping while it stops services, and not before."""
    machine = systemd_machine
    asks = "from servicekit.watchdog.evidence import going_down; import asyncio"
    asks += "; print(asyncio.run(going_down()))"
    asking = f'/opt/servicekit/bin/python -c "{asks}"'
    machine.write(
        "/etc/systemd/system/asks.service",
        "[Unit]\nRequiresMountsFor=/opt/servicekit /opt/servicekit-source/servicekit\n"
        "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n"
        f"ExecStop=/bin/sh -c '{asking} >/var/asked'\n",
    )
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "asks")
    machine.run("systemctl", "stop", "asks")
    assert machine.path("/var/asked").read_text() == "None\n"
    machine.run("systemctl", "start", "asks")
    machine.reboot()
    said = wait_until(lambda: machine.path("/var/asked").read_text(), 10, "it was asked")
    assert said == "host-shutdown\n"
