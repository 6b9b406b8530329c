"""Reads files that decide what runs, if no other account can have written them. Disk.

A file is trusted if it and its directory belong to root (or, for user services, to that user) and
no other account may write to either. The same applies to every symbolic link on the way.
"""

from __future__ import annotations

import os
import pwd
import stat
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from servicekit.errors import reason
from servicekit.places import Scope
from servicekit.profiles.findings import Finding, Lines, lines_of, syntax
from servicekit.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

LARGEST: Final = 64 * 1024  # bytes; a file that a person wrote is far from it
_MOST_LINKS: Final = 40  # symbolic links on one way before the kernel calls it a loop


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a file and its problems; `data` is empty if it is unreadable."""

    data: Mapping[str, Any] = field(default_factory=dict)
    lines: Lines = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


def owners(scope: Scope) -> frozenset[int]:
    """User ids whose files are trusted: root, and for user services the user."""
    return frozenset({0} if scope is Scope.SYSTEM else {0, os.geteuid()})


def read(path: Path, believed: frozenset[int]) -> Document:
    """Read the TOML file `path`, which must be one of the users `believed`.

    Raises `FileNotFoundError`; every other problem becomes a finding, so that all are reported
    together.
    """
    findings = [finding for each in _ways(path) for finding in _directory_findings(each, believed)]
    try:
        with open(path, "rb", opener=_open) as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                return Document(findings=(*findings, Finding((), "is not a regular file")))
            # Checked on the open file, so that it cannot be replaced before it is read.
            findings += _trust(status, believed, "", str(path))
            raw = stream.read(LARGEST + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        return Document(findings=(*findings, Finding((), f"cannot be read: {reason(error)}")))
    if len(raw) > LARGEST:
        findings.append(Finding((), f"is larger than {LARGEST // 1024} KiB"))
        return Document(findings=tuple(findings))
    document = parse(raw)
    return Document(document.data, document.lines, (*findings, *document.findings))


def parse(raw: bytes) -> Document:
    """Parse TOML; a byte order mark, as written by editors on Windows, is ignored."""
    try:
        text = raw.decode("utf-8-sig")
        data = tomllib.loads(text)
        return Document(data, lines_of(text))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return Document(findings=(Finding((), f"line {line}: is not UTF-8"),))
    except RecursionError:
        return Document(findings=(Finding((), "is nested too deeply"),))
    except ValueError as error:
        return Document(findings=(Finding((), syntax(error)),))


def _open(path: str, flags: int) -> int:
    """Open without blocking on a named pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _ways(path: Path) -> Iterator[Path]:
    """Yield the directory of `path` and of each file that it links to."""
    for _ in range(_MOST_LINKS):
        yield path.parent
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()


def _directory_findings(directory: Path, believed: frozenset[int]) -> Iterator[Finding]:
    try:
        status = directory.stat()
    except OSError:
        return  # opening the file reports it
    yield from _trust(
        status, believed, f'is in "{printable(str(directory))}", which ', str(directory)
    )


def _trust(
    status: os.stat_result, believed: frozenset[int], subject: str, path: str
) -> Iterator[Finding]:
    if status.st_uid not in believed:
        wanted = " or ".join(_account(uid) for uid in sorted(believed))
        yield Finding((), f"{subject}is owned by {_account(status.st_uid)}, not by {wanted}")
    who = [
        name
        for bit, name in ((stat.S_IWGRP, "its group"), (stat.S_IWOTH, "everyone"))
        if status.st_mode & bit
    ]
    if who:
        remedy = f"run `chmod go-w {printable(path)}`"
        yield Finding((), f"{subject}is writable by {' and '.join(who)}; {remedy}")


def _account(uid: int) -> str:
    try:
        return f'"{pwd.getpwuid(uid).pw_name}"'
    except KeyError:
        return f"user id {uid}"
