"""A hostile account in the models' cache, under a real systemd: root's `fetch` is led nowhere."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from machines.systemd import PREFIX, TESTS_INSIDE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines.systemd import Machine

pytestmark = pytest.mark.systemd

CONTENT = b"weights\n" * 1000
DIGEST = sha256(CONTENT).hexdigest()
NAME = "model.gguf"
FOLDER = "/var/cache/servicekit/huggingface/hub/models--owner--gguf"
SNAPSHOT = f"snapshots/{'1' * 40}"
VICTIM = "/root/victim"
HUB = f"""\
import sys, threading
sys.path.insert(0, "{TESTS_INSIDE}")
from machines.hub import Model, running
with running() as hub:
    hub.add(Model("owner/gguf", {{"{NAME}": b"weights\\n" * 1000}}))
    print(hub.url(), flush=True)
    threading.Event().wait()
"""
PROFILE = f"""\
extends = "demo"
model = "owner/gguf:{NAME}"
executable = "/bin/true"
"""


@pytest.fixture(scope="module")
def machine(systemd_machine: Machine) -> Machine:
    """A machine with the account of the services, and a profile whose model is on a hub."""
    machine = systemd_machine
    machine.write("/etc/servicekit/profiles.d/x.toml", PROFILE)
    machine.write("/etc/servicekit/servicekit.toml", 'allow = ["x"]\n')
    machine.run("useradd", "--system", "--no-create-home", "servicekit")
    return machine


@pytest.fixture(scope="module")
def hub(machine: Machine) -> Iterator[str]:
    """The address of a hub inside."""
    process = machine.spawn(PREFIX / "bin/python", "-c", HUB)
    assert process.stdout is not None
    with process.stdout:
        yield process.stdout.readline().strip()
        process.kill()
    process.wait()


@pytest.mark.parametrize(
    "plant",
    [
        f"ln -s {VICTIM} blobs/{DIGEST}.incomplete",
        f"ln -s {VICTIM} blobs/{DIGEST}",
        f"mkfifo blobs/{DIGEST}.incomplete",
        "rmdir blobs; ln -s /root blobs",
        f"mkdir refs; ln -s {VICTIM} refs/main",
        "mkdir refs; mkfifo refs/main",
        "ln -s /root refs",
        "ln -s /root snapshots",
        f"mkdir -p {SNAPSHOT} && ln -s b {SNAPSHOT}/{NAME} && ln -s {NAME} {SNAPSHOT}/b",
        f"ln -s /dev/ptmx blobs/{DIGEST}",
        f"truncate --size=1T blobs/{DIGEST}",
    ],
)
def test_nothing_in_the_cache_leads_root_elsewhere(machine: Machine, hub: str, plant: str) -> None:
    """What the account planted is replaced or refused, and `fetch` waits for nothing."""
    machine.run("rm", "-rf", "/var/cache/servicekit")
    machine.run("install", "-d", "-o", "servicekit", "/var/cache/servicekit")
    machine.write(VICTIM, "precious\n", 0o600)
    before = machine.run("ls", "-lan", "--time-style=full-iso", "/root").stdout
    script = f"mkdir -p {FOLDER}/blobs && cd {FOLDER} && {plant}"
    machine.run("sh", "-c", script, user="servicekit")

    for words in ((), ("--check",)):
        done = machine.run(
            *("servicekit", "fetch", "x", *words),
            check=False,
            env={"HF_ENDPOINT": hub},
            limit=30,
        )
        assert done.returncode in {0, 1}, done.stderr
        assert "Traceback" not in done.stderr
        assert "precious" not in done.stdout + done.stderr
    after = machine.run("ls", "-lan", "--time-style=full-iso", "/root").stdout
    assert after == before
    assert machine.path(VICTIM).read_text() == "precious\n"
