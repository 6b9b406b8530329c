"""What makes a service less protected than the built-in unit, each with its consequence."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from servicekit.places import Scope
from servicekit.profiles.vocabulary import ManagerName
from servicekit.service import access

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.places import Places
    from servicekit.profiles.model import Profile

# Variables that make a program load other code than its own.
LOADS_CODE: Final = frozenset({"LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "PYTHONPATH"})
_ACL: Final = "system.posix_acl_access"


def weakenings(
    profile: Profile, places: Places, manager: ManagerName, user: str | None, executable: str = ""
) -> tuple[str, ...]:
    """Return one sentence for each weakening, beginning with the key that it comes from.

    `user` is the account of the service; `executable` the engine's program on this host, empty for
    an image.
    """
    sandboxed = manager is ManagerName.SYSTEMD and places.scope is Scope.SYSTEM
    return (
        *_of_profile(profile, user, sandboxed=sandboxed),
        *(f"service.without: the unit leaves out {each}=" for each in _left_out(profile, manager)),
        *(_of_program(Path(executable), user) if executable.startswith("/") else ()),
    )


def _of_profile(profile: Profile, user: str | None, *, sandboxed: bool) -> Iterator[str]:
    service = profile.service
    if user == "root":
        yield "service.user: the engine and the model's code run as root"
    if sandboxed:
        for path in service.read_write:
            yield f'service.read_write: the engine can write below "{path}"'
        if service.home != "hidden":
            yield "service.home: the engine can read the files of all users"
        if service.network != "loopback":
            yield "service.network: the engine can send data to the internet"
    for name in sorted(LOADS_CODE & set(profile.environment)):
        yield (
            f"environment: {name} makes the engine load code from elsewhere: "
            f"{profile.environment[name]}"
        )


def _left_out(profile: Profile, manager: ManagerName) -> tuple[str, ...]:
    return profile.service.without if manager is ManagerName.SYSTEMD else ()


def _of_program(program: Path, user: str | None) -> Iterator[str]:
    """Name who else can change the engine's program, its interpreter or its packages."""
    uid = os.geteuid() if user is None else access.account(user).uid
    # Root runs servicekit itself from there.
    trusted = {0, Path(sys.prefix).stat().st_uid} | (set() if uid is None else {uid})
    seen = set()
    for need in access.program("the engine", program):
        for step in access.way(need.path):
            who = _other_writers(step, trusted)
            if who and step not in seen:
                seen.add(step)
                yield f'executable: {who} can change what the engine runs, in "{step}"'
            if who:
                break


def _other_writers(path: Path, trusted: set[int]) -> str:
    """Name accounts outside `trusted` that can write `path`; empty if there are none."""
    try:
        status = path.stat()
    except OSError:
        return ""
    if status.st_uid not in trusted:
        return f'"{_name(status.st_uid)}"'  # who can also change its mode
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return ""  # only the owner of an entry can replace it
    if status.st_mode & stat.S_IWOTH:
        return "every account"
    if not status.st_mode & stat.S_IWGRP:
        return ""
    if _has_acl(path):
        return "an account of its access list"
    return ", ".join(f'"{_name(uid)}"' for uid in sorted(_members(status.st_gid) - trusted))


def _has_acl(path: Path) -> bool:
    try:
        return bool(os.getxattr(path, _ACL))
    except OSError:
        return False


def _members(gid: int) -> set[int]:
    """Return the accounts of a group."""
    try:
        named = {*grp.getgrgid(gid).gr_mem}
    except KeyError:
        named = set()
    return {
        entry.pw_uid for entry in pwd.getpwall() if entry.pw_gid == gid or entry.pw_name in named
    }


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user id {uid}"
