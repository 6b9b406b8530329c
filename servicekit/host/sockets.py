"""Listening sockets, and which processes hold them."""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from servicekit.host import procfs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """A listening TCP socket."""

    address: str
    inode: int
    uid: int


_LISTEN: Final = b"0A"


def listeners(host: str, port: int) -> tuple[ListeningSocket, ...]:
    """Find the sockets that a connection to `host` and `port` reaches.

    The kernel prefers the most exact address; of several sockets with the same one, which is
    allowed when all agree, each gets a share of the connections.
    """
    exact = "/proc/net/tcp6" if ":" in host else "/proc/net/tcp"
    every: tuple[ListeningSocket, ...] = ()
    for table in (exact, *({"/proc/net/tcp", "/proc/net/tcp6"} - {exact})):
        every += tuple(_listening(table, port))
        if matching := tuple(one for one in every if one.address == host):
            return matching  # which a second table, milliseconds to read, would not change
    for address in (f"::ffff:{host}", "0.0.0.0", "::"):  # noqa: S104 - what reaches any host
        if matching := tuple(one for one in every if one.address == address):
            return matching
    return ()


def _listening(table: str, port: int) -> Iterator[ListeningSocket]:
    wanted = f":{port:04X}".encode()
    try:
        content = Path(table).read_bytes()
    except OSError:
        return
    for line in content.splitlines()[1:] if wanted in content else ():
        _, local, _, state, _, _, _, uid, _, inode, *_ = line.split()
        if state == _LISTEN and local.endswith(wanted):
            address = _address(local.partition(b":")[0].decode())
            yield ListeningSocket(address, int(inode), int(uid))


def _address(words: str) -> str:
    """Read an address as the kernel prints it: 32-bit words of memory, in the machine's order."""
    packed = b"".join(
        struct.pack("=I", int(words[start : start + 8], 16)) for start in range(0, len(words), 8)
    )
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6  # noqa: PLR2004 - bytes of IPv4
    return socket.inet_ntop(family, packed)


def refused(host: str, port: int) -> bool:
    """Whether a connection to a port of loopback is refused at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(0)
        client.connect_ex((host, port))
        # On loopback the refusal has arrived by the time that the call returns.
        return client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED


def held_by(socket_inode: int, pids: Iterable[int]) -> int | None:
    """Find which of `pids` holds a socket; `None` when none does, or none that may be looked at."""
    wanted = f"socket:[{socket_inode}]"
    return next((pid for pid in pids if wanted in procfs.links(pid)), None)
