"""The whole product on a real GPU: a real systemd, a hardened unit, a server of two processes.

It needs root, systemd's files, and torch, transformers, fastapi and uvicorn beside servicekit:

    pytest -s tests/gpu

With `-s` it shows what a user of the service sees.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
import tomli_w
from machines.systemd import PREFIX, TESTS_INSIDE, Machine, why_not
from machines.waiting import wait_until

from servicekit.host.gpu import Gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

ACCOUNT: Final = "servicekit"
SOMEBODY: Final = "ada"
MODEL: Final = "lab/counting"
HUB: Final = "/var/cache/servicekit/huggingface/hub"
PYTHON: Final = str(PREFIX / "bin/python")
PROGRAMS: Final = TESTS_INSIDE / "gpu"
DEVICE = "cuda"
WORKER: Final = 2048
"""MiB of the server's second process."""
STRANGER: Final = 3072
"""MiB, above what a desktop is allowed."""
ALLOWANCE: Final = 128
"""MiB within which the memory in use is what it was."""
GPU_WAIT: Final = 15.0
START_LIMIT: Final = 120.0
"""Seconds for a server to be ready: CUDA's first start on a machine reads gigabytes."""
LIMIT: Final = 30.0
"""Seconds for what takes one or two where nobody else is busy."""
EXPOSURE: Final = 25
"""What `systemd-analyze security` may say at most, in tenths."""


LOOK: Final = """
import asyncio
from servicekit.host.gpu import Gpus
from servicekit.watchdog.gpu_holders import sees_whole_host
async def look():
    gpus = Gpus(["0"])
    for device in (await gpus.look()).devices:
        print(device.name, device.pci, f"{device.used} of {device.total} MiB in use")
        print("MiB by pid:", dict(device.processes))
    gpus.close()
asyncio.run(look())
print("all processes of the host are seen:", sees_whole_host())
"""
"""What the driver says inside: a machine of its own pid namespace."""


def server(device: str, mib: int) -> list[str]:
    """Give the arguments of a server whose worker holds so much."""
    words = [str(PROGRAMS / "server.py"), device, str(mib), "{model}", "--host", "{host}"]
    return [*words, "--port", "{port}"]


def profile(**changes: object) -> dict[str, Any]:
    """Give a site's profile of the server, with every bound short."""
    in_home = sys.base_prefix.startswith(("/root/", "/home/"))
    recipe: dict[str, Any] = {
        "summary": "transformers' server on a real GPU",
        "engine": "openai",
        "executable": PYTHON,
        "model": MODEL,
        "served_name": MODEL,
        "port": 18970,
        "gpus": ["0"],
        "arguments": server(DEVICE, WORKER),
        "context": {"requested": 1024},
        # The model counts on from the colon that its template ends with.
        "probe": {"expect": "^;<=>", "deadline": 10},
        "start": {"stall": 100, "limit": 110, "gpu_wait": GPU_WAIT},
        "watch": {"interval": 2, "stall": 8, "survey": 2},
        "stop": {"grace": 5, "kill": 5, "settle": 20},
        "service": {"home": "read-only" if in_home else "hidden"},
    }
    return recipe | changes


def show(title: str, text: str) -> None:
    """Print what a user sees."""
    sys.stdout.write(f"\n==== {title}\n{text.strip()}\n")
    sys.stdout.flush()


class Card:
    """The first GPU, looked at from outside."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._gpus = Gpus(["0"])
        self.idle = self.used()
        """MiB in use when nobody of ours was there yet."""

    def used(self) -> int:
        """Ask how many MiB are in use."""
        look = self._loop.run_until_complete(self._gpus.look())
        assert look.devices, look.note
        used = look.devices[0].used
        assert used is not None, "this GPU shares its memory with the CPU"
        return used

    def wait_idle(self) -> float:
        """Wait until all memory is back, and tell how many milliseconds that took."""
        began = time.monotonic()
        wait_until(lambda: self.used() <= self.idle + ALLOWANCE, LIMIT, "the memory is back")
        return (time.monotonic() - began) * 1000

    def close(self) -> None:
        """Let the driver go."""
        self._gpus.close()
        self._loop.close()


class Service:
    """An installed profile."""

    def __init__(self, machine: Machine, name: str, **changes: object) -> None:
        self.machine = machine
        self.name = name
        self.unit = f"servicekit-{name}.service"
        machine.write(f"/etc/servicekit/profiles.d/{name}.toml", tomli_w.dumps(profile(**changes)))
        said = machine.run("servicekit", "install", name, "--no-enable", "--trust")
        show(f"servicekit install {name} --no-enable --trust", said.stdout + said.stderr)

    def add(self, text: str) -> None:
        """Add to the unit, as an administrator does."""
        self.machine.write(f"/etc/systemd/system/{self.unit}.d/test.conf", text)
        self.machine.run("systemctl", "daemon-reload")

    def order(self, verb: str, *words: str, check: bool = True) -> str:
        """Give a servicekit order about it, and what that printed."""
        done = self.machine.run(
            "servicekit", verb, self.name, *words, check=check, limit=START_LIMIT
        )
        show(f"servicekit {verb} {' '.join([self.name, *words])}", done.stdout + done.stderr)
        return done.stdout

    def state(self) -> dict[str, Any]:
        """Read what is published."""
        try:
            text = self.machine.path(f"/run/servicekit/{self.name}/state.json").read_text()
        except FileNotFoundError:
            return {}
        said: dict[str, Any] = json.loads(text)
        return said

    def wait(self, state: str, *, after: str = "", limit: float = START_LIMIT) -> dict[str, Any]:
        """Wait for a published state, of a later run than `after`."""

        def seen() -> dict[str, Any]:
            said = self.state()
            return said if said.get("state") == state and said["run"] != after else {}

        try:
            return wait_until(seen, limit, f"{self.name} is {state}")
        except AssertionError:
            show("the journal", self.journal("-u", self.unit))
            raise

    def journal(self, *chosen: str) -> str:
        """Give the journal, to the microsecond."""
        return self.machine.run("journalctl", "-b", "-o", "short-precise", *chosen).stdout

    def told(self) -> str:
        """Give the watchdog's own lines of the journal."""
        return self.journal(f"SERVICEKIT_PROFILE={self.name}")

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Read the ledger."""
        said = self.machine.run("servicekit", "history", self.name, "--json").stdout
        return [record for record in json.loads(said) if record["kind"] == kind]

    def processes(self) -> dict[int, str]:
        """Give what runs as the service's account: command lines by pid."""
        said = self.machine.run("ps", "-u", ACCOUNT, "-o", "pid=,args=", check=False).stdout
        rows = (line.split(maxsplit=1) for line in said.splitlines())
        return {int(pid): command for pid, command in rows}

    def one(self, what: str) -> int:
        """Find the one process with `what` in its command line."""

        def found() -> list[int]:
            return [pid for pid, command in self.processes().items() if what in command]

        (pid,) = wait_until(found, LIMIT, what)
        return pid

    def remove(self) -> None:
        """Stop it and remove it."""
        show(f"{self.name}: history", self.machine.run("servicekit", "history", self.name).stdout)
        show(f"{self.name}: what the watchdog told the journal", self.told())
        self.machine.run("servicekit", "uninstall", self.name, "--purge", limit=START_LIMIT)


@pytest.fixture(scope="module")
def card() -> Iterator[Card]:
    """Look at the GPU before anybody of ours is there."""
    card = Card()
    show("the GPU", f"{card.idle} MiB in use when idle")
    yield card
    card.close()


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """Give a machine with a GPU, and a model that its service's account has fetched."""
    if reason := why_not():
        pytest.skip(reason)
    for needed in ("torch", "transformers", "fastapi", "uvicorn"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"needs {needed}")
    machine = Machine()
    try:
        machine.boot()
        for name in (ACCOUNT, SOMEBODY):
            machine.run("useradd", "--system", "--no-create-home", name)
        machine.run("install", "-d", "-o", ACCOUNT, "-g", ACCOUNT, "/var/cache/servicekit")
        making = [PYTHON, str(PROGRAMS / "model.py"), HUB, MODEL]
        machine.run(*making, user=ACCOUNT, env={"HOME": "/tmp"}, limit=START_LIMIT)  # noqa: S108 - inside
        names = json.dumps(["life", "patient", "orphans", "slow"])
        machine.write("/etc/servicekit/servicekit.toml", f"allow = {names}\n")
        yield machine
    finally:
        machine.remove()


@pytest.fixture
def service(machine: Machine) -> Iterator[Callable[..., Service]]:
    """Give a function that installs a profile for one test."""
    installed: list[Service] = []

    def install(name: str, **changes: object) -> Service:
        installed.append(Service(machine, name, **changes))
        return installed[-1]

    yield install
    for each in installed:
        each.remove()


@contextmanager
def stranger(machine: Machine) -> Iterator[int]:
    """Have somebody else hold memory through torch; give the pid."""
    holder = str(PROGRAMS / "holder.py")
    started = machine.spawn(PYTHON, holder, DEVICE, str(STRANGER), user=SOMEBODY)
    assert started.stdout is not None
    with started.stdout as said:
        pid = int(said.readline())
        try:
            yield pid
        finally:
            machine.run("kill", "-9", str(pid))
            started.wait(LIMIT)


def test_the_whole_life_of_a_service(
    machine: Machine, card: Card, service: Callable[..., Service]
) -> None:
    """Start, crash, hang, a stranger, stop: each is seen, told and mended, and nothing is left."""
    life = service("life")
    security = machine.run("systemd-analyze", "security", f"--threshold={EXPOSURE}", life.unit)
    show("systemd-analyze security", security.stdout.splitlines()[-1])
    verified = machine.run("systemd-analyze", "verify", life.unit, check=False)
    show("systemd-analyze verify (silence is agreement)", verified.stdout + verified.stderr)

    life.order("start")
    first = life.wait("ready")
    held = card.used() - card.idle
    assert held >= WORKER
    show("VRAM in use when ready", f"{held} MiB above idle")
    life.order("status")
    show("its processes", "\n".join(f"{pid} {args}" for pid, args in life.processes().items()))
    show("the driver, asked by the account", machine.run(PYTHON, "-c", LOOK, user=ACCOUNT).stdout)
    watcher = life.one("gpu_child.py events")
    fields = "^(Uid|NoNewPrivs|Seccomp|CapBnd):"
    sandbox = machine.run("grep", "-E", fields, f"/proc/{watcher}/status")
    show("the child that hears of Xids is in the sandbox", sandbox.stdout)

    worker = life.one("holder.py")
    machine.run("kill", "-9", str(first["engine_pid"]))
    back = card.wait_idle()
    show("VRAM back after SIGKILL of the engine, its worker swept", f"{back:.0f} ms")
    second = life.wait("ready", after=first["run"])
    assert worker not in life.processes()
    assert life.records("fault")[-1]["cause"] == "outside-kill"

    machine.run("kill", "-STOP", str(second["engine_pid"]))
    third = life.wait("ready", after=second["run"])
    assert life.records("fault")[-1]["cause"] == "hung"

    with stranger(machine) as pid:
        ailing = life.wait("degraded", limit=LIMIT)
        show("status, with a stranger beside it", ailing["why"])
        assert f"pid {pid} ({SOMEBODY}" in ailing["why"]
    life.wait("ready", limit=LIMIT)
    assert life.state()["run"] == third["run"]

    doctor = machine.run("servicekit", "doctor", "life", check=False)
    show("servicekit doctor life", doctor.stdout + doctor.stderr)
    life.order("stop")
    show("VRAM back after the stop", f"{card.wait_idle():.0f} ms, {card.used()} MiB in use")
    assert life.processes() == {}
    assert machine.run("ss", "-ltnH", "sport = :18970").stdout == ""


def test_a_stranger_is_named_and_waited_for(
    machine: Machine, card: Card, service: Callable[..., Service]
) -> None:
    """While somebody else has the memory nothing is launched: it waits, gives up, and says so."""
    patient = service("patient")
    with stranger(machine) as pid:
        patient.order("start", "--no-wait")
        named = f"held by pid {pid} ({SOMEBODY}"
        wait_until(lambda: named in patient.state().get("why", ""), GPU_WAIT, named)
        show("status, while it waits", patient.state()["why"])
    ready = patient.wait("ready")
    patient.order("stop")
    card.wait_idle()

    with stranger(machine) as pid:
        patient.order("start", check=False)
        gone = patient.wait("failed", after=ready["run"])
        patient.order("status")
        ended = patient.records("gone")[-1]
        show("the end of that run, in the ledger", json.dumps(ended, indent=1))
        assert (ended["cause"], ended["code"]) == ("vram-busy", 69)
        assert f"pid {pid} ({SOMEBODY}" in gone["why"]
        assert machine.show(patient.unit, "ExecMainStatus") == "69"
        assert machine.show(patient.unit, "NRestarts") == "0"
        assert machine.run("pgrep", "-u", SOMEBODY, "python").stdout.split() == [str(pid)]
    card.wait_idle()


@pytest.mark.parametrize("kills", ["process", "mixed"])
def test_a_killed_watchdog_leaves_nothing_to_the_next_run(
    machine: Machine, card: Card, service: Callable[..., Service], kills: str
) -> None:
    """Where the manager kills only its own child, as Supervisor does, it is the next run's job."""
    orphans = service("orphans")
    orphans.add(f"[Service]\nKillMode={kills}\n")
    orphans.order("start")
    first = orphans.wait("ready")
    worker = orphans.one("holder.py")
    machine.run("kill", "-9", str(first["pid"]), str(first["engine_pid"]))
    if kills == "process":
        assert worker in orphans.processes()
    second = orphans.wait("ready", after=first["run"])
    assert worker not in orphans.processes()
    assert second["pid"] != first["pid"]
    assert "the watchdog was killed" in orphans.told()
    orphans.order("stop")
    card.wait_idle()
    # Who waits for the driver's events looks up every two seconds only.
    wait_until(lambda: not orphans.processes(), LIMIT, "nothing runs")


def test_an_engine_on_the_cpu_is_never_ready(service: Callable[..., Service]) -> None:
    """A server that answers rightly from the CPU, where a GPU was wanted, is a fault."""
    slow = service("slow", arguments=server("cpu", 64), restart={"budget": 1})
    slow.order("start", check=False)
    slow.wait("failed")
    slow.order("status")
    assert slow.records("fault")[-1]["cause"] == "cpu-fallback"
    ended = slow.records("gone")[-1]
    assert (ended["cause"], ended["code"]) == ("budget-spent", 69)


@pytest.mark.parametrize("name", ["balanced", "long-context"])
def test_a_plan_is_made_for_this_gpu(machine: Machine, name: str) -> None:
    """What a recipe does is worked out for the memory that the driver tells of."""
    done = machine.run("servicekit", "plan", name)
    show(f"servicekit plan {name}", done.stdout + done.stderr)
    assert "no GPU can be asked" not in done.stderr
