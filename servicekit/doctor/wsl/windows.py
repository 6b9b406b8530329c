r"""Windows as a distribution sees it: its drive, an account's home, and its programs.

Services do not need it. Windows programs are run by their full path, which is not in the PATH of
root or a service.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from servicekit.doctor.wsl.conf import WslKey
from servicekit.errors import reason
from servicekit.host.bounded import NoReplyError, output

if TYPE_CHECKING:
    from collections.abc import Mapping

WSL_CONF: Final = Path("/etc/wsl.conf")
ANSWER_LIMIT: Final = 4.0  # seconds for a Windows program; a busy PC takes one or two to start it
# folders beside the homes of Windows accounts
WITHOUT_OWNER: Final = frozenset({"all users", "default", "default user", "defaultuser0", "public"})


@dataclass(frozen=True, slots=True)
class Windows:
    """The Windows that this distribution runs under."""

    root: Path  # where its drives are mounted

    @property
    def drive(self) -> Path:
        return self.root / "c"

    @property
    def programs(self) -> Path:
        return self.drive / "Windows/System32"

    def has_client_without_window(self) -> bool:
        """Whether WSL is installed with its client for graphical programs."""
        return (self.drive / "Program Files/WSL/wslg.exe").is_file()

    def home(self) -> Path:
        """Find the home of the Windows account: the only one that is writable.

        Raises `NoReplyError` where that is none or several.
        """
        users = self.drive / "Users"
        try:
            folders = [folder for folder in sorted(users.iterdir()) if folder.is_dir()]
        except OSError as error:
            raise NoReplyError(f'"{users}" cannot be read: {reason(error)}') from None
        homes = [
            folder
            for folder in folders
            if folder.name.lower() not in WITHOUT_OWNER and os.access(folder, os.W_OK)
        ]
        if len(homes) != 1:
            which = ", ".join(f'"{home.name}"' for home in homes) or "none"
            raise NoReplyError(
                f'exactly one home in "{users}" must be writable: {which} can be written'
            )
        return homes[0]

    async def account(self) -> str:
        r"""Ask Windows for its account, as `computer\name`; `NoReplyError` where it gives none."""
        reply = await output([str(self.programs / "whoami.exe")], limit=ANSWER_LIMIT)
        if "\\" not in reply:
            raise NoReplyError('"whoami.exe" does not print an account')
        return reply.strip()

    async def task(self, name: str) -> str | None:
        """Ask Windows for a scheduled task of this account as XML; `None` where there is none."""
        tasks = [str(self.programs / "schtasks.exe"), "/Query", "/XML", "/TN", name]
        reply = await output(tasks, limit=ANSWER_LIMIT)
        return reply.replace("\0", "").strip() or None


def windows(settings: Mapping[WslKey, str]) -> Windows:
    """Find Windows' drives; `settings` are those of `wsl.conf`."""
    return Windows(Path(settings.get(WslKey("automount", "root")) or "/mnt"))


async def distribution(environ: Mapping[str, str]) -> str:
    r"""Find the name of this distribution; raise `NoReplyError` where it cannot be found.

    sudo removes its variable; the path of `/` in Windows, `\\wsl.localhost\NAME\`, has it, too.
    """
    if named := environ.get("WSL_DISTRO_NAME"):
        return named
    reply = (await output(["wslpath", "-w", "/"], limit=ANSWER_LIMIT)).strip("\\/\r\n ")
    name = reply.replace("/", "\\").partition("\\")[2]
    if not name:
        raise NoReplyError('"wslpath" does not print the name of the distribution')
    return name


def windows_path(path: PurePosixPath, drives: PurePosixPath, distribution: str) -> str:
    r"""Convert an absolute path for Windows: `C:\…` below `drives`, else through WSL's share."""
    if path.is_relative_to(drives) and path != drives:
        drive, *rest = path.relative_to(drives).parts
        if len(drive) == 1:
            return f"{drive.upper()}:\\" + "\\".join(rest)
    return rf"\\wsl.localhost\{distribution}" + str(path).replace("/", "\\")
