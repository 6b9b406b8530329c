"""Questions about the Windows that WSL runs under. Reads only."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from servicekit.doctor import view
from servicekit.doctor.look_host import libraries
from servicekit.doctor.queries import after, seen_or_not
from servicekit.doctor.wsl import conf, task, windows
from servicekit.doctor.wsl.wanted import WSLCONFIG
from servicekit.host.bounded import NoReplyError, call, output

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from servicekit.doctor.wsl.conf import WslKey
    from servicekit.host.bounded import BoundedCalls, Pending

T = TypeVar("T")


class WslQuestions:
    """Questions about Windows."""

    def __init__(self, board: BoundedCalls, environ: Mapping[str, str], wsl_conf: Path) -> None:
        def ask(question: Coroutine[Any, Any, T]) -> Pending[T]:
            return board.ask("Windows", question)

        self._conf = ask(call(lambda: _wsl_conf(wsl_conf)))
        self._wslconfig = ask(after(self._conf, _wslconfig))
        self._networking = ask(_networking())
        self._task = ask(_task(self._conf, environ))
        self._cuda = ask(_cuda())

    def seen(self) -> view.Wsl:
        return view.Wsl(
            conf=seen_or_not(self._conf),
            wslconfig=seen_or_not(self._wslconfig),
            networking=seen_or_not(self._networking),
            task=seen_or_not(self._task),
            device=Path("/dev/dxg").exists(),
            cuda=seen_or_not(self._cuda),
        )


def _wsl_conf(file: Path) -> Mapping[WslKey, str]:
    try:
        return conf.read(file.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return {}


def _wslconfig(settings: Mapping[WslKey, str]) -> Mapping[WslKey, str]:
    file = windows.windows(settings).home() / WSLCONFIG
    try:
        return conf.read(conf.decode(file.read_bytes())[0])
    except FileNotFoundError:
        return {}


async def _networking() -> str:
    """Ask WSL for the networking mode in force, which may differ from the file."""
    reply = await output(["wslinfo", "--networking-mode"], limit=windows.ANSWER_LIMIT)
    if not reply.strip():
        raise NoReplyError('"wslinfo" does not report the networking mode')
    return reply.strip()


async def _cuda() -> str | None:
    return (await libraries()).get("libcuda.so.1")


async def _task(
    settings: Pending[Mapping[WslKey, str]], environ: Mapping[str, str]
) -> view.KeepaliveTask:
    host = windows.windows(await asyncio.shield(settings.task))
    name = task.task_name(await windows.distribution(environ))
    xml = await host.task(name)
    if xml is None:
        return view.KeepaliveTask(name=name, registered=False)
    try:
        return view.KeepaliveTask(name=name, registered=True, faults=tuple(task.faults(xml)))
    except ValueError as error:
        raise NoReplyError(f"the reply of Windows about its task cannot be read: {error}") from None
