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
    """Turn an exception into a message and an exit code."""
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
    """Describe a system error that no verb handled."""
    if error.filename is not None:
        return f'cannot access "{error.filename}": {reason(error)}'
    if isinstance(error, FileNotFoundError):
        return "the current directory is gone; change to one that exists"
    return f"cannot write the output: {reason(error)}"
