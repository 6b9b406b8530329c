"""A real systemd for tests, booted in half a second by `boot-systemd.sh` beside this file.

A `Machine` is this machine's own root under a writable layer that is thrown away. servicekit is
installed inside at `/opt/servicekit`, whichever way it is installed outside, so that an
unprivileged service with a private `/tmp` and a protected home can run it; the tests' own programs
are below `/opt/servicekit-tests`. What a test does inside survives `reboot`, and nothing survives
the test.

A `Machine` of an image is that image itself, booted as it is: what happens inside is written to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from machines.waiting import Seen, wait_until

import servicekit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

SYSTEMD = Path("/lib/systemd/systemd")
BOOT = Path(__file__).with_name("boot-systemd.sh")
TESTS = Path(__file__).parents[1]
PREFIX = Path("/opt/servicekit")
"""Where servicekit's virtual environment is, inside."""
SOURCE = Path("/opt/servicekit-source")
"""Where an editable installation's source tree is, inside."""
TESTS_INSIDE = Path("/opt/servicekit-tests")
"""Where `tests/` is, inside: `TESTS_INSIDE / "fake_engine.py"` is a program there."""
PATH = f"{PREFIX}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

BOOT_LIMIT = 20.0
"""Seconds for a boot; half a second is usual, a loaded two-core machine is not."""


def why_not() -> str:
    """Tell why no machine can be booted here, or nothing."""
    if os.geteuid() != 0:
        return "booting a systemd needs root"
    missing = [tool for tool in ("unshare", "nsenter", "setpriv") if shutil.which(tool) is None]
    if not SYSTEMD.exists():
        missing.append(str(SYSTEMD))
    return f"booting a systemd needs {', '.join(missing)}" if missing else ""


def _cgroup_root() -> Path:
    """Find a cgroup v2 hierarchy; hosts with v1 mount it beside."""
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    pytest.fail("this machine has no cgroup v2 mounted, and a systemd cannot do without")


def _below(root: Path, inside: str | os.PathLike[str]) -> Path:
    return root.joinpath(os.fspath(inside).lstrip("/"))


class Machine:
    """One machine: `boot` it, `run` things inside, `reboot`, and `remove` it."""

    def __init__(
        self, image: Path | None = None, *, trees: Mapping[Path, Path] | None = None
    ) -> None:
        """Make it; `trees` are more folders of this machine, and where they are inside."""
        self._image = image
        self._more = dict(trees or {})
        self.state = Path(tempfile.mkdtemp(prefix="machine-"))
        self.cgroup = _cgroup_root() / self.state.name
        self.cgroup.mkdir()
        for folder in ("disk", "root"):
            (self.state / folder).mkdir()
        self._order("cgroup", str(self.cgroup))
        if image is not None:
            self._order("image", str(image))
        laid = self._trees() if image is None else ()
        self._order("lay", "".join(f"{source}\t{target}\n" for source, target in laid))
        self._console = (self.state / "console.log").open("wb")
        # The machine ends with the test run, even with one that is killed.
        self._holder = subprocess.Popen(
            [
                *[
                    "setpriv",
                    "--pdeathsig",
                    "KILL",
                    "unshare",
                    "--mount",
                    "--propagation",
                    "private",
                ],
                *["bash", str(BOOT), "hold", str(self.state)],
            ],
            stdin=subprocess.PIPE,
            stdout=self._console,
            stderr=self._console,
            start_new_session=True,
        )
        self._init: psutil.Process | None = None

    def _order(self, name: str, text: str) -> None:
        (self.state / name).write_text(text, encoding="utf-8")

    @staticmethod
    def _package() -> Path:
        return Path(servicekit.__file__).parent

    def _trees(self) -> Iterator[tuple[Path, Path]]:
        """Name what the machine is to see, and where."""
        yield Path(sys.prefix), PREFIX
        yield TESTS, TESTS_INSIDE
        yield from self._more.items()
        if self._editable:
            for tree in ("servicekit", "templates", "units"):
                yield self._package().parent / tree, SOURCE / tree

    @property
    def _editable(self) -> bool:
        return not self._package().is_relative_to(sys.prefix)

    def put_servicekit_in(self) -> None:
        """Copy servicekit into the image, to where its README has it installed."""
        assert self._init is None, "the machine is on"
        for source, target in self._trees():
            if target != TESTS_INSIDE:
                shutil.copytree(source, _below(self.image, target), symlinks=True)
        self._settle_in(self.image)

    def _settle_in(self, root: Path) -> None:
        """Tell the environment inside where it now lives, as its scripts name their old place."""
        prefix = _below(root, PREFIX)
        for script in (prefix / "bin").iterdir():
            if script.is_file() and not script.is_symlink():
                old = script.read_bytes()
                new = old.replace(os.fsencode(sys.prefix), os.fsencode(PREFIX))
                if new != old:
                    script.write_bytes(new)
        if self._editable:
            finders = prefix.glob("lib/python3*/site-packages/__editable__*servicekit*")
            for finder in finders:
                text = finder.read_text(encoding="utf-8")
                finder.write_text(
                    text.replace(str(self._package().parent), str(SOURCE)), encoding="utf-8"
                )
        for program in ("servicekit", "servicekit-llama-server"):
            _below(root, f"/usr/local/bin/{program}").symlink_to(PREFIX / "bin" / program)

    @property
    def pid1(self) -> int:
        """The machine's PID 1, as this machine numbers it."""
        assert self._init is not None, "the machine is off"
        return self._init.pid

    @property
    def image(self) -> Path:
        """The root of a machine of an image, as this machine sees it, on or off."""
        assert self._image is not None, "this machine is no image"
        return self._image

    def path(self, inside: str | os.PathLike[str]) -> Path:
        """Give the path, from outside, of an absolute path inside (no absolute links below it)."""
        return _below(Path(f"/proc/{self.pid1}/root"), inside)

    def write(self, inside: str | os.PathLike[str], text: str, mode: int = 0o644) -> None:
        """Write a file inside, owned by root, making its folders."""
        target = self.path(inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        target.chmod(mode)

    def boot(
        self, *, container: str = "test-machine", boot_id: str = "", wait: bool = True
    ) -> None:
        """Power on, and wait until the boot is over (`wait=False`: until it takes orders).

        `container` is what `systemd-detect-virt` says: "wsl" makes a machine that systemd takes
        for WSL2. `boot_id` defaults to a new one, as after a power cycle; give `self.boot_id` for a
        distribution that was restarted within the same VM.
        """
        assert self._init is None, "the machine is on"
        self.boot_id = boot_id or str(uuid.uuid4())
        self._order("boot-id", f"{self.boot_id}\n")
        (self.state / "power").unlink(missing_ok=True)
        assert self._holder.stdin is not None
        self._holder.stdin.write(f"{container}\n".encode())
        self._holder.stdin.flush()
        self._init = self.wait_until(self._find_init, BOOT_LIMIT, "systemd is PID 1")
        if self._image is None and not self.path("/usr/local/bin/servicekit").is_symlink():
            self._settle_in(Path(f"/proc/{self.pid1}/root"))
        settled = {"running", "degraded"} | (set() if wait else {"starting"})
        self.wait_until(
            lambda: (
                self.run("systemctl", "is-system-running", check=False).stdout.strip() in settled
            ),
            BOOT_LIMIT,
            "the boot is over" if wait else "systemd takes orders",
        )

    def _find_init(self) -> psutil.Process | None:
        if self._holder.poll() is not None or (self.state / "power").exists():
            pytest.fail(f"the machine died while booting:\n{self.console()}")
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._holder.pid).children(recursive=True):
                if process.name() == "systemd" and process.ppid() != self._holder.pid:
                    return process
        return None

    def console(self) -> str:
        """Give what the machine printed outside any journal."""
        return (self.state / "console.log").read_text(encoding="utf-8", errors="replace")

    def power_off(self) -> None:
        """Shut down in order: every service is stopped first."""
        self.run("systemctl", "poweroff", "--no-block", check=False)
        self.wait_until((self.state / "power").exists, BOOT_LIMIT, "the machine is off")
        self._init = None

    def crash(self) -> None:
        """Cut the power: every process is gone at once, none is asked."""
        (self.cgroup / "cgroup.kill").write_text("1", encoding="utf-8")
        self.wait_until((self.state / "power").exists, BOOT_LIMIT, "the machine is off")
        self._init = None

    def reboot(
        self, *, container: str = "test-machine", boot_id: str = "", wait: bool = True
    ) -> None:
        """Shut down in order and boot again from the same disk."""
        self.power_off()
        self.boot(container=container, boot_id=boot_id, wait=wait)

    def remove(self) -> None:
        """Throw the machine away, on or off."""
        with contextlib.suppress(OSError):
            (self.cgroup / "cgroup.kill").write_text("1", encoding="utf-8")
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait(BOOT_LIMIT)
        self._console.close()
        self.wait_until(self._cgroup_removed, BOOT_LIMIT, "the machine's cgroup is empty")
        shutil.rmtree(self.state)

    def _cgroup_removed(self) -> bool:
        for folder, _, _ in os.walk(self.cgroup, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
        return not self.cgroup.exists()

    def argv(
        self, *command: str | os.PathLike[str], user: str = "", env: Mapping[str, str] | None = None
    ) -> list[str]:
        """Give the command line that, run outside, runs `command` inside."""
        join = f'mkdir -p "$0" && echo $$ >"$0/cgroup.procs" && exec nsenter -t {self.pid1} "$@"'
        values = {"HOME": "/root", "PATH": PATH, "LANG": "C.UTF-8", "SYSTEMD_PAGER": "cat"}
        values |= {"SYSTEMD_COLORS": "0", "TERM": "dumb"} | dict(env or {})
        become = ["runuser", "-u", user, "--"] if user else []
        return [
            *["sh", "-c", join, str(self.cgroup / "tests.scope")],
            *["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--"],
            *["env", "-i", "-C", "/", *(f"{name}={value}" for name, value in values.items())],
            *become,
            *(os.fspath(word) for word in command),
        ]

    def run(
        self,
        *command: str | os.PathLike[str],
        check: bool = True,
        user: str = "",
        env: Mapping[str, str] | None = None,
        text_in: str = "",
        limit: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside to its end; a failure of it fails the test, showing all it said."""
        done = subprocess.run(
            self.argv(*command, user=user, env=env),
            input=text_in,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        if check and done.returncode != 0:
            said = f"{done.stdout}{done.stderr}"
            pytest.fail(f"{command} exited {done.returncode}:\n{said}")
        return done

    def add_user(self, name: str) -> dict[str, str]:
        """Make a user whose own systemd runs without a login; give the environment that finds it.

        `run("systemctl", "--user", ..., user=name, env=that)` then talks to it.
        """
        self.run("useradd", "--create-home", name)
        self.run("systemctl", "start", "dbus.socket", "systemd-logind")
        self.run("loginctl", "enable-linger", name)
        uid = self.run("id", "-u", name).stdout.strip()
        self.wait_until(
            lambda: self.show(f"user@{uid}", "ActiveState") == "active",
            BOOT_LIMIT,
            f"{name}'s systemd is up",
        )
        return {"HOME": f"/home/{name}", "XDG_RUNTIME_DIR": f"/run/user/{uid}"}

    def spawn(
        self, *command: str | os.PathLike[str], user: str = "", env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command inside and leave it running, until the machine ends at the latest.

        What is returned is `nsenter`; the command is its only child, and dies with it.
        """
        return subprocess.Popen(
            self.argv("setpriv", "--pdeathsig", "KILL", *command, user=user, env=env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def show(self, unit: str, name: str) -> str:
        """Give one property of a unit, as `systemctl show` prints it."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).stdout.strip()

    def journal(self, unit: str = "", *options: str, **fields: str) -> list[dict[str, Any]]:
        """Give journal entries of this boot: of a unit, with these fields, with these options."""
        chosen = ["-u", unit] if unit else []
        matches = [f"{name}={value}" for name, value in fields.items()]
        said = self.run("journalctl", "-b", "-o", "json", *chosen, *options, *matches, check=False)
        return [json.loads(line) for line in said.stdout.splitlines()]

    def messages(self, unit: str = "", *options: str, **fields: str) -> list[str]:
        """Give only the messages of `journal`."""
        entries: Sequence[dict[str, Any]] = self.journal(unit, *options, **fields)
        return [str(entry.get("MESSAGE")) for entry in entries]

    @staticmethod
    def wait_until(condition: Callable[[], Seen], limit: float, what: str) -> Seen:
        """Wait as `machines.waiting.wait_until` does."""
        return wait_until(condition, limit, what)


@pytest.fixture(scope="module")
def systemd_machine() -> Iterator[Machine]:
    """Give a booted machine that the tests of one module share."""
    if reason := why_not():
        pytest.skip(reason)
    machine = Machine()
    try:
        machine.boot()
        yield machine
    finally:
        machine.remove()


@pytest.fixture
def fresh_machine() -> Iterator[Machine]:
    """Give a machine that is switched off and one test's own, to be booted as that test likes."""
    if reason := why_not():
        pytest.skip(reason)
    machine = Machine()
    try:
        yield machine
    finally:
        machine.remove()
