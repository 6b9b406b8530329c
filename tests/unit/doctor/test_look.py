"""The look at a host: real files, sockets, processes, and programs that do as they are told."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import pwd
import socket
import time
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import plans
import pytest
from machines.waiting import wait_until
from unit.cli.cli_runs import invoke
from unit.managers.fake_supervisord import FakeSupervisord

from servicekit.diagnosis.causes import Cause
from servicekit.doctor import look_host, look_profile, recipe
from servicekit.doctor.look import LIMIT, look
from servicekit.doctor.look_windows import WslQuestions
from servicekit.doctor.queries import DoctorRequest
from servicekit.doctor.view import Clock, ProfileView, RefusedProfile, SupervisorView, Unseen, Wsl
from servicekit.doctor.wsl.conf import WslKey
from servicekit.doctor.wsl.task import NAMESPACE
from servicekit.host import procfs
from servicekit.host.bounded import BoundedCalls, NoReplyError
from servicekit.host.facts import GpuView
from servicekit.install.installation import Order
from servicekit.managers.supervisor import Supervisor as SupervisorManager
from servicekit.models.weights import Missing
from servicekit.places import Scope, below
from servicekit.profiles.vocabulary import ManagerName
from servicekit.service.manifest import Manifest
from servicekit.watchdog import ledger
from servicekit.watchdog.ledger import Kind
from servicekit.watchdog.publish import State, write_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from machines.driver import Driver

    from servicekit.doctor.view import HostView
    from servicekit.profiles.model import Profile

ME = pwd.getpwuid(os.geteuid()).pw_name


class Wanted:
    """What is asked about, below one directory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.places = below(str(home))
        self.told: list[tuple[str, ...]] = []

    def order(self, profile: Profile) -> Order:
        """As it would be installed."""
        return Order(
            profile=profile,
            places=self.places,
            manager=ManagerName.SUPERVISOR,
            user=None,
            user_name=None,
            command=("/opt/servicekit/bin/servicekit",),
            path=os.environ["PATH"],
        )

    def manifest(self, profile: Profile) -> Manifest:
        """As an install left it."""
        return Manifest(
            profile=profile.name,
            servicekit="0",
            manager=ManagerName.SUPERVISOR,
            user_name=None,
            port=profile.port,
            gpus=profile.gpus,
            enabled=True,
            files=(),
            directories=(),
        )

    def request(self, *profiles: Profile, environ: Mapping[str, str] = os.environ) -> DoctorRequest:
        """Ask about these profiles, which are installed."""
        return DoctorRequest(
            places=self.places,
            environ=environ,
            manager=None,
            no_manager="nothing runs here",
            orders=tuple(map(self.order, profiles)),
            refused=(),
            installed={profile.name: self.manifest(profile) for profile in profiles},
        )

    def look(self, request: DoctorRequest) -> HostView:
        """Look."""
        return look(request, self.told.append)

    def publish(self, profile: Profile, engine_pid: int) -> None:
        """Be the watchdog of a profile whose engine has this pid."""
        me = procfs.stat(os.getpid())
        assert me is not None
        fields = {
            "profile": profile.name,
            "state": "ready",
            "phase": "serving",
            "since": "2026-01-31T12:00:00+00:00",
            "updated": "2026-01-31T12:00:00+00:00",
            "run": "r1",
            "pid": me.pid,
            "pid_started": me.started,
            "engine_pid": engine_pid,
        }
        state = State.parse(json.dumps(fields))
        assert state is not None
        write_state(Path(self.places.state_file(profile.name)), state)


@pytest.fixture
def wanted(tmp_path: Path) -> Wanted:
    """Ask about a servicekit of which nothing is installed yet."""
    return Wanted(tmp_path)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """Listen on a port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def only(host: HostView) -> ProfileView:
    """Give the one profile that was looked at."""
    (subject,) = host.subjects
    return subject


# The whole.


def test_everything_is_looked_at_at_once_and_quickly(wanted: Wanted) -> None:
    """A real host answers in a moment; nobody is told to wait; what is unseen says why."""
    began = time.monotonic()
    host = wanted.look(wanted.request(plans.profile("demo")))
    assert time.monotonic() - began < LIMIT
    assert wanted.told == []
    assert host.account == ME
    assert host.manager == Unseen("nothing runs here")
    assert host.scope is Scope.USER
    unseen = [value for name in host.__slots__ if isinstance(value := getattr(host, name), Unseen)]
    assert all(one.why for one in unseen)
    subject = only(host)
    assert subject.installed
    assert not isinstance(subject.models, Unseen)
    assert subject.models.missing is None
    assert subject.models.size is not None
    assert not isinstance(subject.cache, Unseen)
    assert subject.cache.free > 0


def test_a_driver_that_hangs_costs_five_seconds_and_no_other_answer(
    wanted: Wanted, tmp_path: Path
) -> None:
    """It is told that it is waited for, and the rest of the host is seen all the same."""
    (tmp_path / "pynvml.py").write_text("import time\ntime.sleep(8)\n", encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    began = time.monotonic()
    host = wanted.look(wanted.request(plans.profile("demo"), environ=environ))
    assert time.monotonic() - began < LIMIT
    assert not isinstance(host.gpu, Unseen)
    assert host.gpu.view is GpuView.UNRESPONSIVE
    assert host.held == Unseen("no GPU is available")
    assert wanted.told[0] == ("the GPU driver", "GPU memory")
    assert only(host).installed


def test_a_profile_that_cannot_be_planned_is_refused(wanted: Wanted, tmp_path: Path) -> None:
    """What an install would refuse is no subject, and says why."""
    (tmp_path / "installed").write_text("in the way", encoding="utf-8")
    host = wanted.look(wanted.request(plans.profile("demo")))
    assert host.subjects == ()
    (refused,) = host.refused
    assert isinstance(refused, RefusedProfile)
    assert refused.name == "demo"
    assert "not a directory" in refused.why


# What keeps services.


def test_supervisord_tells_its_version(wanted: Wanted) -> None:
    """It is asked through its own interface; a refusal is no version."""
    fake = FakeSupervisord(wanted.home / "s.sock")
    manager = SupervisorManager(wanted.places, f"unix://{fake.path}")
    request = DoctorRequest(wanted.places, os.environ, manager, "", (), (), {})
    try:
        assert wanted.look(request).manager == SupervisorView("4.3.0")
    finally:
        fake.close()
    seen = wanted.look(request).manager
    assert isinstance(seen, Unseen)
    assert "cannot be reached" in seen.why


class Configured:
    """Files of systemd's configuration below one directory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.roots = tuple(str(home / place) for place in ("etc", "usr"))

    def __truediv__(self, path: str) -> Path:
        return self.home / path


@pytest.fixture
def configured(tmp_path: Path) -> Configured:
    """Give a directory for systemd's configuration, with nothing in it."""
    return Configured(tmp_path)


def write(path: Path, text: str) -> None:
    """Write a file, making its directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_a_configuration_is_read_as_systemd_reads_it(configured: Configured) -> None:
    """One main file, the strongest; drop-ins by name, a weaker namesake hidden."""
    write(configured / "usr/systemd/x.conf", "[X]\nA=weak\n")
    assert look_host.configuration("x.conf", configured.roots) == ("[X]\nA=weak\n",)
    write(configured / "etc/systemd/x.conf", "[X]\nA=main\n")
    write(configured / "usr/systemd/x.conf.d/10-a.conf", "[X]\nA=hidden\n")
    write(configured / "etc/systemd/x.conf.d/10-a.conf", "[X]\nA=ten\n")
    write(configured / "usr/systemd/x.conf.d/05-b.conf", "[X]\nA=five\n")
    write(configured / "usr/systemd/x.conf.d/README", "[X]\nA=no\n")
    texts = look_host.configuration("x.conf", configured.roots)
    assert [text.partition("A=")[2].strip() for text in texts] == ["main", "five", "ten"]


@pytest.mark.parametrize(
    ("said", "kills"),
    [
        ("", False),
        ("KillUserProcesses=yes", True),
        (f"KillUserProcesses=yes\nKillExcludeUsers={ME}", False),
        ("KillUserProcesses=yes\nKillOnlyUsers=somebody", False),
        (f"KillUserProcesses=yes\nKillOnlyUsers=somebody {ME}", True),
    ],
)
def test_logind_kills_whom_it_is_told_to(said: str, kills: bool, configured: Configured) -> None:  # noqa: FBT001 - a column of a table
    """Accounts can be named, and root is spared unless something else is said."""
    spared = "" if "Exclude" in said else "\nKillExcludeUsers=nobody"
    write(configured / "etc/systemd/logind.conf", f"[Login]\n{said}{spared}\n")
    assert look_host.logins(ME, configured.roots).kills is kills


def test_root_is_spared_unless_something_else_is_said(configured: Configured) -> None:
    """That is logind's own default."""
    write(configured / "etc/systemd/logind.conf", "[Login]\nKillUserProcesses=yes\n")
    assert not look_host.logins("root", configured.roots).kills
    assert look_host.logins("ada", configured.roots).kills


def test_the_journals_limits_are_read(configured: Configured) -> None:
    """Its defaults where nothing is said, no limit where there is a zero."""
    usual = look_host.journal(configured.roots)
    assert (usual.interval, usual.burst) == (30.0, 10000)
    text = "[Journal]\nStorage=none\nRateLimitIntervalSec=0\nRateLimitBurst=many\nSystemMaxUse=1G"
    write(configured / "etc/systemd/journald.conf", text)
    found = look_host.journal(configured.roots)
    assert (found.storage, found.interval, found.burst, found.most) == ("none", 0.0, 0, 1 << 30)


def test_containers_are_roots_affair() -> None:
    """Without root it is said that only root may look."""
    with pytest.raises(NoReplyError, match="as root to see"):
        look_host.containers(root=False)
    if os.geteuid() == 0:
        assert look_host.containers(root=True) == ()


# The GPU.


def test_the_driver_tells_what_the_checks_need(wanted: Wanted, driver: Driver) -> None:
    """Capability, persistence and CUDA are asked for, of every GPU there is."""
    one = {"uuid": "GPU-1", "used": 1, "total": 2, "capability": [12, 0], "persistence": 0}
    driver.does(gpus=[one, {"uuid": "GPU-2", "used": 1, "total": 2}])
    seen = wanted.look(wanted.request(environ=driver.environment)).gpu
    assert not isinstance(seen, Unseen)
    assert [device.uuid for device in seen.devices] == ["GPU-1", "GPU-2"]
    assert (seen.cuda, seen.driver) == ("13.0", "580.95")
    assert [device.capability for device in seen.devices] == ["12.0", None]
    assert [device.persistence for device in seen.devices] == [False, None]


def test_who_has_the_gpu_is_named_with_its_profile(wanted: Wanted, driver: Driver) -> None:
    """An engine of ours is told by its watchdog's word, anybody else by name."""
    me, other = os.getpid(), os.getppid()
    gone = 1 << 22
    driver.does(
        gpus=[{"uuid": "GPU-1", "used": 9, "total": 9, "compute": {me: 5, other: 1, gone: 2}}]
    )
    demo = plans.profile("demo")
    wanted.publish(demo, me)
    seen = wanted.look(wanted.request(demo, environ=driver.environment)).held
    assert not isinstance(seen, Unseen)
    (held,) = seen
    assert held.gpu == "GPU-1"
    named = {process.pid: (process.mib, profile) for process, profile in held.by}
    assert named == {me: (5, "demo"), other: (1, None), 0: (2, None)}


RECORD = "<3>NVRM: Xid (PCI:0000:5f:00): 63, pid=1, name=x, from a test of the doctor"


@pytest.mark.skipif(os.geteuid() != 0, reason="writing to the kernel's log needs root")
def test_the_kernels_log_is_read_from_its_beginning() -> None:
    """A report from before the question is found, whatever else the log has."""

    def is_found() -> bool:
        # The kernel drops what programs write to its log when that is too much.
        Path("/dev/kmsg").write_text(f"{RECORD}\n", encoding="utf-8")
        seen = look_host.kernel_buffer().seen
        return any((xid.code, xid.gpu) == (63, "0000:5f:00") for xid in seen)

    wait_until(is_found, 10, "the kernel's log has the report")


def tool(folder: Path, name: str, script: str) -> None:
    """Put a program on a path."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a directory that comes first on the search path."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_where_the_kernels_log_is_closed_the_journal_is_asked(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may read the journal needs no root; who may read neither, or has neither, is told so."""
    closed = str(tools)  # what root cannot read, either
    tool(tools, "journalctl", f"echo boot; echo '{RECORD.removeprefix('<3>')}'")
    found = asyncio.run(look_host.xids(closed))
    assert [xid.code for xid in found.seen] == [63]
    assert found.whole
    for script in ("exit 1", "echo no >&2; exit 1"):
        tool(tools, "journalctl", script)
        with pytest.raises(NoReplyError, match="can only be read by root or group"):
            asyncio.run(look_host.xids(closed))
    (tools / "journalctl").unlink()
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(NoReplyError, match="can only be read by root"):
        asyncio.run(look_host.xids(closed))
    with pytest.raises(NoReplyError, match="no kernel log here"):
        asyncio.run(look_host.xids("/none"))


# The machine.


def test_clocks_are_compared(tools: Path) -> None:
    """What systemd wrote down at its start shows by how much the wall clock was set since."""
    up, asleep = 5000.0, 60.0

    def clock(*, systemd: bool = True) -> Clock:
        question = look_host.clock(
            systemd=systemd, monotonic=lambda: up, boottime=lambda: up + asleep
        )
        return asyncio.run(question)

    began = ledger.now() - timedelta(seconds=1000 + asleep + 3600)
    since = int((up - 1000) * 1e6)
    tool(tools, "systemctl", f"echo 'UserspaceTimestamp={began:%a %F %T UTC}'\n"
         f"echo UserspaceTimestampMonotonic={since}")  # fmt: skip
    found = clock()
    assert found.suspended == asleep
    assert found.stepped == pytest.approx(3600, abs=5)
    tool(tools, "systemctl", "echo UserspaceTimestamp=n/a")
    assert clock().stepped is None
    assert clock(systemd=False).stepped is None


def test_shared_memory_is_used_or_left_behind() -> None:
    """A file that a process has open or mapped is in use; names decide what is looked at."""
    ours = Path(f"/dev/shm/psm_servicekit_{os.getpid()}")  # noqa: S108 - where it must be
    other = ours.with_name(f"servicekit_{os.getpid()}")

    def seen() -> dict[str, bool | None]:
        root = os.geteuid() == 0
        return {file.name: file.used for file in look_host.shared(root=root) if file.size == 4096}

    try:
        other.write_bytes(bytes(4096))
        with ours.open("w+b") as file:
            file.write(bytes(4096))
            file.flush()
            assert seen()[ours.name] is True
            mapped = mmap.mmap(file.fileno(), 4096)
        assert seen()[ours.name] is True
        mapped.close()
        assert seen()[ours.name] is False
        assert other.name not in seen()
    finally:
        ours.unlink(missing_ok=True)
        other.unlink(missing_ok=True)


# One profile.


def test_a_path_that_is_not_there_is_where_its_parent_is(tmp_path: Path) -> None:
    """A cache that was never used will be on its parent's file system."""
    link = tmp_path / "link"
    link.symlink_to("/dev/shm")  # noqa: S108 - a file system in memory, on any host
    found = look_profile.place_of(PurePosixPath(link / "not/there"))
    assert (found.kind, found.mount) == ("tmpfs", PurePosixPath("/dev/shm"))  # noqa: S108 - as above
    assert found.free > 0


def test_an_engine_that_compiles_needs_its_tools(tmp_path: Path) -> None:
    """SGLang compiles kernels at a start, with ninja, nvcc and the headers of one CUDA."""
    plan = plans.plan("balanced")
    cuda = tmp_path / "cuda"
    missing = look_profile.missing_tools(plan, path=str(tmp_path), default=str(cuda))
    assert len(missing) == 3
    for tool in (tmp_path / "ninja", cuda / "bin/nvcc", cuda / "include/cuda_runtime.h"):
        tool.parent.mkdir(parents=True, exist_ok=True)
        tool.touch(0o755)
        after = look_profile.missing_tools(plan, path=str(tmp_path), default=str(cuda))
        assert len(after) == len(missing) - 1
        missing = after
    assert look_profile.missing_tools(plans.plan("demo"), path="", default="/nowhere") == ()


def test_a_port_is_free_held_or_our_own(wanted: Wanted, server: socket.socket) -> None:
    """Whoever listens is named; a process of the profile's own engine is no stranger."""
    port = server.getsockname()[1]
    profile = plans.profile("demo", port=port)
    request = wanted.request(profile)
    held = look_profile.port_use(profile, request)
    assert held.holder is not None
    assert (held.holder.pid, held.own) == (os.getpid(), False)
    wanted.publish(profile, os.getpid())
    assert look_profile.port_use(profile, request).own
    server.close()
    assert look_profile.port_use(profile, request).holder is None


def record(path: Path, run: str, cause: Cause, age: timedelta) -> None:
    """Write a run that ended some time ago."""
    at = ledger.now() - age
    for kind, fields in ((Kind.STARTED, {}), (Kind.FAULT, {"cause": cause.value})):
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{ledger.Record(at, 'b', run, kind, fields).line()}\n")


def test_runs_that_the_host_cut_off_are_counted(tmp_path: Path) -> None:
    """Only of late, and only those that say something of the host."""
    path = tmp_path / "history.jsonl"
    assert look_profile.cut_off(path) == {}
    day = timedelta(days=1)
    record(path, "a", Cause.IDLE_KILL, day)
    record(path, "b", Cause.IDLE_KILL, 2 * day)
    record(path, "c", Cause.HUNG, day)
    record(path, "d", Cause.POWER_LOSS, 30 * day)
    record(path, "e", Cause.SUSPEND, day)
    assert look_profile.cut_off(path) == {Cause.IDLE_KILL: 2, Cause.SUSPEND: 1}


def test_weights_are_looked_for_where_the_engine_will(wanted: Wanted) -> None:
    """A model of the hub is missing from the profile's own cache, with the command that helps."""
    subject = only(wanted.look(wanted.request(plans.profile("balanced"))))
    assert not isinstance(subject.models, Unseen)
    assert isinstance(subject.models.missing, Missing)
    assert subject.models.missing.remedy == "`servicekit fetch balanced`"
    assert not isinstance(subject.weights, Unseen)
    assert subject.weights.path == wanted.places.cache / "huggingface/hub"


def test_a_model_in_a_directory_has_the_size_of_its_files(wanted: Wanted, tmp_path: Path) -> None:
    """All of it counts, at any depth."""
    write(tmp_path / "model/a.safetensors", "x" * 1000)
    write(tmp_path / "model/deep/b.json", "x" * 24)
    profile = plans.profile("balanced", model=str(tmp_path / "model"))
    subject = only(wanted.look(wanted.request(profile)))
    assert not isinstance(subject.models, Unseen)
    assert (subject.models.names, subject.models.size) == ((str(tmp_path / "model"),), 1024)
    assert not isinstance(subject.weights, Unseen)
    assert subject.weights.path == PurePosixPath(tmp_path)


# Windows.


def asked(environ: Mapping[str, str], wsl_conf: Path) -> Wsl:
    """Ask about Windows."""

    async def ask() -> Wsl:
        board = BoundedCalls(10)
        questions = WslQuestions(board, environ, wsl_conf)
        await board.settle(lambda _: None)
        return questions.seen()

    return asyncio.run(ask())


def test_windows_is_seen_from_inside(tmp_path: Path, tools: Path) -> None:
    """Both files, what WSL says of itself, and the task that Windows has."""
    write(tmp_path / "wsl.conf", f"[boot]\nsystemd=true\n[automount]\nroot={tmp_path}/mnt\n")
    config = tmp_path / "mnt/c/Users/ada/.wslconfig"
    write(config, "")
    config.write_bytes("[wsl2]\r\nvmIdleTimeout=-1\r\n".encode("utf-16"))
    system = tmp_path / "mnt/c/Windows/System32"
    system.mkdir(parents=True)
    tool(system, "schtasks.exe", f"""echo '<Task xmlns="{NAMESPACE}"/>'""")
    tool(tools, "wslinfo", '[ "$1" = --networking-mode ] && echo nat')
    seen = asked({"WSL_DISTRO_NAME": "Debian"}, tmp_path / "wsl.conf")
    assert seen.networking == "nat"
    assert not isinstance(seen.conf, Unseen)
    assert seen.conf[WslKey("boot", "systemd")] == "true"
    assert seen.wslconfig == {WslKey("wsl2", "vmidletimeout"): "-1"}
    assert not isinstance(seen.task, Unseen)
    assert seen.task.registered
    assert "does not start at logon" in seen.task.faults
    config.unlink()
    assert asked({"WSL_DISTRO_NAME": "Debian"}, tmp_path / "wsl.conf").wslconfig == {}
    tool(system, "schtasks.exe", "echo 'ERROR: no such task' >&2; exit 1")
    seen = asked({"WSL_DISTRO_NAME": "Debian"}, tmp_path / "wsl.conf")
    assert not isinstance(seen.task, Unseen)
    assert (seen.task.name, seen.task.registered) == ("servicekit keeps Debian running", False)
    tool(system, "schtasks.exe", "echo what")
    seen = asked({"WSL_DISTRO_NAME": "Debian"}, tmp_path / "wsl.conf")
    assert isinstance(seen.task, Unseen)
    assert "cannot be read" in seen.task.why


def test_where_windows_is_out_of_reach_each_thing_says_so(tmp_path: Path, tools: Path) -> None:
    """Interop may be switched off, and drives need not be mounted."""
    write(tmp_path / "wsl.conf", f"[automount]\nroot={tmp_path}/mnt\n")
    tool(tools, "wslinfo", "exit 1")
    seen = asked({"WSL_DISTRO_NAME": "Debian"}, tmp_path / "wsl.conf")
    whys = {
        name: value.why
        for name in ("wslconfig", "networking", "task")
        if isinstance(value := getattr(seen, name), Unseen)
    }
    assert whys["wslconfig"].startswith(f'"{tmp_path}/mnt/c/Users" cannot be read')
    assert whys["task"] == '"schtasks.exe" is not installed'
    assert whys["networking"] == '"wslinfo" does not report the networking mode'
    (tmp_path / "wsl.conf").unlink()
    assert asked({}, tmp_path / "wsl.conf").conf == {}


# The command.


@pytest.fixture
def doctor(tmp_path: Path) -> Iterator[Any]:
    """Give `servicekit doctor` below one directory, with a supervisord."""
    fake = FakeSupervisord(tmp_path / "s.sock")
    config = tmp_path / "servicekit.toml"
    config.write_text(
        f'root = "{tmp_path}"\nmanager = "supervisor"\nsupervisor_socket = "{fake.path}"\n'
    )
    config.chmod(0o644)
    fake.added = ["servicekit-demo"]
    try:
        yield lambda *words: invoke("--user", "--config", config, *words)
    finally:
        fake.close()


def test_one_line_a_check_in_groups(doctor: Any) -> None:  # noqa: ANN401 - a function
    """The table has a heading for each group, and ends with a summary."""
    done = doctor("doctor", "demo")
    lines = done.out.splitlines()
    heads = [line for line in lines[:-1] if line and not line.startswith(" ")]
    assert heads == ["services", "GPU", "machine", "profile demo"]
    assert any(line.split()[:3] == ["ok", "service", "manager"] for line in lines)
    assert "Supervisor 4.3.0 runs" in done.out
    verdict = lines[-1].partition(":")[0]
    assert done.code == (1 if verdict == "fail" else 0)
    assert verdict in {"ok", "warn", "fail"}


def test_as_json_it_is_for_programs(doctor: Any) -> None:  # noqa: ANN401 - as above
    """The verdict, how often each was said, and every check with its code."""
    done = doctor("doctor", "demo", "--json")
    said = json.loads(done.out)
    assert said.keys() == {"verdict", "counts", "checks", "outdated", "seconds"}
    assert said["outdated"] == {}
    assert sum(said["counts"].values()) == len(said["checks"])
    assert said["seconds"] > 0
    (manager,) = (check for check in said["checks"] if check["code"] == "manager")
    assert manager == {
        "code": "manager",
        "title": "service manager",
        "group": "services",
        "profile": None,
        "verdict": "ok",
        "what": "Supervisor 4.3.0 runs",
        "remedy": "",
    }
    of_demo = {check["code"] for check in said["checks"] if check["profile"] == "demo"}
    assert {"port", "model", "disk"} < of_demo


def test_without_a_name_the_installed_profiles_are_examined(doctor: Any) -> None:  # noqa: ANN401 - as above
    """None before an install; one whose file was damaged since is a failed line."""

    def profiles() -> set[str | None]:
        return {check["profile"] for check in json.loads(doctor("doctor", "--json").out)["checks"]}

    assert profiles() == {None}
    assert doctor("install", "demo").code == 0
    assert profiles() == {None, "demo"}


def test_a_profile_that_is_not_there_is_a_mistake(doctor: Any) -> None:  # noqa: ANN401 - as above
    """As for every verb: one line, and the exit code for configuration."""
    done = doctor("doctor", "dem")
    assert done.code == 78
    assert 'there is no profile "dem"; did you mean "demo"?' in done.err


def test_an_installed_profile_that_was_damaged_is_a_failed_line(
    doctor: Any,  # noqa: ANN401 - as above
    tmp_path: Path,
) -> None:
    """The others are examined all the same."""
    assert doctor("install", "demo").code == 0
    config = tmp_path / "servicekit.toml"
    config.write_text(config.read_text() + 'deny = ["demo"]\n')
    done = doctor("doctor")
    assert done.code == 1
    assert "  fail  profile " in " ".join(done.out.split("\n"))
    assert 'profile "demo" must not run' in done.out


@pytest.mark.parametrize(
    ("options", "compiles"),
    [
        ({}, False),
        ({"attention-backend": "FLASHINFER"}, True),
        ({"attention-backend": "FLASH_ATTN"}, False),
    ],
)
def test_vllm_compiles_where_it_uses_flashinfer(options: dict[str, str], *, compiles: bool) -> None:
    """vLLM brings its kernels along, but for those of FlashInfer."""
    text = {
        "engine": "vllm",
        "model": "/m",
        "gpus": ["0"],
        "executable": "vllm",
        "options": options,
    }
    assert recipe.compiles(plans.profile("demo", **text)) is compiles
