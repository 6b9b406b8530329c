"""Work that is done apart: in a child process, so that what it loads is gone with it."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from servicekit.errors import ExitCode, UserError

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")


class Apart(Generic[Result]):
    """Begins `work` in a fork of this process; ask for its `result` when it is needed.

    To be used before there is any thread, which a fork would not take along. The result must be
    one that can be pickled without what the work had to load.
    """

    def __init__(self, work: Callable[[], Result]) -> None:
        self._reading, writing = os.pipe2(os.O_CLOEXEC)
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            _do(work, writing)
        os.close(writing)

    def result(self) -> Result:
        """Wait for the work; a `UserError` in it is raised here, once."""
        with os.fdopen(self._reading, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(self._pid, 0)
        if not answer:
            raise RuntimeError("the child process for this work has failed, as it says itself")
        refusal, result = pickle.loads(answer)  # noqa: S301 - our own fork wrote it
        if refusal is not None:
            message, code = refusal
            raise UserError(message, code=ExitCode(code))
        done: Result = result
        return done


def _do(work: Callable[[], object], writing: int) -> NoReturn:
    """Be the child: whatever happens, nothing of the parent's is done a second time."""
    try:
        try:
            answer: object = (None, work())
        except UserError as error:
            answer = ((str(error), int(error.code)), None)
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(answer, pipe)
    except Exception:  # noqa: BLE001 - as for any bug, there is a traceback
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)
