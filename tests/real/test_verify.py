"""A real model through the gates, from the command line, under both managers."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from machines.hosted import LIMIT, Host, recipe

if TYPE_CHECKING:
    from machines.supervisor import Supervisor
    from machines.systemd import Machine

pytestmark = [pytest.mark.llama, pytest.mark.timeout(900)]

TEMPLATE = Path(__file__).with_name("tool_calls.jinja")


def kept(host: Host) -> list[Any]:
    """Read what is kept of its verifications."""
    folder = host.home / "state/here/verifications"
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def outcomes(told: dict[str, Any]) -> dict[str, str]:
    """Give how each gate ended."""
    return {each["gate"]: each["outcome"] for each in told["findings"]}


def reasons(told: dict[str, Any]) -> dict[str, str]:
    """Give why each gate ended so."""
    return {each["gate"]: each["reason"] for each in told["findings"]}


@pytest.mark.supervisord
def test_a_real_model_is_verified(supervisord: Supervisor, free_port: int) -> None:
    """What does not run is started, asked by every gate, stopped again, and known as verified."""
    host = Host(supervisord, free_port, context=256)
    host.run("install", "here")
    assert host.told("status", "here")["verified"] == "not verified"
    told = host.told("verify", "here", "--repeats", "10")
    assert outcomes(told) == {
        "text": "pass",
        "thinking": "pass",
        "recall": "skip",
        "tools": "skip",
        "json": "pass",
        "vision": "skip",
        "wall": "pass",
        "stability": "pass",
        "kv-precision": "skip",
    }
    why = reasons(told)
    assert why["thinking"] == "off: no trace; on: this model has none either"
    assert why["recall"] == "256 tokens of context are too few for a hidden fact"
    assert why["tools"] == "the model's chat template does not support tools"
    assert why["vision"] == "the model reads text only"
    assert why["wall"] == "256 tokens: HTTP 400, and the next request is answered"
    assert why["stability"].startswith("10 equal answers, 2 parallel requests in between")
    assert told == kept(host)[0]
    status = host.told("status", "here")
    assert (status["state"], status["verified"]) == ("stopped", "verified")
    assert "# verified\n" in host.run("show", "here")
    host.profile(host.text.replace("deadline = 60", "deadline = 61"))
    assert host.told("status", "here")["verified"] == "changed since: profile"


@pytest.mark.supervisord
def test_what_so_small_a_model_can_do(supervisord: Supervisor, free_port: int) -> None:
    """Shown how, it calls tools, bound by a grammar; long prompts are more than it recalls."""
    options = f'chat-template-file = "{TEMPLATE}"'
    host = Host(supervisord, free_port, context=768, options=options)
    host.run("install", "here")
    only = [word for gate in ("recall", "tools", "json") for word in ("--only", gate)]
    told = host.told("verify", "here", *only, code=1)
    found = {each["gate"]: each["evidence"] for each in told["findings"]}
    assert outcomes(told) == {"recall": "fail", "tools": "pass", "json": "pass"}

    tools = found["tools"]
    assert tools["required"]["calls"] == [
        {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    ]
    assert len(tools["parallel"]["calls"]) == 2
    assert "21" in tools["multi-turn"]["content"]
    assert json.loads(found["json"]["answer"]) == {"name": "Ada", "age": 36}

    lengths = [row["prompt_tokens"] for row in found["recall"]["lengths"]]
    assert lengths == sorted(lengths)
    assert 0.9 * 720 < lengths[-1] <= 720
    assert all(row["ttft_seconds"] > 0 for row in found["recall"]["lengths"])
    assert told["longest_measured"] is None or told["longest_measured"] < lengths[-1]
    assert host.told("status", "here")["state"] == "stopped"


@pytest.mark.supervisord
def test_what_does_not_start_is_not_verified(supervisord: Supervisor, free_port: int) -> None:
    """One line says why it is not up; it is left stopped, and nothing is kept."""
    host = Host(supervisord, free_port, context=256, more='executable = "/bin/false"')
    host.run("install", "here")
    said = host.done("verify", "here", code=1).stderr.splitlines()
    assert said[-1].startswith('servicekit: "here" cannot be verified, since it is failed: ')
    status = host.told("status", "here")
    assert status["state"] in {"stopped", "failed"}
    assert status["pid"] is None
    assert kept(host) == []


@pytest.mark.supervisord
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_done(
    supervisord: Supervisor, free_port: int, number: signal.Signals
) -> None:
    """^C and SIGTERM end the asking, keep what was found, and leave the service as it was."""
    host = Host(supervisord, free_port, context=256)
    host.run("install", "here")
    runs = number is signal.SIGINT
    if runs:
        host.run("start", "here")
    asking = subprocess.Popen(
        host.argv("verify", "here", "--only", "text", "--only", "stability", "--repeats", "4000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert asking.stderr is not None
    for line in asking.stderr:
        if "[1/2] text: pass" in line:
            break
    asking.send_signal(number)
    out, err = asking.communicate(timeout=LIMIT)
    assert asking.returncode == 130, err
    assert "interrupted: 1 of 2 gates ended" in err
    assert "3 known answers" in out
    (told,) = kept(host)
    assert outcomes(told) == {"text": "pass"}
    assert not told["complete"]
    status = host.told("status", "here")
    assert status["verified"] == "not verified"
    assert status["state"] == ("ready" if runs else "stopped")
    assert ("it was not running before" in err) is not runs


@pytest.mark.systemd
def test_a_service_of_systemd_is_verified(systemd_machine: Machine) -> None:
    """Root asks a service that runs as its own account; purged, nothing of it stays."""
    machine = systemd_machine
    machine.write("/etc/servicekit/servicekit.toml", 'allow = ["here"]\n')
    machine.write("/etc/servicekit/profiles.d/here.toml", recipe(18001, 256))
    machine.run("servicekit", "install", "here")
    words = ("verify", "here", "--only", "text", "--only", "wall", "--json")
    told = json.loads(machine.run("servicekit", *words, limit=LIMIT).stdout)
    assert outcomes(told) == {"text": "pass", "wall": "pass"}
    assert machine.show("servicekit-here.service", "ActiveState") == "inactive"
    folder = "/var/lib/servicekit/here/verifications"
    (name,) = machine.run("ls", folder).stdout.split()
    assert json.loads(machine.run("cat", f"{folder}/{name}").stdout) == told
    machine.run("servicekit", "uninstall", "here", "--purge")
    assert machine.run("ls", folder, check=False).returncode != 0
