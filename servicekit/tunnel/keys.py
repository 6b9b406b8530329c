"""The tunnel's key pair and the server's host keys, by OpenSSH's own programs."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from servicekit.errors import ExitCode, UserError
from servicekit.host.programs import Finished, NotRunError, run
from servicekit.text import printable
from servicekit.tunnel.values import HostKey, host_keys

LIMIT: Final = 60.0  # seconds for one program; ssh-keyscan has its own limit per address
SCAN_LIMIT: Final = 10  # seconds for a server to show its keys
LARGEST: Final = 64 * 1024  # bytes of a file that may be a private key


class KeyPair(NamedTuple):
    """The texts of a key's two files."""

    private: str
    public: str


def make(comment: str) -> KeyPair:
    """Make a new pair without a passphrase."""
    with tempfile.TemporaryDirectory(prefix="servicekit-") as folder:
        file = Path(folder, "key")
        done = _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(file))
        if done.failed:
            reason = printable(done.stderr.strip() or "no reason given")
            raise UserError(f'"ssh-keygen": {reason}')
        return KeyPair(file.read_text(), file.with_suffix(".pub").read_text())


def read(identity: Path) -> KeyPair:
    """Read the private key `identity`; raise `UserError` for one with a passphrase."""
    try:
        private = identity.read_text(encoding="ascii")[:LARGEST]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise UserError(f'key "{identity}" cannot be read: {reason.lower()}') from None
    # An empty passphrase opens a key that has none. An absolute path is never an option.
    done = _run("ssh-keygen", "-y", "-P", "", "-f", str(identity.absolute()))
    if done.failed:
        lines = done.stderr.strip().splitlines() or ["ssh-keygen gave no reason"]
        reason = printable(lines[-1]).removeprefix(f'Load key "{identity.absolute()}": ')
        raise UserError(
            f'key "{identity}" cannot be used: {reason}',
            hint="a service needs a key without a passphrase; without --identity one is made",
        )
    return KeyPair(private, done.stdout)


def scan(host: str, port: int) -> tuple[HostKey, ...]:
    """Ask a server for its host keys; raise `UserError` where it has none."""
    done = _run("ssh-keyscan", "-T", str(SCAN_LIMIT), "-p", str(port), "--", host)
    keys = host_keys(done.stdout)
    if not keys:
        # Lines with "#" are the server's greeting.
        reasons = [line for line in done.stderr.splitlines() if line and not line.startswith("#")]
        reason = re.sub(r"^getaddrinfo [^:]*: ", "", printable(reasons[-1])) if reasons else ""
        raise UserError(
            f'"{host}" shows no host key on port {port}{": " if reason else ""}{reason}',
            hint="check that its sshd runs and is reachable from here",
        )
    return keys


def _run(*command: str) -> Finished:
    try:
        return run(command, limit=LIMIT)
    except NotRunError as error:
        if not error.missing:
            raise UserError(f'"{command[0]}" {error}') from None
        raise UserError(
            f'"{command[0]}" was not found',
            hint="install the OpenSSH client (openssh-client on Debian and Ubuntu)",
            code=ExitCode.CONFIG,
        ) from None
