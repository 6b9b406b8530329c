"""Keys, by OpenSSH's own programs: a pair for the tunnel, and those that a server shows."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from servicekit.errors import ExitCode, UserError
from servicekit.text import printable
from servicekit.tunnel.values import HostKey, host_keys

LIMIT: Final = 60.0  # seconds for one program; ssh-keyscan has its own bound for each address
SCAN_LIMIT: Final = 10  # seconds that a server may take to show its keys
LARGEST: Final = 64 * 1024  # bytes of a file that may be a private key


class KeyPair(NamedTuple):
    """A key of a tunnel, as its two files hold it."""

    private: str
    public: str


def make(comment: str) -> KeyPair:
    """Make a new pair, which nothing protects but the mode of its file."""
    with tempfile.TemporaryDirectory(prefix="servicekit-") as folder:
        file = Path(folder, "key")
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(file))
        return KeyPair(file.read_text(), file.with_suffix(".pub").read_text())


def read(identity: Path) -> KeyPair:
    """Read the private key `identity`; raise `UserError` for one that asks for a passphrase."""
    try:
        private = identity.read_text(encoding="ascii")[:LARGEST]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UserError(f'key "{identity}" cannot be read: {reason.lower()}') from None
    # An empty passphrase opens those that have none. The path is absolute: it can be no option.
    done = _try("ssh-keygen", "-y", "-P", "", "-f", str(identity.absolute()))
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["ssh-keygen says nothing"]
        reason = printable(words[-1]).removeprefix(f'Load key "{identity.absolute()}": ')
        raise UserError(
            f'key "{identity}" cannot be used: {reason}',
            hint="a service needs one without a passphrase; without --identity one is made",
        )
    return KeyPair(private, done.stdout)


def scan(host: str, port: int) -> tuple[HostKey, ...]:
    """Ask a server for its host keys; raise `UserError` where it shows none."""
    done = _try("ssh-keyscan", "-T", str(SCAN_LIMIT), "-p", str(port), "--", host)
    found = host_keys(done.stdout)
    if not found:
        # Its greeting, which begins with "#", is no reason.
        reasons = [line for line in done.stderr.splitlines() if line and not line.startswith("#")]
        reason = re.sub(r"^getaddrinfo [^:]*: ", "", printable(reasons[-1])) if reasons else ""
        raise UserError(
            f'"{host}" shows no host key on port {port}{": " if reason else ""}{reason}',
            hint="is its sshd running, and reachable from here?",
        )
    return found


def _run(*command: str) -> str:
    done = _try(*command)
    if done.returncode:
        raise UserError(f'"{command[0]}": {printable(done.stderr.strip() or "no reason told")}')
    return done.stdout


def _try(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=LIMIT,
        )
    except FileNotFoundError:
        raise UserError(
            f'a tunnel needs "{command[0]}", which is not here',
            hint="install the OpenSSH client (openssh-client on Debian and Ubuntu)",
            code=ExitCode.CONFIG,
        ) from None
    except subprocess.TimeoutExpired:
        raise UserError(f'"{command[0]}" did not come back within {LIMIT:g} s') from None
