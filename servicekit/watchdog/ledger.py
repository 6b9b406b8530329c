"""The ledger: the append-only history of a profile's runs, and all that is concluded from it.

One JSON object per line, each on disk before the next thing happens, so that even a run that was
cut off has recorded how far it came. A torn last line, left by a power cut, is
passed over. `history` draws the conclusions.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

from servicekit.diagnosis.causes import Cause
from servicekit.errors import ExitCode, UserError, reason
from servicekit.host import untrusted
from servicekit.host.files import replace, try_lock
from servicekit.profiles.vocabulary import LONGEST_HOLD_OFF
from servicekit.watchdog import clock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


FORMAT: Final = 1  # of the records; each run's first record carries it
SIZE_LIMIT: Final = 1 << 20  # bytes after which the ledger is rewritten with its newest half
LARGEST: Final = 4 * SIZE_LIMIT
"""Bytes beyond which a file is not the ledger of a watchdog, and is not read."""
HOLD_OFFS: Final = (0.0, 0.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, LONGEST_HOLD_OFF)
"""Seconds from a fault to the next launch, after that many faults in a row; then the last."""
BOOTS_COMPARED: Final = 5  # number of boots whose median is the expected time of the next one


class Kind(StrEnum):
    """What happened."""

    STARTED = "started"
    """A run began. Carries `pid`, `pid1_started`, `manager` …"""
    LAUNCHED = "launched"
    """The engine was started. Carries `engine_pid` and the GPUs' `baseline` in MiB."""
    PHASE = "phase"  # the engine's log named a boot phase, in `boot`
    READY = "ready"
    STEADY = "steady"
    """It has been up for `STEADY`, and again for `restart.healthy`, since it was ready."""
    DEGRADED = "degraded"
    RECOVERED = "recovered"
    SIGNAL = "signal"  # a signal came from outside, with its sender
    STOPPING = "stopping"  # the end began, by `cause`
    FAULT = "fault"
    """The run failed, by `cause`. For a run that was cut off it is written by the next one."""
    GONE = "gone"  # the run is over, with `code`: nothing of it is left
    RESET = "reset"  # an operator started the service: earlier faults no longer count


# As version 0.1 wrote them.
_OLD_KINDS: Final = {"forgiven": Kind.RESET}

_LAST_CODE: Final = 255
_FIELDS: Final = {
    **dict.fromkeys(("boot_id", "run", "kind", "cause", "sentence", "boot"), untrusted.is_text),
    **dict.fromkeys(("pid", "ppid", "pid1_started", "engine_pid"), untrusted.is_count),
    "code": lambda value: type(value) is int and 0 <= value <= _LAST_CODE,
    "seconds": untrusted.optional(untrusted.is_number),
    "boottime": untrusted.optional(clock.is_boottime),
    "reasons": untrusted.is_texts,
    "context": untrusted.optional(untrusted.each(untrusted.optional(untrusted.is_count))),
    "baseline": untrusted.each(untrusted.is_count),
}
# What each value of a line must be, so that readers need no checks of their own.

_CAUSES: Final = {cause.value: cause for cause in Cause}

UNCOUNTED: Final = frozenset(
    {
        Cause.STOP_REQUESTED,
        Cause.HOST_SHUTDOWN,
        Cause.SESSION_END,
        Cause.IDLE_KILL,
        Cause.POWER_LOSS,
        Cause.SUSPEND,
    }
)
"""Causes that are not the engine's fault: no hold-off follows, and the budget stays."""

BEGINNINGS: Final = frozenset({Kind.STARTED, Kind.LAUNCHED, Kind.READY, Kind.STEADY})
"""What is kept of a run when the ledger is cut."""

CHAIN_ENDS: Final = frozenset({ExitCode.OK, ExitCode.UNAVAILABLE, ExitCode.CONFIG})
"""Codes after which only an operator starts the service again, which begins a new budget."""


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the ledger."""

    at: datetime
    boot_id: str
    run: str
    kind: Kind
    fields: Mapping[str, Any] = field(default_factory=dict)
    boottime: float | None = None
    """Seconds since its boot, suspends included; `None` where version 0.1 wrote it."""

    @property
    def cause(self) -> Cause | None:
        """The cause that it names, as far as this version knows it."""
        named = self.fields.get("cause")
        return None if named is None else _CAUSES.get(named, Cause.UNKNOWN)

    @property
    def sentence(self) -> str:
        """What it says for a person."""
        return str(self.fields.get("sentence", ""))

    def line(self) -> str:
        """Write it as one line, without its end."""
        head: dict[str, Any] = {
            "at": self.at.isoformat(),
            "boot_id": self.boot_id,
            "run": self.run,
            "kind": self.kind,
        }
        if self.boottime is not None:
            head["boottime"] = self.boottime
        return json.dumps({**head, **self.fields}, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def parse(cls, line: str) -> Self | None:
        """Read a line; `None` for a torn one, and for one that this version does not understand."""
        try:
            data = untrusted.parse(line)
            untrusted.refuse_misfit(data, _FIELDS)
            at = untrusted.moment(data.pop("at"))
            boot_id, run, kind = (data.pop(key) for key in ("boot_id", "run", "kind"))
            boottime = data.pop("boottime", None)
            return cls(at, boot_id, run, _OLD_KINDS.get(kind) or Kind(kind), data, boottime)
        except (ValueError, KeyError):
            return None


def parse(text: str) -> tuple[Record, ...]:
    """Read a ledger's text, passing over lines that are torn or not understood."""
    records = (Record.parse(line) for line in text.split("\n") if line)
    return tuple(record for record in records if record is not None)


def read(path: Path) -> tuple[Record, ...]:
    """Read a ledger; one that is not there is empty. Raise `UserError` for what is no ledger."""
    try:
        return parse(untrusted.read(path, limit=LARGEST))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise UserError(
            f'history "{path}" cannot be read: {reason(error)}',
            hint="run it as root"
            if isinstance(error, PermissionError)
            else "it must be a file that its service writes; move away what is there",
            code=ExitCode.CONFIG,
        ) from None


def now() -> datetime:
    """Read the wall clock: the one place where servicekit does."""
    return datetime.now(UTC)


class Ledger:
    """A profile's ledger, open for writing by one watchdog at a time."""

    def __init__(self, path: Path, *, boot_id: str, run: str, size_limit: int = SIZE_LIMIT) -> None:
        """Open `path` and hold its lock.

        Raise `UserError` where another watchdog holds it, or where it cannot be written.
        """
        self.path = path
        self._boot_id = boot_id
        self._run = run
        self._size_limit = size_limit
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(path.parent)
            self._file, self._torn = _open(path)
        except OSError as error:
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            raise UserError(
                f'history "{error.filename}" cannot be written: {reason(error)}',
                hint="free some space"
                if full
                else "it and its directory must belong to the account that the service runs as; "
                "move the directory away if that was another one before",
                code=ExitCode.UNAVAILABLE if full else ExitCode.CONFIG,
            ) from None

    def write(self, kind: Kind, *, run: str = "", **fields: Any) -> Record:  # noqa: ANN401 - JSON
        """Append what happened and see it on disk; fields that are `None` or "" are left out.

        `run` is another run's id where this one writes an ending for it. Raise `OSError` where the
        disk does not take it; what was written before stays readable, and what comes after.
        """
        kept = {name: value for name, value in fields.items() if value is not None and value != ""}
        record = Record(now(), self._boot_id, run or self._run, kind, kept, clock.boottime())
        line = record.line().encode(errors="replace") + b"\n"
        whole = b"\n" + line if self._torn else line
        self._torn = True
        if os.write(self._file, whole) < len(whole):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._torn = False
        os.fsync(self._file)
        if os.fstat(self._file).st_size > self._size_limit:
            self._compact()
        return record

    def _compact(self) -> None:
        """Rewrite the ledger with its newest records."""
        kept = newest(read(self.path), self._size_limit // 2)
        replace(self.path, "".join(f"{record.line()}\n" for record in kept), durable=True)
        os.close(self._file)
        self._file, self._torn = _open(self.path)

    def close(self) -> None:
        """Close the file and release the lock."""
        os.close(self._file)
        os.close(self._lock)


def _open(path: Path) -> tuple[int, bool]:
    """Open a ledger for appending; return whether its last line is torn."""
    file = _open_own(path, os.O_RDWR | os.O_APPEND)
    with suppress(PermissionError):
        os.fchmod(file, 0o644)  # `servicekit history` is for everyone, whatever the unit's umask
    size = os.fstat(file).st_size
    return file, size > 0 and os.pread(file, 1, size - 1) != b"\n"


def _open_own(path: Path, flags: int) -> int:
    """Open a file of this account for writing, made if it is missing; raise `OSError` for others.

    A profile that changed its account finds the directory of the earlier one, which can write there
    still: links to anything, and files that are not ours.
    """
    us = os.geteuid()
    if path.parent.stat().st_uid not in {us, 0}:
        raise OSError(errno.EPERM, "its directory belongs to another account", str(path))
    flags |= os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(path, flags, 0o644)
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != us or status.st_nlink != 1:
        os.close(file)
        raise OSError(errno.EPERM, "it is not a file of this account alone", str(path))
    return file


def _lock(directory: Path) -> int:
    """Hold the lock of a profile's directory; it ends with the process that holds it."""
    lock = _open_own(directory / "lock", os.O_RDWR)
    if not try_lock(lock):
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
        os.close(lock)
        raise UserError(
            f'profile "{directory.name}" is already being watched by pid {holder}',
            hint=f"stop that one first: `servicekit stop {directory.name}`",
        )
    with suppress(OSError):  # on a full disk the lock holds, without a pid in it
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


# Conclusions: pure, over records in the order in which they were written.


def newest(records: Sequence[Record], limit: int = SIZE_LIMIT // 2) -> tuple[Record, ...]:
    """Pick the newest records that fit into `limit` bytes, and how each of their runs began."""
    kept: list[Record] = []
    runs_seen: set[str] = set()
    size = 0
    reset_seen = False
    for record in reversed(records):
        size += len(record.line()) + 1
        if size <= limit:
            kept.append(record)
            runs_seen.add(record.run)
        elif record.kind is Kind.RESET and not reset_seen:
            kept.append(record)  # or its order would be obeyed again
        elif record.kind in BEGINNINGS and record.run in runs_seen:
            kept.append(record)
        reset_seen = reset_seen or record.kind is Kind.RESET
    return tuple(reversed(kept))
