"""One ssh process: started in its tunnel's directory, read and stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import chdir
from typing import TYPE_CHECKING, Final, Self

from servicekit.host.child import Child

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from servicekit.host.child import ExitStatus
    from servicekit.tunnel.values import Tunnel

GRACE: Final = 5.0  # seconds for ssh to end after SIGTERM; it takes milliseconds
LONGEST: Final = 1 << 16  # bytes of one line


class Link:
    """A running ssh."""

    def __init__(
        self, child: Child, output: asyncio.StreamReader, pipe: asyncio.BaseTransport
    ) -> None:
        self.child = child
        self._output = output
        self._pipe = pipe

    @classmethod
    async def start(cls, tunnel: Tunnel, directory: Path) -> Self:
        """Start ssh in `directory`, which has the keys; raise `OSError` where that fails."""
        reading, writing = os.pipe2(os.O_CLOEXEC)
        output = asyncio.StreamReader(LONGEST)
        try:
            # A clean environment: no agent, no program that asks for passwords.
            environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
            with chdir(directory):
                child = Child.spawn(tunnel.argv(), environment, stdout=writing, stderr=writing)
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(reading, "rb")
        )
        return cls(child, output, pipe)

    async def lines(self) -> AsyncIterator[str]:
        while True:
            try:
                line = await self._output.readuntil()
            except asyncio.IncompleteReadError as error:
                line = error.partial
                if not line:
                    return
            except asyncio.LimitOverrunError as error:
                line = await self._output.readexactly(error.consumed)
            yield line.decode(errors="replace")

    async def ended(self) -> ExitStatus:
        loop, dead = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.child.pidfd, dead.set)
        try:
            while (status := self.child.poll()) is None:
                await dead.wait()
        finally:
            loop.remove_reader(self.child.pidfd)
        return status

    async def stop(self) -> None:
        """Stop ssh, by SIGKILL if needed, and close its pipe."""
        self.child.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(GRACE):
                await self.ended()
        except TimeoutError:
            self.child.send(signal.SIGKILL)
            await self.ended()
        self.child.close()
        self._pipe.close()
