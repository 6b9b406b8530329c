"""The log of a service as bytes, for programs."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from servicekit.errors import UserError
from servicekit.managers import LogQuery
from servicekit.managers.logfile import matching
from servicekit.profiles.vocabulary import ManagerName
from servicekit.text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from servicekit.managers import Manager


@contextmanager
def log_of(manager: Manager, unit: str, query: LogQuery) -> Iterator[Iterable[bytes]]:
    """Open all lines of a service's log that match `query`, bare and oldest first."""
    by_journal = manager.name is ManagerName.SYSTEMD
    wanted = replace(query if by_journal else LogQuery(), lines=None, bare=True)
    command = manager.log_command(unit, wanted)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise UserError(f'"{command[0]}" cannot be run: {reason}') from None
    with process:
        lines: Iterable[bytes] = process.stdout or ()
        yield lines if by_journal else matching(lines, query, datetime.now().astimezone())
        process.terminate()


def shown(manager: Manager, unit: str, query: LogQuery) -> Iterator[str]:
    """Yield the lines of a plain log file as they come, fit for a terminal."""
    command = manager.log_command(unit, query)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise UserError(f'"{command[0]}" cannot be run: {reason}') from None
    with process:
        try:
            for line in process.stdout or ():
                yield plain(line.decode(errors="replace").rstrip("\n"))
        finally:
            process.terminate()
