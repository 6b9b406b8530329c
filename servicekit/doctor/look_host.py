"""Questions about the host: its managers, GPUs, clocks and shared memory. Reads only."""

from __future__ import annotations

import os
import re
import stat
import time
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from servicekit.doctor import texts, view
from servicekit.errors import UserError
from servicekit.host import procfs
from servicekit.host.bounded import NoReplyError, call, output
from servicekit.host.facts import GpuView, Process
from servicekit.host.shared_memory import DIRECTORY, used_by
from servicekit.host.xid import xid_in
from servicekit.managers.containers import gpu_containers
from servicekit.managers.supervisor import Supervisor
from servicekit.places import Scope
from servicekit.service.host import LINGERING
from servicekit.watchdog import ledger, publish
from servicekit.watchdog.census import Census
from servicekit.watchdog.clock import boottime as since_boot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from servicekit.doctor.queries import DoctorRequest
    from servicekit.host.gpu import GpuReading
    from servicekit.host.procfs import Stat
    from servicekit.host.xid import Xid

ANSWER_LIMIT: Final = 5.0  # seconds for one program of the host
# How engines, and the libraries that they use, name their shared memory.
ENGINES_FILES: Final = re.compile(r"sgl_shm|sglang|vllm|psm_|torch_|nccl-|cuda\.shm\.")
# Where systemd looks for its configuration, the strongest first.
CONFIGURATION: Final = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
CONTAINERS: Final = (Path("/.dockerenv"), Path("/run/.containerenv"))
KERNEL_LOG: Final = "/dev/kmsg"
_KERNEL_RECORD: Final = 8192  # bytes that the kernel's record of one message has at most


def text_of(path: PurePath | str) -> str:
    """Read a small file; "" where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


async def manager(request: DoctorRequest) -> view.SystemdView | view.SupervisorView:
    chosen = request.manager
    if chosen is None:
        raise NoReplyError(request.no_manager)
    if isinstance(chosen, Supervisor):
        return view.SupervisorView(await call(chosen.version))
    environ, show = request.environ, ("show", "--property=Version")
    reply = await output(["systemctl", *show], limit=ANSWER_LIMIT, environment=environ)
    version = texts.properties(reply).get("Version", "")
    if not version:
        # Without D-Bus only root may ask: take the installed version instead.
        reply = await output(["systemctl", "--version"], limit=ANSWER_LIMIT, environment=environ)
        version = texts.program_version(reply)
    user = None
    if request.places.scope is Scope.USER:
        own = ["systemctl", "--user", *show]
        user = bool(await output(own, limit=ANSWER_LIMIT, environment=environ))
    return view.SystemdView(texts.leading_number(version), version, user)


def groups() -> view.Groups:
    root = Path("/sys/fs/cgroup")
    return view.Groups(
        unified=(root / "cgroup.controllers").exists(), kill=any(root.glob("*/cgroup.kill"))
    )


def configuration(name: str, roots: Sequence[str] = CONFIGURATION) -> tuple[str, ...]:
    """Read a configuration of systemd's, such as `logind.conf`: main file and drop-ins."""
    bases = [Path(base, "systemd") for base in roots]
    main = next((text for base in bases if (text := text_of(base / name))), "")
    drop_ins = (file for base in bases for file in (base / f"{name}.d").glob("*.conf"))
    return (main, *map(text_of, texts.in_order(drop_ins)))


def logins(account: str, roots: Sequence[str] = CONFIGURATION) -> view.Logins:
    """Read what logind does to the processes of `account` at its logout."""
    values = texts.settings(configuration("logind.conf", roots), "Login")
    only = values.get("KillOnlyUsers", "").split()
    spared = values.get("KillExcludeUsers", "root").split()
    kills = texts.is_yes(values.get("KillUserProcesses", "no"))
    return view.Logins(
        kills=kills and account not in spared and (not only or account in only),
        lingers=(LINGERING / account).exists(),
    )


def journal(roots: Sequence[str] = CONFIGURATION) -> view.Journal:
    values = texts.settings(configuration("journald.conf", roots), "Journal")
    machine = text_of("/etc/machine-id").strip()
    on_disk, in_memory = (Path(base) / "log/journal" for base in ("/var", "/run"))
    storage = values.get("Storage", "auto")
    if storage == "auto":
        storage = "persistent" if on_disk.is_dir() else "volatile"
    files = (base / machine / "system.journal" for base in (on_disk, in_memory))
    burst = values.get("RateLimitBurst", "10000")
    return view.Journal(
        storage=storage,
        interval=texts.seconds(values.get("RateLimitIntervalSec", "30s")) or 0.0,
        burst=int(burst) if burst.isdecimal() else 0,
        most=texts.size(values.get("SystemMaxUse", "")),
        readable=any(os.access(file, os.R_OK) for file in files),
    )


def containers(*, root: bool) -> tuple[str, ...]:
    if not root:
        raise NoReplyError("run as root to see containers")
    return gpu_containers()


def in_container() -> bool:
    return bool(text_of("/run/systemd/container")) or any(mark.exists() for mark in CONTAINERS)


# The GPU.


async def driver() -> view.Driver:
    library = (await libraries()).get("libnvidia-ml.so.1", "")
    return await call(lambda: _parts(library))


def _parts(library: str) -> view.Driver:
    nodes = [node for node in view.DRIVER_NODES if Path("/dev", node).exists()]
    return view.Driver(
        module=text_of("/sys/module/nvidia/version").strip() or None,
        library=texts.version_behind(os.path.realpath(library)),
        nodes=tuple(nodes),
        closed=tuple(node for node in nodes if not os.access(f"/dev/{node}", os.R_OK | os.W_OK)),
    )


async def libraries() -> dict[str, str]:
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        if os.access(program, os.X_OK):
            return texts.libraries(await output([program, "-p"], limit=ANSWER_LIMIT))
    raise NoReplyError('"ldconfig" was not found')


def held(seen: GpuReading, request: DoctorRequest) -> tuple[view.Held, ...]:
    """List the processes that use each GPU's memory, with the profiles they belong to."""
    if seen.view is not GpuView.PRESENT:
        raise NoReplyError("no GPU is available")
    living, census = procfs.snapshot(), Census()
    holders = {pid: living[pid] for gpu in seen.devices for pid in gpu.processes if pid in living}
    owner = {pid: marker.profile for pid, marker in census.marked(holders).items()}
    owner |= engines(request, living)

    def named(pid: int, mib: int | None) -> tuple[Process, str | None]:
        if pid in living:
            return census.describe(living[pid], mib), owner.get(pid)
        return Process(pid=0, started=0, user="", command="outside this container", mib=mib), None

    return tuple(
        view.Held(gpu.uuid, tuple(named(pid, mib) for pid, mib in gpu.processes.items()))
        for gpu in seen.devices
    )


def engines(request: DoctorRequest, living: Mapping[int, Stat]) -> dict[int, str]:
    """List the processes of running engines, by pid, with their profiles."""
    owners: dict[int, str] = {}
    for name in request.installed:
        state = None
        with suppress(UserError):  # the check of that service says why
            state = publish.read_state(Path(request.places.state_file(name)))
        if state is not None and state.engine_pid and procfs.is_alive(state.pid, state.pid_started):
            owners |= dict.fromkeys(procfs.descendants([state.engine_pid], living), name)
    return owners


async def xids(log: str = KERNEL_LOG) -> view.Xids:
    """Read GPU errors from the kernel's buffer or, where that is not permitted, the journal."""
    closed = "the kernel log can only be read by root or group systemd-journal"
    try:
        return await call(lambda: kernel_buffer(log))
    except FileNotFoundError:
        closed = "there is no kernel log here, as in most containers"
    except OSError:
        pass
    command = ["journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--output=cat"]
    log_text = ""
    with suppress(NoReplyError):
        log_text = await output(command, limit=ANSWER_LIMIT)
    if not log_text:
        raise NoReplyError(closed)
    return view.Xids(tuple(filter(None, map(xid_in, log_text.splitlines()))), whole=True)


def kernel_buffer(path: str = KERNEL_LOG) -> view.Xids:
    """Read the kernel's log buffer; raise `OSError` where that is not permitted."""
    log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    seen: list[Xid] = []
    first: int | None = None
    try:
        with suppress(BlockingIOError):  # the end of it
            while True:
                with suppress(BrokenPipeError):  # overwritten before it was read
                    head, _, message = os.read(log, _KERNEL_RECORD).partition(b";")
                    first = int(head.split(b",")[1]) if first is None else first
                    xid = xid_in(message.partition(b"\n")[0].decode(errors="replace"))
                    seen += [xid] if xid is not None else []
    finally:
        os.close(log)
    return view.Xids(tuple(seen), whole=first == 0)


# The machine.


async def clock(
    *,
    systemd: bool,
    monotonic: Callable[[], float] = time.monotonic,
    boottime: Callable[[], float] = since_boot,
) -> view.Clock:
    """Compare the clocks: the monotonic one stops while the host is suspended."""
    suspended = max(0.0, boottime() - monotonic())
    stepped = None
    if systemd:
        names = ("UserspaceTimestamp", "UserspaceTimestampMonotonic")
        command = ["systemctl", "show", "--timestamp=utc", f"--property={','.join(names)}"]
        reply = texts.properties(await output(command, limit=ANSWER_LIMIT))
        began, since = (reply.get(name, "") for name in names)
        at = texts.moment(began)
        if at is not None and since.isdecimal():
            # systemd read both clocks at its start; since then only a clock that was set differs.
            wall = (ledger.now() - at).total_seconds()
            stepped = wall - suspended - (monotonic() - int(since) / 1e6)
    return view.Clock(suspended, stepped)


def shared(*, root: bool) -> tuple[view.SharedFile, ...]:
    """List the engines' files in shared memory, and whether a process uses them."""
    entries = [path for path in sorted(Path(DIRECTORY).iterdir()) if ENGINES_FILES.match(path.name)]
    used = used_by(procfs.pids(), procfs.ProcessReader()) if entries else {}
    files = []
    for entry in entries:
        with suppress(FileNotFoundError):  # it is gone by now
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(about.st_mode):
                # The processes of another account are hidden and may use it.
                known = root or about.st_uid == os.geteuid()
                has = used.get(str(entry)) == about.st_ino
                files.append(view.SharedFile(entry.name, about.st_size, has if known else None))
    return tuple(files)
