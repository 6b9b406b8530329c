"""What a hostile engine can write inside its unit, as a booted systemd sets it up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from machines.systemd import Machine

pytestmark = pytest.mark.systemd

LIMIT = 60.0
FOUND = "/var/lib/servicekit/wild/found"
# Prints each directory in which it can make a file, but not those below it.
ENGINE = f"""#!/usr/bin/env python3
import os, sys, time
found = []
for top in sorted(os.listdir("/")):
    for base, names, _ in os.walk("/" + top):
        if base in ("/proc", "/sys/fs/cgroup"):
            names.clear()
            continue
        try:
            descriptor = os.open(base, os.O_TMPFILE | os.O_WRONLY, 0o600)
        except OSError:
            continue
        os.close(descriptor)
        found.append(base)
        names.clear()
with open("{FOUND}.new", "w") as stream:
    stream.write("\\n".join(found))
os.rename("{FOUND}.new", "{FOUND}")
time.sleep(600)
"""
OWN = {
    "/var/lib/servicekit/wild",
    "/run/servicekit/wild",
    # Private, and removed at a stop.
    "/dev/shm",  # noqa: S108 - inside the unit
    "/tmp",  # noqa: S108 - inside the unit
    "/var/tmp",  # noqa: S108 - inside the unit
}


@pytest.mark.parametrize("account", ["servicekit", "root"])
def test_an_engine_writes_to_its_own_directories_only(
    systemd_machine: Machine, account: str
) -> None:
    """Not to /run, /run/lock or /var either, even as root."""
    machine = systemd_machine
    machine.write("/etc/servicekit/servicekit.toml", 'allow = ["wild"]\n')
    machine.write("/opt/wild", ENGINE, 0o755)
    machine.write(
        "/etc/servicekit/profiles.d/wild.toml",
        'extends = "demo"\nexecutable = "/opt/wild"\nport = 18931\n'
        f'[service]\nuser = "{account}"\n',
    )
    machine.run("servicekit", "install", "wild", "--no-enable", "--trust")
    try:
        machine.run("servicekit", "start", "wild", "--no-wait")
        machine.wait_until(machine.path(FOUND).exists, LIMIT, "the engine has tried")
        assert set(machine.path(FOUND).read_text().splitlines()) == OWN
    finally:
        machine.run("servicekit", "uninstall", "wild", "--purge")
