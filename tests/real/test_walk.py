"""A new user's walk on a host that is not this one: from an empty image, and back to it."""

from __future__ import annotations

import hashlib
import json
import stat
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from machines.systemd import PREFIX, SOURCE

if TYPE_CHECKING:
    from pathlib import Path

    from machines.systemd import Machine

UNIT = "servicekit-demo.service"
READY_LIMIT = 120.0
"""Seconds for the demo's model to be ready on two busy cores; two are usual."""

NOT_OURS = (
    *(f"{PREFIX}/", f"{SOURCE}/"),  # servicekit itself, which comes before and goes after
    *("/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-"),  # backups of each last edit
    *("/etc/.pwd.lock", "/etc/ld.so.cache", "/var/cache/ldconfig/"),
    *("/var/log/journal/", "/var/log/wtmp", "/var/log/lastlog", "/var/lib/systemd/"),
    *("/tmp/", "/var/tmp/"),  # noqa: S108 - the machine's
)
"""What any boot, login or account changes on a Debian, whoever asked for it."""

ACCOUNTS = {"/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow"}


def snapshot(image: Path) -> dict[str, tuple[str, int, int, str]]:
    """Every file, link and directory of an image: type and mode, owner, group, and content."""
    found = {}
    for path in image.rglob("*"):
        inside = f"/{path.relative_to(image)}"
        if inside.startswith(NOT_OURS):
            continue
        here = path.lstat()
        content = ""
        if stat.S_ISLNK(here.st_mode):
            content = str(path.readlink())
        elif stat.S_ISREG(here.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[inside] = (stat.filemode(here.st_mode), here.st_uid, here.st_gid, content)
    return found


def differences(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Paths that came, went or changed."""
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def install_into(image: Path) -> str:
    """Install the demo into an image, by the servicekit that is in it, without booting it."""
    # Units name servicekit by its path: what builds an image has it where the image will have it.
    script = (
        'mount -t overlay overlay -o "lowerdir=$1/opt:/opt" /opt && '
        'exec "$0" install demo --root "$1"'
    )
    program = PREFIX / "bin/servicekit"
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, program, image],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.systemd
@pytest.mark.llama
@pytest.mark.network
@pytest.mark.timeout(900)
def test_from_an_empty_image_and_back(fresh_debian: Machine) -> None:
    """Installed into an image, booted, used, uninstalled: nothing is left, and nothing is changed.

    The image is a Debian that was just made of packages and has been booted once, untouched.
    """
    machine, image = fresh_debian, fresh_debian.image
    machine.put_servicekit_in()
    machine.boot()
    machine.power_off()
    before = snapshot(image)

    said = install_into(image)
    assert "create   /etc/systemd/system/servicekit-demo.service" in said
    written = differences(before, snapshot(image))
    assert ACCOUNTS & written == set()
    created = {line.split()[1] for line in said.splitlines() if line.startswith("create ")}
    assert created <= written
    assert all("servicekit" in path or (image / path[1:]).is_dir() for path in written)

    # The first boot after that: it comes up by itself, under an account that is made then.
    machine.boot()
    machine.wait_until(lambda: status(machine)["state"] == "ready", READY_LIMIT, "it is ready")
    first = status(machine)
    assert machine.show(UNIT, "ActiveState") == "active"
    assert machine.show(UNIT, "StatusText").startswith("ready")
    owner = machine.run("stat", "-c", "%U", f"/proc/{first['engine_pid']}").stdout.strip()
    assert owner == "servicekit"
    assert "listening on" in machine.run("servicekit", "logs", "demo", "-n", "1000").stdout
    assert machine.run("servicekit", "probe", "demo", "--deep").stdout.startswith("healthy: ")

    assert "demo: stopped: " in machine.run("servicekit", "stop", "demo").stdout
    assert machine.show(UNIT, "ActiveState") == "inactive"
    assert "demo: ready after" in machine.run("servicekit", "start", "demo").stdout
    assert "stop-requested" in machine.run("servicekit", "history", "demo").stdout

    # What an uninstall leaves: the history, and the account that it belongs to.
    machine.run("servicekit", "uninstall", "demo")
    assert machine.show(UNIT, "LoadState") == "not-found"
    kept = differences(before, snapshot(image))
    history = {path for path in kept if path.startswith("/var/lib/servicekit")}
    assert "/var/lib/servicekit/demo/history.jsonl" in history
    assert kept - history == ACCOUNTS

    # And with --purge: nothing.
    machine.run("servicekit", "install", "demo", "--now", limit=READY_LIMIT)
    machine.run("servicekit", "uninstall", "demo", "--purge")
    machine.power_off()
    assert differences(before, snapshot(image)) == set()


def status(machine: Machine) -> dict[str, Any]:
    """What `servicekit status demo --json` says."""
    said: dict[str, Any] = json.loads(machine.run("servicekit", "status", "demo", "--json").stdout)
    return said
