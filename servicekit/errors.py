"""Errors that a person can act on.

Every mistake of a user becomes a `UserError`: one line that names the problem and the remedy. Only
`servicekit.cli` turns one into an exit code; nothing else prints or exits.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class ExitCode(IntEnum):
    """Exit codes of every verb; 69, 75 and 78 are those of `sysexits.h`."""

    OK = 0
    FAILED = 1
    """The service is not healthy, or the command failed."""
    USAGE = 2
    """The command line is wrong; for `probe`: cannot tell."""
    UNAVAILABLE = 69
    """Do not restart: the host or an operator must act first."""
    TEMPFAIL = 75
    """Restart: the engine failed, and a new run may succeed."""
    CONFIG = 78
    """Do not restart: the configuration must change first."""


class UserError(Exception):
    """A mistake or a condition that the user can fix.

    `message` is one line, lower case, with names quoted and units on numbers. `hint` is the remedy
    and is printed after it. `code` is the exit code of the command.
    """

    def __init__(self, message: str, *, hint: str = "", code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.hint = hint
        self.code = code


class ProfileError(UserError):
    """A profile that is refused. `findings` holds every reason, one line each, in order."""

    def __init__(self, where: str, findings: Sequence[str]) -> None:
        self.where = where
        self.findings = tuple(findings)
        lines = "\n".join(f"{where}: {finding}" for finding in self.findings)
        super().__init__(lines, code=ExitCode.CONFIG)


def reason(error: Exception) -> str:
    """Why a file could not be read or a program not be run, as it ends a message of ours."""
    if isinstance(error, UnicodeError):
        return "it is not UTF-8 text"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


def refused(message: str, error: OSError) -> UserError:
    """An error of the system as one of ours; one of missing rights names what has them."""
    hint = "run it as root, or with --user" if isinstance(error, PermissionError) else ""
    return UserError(f"{message}: {reason(error)}", hint=hint)


class NotAllowedError(UserError):
    """A profile that exists but is not on the allowlist, or does not exist at all."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, code=ExitCode.CONFIG)
