"""The machines that tests stand on do what they promise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from machines.systemd import TESTS_INSIDE, Machine
from machines.waiting import wait_until

if TYPE_CHECKING:
    from machines.dstate import Stuck
    from machines.supervisor import Supervisor

NOTIFY = """\
[Service]
Type=notify
NotifyAccess=all
ExecStart=/bin/sh -c 'echo hello; systemd-notify --ready --status=serving; exec sleep 1000'
[Install]
WantedBy=multi-user.target
"""

ESCAPE = """\
[Service]
Type=exec
ExecStart=/bin/sh -c 'setsid -f sh -c "trap : TERM; while :; do sleep 1000; done"; exec sleep 1000'
TimeoutStopSec=1
"""

PROGRAM = """\
[program:sleeper]
command=sleep 1000
startsecs=0
"""


@pytest.mark.systemd
class TestSystemd:
    """One booted machine."""

    def test_unit_is_ready_when_it_says_so(self, systemd_machine: Machine) -> None:
        """A Type=notify unit starts, its status shows, and its output is in the journal."""
        systemd_machine.write("/etc/systemd/system/notify.service", NOTIFY)
        systemd_machine.run("systemctl", "daemon-reload")
        systemd_machine.run("systemctl", "start", "notify")
        assert systemd_machine.show("notify", "ActiveState") == "active"
        assert systemd_machine.show("notify", "StatusText") == "serving"
        assert "hello" in systemd_machine.messages("notify", _TRANSPORT="stdout")

    def test_stop_kills_what_left_the_session(self, systemd_machine: Machine) -> None:
        """The machine has a real cgroup tree: a process that ran away is stopped with its unit."""
        systemd_machine.write("/etc/systemd/system/escape.service", ESCAPE)
        systemd_machine.run("systemctl", "daemon-reload")
        systemd_machine.run("systemctl", "start", "escape")
        group = systemd_machine.cgroup / "system.slice/escape.service"
        wait_until(
            lambda: len((group / "cgroup.procs").read_text(encoding="utf-8").split()) > 1,
            5,
            "the second process is there",
        )
        systemd_machine.run("systemctl", "stop", "escape")
        assert not group.exists()

    def test_unprivileged_user_runs_the_installed_package(self, systemd_machine: Machine) -> None:
        """A service user can import servicekit and run the tests' own programs."""
        python = "/opt/servicekit/bin/python"
        code = "import servicekit.templates, servicekit.units; print(servicekit.__file__)"
        said = systemd_machine.run(python, "-c", code, user="nobody").stdout
        assert said.startswith("/opt/servicekit")
        systemd_machine.run("test", "-r", TESTS_INSIDE / "conftest.py", user="nobody")

    def test_user_has_a_systemd(self, systemd_machine: Machine) -> None:
        """A user's own manager runs without a login, and obeys that user."""
        env = systemd_machine.add_user("lodger")
        said = systemd_machine.run(
            "systemctl", "--user", "is-system-running", user="lodger", env=env
        )
        assert said.stdout == "running\n"

    def test_what_happens_inside_stays_inside(
        self, systemd_machine: Machine, tmp_path: Path
    ) -> None:
        """Files made inside are not on this machine, nor are its files below /tmp inside."""
        systemd_machine.run("touch", "/etc/only-inside")
        assert systemd_machine.path("/etc/only-inside").exists()
        assert systemd_machine.run("test", "-e", tmp_path, check=False).returncode == 1
        assert not Path("/etc/only-inside").exists()

    def test_a_failing_command_shows_what_it_said(self, systemd_machine: Machine) -> None:
        """A command that fails inside fails the test with its own words."""
        with pytest.raises(pytest.fail.Exception, match="No such file"):
            systemd_machine.run("ls", "/nowhere")

    def test_engine_that_cannot_be_killed(self, systemd_machine: Machine) -> None:
        """Inside, too, an engine can be made to outlive SIGKILL, and be let go again."""
        python = "/opt/servicekit/bin/python"
        server = systemd_machine.spawn(python, TESTS_INSIDE / "machines/dstate.py", "/run/stuck")
        assert server.stdout is not None
        assert server.stdout.readline() == "mounted\n"
        script = '{"say": ["stuck soon"], "stuck": "/run/stuck/in-the-driver"}'
        engine = systemd_machine.spawn(TESTS_INSIDE / "fake_engine.py", "--script", script)
        assert engine.stdout is not None
        while "stuck soon" not in engine.stdout.readline():
            pass
        (leader,) = psutil.Process(engine.pid).children()
        assert server.stdout.readline() == "held\n"
        leader.kill()
        wait_until(lambda: leader.status() == psutil.STATUS_ZOMBIE, 5, "the leader looks dead")
        assert engine.poll() is None
        server.kill()
        server.communicate()
        engine.communicate()


@pytest.mark.systemd
class TestReboot:
    """A machine of one's own."""

    def test_enabled_unit_comes_up_by_itself(self, fresh_machine: Machine) -> None:
        """What was enabled before an orderly reboot is active after it, on a kernel booted anew."""
        fresh_machine.boot()
        fresh_machine.write("/etc/systemd/system/notify.service", NOTIFY)
        fresh_machine.run("systemctl", "enable", "notify")
        before = fresh_machine.run("cat", "/proc/sys/kernel/random/boot_id").stdout
        fresh_machine.reboot()
        assert fresh_machine.show("notify", "ActiveState") == "active"
        assert fresh_machine.run("cat", "/proc/sys/kernel/random/boot_id").stdout != before

    def test_power_cut(self, fresh_machine: Machine) -> None:
        """After a power cut the disk is as it was, and a machine may claim to be WSL."""
        fresh_machine.boot()
        fresh_machine.run("touch", "/var/lib/kept")
        boot_id = fresh_machine.boot_id
        fresh_machine.crash()
        fresh_machine.boot(container="wsl", boot_id=boot_id)
        fresh_machine.run("test", "-e", "/var/lib/kept")
        assert fresh_machine.run("systemd-detect-virt").stdout == "wsl\n"
        assert fresh_machine.boot_id == boot_id


@pytest.mark.supervisord
def test_supervisord_runs_a_program(supervisord: Supervisor) -> None:
    """A program that is added runs, and is stopped together with supervisord."""
    supervisord.add("sleeper", PROGRAM)
    wait_until(lambda: supervisord.state("sleeper") == "RUNNING", 10, "the program runs")
    pid = int(supervisord.ctl("pid", "sleeper").stdout)
    supervisord.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.systemd
def test_stuck_process_survives_sigkill(stuck: Stuck) -> None:
    """A process that waits in the kernel for a dead server stays, in state D, when it is killed."""
    code = "import os, sys; os.stat(sys.argv[1])"
    process = subprocess.Popen([sys.executable, "-c", code, stuck.path])
    held = psutil.Process(process.pid)
    stuck.wait()
    process.kill()
    wait_until(lambda: held.status() == psutil.STATUS_DISK_SLEEP, 5, "the signal is pending")
    assert process.poll() is None
    stuck.release()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
