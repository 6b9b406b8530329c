"""A tunnel's service against a real OpenSSH server: what breaks, what is said, what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import tomli_w
from machines.sshd import pinned
from machines.waiting import wait_until
from plans import profile
from typing_extensions import override

from servicekit.errors import ExitCode
from servicekit.managers import Seen
from servicekit.places import below
from servicekit.service.manifest import Manifest
from servicekit.tunnel import keys
from servicekit.tunnel.state import read_state
from servicekit.tunnel.status import ExpectedEngines, TunnelStatus, conclude, look_through
from servicekit.tunnel.values import (
    FILE,
    KEY,
    KNOWN_HOSTS,
    LOOPBACK,
    PUBLIC_KEY,
    Tunnel,
    directory,
    state_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from machines.fake import FakeEngine
    from machines.sshd import Sshd

    from servicekit.profiles.model import Profile
    from servicekit.tunnel.state import TunnelState
    from servicekit.tunnel.status import TunnelReport

pytestmark = pytest.mark.sshd

LIMIT = 20.0
"""Seconds for a tunnel to be up or its service to have ended, on two busy cores; one is usual."""
NAME = "it"


def a_free_port() -> int:
    """Give a port of loopback that was free a moment ago."""
    with socket.create_server((LOOPBACK, 0)) as server:
        port: int = server.getsockname()[1]
    return port


class Service:
    """A tunnel to `sshd`, its files as an install writes them, its service run by hand."""

    def __init__(self, home: Path, sshd: Sshd, **settings: Any) -> None:  # noqa: ANN401 - a Tunnel's
        self.sshd = sshd
        self.tunnel = Tunnel(
            name=NAME,
            user=sshd.user,
            host=LOOPBACK,
            ssh_port=sshd.port,
            **{"local": a_free_port(), "remote": a_free_port(), **settings},
        )
        self.places = below(str(home / "servicekit"))
        self.home = Path(directory(self.places, NAME))
        self.home.mkdir(parents=True)
        self.pair = keys.make("test")
        for name, text in {
            FILE: tomli_w.dumps(self.tunnel.data()),
            KEY: self.pair.private,
            PUBLIC_KEY: self.pair.public,
            KNOWN_HOSTS: pinned(sshd, NAME),
        }.items():
            (self.home / name).write_text(text, encoding="utf-8")
        (self.home / KEY).chmod(0o600)
        sshd.authorize(self.tunnel.authorized_key(self.pair.public))
        self._config = home / "servicekit.toml"
        self._config.write_text(f'root = "{home}/servicekit"\n', encoding="utf-8")
        for trusted in (self._config, self.home / FILE):
            trusted.chmod(0o644)
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(f"\0servicekit-test-{os.getpid()}-{self.tunnel.local}")
        self._notify.settimeout(0)
        self._log = home / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run the service, as a manager does."""
        self.close()
        program = str(Path(sys.executable).with_name("servicekit"))
        socket_name = self._notify.getsockname().replace(b"\0", b"@").decode()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [program, "--user", "--config", str(self._config), "tunnel", "run", NAME],
                stdin=subprocess.DEVNULL,
                stderr=log,
                env=os.environ | {"NOTIFY_SOCKET": socket_name},
            )

    @property
    def pid(self) -> int:
        """Pid of the service."""
        assert self._process is not None
        return self._process.pid

    @property
    def state(self) -> TunnelState:
        """What it published last."""
        state = read_state(Path(state_file(self.places, NAME)))
        assert state is not None, self.log()
        return state

    def log(self) -> str:
        """What it said."""
        return self._log.read_text(encoding="utf-8") if self._log.exists() else ""

    def told(self) -> str:
        """What it told the manager since the last time that was asked."""
        messages = []
        with contextlib.suppress(BlockingIOError):
            while True:
                messages.append(self._notify.recv(4096).decode())
        return "\n".join(messages)

    def is_up(self) -> bool:
        """Whether this run says that the tunnel is up."""
        assert self._process is not None
        if self._process.poll() is not None:
            pytest.fail(f"it ended with {self._process.returncode}:\n{self.log()}")
        state = read_state(Path(state_file(self.places, NAME)))
        return state is not None and state.pid == self.pid and state.phase == "up"

    def until_up(self) -> None:
        """Start it and wait until the tunnel is up."""
        self.start()
        wait_until(self.is_up, LIMIT, "the tunnel is up")

    def until_ended(self) -> int:
        """Wait for its end; give the exit code."""
        assert self._process is not None
        return self._process.wait(LIMIT)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal and wait for its end."""
        os.kill(self.pid, number)
        return self.until_ended()

    def ssh(self) -> psutil.Process:
        """Find its ssh."""
        return psutil.Process(self.state.ssh_pid)

    def report(self, *profiles: Profile, deep: bool = False) -> TunnelReport:
        """Look through it, as `tunnel status` does."""
        manifest = Manifest(NAME, "", "systemd", None, self.tunnel.local, (), True, (), ())  # noqa: FBT003 - enabled
        found = conclude(self.tunnel, manifest, Seen("active"), self.state)
        if found.state is not TunnelStatus.UP:
            return found
        expected = ExpectedEngines(tuple((each, None) for each in profiles), deep)
        return asyncio.run(look_through(found, self.tunnel, self.places, expected))

    def close(self) -> None:
        """End it, whatever it does."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
            self._process.wait(LIMIT)

    def remove(self) -> None:
        """End it for good."""
        self.close()
        self._notify.close()


@pytest.fixture
def service(tmp_path: Path, sshd: Sshd) -> Iterator[Callable[..., Service]]:
    """Give a function that makes a tunnel to the server; its arguments are a `Tunnel`'s."""
    made: list[Service] = []

    def make(**settings: Any) -> Service:  # noqa: ANN401 - a Tunnel's
        made.append(Service(tmp_path, sshd, **settings))
        return made[-1]

    yield make
    for each in made:
        each.remove()


class Answers(BaseHTTPRequestHandler):
    """Any web server."""

    def do_GET(self) -> None:
        """Say where the question came in."""
        body = str(self.connection.getsockname()[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *_: object) -> None:
        """Be quiet."""


@contextlib.contextmanager
def web(port: int) -> Iterator[None]:
    """Have a web server at a port of loopback."""
    with HTTPServer((LOOPBACK, port), Answers) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def fetch(port: int) -> str:
    """What a web server at a port of loopback says."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_up_means_that_bytes_go_through(service: Callable[..., Service]) -> None:
    """READY comes with the forwarding, and a client here reaches a server there."""
    tunnel = service()
    with web(tunnel.tunnel.remote):
        tunnel.until_up()
        assert f"READY=1\nSTATUS=up: {tunnel.tunnel.way}" in tunnel.told()
        assert fetch(tunnel.tunnel.local) == str(tunnel.tunnel.remote)
        report = tunnel.report()
        assert report.state is TunnelStatus.UP
        assert "answers HTTP 200 OK; no profile here has that port" in report.why
    ssh = tunnel.ssh()
    assert tunnel.stop() == 0
    assert not ssh.is_running()
    assert tunnel.state.phase == "stopped"
    assert tunnel.state.faults == 0


def test_the_engine_behind_it_is_told_from_the_tunnel(
    service: Callable[..., Service], fake_engine: Callable[..., FakeEngine]
) -> None:
    """A tunnel stands without an engine; with one it is known by its model, and by an answer."""
    tunnel = service(remote=a_free_port())
    port = tunnel.tunnel.remote
    known = profile("demo", port=port, served_name="it", probe={"deadline": 5})
    other = profile("demo", port=port, served_name="another")
    tunnel.until_up()
    report = tunnel.report(known)
    assert report.state is TunnelStatus.ENGINE_DOWN
    assert report.why == f"the tunnel is up, but nothing listens on {LOOPBACK}:{port} on 127.0.0.1"
    assert tunnel.is_up()

    engine = fake_engine("llama-server", port=port, name="it", context=2048)
    report = tunnel.report(other, known)
    assert (report.state, report.served_name) == (TunnelStatus.UP, "it")
    assert report.why == '"it" is listed through the tunnel'
    assert tunnel.report(known, deep=True).why == '"it" answered 2 tokens through the tunnel'

    report = tunnel.report(other)
    assert report.state is TunnelStatus.UP
    assert 'serves "it", not "another"' in report.why

    engine.tell(completion="hang")
    report = tunnel.report(
        profile("demo", port=port, served_name="it", probe={"deadline": 1}), deep=True
    )
    assert report.state is TunnelStatus.ENGINE_DOWN
    assert "no answer to the completion within 1 s" in report.why


def test_a_server_that_dies_is_connected_to_again(
    service: Callable[..., Service], sshd: Sshd
) -> None:
    """The end of the connection is the end of the service; the next one holds off, then is up."""
    tunnel = service()
    tunnel.until_up()
    tunnel.told()
    sshd.kill()
    assert tunnel.until_ended() == ExitCode.TEMPFAIL
    assert (tunnel.state.cause, tunnel.state.faults) == ("lost", 1)
    assert 'the connection to "127.0.0.1" was cut' in tunnel.told()
    sshd.start()
    tunnel.start()
    wait_until(lambda: tunnel.state.phase == "waiting", LIMIT, "it holds off")
    report = tunnel.report()
    assert report.state is TunnelStatus.DOWN
    assert report.why.endswith("; retrying")
    wait_until(tunnel.is_up, LIMIT, "the tunnel is up again")


def test_a_connection_that_freezes_is_found(service: Callable[..., Service], sshd: Sshd) -> None:
    """Nobody closes anything, and no byte comes: the server is asked, and does not answer."""
    tunnel = service(alive_interval=1, alive_count=2)
    tunnel.until_up()
    sshd.freeze()
    assert tunnel.until_ended() == ExitCode.TEMPFAIL
    assert tunnel.state.cause == "lost"
    assert tunnel.state.why == '"127.0.0.1" did not respond for 2 s'


def test_a_port_that_is_taken_is_named(service: Callable[..., Service]) -> None:
    """Another process has the port here: the tunnel does not pretend, and tries again."""
    tunnel = service()
    with socket.create_server((LOOPBACK, tunnel.tunnel.local)):
        tunnel.start()
        assert tunnel.until_ended() == ExitCode.TEMPFAIL
    report = tunnel.report()
    assert (report.state, report.cause) == (TunnelStatus.PORT_TAKEN, "port-taken")
    assert f"port {tunnel.tunnel.local} on this host is in use" in report.why


def test_a_changed_host_key_is_no_loop(service: Callable[..., Service], sshd: Sshd) -> None:
    """Somebody must look at it: the service ends for good, and names the key that it saw."""
    tunnel = service()
    sshd.kill()
    sshd.make_host_key()
    sshd.start()
    tunnel.start()
    assert tunnel.until_ended() == ExitCode.CONFIG
    state = tunnel.state
    assert (state.cause, state.faults) == ("host-key", 0)
    assert sshd.fingerprint in state.why
    assert f"`servicekit tunnel install {NAME} --fingerprint {sshd.fingerprint}`" in state.remedy
    assert "host key" in tunnel.told()


def test_a_key_that_the_server_does_not_know_is_no_loop(
    service: Callable[..., Service], sshd: Sshd
) -> None:
    """Tried again and again it would be taken for an attack."""
    tunnel = service()
    sshd.authorize(tunnel.tunnel.authorized_key(keys.make("other").public))
    tunnel.start()
    assert tunnel.until_ended() == ExitCode.CONFIG
    assert tunnel.state.cause == "denied"


def test_without_its_own_key_it_uses_no_other(service: Callable[..., Service]) -> None:
    """The account's own keys are none of a tunnel's business."""
    tunnel = service()
    (tunnel.home / KEY).unlink()
    tunnel.start()
    assert tunnel.until_ended() == ExitCode.CONFIG
    assert tunnel.state.cause == "key"


def test_what_the_server_does_not_let_it_reach_is_no_loop(
    service: Callable[..., Service], sshd: Sshd
) -> None:
    """`permitopen` of another port: found at once, not by the first user."""
    tunnel = service()
    elsewhere = replace(tunnel.tunnel, remote=a_free_port())
    sshd.authorize(elsewhere.authorized_key(tunnel.pair.public))
    tunnel.start()
    assert tunnel.until_ended() == ExitCode.CONFIG
    assert tunnel.state.cause == "forward-refused"


def ssh(service: Service, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run an ssh to its end, as the tunnel's runs."""
    return subprocess.run(
        argv, cwd=service.home, capture_output=True, text=True, check=False, timeout=LIMIT
    )


def test_the_line_for_the_server_allows_nothing_else(service: Callable[..., Service]) -> None:
    """The key opens no shell and runs no command, and gets no port of the server."""
    tunnel = service()
    words = [word for word in tunnel.tunnel.argv() if word not in {"-N", "-n"}]
    done = ssh(tunnel, [*words, "echo it runs"])
    assert "Authenticated to 127.0.0.1" in done.stderr
    assert (done.returncode, done.stdout) == (1, "")
    other_way = replace(tunnel.tunnel, reverse=True, remote=a_free_port())
    done = ssh(tunnel, other_way.argv())
    assert done.returncode == 255
    assert "Remote: port forwarding refused" in done.stderr


def test_a_reverse_tunnel_is_looked_through_from_the_server(
    service: Callable[..., Service], sshd: Sshd
) -> None:
    """The engine is here, and the server's port leads to it: seen there and back."""
    tunnel = service(reverse=True)
    tunnel.until_up()
    report = tunnel.report()
    assert report.state is TunnelStatus.ENGINE_DOWN
    assert f"nothing listens on {LOOPBACK}:{tunnel.tunnel.local} here" in report.why
    with web(tunnel.tunnel.local):
        assert fetch(tunnel.tunnel.remote) == str(tunnel.tunnel.local)
        assert tunnel.report().state is TunnelStatus.UP
    assert len(sshd.sessions()) <= 2, "the second way is closed again"


def test_a_reverse_port_that_is_not_permitted_is_no_loop(
    service: Callable[..., Service], sshd: Sshd
) -> None:
    """`permitlisten` of another port is a refusal, and not a port that is taken."""
    tunnel = service(reverse=True)
    elsewhere = replace(tunnel.tunnel, remote=a_free_port())
    sshd.authorize(elsewhere.authorized_key(tunnel.pair.public))
    tunnel.start()
    assert tunnel.until_ended() == ExitCode.CONFIG
    assert tunnel.state.cause == "forward-refused"
    assert f"listen on {LOOPBACK}:{tunnel.tunnel.remote}" in tunnel.state.why


def test_a_reverse_port_that_is_taken_is_tried_again(service: Callable[..., Service]) -> None:
    """An earlier connection that froze may still have it; the remedy is on the server."""
    tunnel = service(reverse=True)
    with socket.create_server((LOOPBACK, tunnel.tunnel.remote)):
        tunnel.start()
        assert tunnel.until_ended() == ExitCode.TEMPFAIL
    assert tunnel.state.cause == "port-taken"
    assert "ClientAliveInterval" in tunnel.state.remedy


def test_a_server_that_is_not_there_is_tried_again(
    service: Callable[..., Service], sshd: Sshd
) -> None:
    """Each attempt holds off longer than the one before, and says what it waits for."""
    tunnel = service()
    sshd.kill()
    tunnel.start()
    assert tunnel.until_ended() == ExitCode.TEMPFAIL
    assert (tunnel.state.cause, tunnel.state.faults) == ("unreachable", 1)
    assert '"127.0.0.1" cannot be reached' in tunnel.state.why
    assert tunnel.told().endswith("Connection refused; retrying in 5 s")
    tunnel.start()
    assert tunnel.until_ended() == ExitCode.TEMPFAIL
    assert tunnel.state.faults == 2
    assert tunnel.told().endswith("retrying in 10 s")
    # A stop ends the waiting at once, and forgives.
    tunnel.start()
    wait_until(
        lambda: tunnel.state.pid == tunnel.pid and tunnel.state.phase == "waiting",
        LIMIT,
        "it holds off",
    )
    assert tunnel.stop() == 0
    assert tunnel.state.faults == 0


def test_a_server_that_says_nothing_is_not_waited_for(
    service: Callable[..., Service], sshd: Sshd
) -> None:
    """It takes the connection and never greets."""
    tunnel = service(connect_timeout=1)
    sshd.kill()
    with socket.create_server((LOOPBACK, sshd.port)):
        tunnel.start()
        assert tunnel.until_ended() == ExitCode.TEMPFAIL
    assert tunnel.state.cause == "unreachable"


def test_an_ssh_that_outlived_its_service_is_ended(service: Callable[..., Service]) -> None:
    """Killed under a manager without control groups, the service leaves ssh with the port."""
    tunnel = service()
    tunnel.until_up()
    orphan = tunnel.ssh()
    assert tunnel.stop(signal.SIGKILL) == -signal.SIGKILL
    assert orphan.is_running()
    tunnel.until_up()
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE
    assert tunnel.ssh().pid != orphan.pid


def test_a_file_that_others_could_have_written_is_refused(
    service: Callable[..., Service],
) -> None:
    """Who could write it would decide where the engine's port leads."""
    tunnel = service()
    (tunnel.home / FILE).chmod(0o666)
    tunnel.start()
    assert tunnel.until_ended() == ExitCode.CONFIG
    assert "is writable by" in tunnel.log()


def test_the_log_has_no_chatter(service: Callable[..., Service]) -> None:
    """ssh's own debugging is read and not repeated."""
    tunnel = service()
    tunnel.until_up()
    tunnel.stop()
    assert "debug1" not in tunnel.log()
    assert json.dumps(tunnel.tunnel.way)[1:-1] in tunnel.log()
