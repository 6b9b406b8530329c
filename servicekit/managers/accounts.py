"""The account of a system service, created where it is missing."""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import shutil
from contextlib import suppress
from typing import Final

from servicekit.errors import UserError
from servicekit.host import programs

HOME: Final = "/var/lib/servicekit"
COMMENT: Final = "Model servers of servicekit"
"""By these two an account that an install made is known, as long as no one changed it."""
LIMIT: Final = 30.0  # seconds for the tools that edit the account database


def exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def has_group(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def can_create() -> bool:
    """Whether `create` can make an account without systemd; asked by any account, so by path."""
    return shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin") is not None


def create(name: str, sysusers: str) -> None:
    """Create the account `name`, without a login.

    systemd-sysusers creates it from `sysusers`, the text of its sysusers.d file; elsewhere
    `useradd` does.
    """
    if shutil.which("systemd-sysusers") and sysusers:
        _run(["systemd-sysusers", "-"], sysusers)
    elif shutil.which("useradd"):
        shell = next(filter(os.path.exists, ("/usr/sbin/nologin", "/sbin/nologin")), "/bin/false")
        options = ["--system", "--user-group", "--no-create-home", "--comment", COMMENT]
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


def remove_created(name: str) -> None:
    """Remove the account `name` if `create` made it."""
    if exists(name):
        account = pwd.getpwnam(name)
        if (account.pw_gecos, account.pw_dir) == (COMMENT, HOME):
            remove(name)


def remove(name: str) -> None:
    """Remove an account that servicekit created, if possible."""
    userdel = shutil.which("userdel")
    if userdel is not None:
        with suppress(programs.NotRunError):
            programs.run([userdel, name], limit=LIMIT)


def remove_group(name: str) -> None:
    """Remove a group that servicekit created, if possible."""
    groupdel = shutil.which("groupdel")
    if groupdel is not None and has_group(name):
        with suppress(programs.NotRunError):
            programs.run([groupdel, name], limit=LIMIT)


def _run(command: list[str], text: str = "") -> None:
    try:
        done = programs.run(command, limit=LIMIT, text=text)
    except programs.NotRunError as error:
        raise UserError(f'"{command[0]}" {error}') from None
    if done.failed:
        reason = (done.stderr.strip().splitlines() or [done.status.named])[-1]
        raise UserError(f'cannot create an account: "{" ".join(command)}": {reason}')
