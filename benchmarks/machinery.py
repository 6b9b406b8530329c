"""What measurements share: one look at all processes, one booted machine, and the clearing up."""

from __future__ import annotations

import compileall
import tempfile
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from machines.systemd import Machine, why_not

import servicekit
from benchmarks.seen import Processes

if TYPE_CHECKING:
    from types import TracebackType

    from benchmarks.keepers import Keeper

    Kept = TypeVar("Kept", bound=Keeper)


class Machinery:
    """Use it as a context manager: what was started is stopped at its end, in any case."""

    def __init__(self) -> None:
        self.processes = Processes()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Compile servicekit, as its installation does; nothing else is made before it is used."""
        compileall.compile_dir(Path(servicekit.__file__).parent, quiet=2)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop everything."""
        self._stack.close()

    @property
    def no_systemd(self) -> str:
        """Why no systemd can be booted here, or nothing."""
        return why_not()

    @cached_property
    def machine(self) -> Machine:
        """A machine with a real systemd."""
        machine = Machine()
        self._stack.callback(machine.remove)
        machine.boot()
        return machine

    @cached_property
    def folder(self) -> Path:
        """A directory that is removed at the end."""
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory()))

    def keep(self, keeper: Kept) -> Kept:
        """See that `keeper` is closed at the end, if it is not before."""
        self._stack.callback(keeper.close)
        return keeper
