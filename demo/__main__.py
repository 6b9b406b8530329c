"""The whole life of a service with a real model, in a throw-away directory: `make demo`.

It needs no GPU, no root and no systemd. A private supervisord is the service manager; servicekit is
used through its console script, each command printed before its output. What is shown is checked:
the first step that does not show what it should ends the demo with one line and exit code 1.

`make demo KEEP=1` leaves the server up, and says how to talk to it and how to end it.
SERVICEKIT_PORT chooses another port.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

BIN: Final = Path(sys.executable).parent
SOCKET_PATH_LIMIT: Final = 107 - len(".4194304")
"""Bytes that the path of the socket may have.

A Unix socket's has 107 at most (unix(7)), and supervisord first appends its pid to it.
"""
STEP_LIMIT: Final = 400.0
"""Seconds for one command: more than the profile allows a start, so that servicekit ends first."""
SUPERVISORD_LIMIT: Final = 60.0
"""Seconds for supervisord to take orders, or to end with all that it runs."""
ANSWER_LIMIT: Final = 60.0
LOOK_AGAIN: Final = 0.05
INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
QUESTION: Final = "Say hello."

SETTINGS: Final = """\
root = {home}
manager = "supervisor"
supervisor_socket = {socket}
"""

# A pattern is relative to this file's own directory, and spaces would end it: no absolute path.
SUPERVISORD: Final = """\
[unix_http_server]
file = %(here)s/supervisor.sock
[supervisord]
nodaemon = true
logfile = %(here)s/supervisord.log
pidfile = %(here)s/supervisord.pid
childlogdir = %(here)s
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[include]
files = supervisor.d/*.conf
"""


class NotShownError(Exception):
    """A step did not show what it should."""


class Demo:
    """One demonstration below `home`, as whoever runs it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.config = home / "servicekit.toml"
        self.socket = home / "supervisor.sock"
        self.env = {
            # Settings that somebody has for services of their own must not reach this one.
            **{name: value for name, value in os.environ.items() if not _is_setting(name)},
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "SERVICEKIT_CONFIG": str(self.config),
        }
        self.supervisord: subprocess.Popen[bytes] | None = None

    # What a user would type.

    def shown(self, command: str, *wanted: str) -> str:
        """Run a command line, showing it and what it says; every pattern of `wanted` must be there.

        Return what it said.
        """
        print(f"{_bold(f'$ {command}')}", flush=True)
        said = self._run(command, show=True)
        for pattern in wanted:
            if not re.search(pattern, said):
                raise NotShownError(f'`{command}` did not show "{pattern}"')
        return said

    def asked(self, command: str) -> Any:  # noqa: ANN401 - JSON
        """Run a command line that prints JSON, without showing it."""
        return json.loads(self._run(command, show=False))

    def _run(self, command: str, *, show: bool) -> str:
        said: list[str] = []
        with subprocess.Popen(
            ["sh", "-c", command],  # noqa: S607 - as whoever types it has it
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if show else None,
            text=True,
            # A group of its own, so that what the shell started ends with it.
            process_group=0,
        ) as process:
            end = partial(os.killpg, process.pid, signal.SIGKILL)
            alarm = threading.Timer(STEP_LIMIT, end)
            alarm.start()
            try:
                for line in process.stdout or ():
                    said.append(line)
                    if show:
                        print(line, end="", flush=True)
            except BaseException:
                end()
                raise
            finally:
                alarm.cancel()
        if process.returncode != 0:
            raise NotShownError(f"`{command}` ended with exit code {process.returncode}")
        return "".join(said)

    # The steps.

    def write_settings(self) -> None:
        """Write the settings of servicekit and of supervisord."""
        if len(os.fsencode(self.socket)) > SOCKET_PATH_LIMIT:
            raise NotShownError(
                f'"{self.socket}" is too long for a socket; set TMPDIR to a shorter directory'
            )
        # TOML's basic strings are JSON's.
        text = SETTINGS.format(home=json.dumps(str(self.home)), socket=json.dumps(str(self.socket)))
        _write(self.config, text)
        _write(self.home / "supervisord.conf", SUPERVISORD)
        (self.home / "supervisor.d").mkdir(mode=0o755)

    def start_supervisord(self) -> None:
        """Start the service manager, out of reach of this terminal's ^C."""
        _say("Start a private service manager in a temporary directory.")
        settings, conf = shlex.quote(str(self.config)), self.home / "supervisord.conf"
        print(_bold(f"$ export PATH={shlex.quote(str(BIN))}:$PATH SERVICEKIT_CONFIG={settings}"))
        self.shown('cat "$SERVICEKIT_CONFIG"')
        print(_bold(f"$ supervisord -c {shlex.quote(str(conf))} &"), flush=True)
        with (self.home / "supervisord.out").open("wb") as out:
            self.supervisord = subprocess.Popen(
                [BIN / "supervisord", "-c", conf],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        for _ in _looks(SUPERVISORD_LIMIT, "supervisord did not take orders"):
            if self.supervisord.poll() is not None:
                said = (self.home / "supervisord.out").read_text(errors="replace")
                raise NotShownError(f"supervisord ended: {''.join(said.splitlines()[:1])}")
            if self.socket.exists():
                return

    def start(self) -> dict[str, Any]:
        """Make the profile a service, start it, and see how it is."""
        _say("Install a profile as a service.")
        self.shown("servicekit --user install demo", "create .*/wrappers/demo")
        _say("Start it. Ready means that the right model gave a real answer.")
        said = self.shown("servicekit --user start demo", "demo: ready after")
        phases = set(re.findall(r"^demo: starting: (.+)", said, re.MULTILINE))
        if len(phases) < 2:  # noqa: PLR2004 - one phase is no progress
            raise NotShownError("the start did not show its phases")
        _say("Show its status, with the context that is requested, declared and available.")
        self.shown(
            "servicekit --user status demo",
            r"demo: ready",
            r"context: +requested \d+, declared \d+, physical \d+, effective \d+ tokens",
        )
        return self.status()

    def status(self) -> dict[str, Any]:
        """How the service is, for a program."""
        found: dict[str, Any] = self.asked("servicekit --user status demo --json")
        return found

    def ask(self, url: str, model: str) -> None:
        """Ask it something, as any client of OpenAI's API does."""
        _say("Ask the model, as any OpenAI client does.")
        body = _request(model, tokens=32)
        print(_bold(f"POST {url}/chat/completions"))
        print(json.dumps(body), flush=True)
        request = urllib.request.Request(  # noqa: S310 - http on loopback
            f"{url}/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(request, timeout=ANSWER_LIMIT) as reply:
                answer = json.load(reply)
        except OSError as error:
            raise NotShownError(f"the service did not answer: {error}") from None
        text, tokens = answer["choices"][0]["message"]["content"], answer["usage"]
        print(f"{answer['model']}: {text.strip()}")
        prompt, completion = tokens["prompt_tokens"], tokens["completion_tokens"]
        print(f"({prompt} prompt tokens, {completion} completion tokens)")
        if not text.strip():
            raise NotShownError("the answer is empty")

    def crash(self, engine: int, run: str) -> None:
        """Kill the engine, and see it noticed, explained and made good."""
        _say("Kill the engine.")
        print(_bold(f"$ kill -9 {engine}"), flush=True)
        killed = datetime.now().astimezone()
        os.kill(engine, signal.SIGKILL)
        noticed = self._noticed(run)
        print(f"(detected after {(noticed - killed).total_seconds() * 1000:.0f} ms)")
        self.shown("servicekit --user logs demo | grep cause=outside-kill", "SIGKILL")
        _say("Supervisor starts the next watchdog, which starts the next engine.")
        self.shown("servicekit --user start demo", "demo: ready after")
        self.shown("servicekit --user history demo", r"\b75 +outside-kill")
        self.shown("servicekit --user probe demo --deep", "^healthy: ")
        if self.status()["engine_pid"] == engine:
            raise NotShownError("the engine that was killed is still the engine")

    def _noticed(self, run: str) -> datetime:
        """When the end of the engine of `run` was written down."""
        for _ in _looks(ANSWER_LIMIT, "the end of the engine was not noticed"):
            for record in self.asked("servicekit --user history demo --json"):
                if record["run"] == run and record["kind"] == "fault":
                    return datetime.fromisoformat(record["at"])
        raise AssertionError

    def stop(self, port: int) -> None:
        """Stop it and take everything away again."""
        _say("Stop it, and check that nothing is left.")
        self.shown("servicekit --user stop demo", "^demo: stopped")
        left = self.left()
        if left:
            raise NotShownError(f"left behind: {'; '.join(left)}")
        if not _is_free(port):
            raise NotShownError(f"port {port} is still taken")
        print(f"(no process is left, and port {port} is free)", flush=True)
        self.shown("servicekit --user history demo", r"\b0 +stop-requested")
        self.shown("servicekit --user uninstall demo --purge", "remove .*/wrappers/demo")

    def left(self) -> list[str]:
        """Name every process but supervisord that has this home in its environment or arguments."""
        known = {os.getpid(), self.supervisord.pid if self.supervisord else 0}
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                arguments = (entry / "cmdline").read_bytes()
                words = arguments + (entry / "environ").read_bytes()
            except OSError:  # gone meanwhile, or of another account
                continue
            if int(entry.name) not in known and os.fsencode(self.home) in words:
                command = arguments.replace(b"\0", b" ").decode(errors="replace").strip()
                found.append(f"pid {entry.name} ({command})")
        return found

    def end_supervisord(self) -> None:
        """End the service manager, and whatever it still runs."""
        if self.supervisord is None or self.supervisord.poll() is not None:
            return
        self.supervisord.terminate()
        try:
            self.supervisord.wait(SUPERVISORD_LIMIT)
        except subprocess.TimeoutExpired:
            self.supervisord.kill()
            self.supervisord.wait()
            raise NotShownError(f"supervisord did not end; {self.left()}") from None

    def show_commands(self, url: str, model: str) -> None:
        """Print the commands to query and to stop the server that keeps running."""
        _say("It keeps running. Ask it something:")
        supervisord = (self.home / "supervisord.pid").read_text().strip()
        print(
            f"  curl {url}/chat/completions -H 'Content-Type: application/json' "
            f"-d {shlex.quote(json.dumps(_request(model, tokens=200)))}"
        )
        servicekit = f"{shlex.quote(str(BIN / 'servicekit'))} --user --config "
        servicekit += shlex.quote(str(self.config))
        print(f"Show its status:\n  {servicekit} status demo")
        print(
            "Stop it and remove everything:\n"
            f"  {servicekit} uninstall demo --purge && kill {supervisord} "
            f"&& rm -rf {shlex.quote(str(self.home))}",
            flush=True,
        )


def main() -> int:
    """Run the demo; return its exit code."""
    keep = os.environ.get("KEEP", "") not in {"", "0"}
    for number in INTERRUPTS:
        signal.signal(number, _interrupt)
    try:
        with _home(keep=keep) as demo:
            demo.write_settings()
            port = _port(demo)
            demo.start_supervisord()
            first = demo.start()
            demo.ask(first["url"], first["served_name"])
            demo.crash(first["engine_pid"], first["run"])
            if keep:
                demo.show_commands(first["url"], first["served_name"])
                return 0
            demo.stop(port)
        if demo.home.exists():
            raise NotShownError(f"{demo.home} is still there")  # noqa: TRY301 - as any other step
    except NotShownError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130
    _say(f"Done: {demo.home} is removed.")
    return 0


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def _home(*, keep: bool) -> Iterator[Demo]:
    """Give a demo in a directory of its own; at the end of it, whatever happened, both are gone.

    With `keep`, they stay if nothing went wrong.
    """
    demo = Demo(Path(tempfile.mkdtemp(prefix="servicekit-demo-")).resolve())
    done = False
    try:
        yield demo
        done = True
    finally:
        if not (keep and done):
            # Whoever is impatient and presses ^C again would leave something behind.
            for number in INTERRUPTS:
                signal.signal(number, signal.SIG_IGN)
            try:
                demo.end_supervisord()
            finally:
                shutil.rmtree(demo.home)


def _port(demo: Demo) -> int:
    """The port that the service will listen on; it must be free."""
    chosen = os.environ.get("SERVICEKIT_PORT")
    if chosen and not (chosen.isascii() and chosen.isdecimal()):
        raise NotShownError(f'SERVICEKIT_PORT must be a port, not "{chosen}"')
    port = int(chosen or demo.asked("servicekit --user show demo --json")["port"])
    if not _is_free(port):
        raise NotShownError(
            f"port {port} is taken; choose another: make demo SERVICEKIT_PORT={port + 1}"
        )
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        # As servers do: connections that ended a moment ago do not count.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except (OSError, OverflowError):
            return False
    return True


def _is_setting(name: str) -> bool:
    return name.startswith("SERVICEKIT_") and name != "SERVICEKIT_PORT"


def _request(model: str, *, tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": QUESTION}]
    return {"model": model, "messages": messages, "max_tokens": tokens, "temperature": 0}


def _write(path: Path, text: str) -> None:
    """Write a file that nobody else may write, whatever the umask: servicekit asks for that."""
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)


def _looks(limit: float, what: str) -> Iterator[None]:
    """Look again and again, until `limit` seconds have passed."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        yield
        time.sleep(LOOK_AGAIN)
    raise NotShownError(f"{what} within {limit:g} s")


def _say(text: str) -> None:
    print(f"\n{_coloured('36', text)}", flush=True)


def _bold(text: str) -> str:
    return _coloured("1", text)


def _coloured(code: str, text: str) -> str:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain or not sys.stdout.isatty() else f"\x1b[{code}m{text}\x1b[0m"


if __name__ == "__main__":
    sys.exit(main())
