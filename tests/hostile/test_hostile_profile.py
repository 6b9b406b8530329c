"""A hostile profile is shown for what it is."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import pytest
from plans import SYSTEM, profile

from servicekit.places import below
from servicekit.profiles.vocabulary import ManagerName
from servicekit.service.weakenings import weakenings

if TYPE_CHECKING:
    from pathlib import Path

    from machines.systemd import Machine

WEAKER = {
    "service": {
        "user": "root",
        "read_write": ["/etc"],
        "without": ["NoNewPrivileges"],
        "home": "read-only",
        "network": "internet",
    },
    "environment": {"LD_PRELOAD": "/opt/evil.so"},
}
AS_ROOT = "service.user: the engine and the model's code run as root"
LIBRARY = "environment: LD_PRELOAD makes the engine load code from elsewhere: /opt/evil.so"
TOML = """\
extends = "demo"
executable = "/opt/wild"
[service]
user = "root"
read_write = ["/etc"]
without = ["NoNewPrivileges"]
"""


def test_each_weakening_is_listed_with_its_consequence() -> None:
    """Each key that takes something from the unit's protection is a sentence of its own."""
    assert weakenings(profile("demo", **WEAKER), SYSTEM, ManagerName.SYSTEMD, "root") == (
        AS_ROOT,
        'service.read_write: the engine can write below "/etc"',
        "service.home: the engine can read the files of all users",
        "service.network: the engine can send data to the internet",
        LIBRARY,
        "service.without: the unit leaves out NoNewPrivileges=",
    )


def test_the_built_in_unit_has_no_weakening() -> None:
    """A profile that changes nothing of its service is not warned of."""
    assert weakenings(profile("demo"), SYSTEM, ManagerName.SYSTEMD, "servicekit") == ()


def test_the_account_of_the_command_line_counts() -> None:
    """`--user-name root` is the weakening that service.user = "root" is."""
    assert weakenings(profile("demo"), SYSTEM, ManagerName.SYSTEMD, "root") == (AS_ROOT,)


def test_under_supervisor_only_what_it_obeys_counts() -> None:
    """Supervisor has no sandbox that a profile could open."""
    found = weakenings(profile("demo", **WEAKER), SYSTEM, ManagerName.SUPERVISOR, "llm")
    assert found == (LIBRARY,)


@pytest.mark.parametrize("mode", [0o777, 0o757])
@pytest.mark.parametrize("what", ["engine", "."])
def test_a_program_that_others_can_write_counts(tmp_path: Path, what: str, mode: int) -> None:
    """It may be the program or a directory above it: both let others replace what runs."""
    folder = tmp_path / "bin"
    folder.mkdir(mode=0o755)
    program = folder / "engine"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    places = below(str(tmp_path))

    def found() -> tuple[str, ...]:
        return weakenings(profile("demo"), places, ManagerName.SYSTEMD, None, str(program))

    assert found() == ()
    (folder / what).chmod(mode)
    assert found() == (
        f'executable: every account can change what the engine runs, in "{folder / what}"',
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_a_program_of_another_account_counts(tmp_path: Path) -> None:
    """Its owner can write it, whatever its mode says."""
    program = tmp_path / "engine"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o555)
    os.chown(program, 65534, 65534)
    found = weakenings(profile("demo"), SYSTEM, ManagerName.SYSTEMD, "root", str(program))
    assert found == (
        AS_ROOT,
        f'executable: "nobody" can change what the engine runs, in "{program}"',
    )


@pytest.mark.systemd
@pytest.mark.timeout(300)
def test_a_weaker_service_is_installed_with_trust_only(systemd_machine: Machine) -> None:
    """Each new weakening is refused until --trust is given; doctor and status show those."""
    machine = systemd_machine
    machine.write("/etc/servicekit/servicekit.toml", 'allow = ["wild"]\n')
    machine.write("/etc/servicekit/profiles.d/wild.toml", TOML)
    machine.write("/opt/wild", "#!/bin/sh\nexec sleep 600\n", 0o777)
    first = (
        AS_ROOT,
        'service.read_write: the engine can write below "/etc"',
        "service.without: the unit leaves out NoNewPrivileges=",
        'executable: every account can change what the engine runs, in "/opt/wild"',
    )

    def install(*words: str) -> tuple[int, str]:
        done = machine.run("servicekit", "install", "wild", "--no-enable", *words, check=False)
        return done.returncode, done.stderr

    code, said = install()
    assert code == 1
    assert all(each in said for each in first)
    assert "in 4 ways that were not accepted yet" in said
    assert "`servicekit install wild --trust`" in said
    assert not machine.path("/etc/servicekit/installed/wild.json").exists()
    checked = machine.run("servicekit", "check", "wild", check=False)
    assert checked.returncode == 0
    assert all(each in checked.stdout for each in first)
    assert install("--trust")[0] == 0
    manifest = machine.path("/etc/servicekit/installed/wild.json")
    assert json.loads(manifest.read_text())["trusted"] == list(first)
    assert install()[0] == 0

    machine.write("/etc/servicekit/profiles.d/wild.toml", f'{TOML}network = "internet"\n')
    code, said = install()
    assert code == 1
    assert "in a way that was not accepted yet" in said
    assert install("--trust")[0] == 0

    shown = machine.run("servicekit", "status", "wild").stdout
    assert f"trusted:    {AS_ROOT}" in shown
    report = machine.run("servicekit", "doctor", "wild", "--json", check=False, limit=120).stdout
    (check,) = (each for each in json.loads(report)["checks"] if each["code"] == "protection")
    assert check["verdict"] == "ok"
    rated = re.match(r"exposure ([0-9.]+), built-in unit ([0-9.]+); trusted: ", check["what"])
    assert rated is not None
    assert float(rated[1]) > float(rated[2])
    assert float(rated[2]) <= 2
    assert AS_ROOT in check["what"]

    # A manifest of 0.1.0 has no record: what it installed stays trusted, and doctor says so.
    data = json.loads(manifest.read_text())
    del data["trusted"]
    manifest.write_text(json.dumps(data))
    report = machine.run("servicekit", "doctor", "wild", check=False, limit=120).stdout
    assert "installed before weakenings were recorded" in report
    assert install()[0] == 0
    assert len(json.loads(manifest.read_text())["trusted"]) == 5
