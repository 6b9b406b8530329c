"""A secret is in its file and in the engine, and in no other place that could be searched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from machines.waiting import wait_until

if TYPE_CHECKING:
    from machines.supervisor import Supervisor
    from machines.systemd import Machine

SECRET = "hf_NobodyElseMayKnowThis7"
READY_LIMIT = 120.0
"""Seconds for the demo's model to be ready on two busy cores; two are usual."""
INDISCREET = """\
#!/bin/sh
echo "Authorization: Bearer $HF_TOKEN"
exec {server} "$@"
"""
"""An engine that prints what it was given."""
PROFILE = 'extends = "demo"\nport = {port}\nexecutable = "{program}"\nsecrets = ["HF_TOKEN"]\n'
SETTINGS = """\
root = "{home}"
manager = "supervisor"
supervisor_socket = "{socket}"
allow = ["here"]
[places]
supervisor = "{include}"
"""
VERBS = (
    ("status", "here", "--json"),
    ("history", "here", "--json"),
    ("logs", "here", "-n", "100000"),
    ("show", "here", "--json"),
    ("render", "here"),
    ("diagnose", "here"),
    ("doctor", "here", "--json"),
    ("secret", "list", "here"),
)


@pytest.mark.systemd
@pytest.mark.llama
@pytest.mark.timeout(300)
def test_under_systemd_only_root_and_the_engine_have_it(fresh_machine: Machine) -> None:
    """It is searched for on the disk, in the journal, in all processes and in what we print."""
    machine = fresh_machine
    machine.boot()
    machine.write(
        "/opt/engine", INDISCREET.format(server="/usr/local/bin/servicekit-llama-server"), 0o755
    )
    profile = PROFILE.format(port=18001, program="/opt/engine")
    machine.write("/etc/servicekit/profiles.d/here.toml", profile)
    machine.write("/etc/servicekit/servicekit.toml", 'allow = ["here"]\n')
    machine.run("servicekit", "secret", "set", "here", "HF_TOKEN", text_in=f"{SECRET}\n")
    machine.run("servicekit", "install", "here", "--now", limit=READY_LIMIT)

    file = "/etc/servicekit/secrets/here/HF_TOKEN"
    assert machine.run("stat", "-c", "%a %U", file).stdout == "600 root\n"
    engine = json.loads(machine.run("servicekit", "status", "here", "--json").stdout)["engine_pid"]
    holders = found(machine, "/proc/[0-9]*/environ")
    assert holders == {f"/proc/{engine}/environ"}
    assert found(machine, "/proc/[0-9]*/environ", user="nobody") == set()
    assert found(machine, "/proc/[0-9]*/cmdline") == set()

    # A fault, too, is written down without it.
    machine.run("kill", "-9", str(engine))
    machine.wait_until(
        lambda: "SIGKILL" in machine.run("servicekit", "history", "here").stdout,
        READY_LIMIT,
        "the fault is written down",
    )
    files = found(machine, "/etc", "/usr/local", "/var", "/run", "/tmp")  # noqa: S108 - searched
    assert {path for path in files if not path.startswith("/run/credentials/")} == {file}
    assert found(machine, "/run/credentials", user="nobody") == set()
    assert any("Bearer [redacted]" in said for said in machine.messages("servicekit-here"))
    for command in (
        ("journalctl", "-o", "export"),
        ("systemctl", "show", "servicekit-here"),
        ("systemctl", "cat", "servicekit-here"),
        *(("servicekit", *words) for words in VERBS),
    ):
        done = machine.run(*command, check=False)
        assert SECRET not in done.stdout + done.stderr, command


def found(machine: Machine, *where: str, user: str = "") -> set[str]:
    """Files below `where`, patterns for the shell, in which somebody finds the secret."""
    # What searches has it in its own command line, but for this.
    search = f"grep -rlaF -f /dev/stdin {' '.join(where)} 2>/dev/null"
    done = machine.run("sh", "-c", search, user=user, text_in=SECRET, check=False)
    return set(done.stdout.splitlines())


@pytest.mark.supervisord
@pytest.mark.llama
@pytest.mark.timeout(300)
def test_under_supervisor_it_is_in_a_file_of_its_owner(
    supervisord: Supervisor, free_port: int
) -> None:
    """Neither the program, nor its log, nor any other file below the site has it."""
    home, bin_ = supervisord.home, Path(sys.executable).parent
    engine = home / "engine"
    engine.write_text(INDISCREET.format(server=bin_ / "servicekit-llama-server"))
    engine.chmod(0o755)
    (home / "profiles.d").mkdir()
    for file, text in (
        ("profiles.d/here.toml", PROFILE.format(port=free_port, program=engine)),
        (
            "servicekit.toml",
            SETTINGS.format(home=home, socket=supervisord.socket, include=supervisord.include),
        ),
    ):
        (home / file).write_text(text)
        (home / file).chmod(0o644)

    def run(*words: str, text_in: str = "") -> str:
        done = subprocess.run(
            [bin_ / "servicekit", "--user", "--config", home / "servicekit.toml", *words],
            input=text_in,
            capture_output=True,
            text=True,
            timeout=READY_LIMIT,
            check=False,
        )
        return done.stdout + done.stderr

    run("secret", "set", "here", "HF_TOKEN", text_in=f"{SECRET}\n")
    run("install", "here")
    assert "here: ready after" in run("start", "here")
    value = home / "secrets/here/HF_TOKEN"
    assert (value.stat().st_mode & 0o777, value.stat().st_uid) == (0o600, os.getuid())
    log = home / "log/here.log"
    wait_until(lambda: "Bearer [redacted]" in log.read_text(), READY_LIMIT, "its line is there")
    files = {path for path in home.rglob("*") if path.is_file()}
    assert {path for path in files if SECRET.encode() in path.read_bytes()} == {value}
    for words in VERBS:
        assert SECRET not in run(*words), words
    assert SECRET not in supervisord.ctl("status").stdout
    run("uninstall", "here", "--purge")
    assert not value.exists()
