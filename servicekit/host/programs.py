"""Programs that are run for what they print, and waited for. `bounded` does it in an event loop."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from servicekit.host.child import Child, ExitStatus, inherited

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LARGEST: Final = 16 << 20  # bytes of output that are read at most


class NotRunError(Exception):
    """A program that cannot be run, or is late; its text completes `"NAME" …`."""

    def __init__(self, why: str, *, missing: bool = False) -> None:
        super().__init__(why)
        self.missing = missing


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended, and what it printed."""

    status: ExitStatus
    stdout: str
    stderr: str

    @property
    def failed(self) -> bool:
        """Whether it ended with anything but exit code 0."""
        return self.status.code != 0


def run(
    argv: Sequence[str],
    *,
    limit: float,
    text: str = "",
    environment: Mapping[str, str] | None = None,
    capture: bool = True,
) -> Finished:
    """Run a program with `text` as its input, for at most `limit` seconds.

    It runs in a session of its own, and what it has started is killed with it where it is late.
    Without `capture` it prints where we do. Raises `NotRunError`.
    """
    # Files in memory and not pipes: a grandchild that lives on cannot hold them open against us.
    files = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
    try:
        os.write(files[0], text.encode())
        os.lseek(files[0], 0, os.SEEK_SET)
        variables = inherited(os.environ if environment is None else environment)
        out, err = files[1:] if capture else (None, None)
        try:
            child = Child.spawn(
                argv, variables, stdin=files[0], stdout=out, stderr=err, session=True
            )
        except FileNotFoundError:
            raise NotRunError("is not installed", missing=True) from None
        except OSError as error:
            raise NotRunError(f"cannot be run: {(error.strerror or '').lower()}") from None
        status = _wait(child, limit)
        stdout, stderr = (os.pread(file, LARGEST, 0) for file in files[1:])
        return Finished(status, stdout.decode(errors="replace"), stderr.decode(errors="replace"))
    finally:
        for file in files:
            os.close(file)


def _wait(child: Child, limit: float) -> ExitStatus:
    """Wait for a child, and kill its session where it is late, or where we are interrupted."""
    try:
        ended = select.poll()
        ended.register(child.pidfd, select.POLLIN)
        late = not ended.poll(limit * 1000)
        status = child.poll()
        if late or status is None:
            raise NotRunError(f"did not finish within {limit:g} s")
        return status
    finally:
        if child.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            select.select([child.pidfd], [], [], limit)
            child.poll()
        child.close()
