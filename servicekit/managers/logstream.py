"""The log of a service as bytes, for whoever reads it rather than shows it."""

from __future__ import annotations

import re
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from servicekit.errors import UserError
from servicekit.managers import LogQuery
from servicekit.values import ManagerName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from servicekit.managers import Manager

OURS: Final = re.compile(rb"time=\S+ level=.* run=\S+$")
"""A line of a watchdog, as `servicekit.log` writes it where there is no journal."""


@contextmanager
def log_of(manager: Manager, unit: str, run: str) -> Iterator[Iterable[bytes]]:
    """Open the lines that a service wrote in one run, bare and oldest first."""
    by_journal = manager.name is ManagerName.SYSTEMD
    query = LogQuery(lines=None, bare=True, run=run if by_journal else "")
    command = manager.log_command(unit, query)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise UserError(f'"{command[0]}" cannot be run: {reason}') from None
    with process:
        lines: Iterable[bytes] = process.stdout or ()
        yield lines if by_journal or not run else of_run(lines, run)
        process.terminate()


def of_run(lines: Iterable[bytes], run: str) -> Iterator[bytes]:
    """Pick a run's lines from a file of many runs: until the watchdog of another one speaks.

    A watchdog names its run before the engine says anything.
    """
    mark = f" run={run}".encode()
    begun = False
    for line in lines:
        if begun and OURS.match(line) and mark not in line:
            return
        begun = begun or mark in line
        if begun:
            yield line
