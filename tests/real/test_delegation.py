"""The engine's control group, in a group that a real systemd delegated to an ordinary user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from machines.systemd import Machine

pytestmark = pytest.mark.systemd

RUN = """
import os, sys, time
from servicekit.host import cgroups
from servicekit.watchdog.census import Census, Marker
from servicekit.watchdog.engine import EngineProcess
group = cgroups.delegated()
if group is None:
    raise SystemExit("not delegated")
escapes = '''
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.environ.clear()
            os.execv("/bin/sleep", ["sleep", "600"])
        os._exit(0)
print("up", flush=True)
time.sleep(600)
'''
engine = EngineProcess.launch(
    [sys.executable, "-c", escapes], os.environ, Marker("demo", "run-1", "/x"),
    census=Census(), delegated=group,
)
while len(cgroups.members(engine.group)) < 4:
    time.sleep(0.01)
print("own", sorted(cgroups.members(group / "watchdog")) == [os.getpid()])
print("service", cgroups.own() == group)
began = time.monotonic()
engine.kill()
while cgroups.members(engine.group):
    engine.poll()
    time.sleep(0.001)
print("killed", time.monotonic() - began < 1.0)
engine.close()
print("removed", not engine.group.exists())
"""


def run(machine: Machine, *properties: str) -> list[str]:
    """Run `RUN` as the main process of a service with such properties."""
    machine.write("/opt/run.py", RUN)
    machine.write(
        "/etc/systemd/system/run.service",
        "\n".join(
            [
                "[Service]",
                "Type=oneshot",
                "ExecStart=/opt/servicekit/bin/python /opt/run.py",
                "StandardOutput=truncate:/run/said",
                "StandardError=inherit",
                *properties,
            ]
        ),
    )
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "run", check=False)
    return machine.path("/run/said").read_text(encoding="utf-8").splitlines()


def test_what_escapes_everything_else_dies_with_its_group(systemd_machine: Machine) -> None:
    """Without marker, session or parent, a process of the engine still is in its group."""
    said = run(systemd_machine, "User=nobody", "Delegate=yes")
    assert said == ["own True", "service True", "killed True", "removed True"]


def test_a_group_that_was_not_delegated_is_left_alone(systemd_machine: Machine) -> None:
    """A unit without Delegate= keeps its group as systemd made it, for root as for others."""
    assert run(systemd_machine, "User=nobody") == ["not delegated"]
    assert run(systemd_machine) == ["not delegated"]
