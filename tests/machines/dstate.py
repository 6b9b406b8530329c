"""A process that nobody can kill, as a driver call that never returns makes one.

Run as a program with a mount point, it mounts a FUSE file system whose server answers nothing but
the first greeting and the root's attributes. A process that looks up any name below it has its
request in a server's hands, so the kernel lets it die only when that server does: SIGKILL is
remembered and not acted on, as with a process stuck in a GPU driver. It needs root and /dev/fuse.

The fixture `stuck` gives such a name; the processes held by it are let go after the test.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FUSE = Path("/dev/fuse")
LOOKUP, GETATTR, INIT = 1, 3, 26
ROOT_NODE = 1
REQUEST = struct.Struct("<IIQQIIII")
REPLY = struct.Struct("<IiQ")
LARGEST_REQUEST = 1 << 20


def reply(opcode: int, node: int) -> bytes | None:
    """Give the body of the answer to a request, or None where there shall never be one."""
    if opcode == INIT:
        # Protocol 7.31, 128 KiB read-ahead and writes; the rest of the 64-byte body is zero.
        greeting = struct.pack("<IIIIHHIIHHI", 7, 31, 131072, 0, 12, 9, 131072, 1, 32, 0, 0)
        return greeting + b"\0" * 28
    if opcode == GETATTR and node == ROOT_NODE:
        # An hour's validity, then an empty directory with mode 755 and two links.
        times_and_sizes = struct.pack("<QQQQQQ", ROOT_NODE, 0, 0, 0, 0, 0)
        kind = struct.pack("<IIIIIIIIII", 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
        return struct.pack("<QII", 3600, 0, 0) + times_and_sizes + kind
    return None


def serve(mount_point: Path) -> None:
    """Mount on `mount_point`, say so on stdout, and leave requests unanswered until killed.

    Each request that is left is said, too: only from then on does SIGKILL not end who asked.
    """
    mount_point.mkdir(parents=True, exist_ok=True)
    device = os.open(FUSE, os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"stuck", os.fsencode(mount_point), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), "cannot mount", str(mount_point))
    os.write(1, b"mounted\n")
    while True:
        request = os.read(device, LARGEST_REQUEST)
        _, opcode, unique, node, *_ = REQUEST.unpack_from(request)
        body = reply(opcode, node)
        if body is not None:
            os.write(device, REPLY.pack(REPLY.size + len(body), 0, unique) + body)
        elif opcode == LOOKUP:
            os.write(1, b"held\n")


class Stuck:
    """A name that holds whoever looks it up, until `release`."""

    def __init__(self, folder: Path) -> None:
        # A mount namespace of its own leaves nothing mounted, however this ends.
        self._server = subprocess.Popen(
            [
                *[
                    "setpriv",
                    "--pdeathsig",
                    "KILL",
                    "unshare",
                    "--mount",
                    "--propagation",
                    "private",
                ],
                *[sys.executable, __file__, str(folder)],
            ],
            stdout=subprocess.PIPE,
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"mounted\n"
        self.path = Path(f"/proc/{self._server.pid}/root{folder}/stuck")

    def wait(self) -> None:
        """Wait until somebody is held."""
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"held\n"

    def release(self) -> None:
        """Let go of every process that is held: their look-ups fail, pending signals act."""
        self._server.kill()
        self._server.wait()
        assert self._server.stdout is not None
        self._server.stdout.close()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
else:
    import pytest

    @pytest.fixture
    def stuck(tmp_path: Path) -> Iterator[Stuck]:
        """Give a name; a process that looks it up cannot be killed until the test is over."""
        if os.geteuid() != 0 or not FUSE.exists():
            pytest.skip(f"an unkillable process needs root and {FUSE}")
        stuck = Stuck(tmp_path)
        yield stuck
        stuck.release()
