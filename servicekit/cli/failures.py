"""Turns every failure of a verb into one line on stderr and an exit code."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from servicekit.cli.output import complain, drop, ours
from servicekit.errors import UserError, reason
from servicekit.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

# 128 and the number of SIGINT.
INTERRUPTED: Final = 130


@contextmanager
def failures() -> Iterator[None]:
    """Exit with the code of whatever goes wrong meanwhile, after saying what it was."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except UserError as error:
        for line in str(error).splitlines():
            complain(printable(ours(line)))
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader has closed its end
        drop(sys.stdout)
        sys.exit(1)
    except OSError as error:
        complain(_refusal(error))
        drop(sys.stdout)
        sys.exit(1)


def _refusal(error: OSError) -> str:
    """Describe an error of the system that no verb described better."""
    if error.filename is not None:
        return f'"{error.filename}" cannot be used: {reason(error)}'
    if isinstance(error, FileNotFoundError):
        return "the current directory is gone; change to one that exists"
    return f"the output cannot be written: {reason(error)}"
