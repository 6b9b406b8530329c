"""The log of a service as bytes, for programs."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from servicekit.errors import UserError, reason
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
    with _output(manager.log_command(unit, wanted), stderr=subprocess.DEVNULL) as lines:
        yield lines if by_journal else matching(lines, query, datetime.now().astimezone())


def shown(manager: Manager, unit: str, query: LogQuery) -> Iterator[str]:
    """Yield the lines of a plain log file as they come, fit for a terminal."""
    with _output(manager.log_command(unit, query)) as lines:
        for line in lines:
            yield plain(line.decode(errors="replace").rstrip("\n"))


@contextmanager
def _output(command: tuple[str, ...], *, stderr: int | None = None) -> Iterator[Iterable[bytes]]:
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr)
    except OSError as error:
        raise UserError(f'"{command[0]}" cannot be run: {reason(error)}') from None
    with process:
        try:
            yield process.stdout or ()
        finally:
            process.terminate()
