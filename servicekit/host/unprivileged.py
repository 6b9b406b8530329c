"""Runs a program of another account's for what it prints: as that account, and within bounds.

Whoever may write an engine's program decides what it does. Root never runs it as root: a small
program of our own interpreter gives up every right for good, and only then becomes the engine's.
"""

from __future__ import annotations

import json
import os
import pwd
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from servicekit.host import programs
from servicekit.host.removal import remove_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PATH: Final = "/usr/local/bin:/usr/bin:/bin"
NOBODY: Final = 65534
LONGEST: Final = 4 << 20
"""Bytes of output that are read; the program may write no larger file either way."""
MOST_OPEN: Final = 4096
CPU_SECONDS: Final = 600
# Run without `site`, any environment, or the current directory among the modules' folders.
_BECOME: Final = """
import ctypes, json, os, resource, sys
order = json.loads(sys.argv[1])
for name, most in order["limits"].items():
    number = getattr(resource, name)
    hard = resource.getrlimit(number)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(number, (most, most))
if order["ids"]:
    uid, gid = order["ids"]
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, SIGKILL = 1, 38, 9
prctl = ctypes.CDLL(None, use_errno=True).prctl
if prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0):
    sys.exit("cannot give up new privileges")
os.chdir("/")
os.umask(0o077)
os.execve(order["argv"][0], order["argv"], order["environment"])
"""


def ids_of(account: str | None) -> tuple[int, int] | None:
    """Return the ids to run as in place of root: the account's, else those of `nobody`.

    `None`: stay who we are, since we are not root, or the services are our own.
    """
    if os.geteuid() != 0 or account is None:
        return None
    try:
        entry = pwd.getpwnam(account)
    except KeyError:
        return NOBODY, NOBODY
    return (entry.pw_uid, entry.pw_gid) if entry.pw_uid else (NOBODY, NOBODY)


def trusted_path(path: str) -> str:
    """Return the directories of a search path that belong to root and to which only root writes."""
    kept = []
    for folder in path.split(os.pathsep):
        try:
            status = Path(folder).stat()
        except OSError:
            continue
        if status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            kept.append(folder)
    return os.pathsep.join(kept)


def output(
    argv: Sequence[str],
    *,
    account: str | None,
    deadline: float,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Return what the program `argv`, named by its absolute path, prints within `deadline` seconds.

    `account` is that of the service. Empty where it cannot be run or is late.
    """
    ids = ids_of(account)
    order: dict[str, object] = {
        "argv": list(argv),
        "ids": ids,
        "limits": {
            "RLIMIT_CORE": 0,
            "RLIMIT_CPU": CPU_SECONDS,
            "RLIMIT_FSIZE": 16 * LONGEST,
            "RLIMIT_NOFILE": MOST_OPEN,
        },
    }
    home = tempfile.mkdtemp(prefix="servicekit-")
    try:
        if ids is not None:
            os.chown(home, *ids)
        clean = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": home, "TMPDIR": home}
        order["environment"] = clean | dict(environment or {})
        command = (sys.executable, "-I", "-S", "-c", _BECOME, json.dumps(order))
        done = programs.run(command, limit=deadline, environment={})
    except programs.NotRunError:
        return ""
    finally:
        parent = os.open(Path(home).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            remove_tree(parent, Path(home).name)
        finally:
            os.close(parent)
    return f"{done.stdout}{done.stderr}"[:LONGEST]
