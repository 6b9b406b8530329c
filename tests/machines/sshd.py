"""A real OpenSSH server for tests: on loopback, with its own keys and its own `authorized_keys`.

It runs as whoever runs the tests and lets that account in, whose own `~/.ssh` nobody looks at.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import psutil
import pytest
from machines.waiting import wait_until

from servicekit.tunnel.values import host_keys

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = shutil.which("sshd") or "/usr/sbin/sshd"
CONFIGURATION = """\
Port {port}
ListenAddress {address}
HostKey {home}/host_key
AuthorizedKeysFile {home}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
LogLevel VERBOSE
"""
LIMIT = 10.0
"""Seconds for sshd to answer, or to be gone."""


def configuration(home: Path, port: int, address: str = "127.0.0.1") -> str:
    """Give what sshd reads; `home` is where its keys are."""
    return CONFIGURATION.format(home=home, port=port, address=address)


class Sshd:
    """One server: `start` it, `authorize` a key, `kill` it, `freeze` its sessions."""

    def __init__(self, home: Path, port: int) -> None:
        self.home = home
        self.port = port
        self.user = pwd.getpwuid(os.geteuid()).pw_name
        self._daemon: subprocess.Popen[bytes] | None = None
        home.mkdir()
        self.make_host_key()
        (home / "sshd_config").write_text(configuration(home, port), encoding="utf-8")
        self.authorize()

    def make_host_key(self) -> None:
        """Give it a host key, another one each time."""
        key = self.home / "host_key"
        for old in (key, key.with_suffix(".pub")):
            old.unlink(missing_ok=True)
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
        subprocess.run(command, check=True)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its host key, as ssh-keygen tells it."""
        command = ["ssh-keygen", "-l", "-f", str(self.home / "host_key.pub")]
        said = subprocess.run(command, check=True, capture_output=True, text=True)
        return said.stdout.split()[1]

    @property
    def known_hosts(self) -> str:
        """Its host key behind a name, as `known_hosts` has it."""
        return f"it {(self.home / 'host_key.pub').read_text(encoding='utf-8')}"

    def authorize(self, *lines: str) -> None:
        """Let these keys in, and no other."""
        text = "".join(f"{line}\n" for line in lines)
        (self.home / "authorized_keys").write_text(text, encoding="utf-8")

    def start(self) -> None:
        """Start it and wait until it greets."""
        words = [PROGRAM, "-D", "-e", "-f", str(self.home / "sshd_config")]
        if os.geteuid() == 0:
            # As root it wants an empty directory there, which this host may not have.
            inside = f"mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec {shlex.join(words)}"
            words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside]
        words = ["setpriv", "--pdeathsig", "KILL", *words]
        with (self.home / "log").open("ab") as log:
            self._daemon = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log)
        wait_until(self._greets, LIMIT, f"sshd greets; it said: {self.log()}")

    def _greets(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def log(self) -> str:
        """Give what it said."""
        file = self.home / "log"
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""

    def sessions(self) -> list[psutil.Process]:
        """Find the processes of its connections."""
        assert self._daemon is not None, "sshd was not started"
        return psutil.Process(self._daemon.pid).children(recursive=True)

    def freeze(self) -> None:
        """Stop every connection without an end, as a network does that loses its way."""
        for session in self.sessions():
            session.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """End it and its connections at once, as a power cut does."""
        if self._daemon is None:
            return
        sessions = self.sessions()
        self._daemon.kill()
        self._daemon.wait()
        for session in sessions:
            with contextlib.suppress(psutil.NoSuchProcess):
                session.kill()
        psutil.wait_procs(sessions, LIMIT)
        self._daemon = None


def require_sshd() -> None:
    """Skip where there is no OpenSSH server to run."""
    if not os.access(PROGRAM, os.X_OK):
        pytest.skip(f"needs {PROGRAM} of OpenSSH's server")


@pytest.fixture
def sshd(tmp_path: Path, free_port: int) -> Iterator[Sshd]:
    """Give a running server that lets nobody in."""
    require_sshd()
    server = Sshd(tmp_path / "sshd", free_port)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def pinned(server: Sshd, name: str) -> str:
    """Give the file of host keys of the tunnel `name`, with the server's."""
    (key,) = host_keys(server.known_hosts)
    return f"{name} {key.type} {key.blob}\n"
