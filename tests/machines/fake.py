"""A running `fake_engine.py` for tests: started, talked to, told to misbehave, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from machines.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PROGRAM = Path(__file__).parents[1] / "fake_engine.py"
READY_LIMIT = 20.0


class FakeEngine:
    """One fake engine on a port of its own; `script` is what it plays (see `fake_engine.py`)."""

    def __init__(self, port: int, *argv: str, **script: object) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 # closed by close()
        self._script = tempfile.NamedTemporaryFile("w+", suffix=".json")  # noqa: SIM115 # likewise
        self._write(script)
        options = ["--port", str(port), "--script", f"@{self._script.name}"]
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *argv, *options],
            stderr=self._log,
            stdin=subprocess.DEVNULL,
        )

    def _write(self, script: Mapping[str, object]) -> None:
        self._script.seek(0)
        self._script.truncate()
        json.dump(script, self._script)
        self._script.flush()

    def ask(
        self, path: str, body: object = None, *, limit: float = 10.0, key: str = ""
    ) -> tuple[int, str]:
        """Give the status and the text of an answer; `limit` is per read, in seconds."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(self.url + path, data, headers)  # noqa: S310 # loopback
        try:
            with urllib.request.urlopen(request, timeout=limit) as answer:  # noqa: S310
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    def get(self, path: str) -> Any:  # noqa: ANN401 # JSON
        """Give the parsed answer to a question."""
        return json.loads(self.ask(path)[1])

    def complete(self, *, limit: float = 10.0, **changes: object) -> tuple[int, Any]:
        """Give the status and the parsed answer to a small chat completion."""
        body = {"model": "model", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        status, text = self.ask("/v1/chat/completions", body | changes, limit=limit)
        return status, json.loads(text)

    def tell(self, **script: object) -> None:
        """Change what it plays, now."""
        status, text = self.ask("/_fault", script)
        assert status == 200, text

    def tell_by_signal(self, **script: object) -> None:
        """Change what it plays when it cannot be talked to: while it loads, or is silent."""
        self._write(script)
        self.process.send_signal(signal.SIGUSR1)

    @property
    def orphans(self) -> list[int]:
        """The pids of what it left behind."""
        pids: list[int] = self.get("/_fault")["orphans"]
        return pids

    def log(self) -> str:
        """Give what it printed so far."""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode()

    def wait_until_ready(self) -> None:
        """Wait until it is loaded and serves."""

        def serves() -> bool:
            assert self.process.poll() is None, self.log()
            try:
                return self.ask("/health", limit=1)[0] == 200
            except OSError:
                return False

        wait_until(serves, READY_LIMIT, "the fake engine serves")

    def close(self) -> None:
        """End it, and everything that it left behind, whatever state it is in."""
        family = [
            process
            for process in psutil.process_iter(["cmdline", "ppid"])
            if process.info["ppid"] == self.process.pid
            or (process.info["cmdline"] or [""])[-1] == f"of={self.process.pid}"
        ]
        self.process.kill()
        self.process.wait()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._log.close()
        self._script.close()


@pytest.fixture
def fake_engine() -> Iterator[Callable[..., FakeEngine]]:
    """Give a function that starts a fake engine and waits until it serves.

    Its arguments are those of `FakeEngine`; a free port is found, and `wait=False` does not wait.
    """
    running: list[FakeEngine] = []

    def start(*argv: str, port: int = 0, wait: bool = True, **script: object) -> FakeEngine:
        if not port:
            with socket.create_server(("127.0.0.1", 0)) as server:
                port = server.getsockname()[1]
        running.append(FakeEngine(port, *argv, **script))
        if wait:
            running[-1].wait_until_ready()
        return running[-1]

    yield start
    for engine in running:
        engine.close()
