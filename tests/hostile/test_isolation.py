"""What one engine can do to another one of the same account, as a booted systemd sets them up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from machines.systemd import Machine

pytestmark = pytest.mark.systemd

LIMIT = 60.0
TOKEN = "hf_of_the_victim"
FOUND = "/var/lib/servicekit/spy/found"
VICTIM = """#!/usr/bin/env python3
import os, time
os.makedirs(os.environ["XDG_CACHE_HOME"], exist_ok=True)
open("/var/lib/servicekit/victim/started", "w").close()
time.sleep(600)
"""
# Lists what it achieved against each process of the victim, and in its directories.
SPY = f"""#!/usr/bin/env python3
import ctypes, json, os, time
libc = ctypes.CDLL(None, use_errno=True)
def read(path):
    with open(path, "rb") as stream:
        return stream.read(1 << 20)
def memory(pid):
    start, end = read(f"/proc/{{pid}}/maps").split()[0].split(b"-")
    with open(f"/proc/{{pid}}/mem", "rb") as stream:
        stream.seek(int(start, 16))
        return stream.read(16)
def vm_readv(pid):
    class Part(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
    here = ctypes.create_string_buffer(16)
    to, at = Part(ctypes.addressof(here), 16), Part(id(here), 16)
    if libc.process_vm_readv(pid, ctypes.byref(to), 1, ctypes.byref(at), 1, 0) < 0:
        error = ctypes.get_errno()
        if error != 14:  # EFAULT: the address is wrong, the access is allowed
            raise OSError(error, "")
def attach(pid):
    if libc.ptrace(16, pid, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "")
def descriptor(pid):
    os.close(libc.syscall(438, os.pidfd_open(pid), 1, 0))
def write(path):
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
ON_PROCESS = {{
    "environ": lambda pid: read(f"/proc/{{pid}}/environ"),
    "memory": memory,
    "maps": lambda pid: read(f"/proc/{{pid}}/maps"),
    "descriptors": lambda pid: os.readlink(f"/proc/{{pid}}/fd/0"),
    "root": lambda pid: os.listdir(f"/proc/{{pid}}/root/"),
    "vm_readv": vm_readv,
    "attach": attach,
    "descriptor": descriptor,
}}
ON_FILES = {{
    "credentials": lambda: os.listdir("/run/credentials/servicekit-victim.service"),
    "credential": lambda: read("/run/credentials/servicekit-victim.service/HF_TOKEN"),
    "secret": lambda: read("/etc/servicekit/secrets/victim/HF_TOKEN"),
    "state": lambda: write("/var/lib/servicekit/victim/history.jsonl"),
    "compiled code": lambda: write("/var/lib/servicekit/victim/.cache/code.py"),
    "published state": lambda: write("/run/servicekit/victim/state.json"),
    "weights": lambda: write("/var/cache/servicekit/huggingface/weights"),
}}
def achieved(attempts, *words):
    for name, attempt in attempts.items():
        try:
            attempt(*words)
        except (OSError, ValueError):
            continue
        yield name
victims = {{}}
for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
    try:
        words = read(f"/proc/{{pid}}/cmdline")
    except OSError:
        continue
    if b"/opt/victim" in words or b"watch\\0victim" in words:
        victims[pid] = list(achieved(ON_PROCESS, pid))
result = {{
    "watchdog": list(achieved(ON_PROCESS, os.getppid())),
    "victims": victims,
    "files": list(achieved(ON_FILES)),
    "ids": [os.getuid(), os.getgid(), os.getgroups()],
}}
with open("{FOUND}.new", "w") as stream:
    json.dump(result, stream)
os.rename("{FOUND}.new", "{FOUND}")
time.sleep(600)
"""


def test_an_engine_cannot_open_another_one_of_its_account(systemd_machine: Machine) -> None:
    """It reads no memory, environment or credential, and writes nothing that the other one uses."""
    machine = systemd_machine
    machine.write("/etc/servicekit/servicekit.toml", 'allow = ["spy", "victim"]\n')
    machine.path("/var/cache/servicekit/huggingface").mkdir(parents=True)
    machine.path("/var/cache/servicekit/huggingface").chmod(0o777)
    for name, engine, port in (("victim", VICTIM, 18931), ("spy", SPY, 18932)):
        machine.write(f"/opt/{name}", engine, 0o755)
        machine.write(
            f"/etc/servicekit/profiles.d/{name}.toml",
            f'extends = "demo"\nexecutable = "/opt/{name}"\nport = {port}\n'
            'secrets = ["HF_TOKEN"]\n',
        )
        secret = f"{TOKEN if name == 'victim' else 'hf_of_the_spy'}\n"
        machine.run("servicekit", "secret", "set", name, "HF_TOKEN", text_in=secret)
        machine.run("servicekit", "install", name, "--no-enable")
    machine.run("servicekit", "start", "victim", "--no-wait")
    started = machine.path("/var/lib/servicekit/victim/started")
    machine.wait_until(started.exists, LIMIT, "the victim runs")
    machine.run("servicekit", "start", "spy", "--no-wait")
    machine.wait_until(machine.path(FOUND).exists, LIMIT, "the spy has tried")

    found = json.loads(machine.path(FOUND).read_text())
    assert found["ids"][0] == int(machine.run("id", "-u", "servicekit").stdout)
    shared = int(machine.run("id", "-g", "servicekit").stdout)
    assert found["ids"][2] == [found["ids"][1], shared] or found["ids"][2] == [shared]
    # These attempts succeed against its own watchdog.
    assert {"environ", "memory", "maps", "descriptors", "root"} <= {*found["watchdog"]}
    assert len(found["victims"]) >= 2
    assert found["victims"] == {pid: [] for pid in found["victims"]}
    assert found["files"] == []

    for name in ("spy", "victim"):
        machine.run("servicekit", "uninstall", name, "--purge")
    assert "servicekit_" not in machine.path("/etc/group").read_text()
