"""The account of a system service, created where it is missing."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
from typing import Final

from servicekit.errors import UserError

HOME: Final = "/var/lib/servicekit"
LIMIT: Final = 30.0  # seconds for the tools that edit the account database


def exists(name: str) -> bool:
    """Whether there is an account called `name`."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def create(name: str, sysusers: str) -> None:
    """Create the account `name`, without a login.

    systemd-sysusers creates it from `sysusers`, the text of its sysusers.d file; elsewhere
    `useradd` does.
    """
    if shutil.which("systemd-sysusers") and sysusers:
        _run(["systemd-sysusers", "-"], sysusers)
    elif shutil.which("useradd"):
        shell = next(filter(os.path.exists, ("/usr/sbin/nologin", "/sbin/nologin")), "/bin/false")
        options = ["--system", "--user-group", "--no-create-home"]
        _run(["useradd", *options, "--home-dir", HOME, "--shell", shell, name])
    else:
        raise UserError(
            f'account "{name}" does not exist, and neither systemd-sysusers nor useradd is here',
            hint="create the account, or choose another one with --user-name",
        )


def remove_made(sysusers: str) -> None:
    """Remove the account that was created from the text `sysusers`.

    An account that existed before, or was changed since, stays.
    """
    try:
        words = shlex.split(sysusers, comments=True)
        account = pwd.getpwnam(words[1])
    except (ValueError, IndexError, KeyError):
        return  # there is none, or the text was changed
    if words[3:5] == [account.pw_gecos, account.pw_dir]:
        remove(account.pw_name)


def remove(name: str) -> None:
    """Remove an account that servicekit created, if possible."""
    userdel = shutil.which("userdel")
    if userdel is not None:
        subprocess.run([userdel, name], capture_output=True, check=False, timeout=LIMIT)


def _run(command: list[str], text: str = "") -> None:
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, check=False, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        raise UserError(f'"{command[0]}" did not finish within {LIMIT:g} s') from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(f'cannot create an account: "{" ".join(command)}": {reason}')
