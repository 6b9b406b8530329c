"""The unit under a real systemd: what it gives and keeps from the service, and when it restarts."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from plans import SYSTEM, plan, profile
from stand_in import FOREIGN

from servicekit.places import user_places
from servicekit.profiles.vocabulary import ManagerName
from servicekit.quoting import systemd_path, systemd_words
from servicekit.service.render import LINK, artifacts

if TYPE_CHECKING:
    from machines.systemd import Machine

    from servicekit.places import Places
    from servicekit.profiles.model import Profile

pytestmark = pytest.mark.systemd

STAND_IN = ("/usr/bin/python3", "/opt/servicekit-tests/stand_in.py")
LIMIT = 15.0
"""Seconds for systemd to do what it was asked; a fraction of one is usual."""


@pytest.fixture(scope="module")
def machine(systemd_machine: Machine) -> Machine:
    """A machine with the service's account and an address that is its own, but not loopback."""
    systemd_machine.run("useradd", "--system", "--no-create-home", "servicekit")
    systemd_machine.run("ip", "link", "set", "lo", "up")
    systemd_machine.run("ip", "address", "add", f"{FOREIGN}/32", "dev", "lo")
    return systemd_machine


class Service:
    """An installed unit, in which a stand-in runs in the watchdog's place."""

    def __init__(self, machine: Machine, profile: Profile, places: Places = SYSTEM) -> None:
        self.machine = machine
        self.name = profile.name
        self.unit = f"{profile.unit}.service"
        self.home = f"/var/lib/servicekit/{profile.name}"
        self.install(profile, places)

    def install(
        self, profile: Profile, places: Places = SYSTEM, *, rivals: tuple[str, ...] = ()
    ) -> None:
        """Write the files of an install, but for the links that start it at boot."""
        of = plan(profile, places, servicekit=STAND_IN, rivals=rivals)
        files = artifacts(of, ManagerName.SYSTEMD)
        for artifact in files:
            if artifact.mode != LINK:
                self.machine.write(artifact.path, artifact.text, artifact.mode)
        described = [file.path for file in files if file.path.parent == places.sysusers]
        self.machine.run("systemd-sysusers", *described)
        self.machine.run("systemctl", "daemon-reload")

    def start(self) -> dict[str, Any]:
        """Start it, wait until it is ready, and tell what the stand-in saw."""
        self.machine.run("systemctl", "reset-failed", check=False)
        self.machine.run("systemctl", "start", self.unit)
        return self.seen()

    def seen(self) -> dict[str, Any]:
        """What the stand-in saw when it last started."""
        found: dict[str, Any] = json.loads(self.machine.path(f"{self.home}/seen.json").read_text())
        return found

    def end(self, code: int) -> None:
        """Have the stand-in exit with a code."""
        self.machine.path(f"{self.home}/order").write_text(str(code))

    def becomes(self, state: str) -> None:
        """Wait until systemd says `state` of it."""
        self.machine.wait_until(
            lambda: self.machine.show(self.unit, "ActiveState") == state,
            LIMIT,
            f"{self.unit} is {state}",
        )

    def stop(self) -> None:
        """Stop it, whatever it does."""
        self.machine.run("systemctl", "stop", self.unit)


def test_the_service_has_what_it_needs_and_no_more(machine: Machine) -> None:
    """Its account, its directories, its control group and loopback; nothing else of the host."""
    service = Service(machine, profile("demo"))
    seen = service.start()
    service.stop()
    assert seen["account"] == "servicekit"
    assert seen["writes"] == {
        "/var/lib/servicekit/demo": "yes",
        "/run/servicekit/demo": "yes",
        "/var/cache/servicekit": "No such file or directory",
        "/dev/shm": "yes",  # noqa: S108 - the service's own
        "/tmp": "yes",  # noqa: S108 - as above
        "/srv/moved": "No such file or directory",
        "/etc": "Read-only file system",
        "/usr": "Read-only file system",
        "/var/lib": "Read-only file system",
    }
    assert seen["makes a group"] == "yes"
    assert seen["reaches"] == {"127.0.0.1": "Connection refused", FOREIGN: "timed out"}
    assert seen["lists"] == {"/root": "Permission denied", "/home": "Permission denied"}
    assert set(seen["devices"]) <= {"null", "zero", "full", "random", "urandom", "tty"}
    assert seen["core"] == 0
    assert machine.path("/run/servicekit/demo/written").exists(), "the last state stays readable"


def test_shared_memory_is_fresh_for_every_run(machine: Machine) -> None:
    """What a killed run left in /dev/shm is not there for the next one, nor on the host."""
    service = Service(machine, profile("demo"))
    assert service.start()["left in shared memory"] == []
    machine.path(f"{service.home}/seen.json").unlink()
    machine.run("systemctl", "kill", "--signal=KILL", service.unit)
    seen = machine.path(f"{service.home}/seen.json")
    machine.wait_until(seen.exists, LIMIT, "the next run has looked around")
    service.becomes("active")
    assert service.seen()["left in shared memory"] == []
    assert not machine.path("/dev/shm/written").exists()  # noqa: S108 - the machine's
    service.stop()


def test_the_devices_are_the_gpus_and_no_other(machine: Machine) -> None:
    """A GPU's node can be opened, here that of WSL2, and one that nobody named cannot."""
    for path, number in (("/dev/dxg", "229"), ("/dev/other", "200")):
        machine.run("mknod", "-m", "666", path, "c", "10", number)
    try:
        service = Service(machine, profile("balanced"))
        opened = service.start()["opens"]
        service.stop()
        outside = machine.run("sh", "-c", "exec 3<>/dev/other", check=False).stderr
    finally:
        machine.run("rm", "/dev/dxg", "/dev/other")
    refusal = "Operation not permitted"
    assert (opened["/dev/other"], refusal in outside) == (refusal, False)
    # Whether the kernel has a driver for it is another matter.
    assert opened["/dev/dxg"] in {"yes", "No such device", "No such device or address"}


def test_nothing_that_it_starts_gains_privileges(machine: Machine) -> None:
    """A set-user-ID program that makes anybody root makes the service nothing."""
    machine.run("install", "-m", "4755", "/usr/bin/id", "/opt/become")
    whom = machine.run("/opt/become", "-un", user="servicekit").stdout
    service = Service(machine, profile("demo"))
    seen = service.start()
    service.stop()
    machine.run("rm", "/opt/become")
    assert (whom, seen["is to set-user-ID programs"]) == ("root\n", "servicekit\n")


def test_no_line_of_a_start_is_lost_to_a_rate_limit(machine: Machine) -> None:
    """Where the journal drops what others say too quickly, an engine's last words arrive."""
    limits, much = "/etc/systemd/journald.conf.d/zz.conf", 1000
    machine.write(limits, "[Journal]\nRateLimitIntervalSec=30s\nRateLimitBurst=10\n")
    machine.run("systemctl", "restart", "systemd-journald")
    try:
        chatty = f"[Service]\nType=oneshot\nExecStart=/usr/bin/seq -f line\\x20%%g {much}\n"
        machine.write("/etc/systemd/system/chatty.service", chatty)
        machine.run("systemctl", "start", "chatty")
        service = Service(machine, profile("demo"))
        machine.run("install", "-d", "-o", "servicekit", service.home)
        machine.write(f"{service.home}/chatter", str(much), mode=0o666)
        service.start()
        service.stop()

        def lines(unit: str) -> int:
            machine.run("journalctl", "--sync")
            return sum(said.startswith("line ") for said in machine.messages(unit))

        machine.wait_until(lambda: lines(service.unit) == much, LIMIT, "every line is there")
        assert lines("chatty") < much / 2
    finally:
        machine.run("rm", limits)
        machine.run("systemctl", "restart", "systemd-journald")


def test_the_profile_opens_what_it_needs(machine: Machine) -> None:
    """Network, homes, further paths and secrets, each by its own key."""
    machine.path("/srv/moved").mkdir()
    machine.run("chown", "servicekit", "/srv/moved")
    machine.run("install", "-d", "-m", "700", "/etc/servicekit/secrets/demo")
    machine.write("/etc/servicekit/secrets/demo/API_KEY", "it's secret\n", mode=0o600)
    opened = profile(
        "demo",
        secrets=["API_KEY"],
        service={"network": "internet", "home": "read-only", "read_write": ["/srv/moved"]},
    )
    service = Service(machine, opened)
    seen = service.start()
    service.stop()
    assert seen["reaches"][FOREIGN] == "Connection refused"
    assert seen["lists"]["/home"] == "yes"
    assert seen["writes"]["/srv/moved"] == "yes"
    assert seen["secrets"] == {"API_KEY": "it's secret\n"}


def test_a_place_that_was_moved_is_the_services_own(machine: Machine) -> None:
    """The settings may put the cache on another disk, where a service that downloads writes."""
    moved = replace(SYSTEM, cache=PurePosixPath("/srv/moved"))
    service = Service(machine, profile("demo", service={"network": "internet"}), moved)
    machine.run("install", "-d", "-o", "servicekit", "/srv/moved")
    seen = service.start()
    service.stop()
    assert seen["writes"]["/srv/moved"] == "yes"


def test_a_missing_secret_fails_once_and_is_not_tried_again(machine: Machine) -> None:
    """systemd's own exit code 243 is among those that prevent a restart."""
    service = Service(machine, profile("demo", secrets=["ABSENT"]))
    machine.run("systemctl", "start", service.unit, check=False)
    assert machine.show(service.unit, "ActiveState") == "failed"
    assert machine.show(service.unit, "ExecMainStatus") == "243"
    assert machine.show(service.unit, "NRestarts") == "0"


@pytest.mark.parametrize(
    ("code", "state", "alerted"),
    [(0, "inactive", False), (69, "failed", True), (78, "failed", True)],
)
def test_an_exit_code_that_says_stay_down_is_obeyed(
    machine: Machine, code: int, state: str, *, alerted: bool
) -> None:
    """A stop is a stop; what an operator must mend stays failed, and the operator is told."""
    service = Service(machine, profile("demo"))
    service.start()
    alert = f"servicekit-alert@{service.unit}"

    def alerts() -> list[str]:
        return [line for line in machine.messages(alert) if line.startswith("alert ")]

    before = len(alerts())
    service.end(code)
    service.becomes(state)
    assert machine.show(service.unit, "NRestarts") == "0"
    if alerted:
        (line,) = machine.wait_until(lambda: alerts()[before:], LIMIT, "the alert was sent")
        _, name, uid, reads, writes = line.split(" ", 4)
        assert (name, reads, writes) == ("demo", "yes", "Permission denied")
        assert int(uid) != int(machine.run("id", "--user", "servicekit").stdout)
        machine.wait_until(
            lambda: machine.show(alert, "Result") == "success", LIMIT, "the alert ended well"
        )
    else:
        assert alerts()[before:] == []


def test_services_of_one_account_keep_their_files_apart(machine: Machine) -> None:
    """One engine opens no process of another, reads no credential and writes none of its state."""
    secret = SYSTEM.secret("demo", "API_KEY")
    machine.write(secret, "of demo", 0o600)
    services = [
        Service(machine, profile("demo", secrets=["API_KEY"])),
        Service(machine, profile("mtp")),
    ]
    services[0].start()
    assert services[0].seen()["secrets"] == {"API_KEY": "of demo"}
    seen = services[1].start()
    for service in services:
        service.stop()
    assert seen["account"] == "servicekit"
    assert seen["others"] == ["its process is seen"]


def test_the_exposure_of_every_unit_is_at_most_2(machine: Machine) -> None:
    """`systemd-analyze security` gives each unit of an install 2.0 of 10 or less."""
    service = Service(machine, profile("balanced"))
    for unit in (service.unit, f"servicekit-alert@{service.unit}", "servicekit-boot.service"):
        done = machine.run("systemd-analyze", "security", "--threshold=20", unit, check=False)
        assert done.returncode == 0, f"{unit}: {done.stdout}"


@pytest.mark.parametrize("code", [75, 1])
def test_any_other_exit_is_followed_by_a_new_run(machine: Machine, code: int) -> None:
    """The code that asks for it, and that of a watchdog that broke."""
    service = Service(machine, profile("demo"))
    service.start()
    pid = machine.show(service.unit, "MainPID")
    service.end(code)
    machine.wait_until(
        lambda: machine.show(service.unit, "MainPID") not in {pid, "0"}, LIMIT, "a new run"
    )
    service.becomes("active")
    assert machine.show(service.unit, "NRestarts") == "1"
    service.stop()


def test_a_rival_is_stopped_before_the_other_starts(machine: Machine) -> None:
    """Of two that exclude each other the one asked for last runs, whichever was installed last."""
    services = {name: Service(machine, profile(name)) for name in ("demo", "mtp")}
    services["mtp"].install(profile("mtp"), rivals=("demo",))
    for old, new in (("demo", "mtp"), ("mtp", "demo")):
        services[old].start()
        services[new].start()
        assert machine.show(services[old].unit, "ActiveState") == "inactive"
        said = [
            (entry["UNIT"], entry["MESSAGE"].split()[0])
            for entry in machine.journal("", _PID="1")
            if entry.get("UNIT") in {services[old].unit, services[new].unit}
        ]
        stopped = len(said) - said[::-1].index((services[old].unit, "Stopped"))
        assert said[stopped:] == [(services[new].unit, "Starting"), (services[new].unit, "Started")]
        services[new].stop()


def test_the_target_starts_and_stops_every_service(machine: Machine) -> None:
    """`systemctl start` and `stop` of servicekit.target need no list of profiles."""
    services = [Service(machine, profile(name)) for name in ("demo", "mtp")]
    units = [service.unit for service in services]
    machine.run("systemctl", "enable", *units)
    machine.run("systemctl", "start", "servicekit.target")
    for service in services:
        service.becomes("active")
    machine.run("systemctl", "stop", "servicekit.target")
    assert {machine.show(unit, "ActiveState") for unit in units} == {"inactive"}
    machine.run("systemctl", "disable", *units)


def test_a_users_own_systemd_runs_the_unit(machine: Machine) -> None:
    """As a user's service it is ready, delegated, restarted and reported just the same."""
    machine.run("useradd", "--create-home", "ada")
    machine.run("systemctl", "start", "dbus.service", "systemd-logind.service")
    machine.run("loginctl", "enable-linger", "ada")
    uid = int(machine.run("id", "--user", "ada").stdout)
    machine.wait_until(
        lambda: machine.show(f"user@{uid}.service", "ActiveState") == "active",
        LIMIT,
        "ada's systemd",
    )
    home, unit = "/home/ada/.local/state/servicekit/demo", "servicekit-demo.service"
    of = plan("demo", user_places("/home/ada", uid, {}), servicekit=STAND_IN)
    for artifact in artifacts(of, ManagerName.SYSTEMD):
        if artifact.mode != LINK:
            machine.write(artifact.path, artifact.text, artifact.mode)
    machine.path(home).mkdir(parents=True)
    machine.run("chown", "--recursive", "ada:", "/home/ada")

    def order(*words: str) -> str:
        environment = {"XDG_RUNTIME_DIR": f"/run/user/{uid}"}
        return machine.run(
            "systemctl", "--user", *words, user="ada", env=environment
        ).stdout.strip()

    order("daemon-reload")
    # As at the start of ada's systemd: it starts what is enabled once all else is up.
    order("enable", unit)
    order("start", "servicekit-boot.service")
    shown = ("show", "--value", "--property=ActiveState", unit)
    machine.wait_until(lambda: order(*shown) == "active", LIMIT, "ada's service")
    seen = json.loads(machine.path(f"{home}/seen.json").read_text())
    assert (seen["account"], seen["makes a group"], seen["core"]) == ("ada", "yes", 0)
    machine.path(f"{home}/order").write_text("75")
    restarted = ("show", "--value", "--property=NRestarts", unit)
    machine.wait_until(lambda: order(*restarted) == "1", LIMIT, "a new run")
    machine.path(f"{home}/order").write_text("78")
    machine.wait_until(machine.path(f"{home}/alert").exists, LIMIT, "the alert was given")
    assert order(*shown) == "failed"


def test_the_catalog_is_taken_by_the_journal(machine: Machine) -> None:
    """`journalctl -x` finds the explanation of a cause by its message id."""
    Service(machine, profile("demo"))
    machine.run("journalctl", "--update-catalog")
    text = machine.path("/usr/local/lib/systemd/catalog/servicekit.catalog").read_text()
    identifier = text.partition("\n-- ")[2][:32]
    shown = machine.run("journalctl", "--dump-catalog", identifier).stdout
    assert "Defined-By: servicekit" in shown
    assert "What helps:" in shown


NUMBERS = itertools.count()
PART = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cn")), min_size=1, max_size=9
)
PATH = st.one_of(PART, st.lists(st.sampled_from(" '\"\\%$;:#-"), min_size=1).map("".join))


@settings(deadline=None, max_examples=20, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    names=st.lists(
        PATH.filter(lambda name: "/" not in name and name not in {".", ".."}), min_size=1
    )
)
def test_systemd_opens_the_paths_that_were_written(machine: Machine, names: list[str]) -> None:
    """A list of paths is read back as it was: each can be written to, and nothing beside."""
    base = f"/srv/paths-{next(NUMBERS)}"
    paths = [f"{base}/{name}" for name in names]
    for path in paths:
        machine.path(path).mkdir(parents=True, exist_ok=True)
    unit = f"paths-{next(NUMBERS)}.service"
    opened = "".join(f"ReadWritePaths={systemd_path(path)}\n" for path in paths)
    touch = systemd_words(["/bin/touch", *(f"{path}/file" for path in paths)])
    closed = systemd_words(["/bin/touch", f"{base}/file"])
    machine.write(
        f"/run/systemd/system/{unit}",
        f"[Service]\nType=oneshot\nProtectSystem=strict\n{opened}ExecStart={touch}\n"
        f"ExecStart=-{closed}\n",
    )
    machine.run("systemctl", "start", unit)
    assert all(machine.path(f"{path}/file").exists() for path in paths)
    assert not machine.path(f"{base}/file").exists()
