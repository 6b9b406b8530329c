"""Stands in for the watchdog in a unit: writes down what it finds there, and ends as it is told.

As `stand_in.py watch PROFILE --plan FILE` it leaves `seen.json` in the profile's state directory
and says that it is ready; a file `order` there holds the code to exit with. As `stand_in.py alert
PROFILE` it says so, as a user's service in a file `alert`. Uses the standard library only.
"""

from __future__ import annotations

import json
import os
import pwd
import resource
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_AGAIN = 0.02
FOREIGN = "10.99.99.99"
"""An address of this machine's own that is not loopback; the test gives it one."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - what is looked at


def said(act: Callable[..., object], *arguments: object) -> str:
    """Do something, and tell what the kernel said to it."""
    try:
        act(*arguments)
    except OSError as error:
        return error.strerror or str(error)
    return "yes"


def write(directory: Path) -> None:
    """Leave a file in a directory."""
    (directory / "written").touch()


def connect(address: str) -> None:
    """Knock at a port where nobody is at home."""
    with socket.socket() as client:
        client.settimeout(0.3)
        client.connect((address, 9))


def make_group() -> None:
    """Make a control group below our own, as for an engine, and kill it as a whole."""
    own = Path("/proc/self/cgroup").read_text(encoding="utf-8").strip().rpartition(":")[2]
    group = Path(f"/sys/fs/cgroup{own}/engine")
    group.mkdir()
    (group / "cgroup.kill").write_text("1", encoding="utf-8")
    group.rmdir()


def look(profile: str) -> dict[str, object]:
    """Find out what the unit gives us, and what it keeps from us."""
    left = sorted(file.name for file in SHARED_MEMORY.iterdir())
    own = [f"/var/lib/servicekit/{profile}", f"/run/servicekit/{profile}", "/var/cache/servicekit"]
    others = ["/dev/shm", "/tmp", "/srv/moved", "/etc", "/usr", "/var/lib"]  # noqa: S108 - as above
    credentials = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nonexistent"))
    return {
        "account": pwd.getpwuid(os.getuid()).pw_name,
        "devices": sorted(
            e.name
            for e in os.scandir("/dev")
            if stat.S_ISCHR(e.stat(follow_symlinks=False).st_mode)
        ),
        "left in shared memory": left,
        "writes": {path: said(write, Path(path)) for path in (*own, *others)},
        "lists": {path: said(os.listdir, path) for path in ("/root", "/home")},
        "makes a group": said(make_group),
        "reaches": {address: said(connect, address) for address in ("127.0.0.1", FOREIGN)},
        "secrets": {file.name: file.read_text() for file in credentials.glob("*")},
        "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "opens": {path: said(os.open, path, os.O_RDWR) for path in ("/dev/dxg", "/dev/other")},
        "others": sorted(spied(profile)),
        "is to set-user-ID programs": user_of(Path("/opt/become")),
    }


def spied(own_name: str) -> set[str]:
    """Try to read and write what other services of our account have; tell what worked."""
    own = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    open_to_us = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid != os.getuid() or (process / "cgroup").read_text() == own:
                continue
        except OSError:
            continue  # it has ended
        open_to_us.add("its process is seen")
        for name, flags in (("environ", os.O_RDONLY), ("mem", os.O_RDWR)):
            try:
                os.read(os.open(process / name, flags), 1)
                open_to_us.add(name)
            except PermissionError:
                continue
            except OSError:  # address 0 of a memory that could be opened
                open_to_us.add(name)
        open_to_us |= {"fd"} if said(os.readlink, process / "fd/0") == "yes" else set()
    for path in Path("/var/lib/servicekit").iterdir():
        if path.name != own_name and said(write, path) == "yes":
            open_to_us.add(f"writes {path}")
    credentials = Path("/run/credentials")
    for file in credentials.glob("*/*") if said(os.listdir, credentials) == "yes" else ():
        if str(file.parent) != os.environ.get("CREDENTIALS_DIRECTORY"):
            open_to_us.add(f"reads {file}")
    return open_to_us


def user_of(program: Path) -> str:
    """Run a program that tells as whom it runs, where there is one."""
    if not program.exists():
        return ""
    return subprocess.run([program, "-un"], capture_output=True, text=True, check=True).stdout


def chatter(order: Path) -> None:
    """Say as many lines at once as we were told to."""
    if order.exists():
        for number in range(int(order.read_text(encoding="utf-8"))):
            sys.stdout.write(f"line {number}\n")
        sys.stdout.flush()
        order.unlink()


def notify(state: str) -> None:
    """Tell systemd."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(state.encode(), os.environ["NOTIFY_SOCKET"])


def alert_sees(home: Path) -> tuple[str, str, str]:
    """Tell as whom an alert runs, and whether it can read and write the engine's state."""
    return str(os.getuid()), said(os.listdir, home), said(write, home)


def main(verb: str, profile: str) -> None:
    """Do what the verb of the real thing is for."""
    user = "XDG_RUNTIME_DIR" in os.environ
    home = (Path.home() / ".local/state" if user else Path("/var/lib")) / "servicekit" / profile
    if verb == "alert":
        if user:
            (home / "alert").write_text(profile, encoding="utf-8")
        sys.stdout.write(" ".join(("alert", profile, *alert_sees(home))) + "\n")
        return
    (home / "seen.json").write_text(json.dumps(look(profile)), encoding="utf-8")
    chatter(home / "chatter")
    notify("READY=1")
    order = home / "order"
    while not order.exists():
        notify("WATCHDOG=1")
        time.sleep(LOOK_AGAIN)
    code = int(order.read_text(encoding="utf-8"))
    order.unlink()
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:3])
