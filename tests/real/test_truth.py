"""What status says on a real systemd where a file cannot be written or a process cannot be seen."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from machines.systemd import PREFIX, Machine, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.systemd, pytest.mark.llama, pytest.mark.timeout(300)]

LIMIT = 120.0
"""Seconds for the demo's model to be ready on two busy cores; two are usual."""
STATE, HISTORY = "/run/servicekit", "/var/lib/servicekit"


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """A machine on which the demo is ready, its state and its history on small disks."""
    if reason := why_not():
        pytest.skip(reason)
    machine = Machine()
    try:
        machine.boot()
        for place in (STATE, HISTORY):
            machine.run("mkdir", "-p", place)
            machine.run("mount", "-t", "tmpfs", "-o", "mode=755,size=256k", "tmpfs", place)
        machine.run("servicekit", "install", "demo", "--now", limit=LIMIT)
        yield machine
    finally:
        machine.remove()


def status(machine: Machine, *before: str, user: str = "", profile: str = "demo") -> dict[str, Any]:
    """Ask for the status, by another command or as another user."""
    words = (*before, "/usr/local/bin/servicekit", "status", profile, "--json")
    told: dict[str, Any] = json.loads(machine.run(*words, user=user).stdout)
    return told


def fill(machine: Machine, place: str) -> None:
    """Leave no free block on a disk."""
    machine.run("sh", "-c", f"cat /dev/zero >{place}/fill", check=False)


def history(machine: Machine) -> list[dict[str, Any]]:
    """Return the records of the ledger."""
    found: list[dict[str, Any]] = json.loads(
        machine.run("servicekit", "history", "demo", "--json").stdout
    )
    return found


def wait_ready(machine: Machine, not_run: str = "", profile: str = "demo") -> dict[str, Any]:
    """Wait until another run than that one is ready."""

    def ready() -> dict[str, Any] | None:
        now = status(machine, profile=profile)
        return now if now["state"] == "ready" and now["run"] != not_run else None

    found = machine.wait_until(ready, LIMIT, f"{profile} is ready")
    assert found is not None
    return found


def test_a_process_that_proc_hides_is_told_by_the_manager(machine: Machine) -> None:
    """With hidepid another account asks the manager; without one it cannot tell, and says so."""
    wait_ready(machine)
    machine.run("mount", "-o", "remount,hidepid=2", "/proc")
    try:
        assert status(machine)["state"] == "ready"
        machine.run("systemctl", "stop", "dbus.socket", "dbus.service", check=False)
        mute = status(machine, user="nobody")
        assert (mute["state"], mute["manager_state"]) == ("unknown", None)
        assert mute["why"].startswith("cannot tell: it was ready")
        machine.run("systemctl", "start", "dbus.socket")
        assert status(machine, user="nobody")["state"] == "ready"
    finally:
        machine.run("mount", "-o", "remount,hidepid=0", "/proc")


def test_another_pid_namespace_asks_the_manager(machine: Machine) -> None:
    """The watchdog's pid means another process there: without the manager's word it is unknown."""
    wait_ready(machine)
    told = status(machine, "unshare", "--pid", "--fork", "--mount-proc")
    assert told["state"] == ("ready" if told["manager_state"] == "active" else "unknown")


def test_a_full_run_leaves_no_stale_state(machine: Machine) -> None:
    """A state file that cannot be replaced is removed: the run before is not told of as ready."""
    before = wait_ready(machine)
    fill(machine, STATE)
    try:
        machine.run("kill", "-9", str(before["engine_pid"]))
        after = wait_ready(machine, not_run=before["run"])
        assert after["pid"] == int(machine.show("servicekit-demo", "MainPID"))
    finally:
        machine.run("rm", f"{STATE}/fill")
    machine.wait_until(
        machine.path(f"{STATE}/demo/state.json").exists, LIMIT, "the state is written again"
    )
    assert status(machine)["run"] == after["run"]


def test_a_full_disk_does_not_bring_an_older_run_back(machine: Machine) -> None:
    """The last word of a run counts although its history could not be written."""
    before = wait_ready(machine)
    fill(machine, HISTORY)
    try:
        machine.run("kill", "-9", str(before["engine_pid"]))
        during = wait_ready(machine, not_run=before["run"])
        machine.run("servicekit", "stop", "demo")
        stopped = status(machine)
        assert (stopped["state"], stopped["run"]) == ("stopped", during["run"])
    finally:
        machine.run("rm", f"{HISTORY}/fill")
    machine.run("servicekit", "start", "demo", limit=LIMIT)


SUPERVISORD = """
[unix_http_server]
file=/run/supervisor.sock
[supervisord]
user=root
logfile=/run/supervisord.log
pidfile=/run/supervisord.pid
childlogdir=/run
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[include]
files=/etc/supervisor/conf.d/*.conf
"""


@pytest.fixture
def supervised(machine: Machine) -> Iterator[str]:
    """Give a profile that a supervisord of root runs on the same machine, ready."""
    machine.write("/etc/supervisor/supervisord.conf", SUPERVISORD)
    machine.run("mkdir", "-p", "/etc/supervisor/conf.d")
    text = 'allow = ["demo", "boxed"]\nsupervisor_socket = "/run/supervisor.sock"\n'
    machine.write("/etc/servicekit/servicekit.toml", text)
    machine.write("/etc/servicekit/profiles.d/boxed.toml", 'extends = "demo"\nport = 18078\n')
    machine.run(PREFIX / "bin/supervisord", "-c", "/etc/supervisor/supervisord.conf")
    try:
        machine.run(
            "servicekit", "install", "boxed", "--manager", "supervisor", "--now", limit=LIMIT
        )
        yield "boxed"
        machine.run("servicekit", "uninstall", "boxed", "--purge", limit=LIMIT)
    finally:
        machine.run("pkill", "-F", "/run/supervisord.pid")
        machine.run(
            "rm", "/etc/servicekit/servicekit.toml", "/etc/servicekit/profiles.d/boxed.toml"
        )


def test_a_full_disk_under_supervisor_leaves_no_stale_state(
    machine: Machine, supervised: str
) -> None:
    """Under Supervisor, too, the newest run is shown though neither file could be written."""
    before = wait_ready(machine, profile=supervised)
    fill(machine, STATE)
    try:
        machine.run("kill", "-9", str(before["engine_pid"]))
        after = wait_ready(machine, not_run=before["run"], profile=supervised)
    finally:
        machine.run("rm", f"{STATE}/fill")
    machine.wait_until(
        machine.path(f"{STATE}/{supervised}/state.json").exists, LIMIT, "the state is written again"
    )
    assert status(machine, profile=supervised)["run"] == after["run"]
    fill(machine, HISTORY)
    try:
        machine.run("kill", "-9", str(status(machine, profile=supervised)["engine_pid"]))
        during = wait_ready(machine, not_run=after["run"], profile=supervised)
        machine.run("servicekit", "stop", supervised)
        stopped = status(machine, profile=supervised)
        assert (stopped["state"], stopped["run"]) == ("stopped", during["run"])
    finally:
        machine.run("rm", f"{HISTORY}/fill")


CLOCK = "/run/clock"
"""The file by which libfaketime moves the clock of our processes, and of no other."""


@pytest.fixture
def moved(machine: Machine) -> Iterator[list[str]]:
    """Run watchdog and engine by a clock of their own; give the words that run others by it.

    Namespaces do not cover CLOCK_REALTIME: only so can it be moved without the host's.
    """
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        pytest.skip("libfaketime is not installed (Debian: faketime)")
    environment = (
        f"LD_PRELOAD={found[0]}",
        f"FAKETIME_TIMESTAMP_FILE={CLOCK}",
        "FAKETIME_CACHE_DURATION=1",
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
    )
    dropin = "/run/systemd/system/servicekit-demo.service.d/clock.conf"
    machine.write(CLOCK, "+0\n")
    machine.write(dropin, f"[Service]\nEnvironment={' '.join(environment)}\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("servicekit", "restart", "demo", limit=LIMIT)
    try:
        yield ["env", *environment]
    finally:
        machine.run("rm", dropin)
        machine.run("systemctl", "daemon-reload")
        machine.run("servicekit", "restart", "demo", limit=LIMIT)


def test_a_clock_that_is_moved_by_a_year_ends_nothing(machine: Machine, moved: list[str]) -> None:
    """The service goes on, and each later run is the newest, whatever year it was begun in."""
    run = wait_ready(machine)["run"]
    for clock in ("+365d", "-365d"):
        machine.write(CLOCK, f"{clock}\n")
        for words in ((), moved):
            told = status(machine, *words)
            assert (told["state"], told["run"]) == ("ready", run)
            assert 0 <= told["since_seconds"] < LIMIT * 10
        machine.run("kill", "-9", str(status(machine)["engine_pid"]))
        after = wait_ready(machine, not_run=run)
        run = after["run"]
        assert after["pid"] == int(machine.show("servicekit-demo", "MainPID"))
        assert 0 <= after["since_seconds"] < LIMIT * 10
    begun = [record["at"][:4] for record in history(machine) if record["kind"] == "started"]
    assert int(begun[-2]) - int(begun[-1]) == 2
    machine.run("servicekit", "stop", "demo")
    stopped = status(machine)
    assert (stopped["state"], stopped["run"]) == ("stopped", run)


def test_clocks_a_year_off_change_nothing(machine: Machine) -> None:
    """Ages and the newest run follow the boot's clock, whatever year the files name."""
    wait_ready(machine)
    state = f"{STATE}/demo/state.json"
    known = json.loads(machine.path(state).read_text())
    for year in ("2020", "2040"):
        moved = {key: f"{year}{known[key][4:]}" for key in ("since", "updated")}
        machine.path(state).write_text(json.dumps(known | moved))
        told = status(machine)
        assert told["state"] == "ready"
        assert 0 <= told["since_seconds"] < LIMIT * 10
    machine.path(state).write_text(json.dumps(known))


@pytest.mark.parametrize(
    ("prepare", "place", "sentence"),
    [
        ("mkdir -p /root/x", "/root/x/engine", "is below /root, which the unit hides"),
        ("mkdir -p /tmp/x", "/tmp/x/engine", "is below /tmp, which the unit hides"),  # noqa: S108
        (
            "mkdir -p /opt/x && chmod 700 /opt/x",
            "/opt/x/engine",
            "cannot execute the engine",
        ),
        (
            "mkdir -p /opt/n && mount -t tmpfs -o noexec,mode=755 tmpfs /opt/n",
            "/opt/n/engine",
            "is on a file system that is mounted noexec",
        ),
    ],
)
def test_what_the_account_cannot_use_is_not_installed(
    machine: Machine, prepare: str, place: str, sentence: str
) -> None:
    """An engine that the service could not execute is refused, with where to put it."""
    machine.run("sh", "-c", prepare)
    machine.run("install", "-m", "755", "/bin/sleep", place)
    machine.write("/etc/servicekit/servicekit.toml", 'allow = ["odd"]\n')
    text = f'extends = "demo"\nport = 18077\nexecutable = {json.dumps(place)}\n'
    machine.write("/etc/servicekit/profiles.d/odd.toml", text)
    done = machine.run("servicekit", "install", "odd", check=False)
    assert done.returncode == 1
    assert sentence in done.stderr, shlex.join([done.stdout, done.stderr])
    assert not machine.path("/etc/systemd/system/servicekit-odd.service").exists()
