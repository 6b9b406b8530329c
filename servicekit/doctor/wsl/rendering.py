"""The three files that keep WSL running, and the commands that install them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from servicekit.doctor.wsl import conf, task
from servicekit.doctor.wsl.wanted import WSL_CONF, WSLCONFIG, merged
from servicekit.quoting import sh_word

if TYPE_CHECKING:
    from collections.abc import Container

    from servicekit.doctor.wsl.wanted import Wanted


class Rendered(NamedTuple):
    """One file as it should be."""

    name: str
    text: str
    data: bytes
    changes: tuple[str, ...] = ()  # one line each


def render_conf(name: str, data: bytes, *, keep: Container[str] = ()) -> Rendered:
    """Render `.wslconfig` or `wsl.conf` from what is there; `keep` names keys in lower case."""
    text, encoding = conf.decode(data)
    corrected = merged(name, text, keep=keep)
    whole = corrected.text
    if not text and name == WSLCONFIG:
        whole = whole.replace("\n", "\r\n")  # for Notepad of earlier Windows versions
    changes = tuple(_change(wanted, before) for wanted, before in corrected.changed)
    return Rendered(name, whole, conf.encode(whole, encoding), changes)


def _change(wanted: Wanted, before: str | None) -> str:
    now = f"{wanted.key}={wanted.value}"
    was = f", default {wanted.default}" if before is None else f", was {before}"
    return f"{now}{was}: {wanted.why}"


def render_task(distribution: str, account: str, client: str) -> Rendered:
    """Render the task; Windows' tools expect UTF-16 with a byte order mark."""
    text = task.task_xml(distribution, account, client=client)
    return Rendered(task.FILE, text, text.replace("\n", "\r\n").encode("utf-16"))


def steps(distribution: str, folder: str, windows_folder: str) -> tuple[str, ...]:
    """Return the steps that install the files in `folder`, `windows_folder` in Windows."""
    name = task.powershell_word(task.task_name(distribution))
    own_config = task.powershell_word(f"{windows_folder}\\{WSLCONFIG}")
    xml = f"{windows_folder}\\{task.FILE}"
    return (
        "In Windows PowerShell, as your user:",
        f"  Copy-Item -LiteralPath {own_config} -Destination $env:USERPROFILE",
        f"  {task.registration(distribution, xml)}",
        "In the distribution, as root:",
        f"  cp {sh_word((f'{folder}/{WSL_CONF}',))} /etc/{WSL_CONF}",
        "Then in Windows PowerShell (this stops everything in WSL and restarts it):",
        "  wsl.exe --shutdown",
        f"  Start-ScheduledTask -TaskName {name}",
    )
