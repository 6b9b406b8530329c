"""Gathers the view of the host: the only part of the examination that looks at anything.

Every question is asked at once and in a bound of its own; what has not answered when the time is
over is left unseen. Nothing is changed. The driver is asked by a child that may be lost.
"""

from __future__ import annotations

import asyncio
import fnmatch
import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar

from servicekit.diagnosis.causes import Cause
from servicekit.doctor import texts, view
from servicekit.doctor.view import Host, Refused, Subject, Unseen
from servicekit.doctor.wsl import conf, task, windows
from servicekit.doctor.wsl.wanted import WSLCONFIG
from servicekit.engines import versions
from servicekit.errors import UserError
from servicekit.host import procfs
from servicekit.host.bounded import BoundedCalls, NoReplyError, Pending, call, output
from servicekit.host.facts import GpuView, Process
from servicekit.host.gpu import Gpus
from servicekit.host.shared_memory import DIRECTORY, used_by
from servicekit.host.xid import xid_in
from servicekit.install.installation import look_around
from servicekit.install.rootfs import Tree
from servicekit.managers import SYSTEMD_RUNS
from servicekit.managers.containers import gpu_containers
from servicekit.managers.supervisor import Supervisor
from servicekit.models import weights
from servicekit.models.hub_cache import Repository
from servicekit.places import Scope
from servicekit.profiles.vocabulary import ManagerName
from servicekit.service.host import LINGERING, ends_with_session
from servicekit.service.missing import missing
from servicekit.service.plan import hub_cache, make_plan
from servicekit.watchdog import evidence, history, ledger, publish
from servicekit.watchdog.engine import Census, port_holder
from servicekit.watchdog.status import is_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from servicekit.doctor.wsl.conf import Key
    from servicekit.host.gpu import GpuReading
    from servicekit.host.procfs import Stat
    from servicekit.host.xid import Xid
    from servicekit.install.installation import Order
    from servicekit.install.manifest import Manifest
    from servicekit.managers import Manager
    from servicekit.places import Places
    from servicekit.profiles.model import Profile
    from servicekit.service.plan import Plan

LIMIT: Final = 8.0
"""Seconds for everything: with the start of Python and the printing, less than ten."""
ANSWER_LIMIT: Final = 5.0
"""Seconds for one program of the host."""
REMEMBERED: Final = timedelta(days=14)
"""How far back a profile's history is read."""
CUT_OFF: Final = (Cause.IDLE_KILL, Cause.SUSPEND, Cause.POWER_LOSS)
"""Endings that say something of the host and not of the engine."""

ENGINES_FILES: Final = (
    *("sgl_shm*", "sglang*", "vllm*", "psm_*"),
    *("torch_*", "nccl-*", "cuda.shm.*"),
)
"""How engines, and what they are made of, name their shared memory."""
NODES: Final = ("nvidiactl", "nvidia0", "nvidia-uvm")
CONFIGURATION: Final = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
"""Where systemd looks for its configuration, the strongest first."""
CONTAINERS: Final = (Path("/.dockerenv"), Path("/run/.containerenv"))
KERNEL_LOG: Final = "/dev/kmsg"
_KERNEL_RECORD: Final = 8192
"""Bytes that the kernel's record of one message has at most."""

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be looked at, and how to get there."""

    places: Places
    environ: Mapping[str, str]
    manager: Manager | None
    """`None` where none runs, or none can be asked."""
    no_manager: str
    """Why there is none."""
    orders: tuple[Order, ...]
    """The profiles that are asked about, as they would be installed."""
    refused: tuple[Refused, ...]
    installed: Mapping[str, Manifest]


def look(request: Request, tell: Callable[[tuple[str, ...]], None]) -> Host:
    """Look at the host; `tell` what is waited for, once that takes more than two seconds."""
    return asyncio.run(_look(request, tell))


async def _look(request: Request, tell: Callable[[tuple[str, ...]], None]) -> Host:
    root, account = os.geteuid() == 0, procfs.account(os.geteuid())
    on_wsl = evidence.on_wsl()
    board = BoundedCalls(LIMIT)
    gpus = Gpus((), environment=request.environ, limit=ANSWER_LIMIT)
    gpu = board.ask("the GPU's driver", gpus.look())
    manager = board.ask("the service manager", _manager(request))
    groups = board.ask("control groups", call(_groups))
    logins = board.ask("logind", call(lambda: _logins(account)))
    journal = board.ask("journald", call(_journal))
    containers = board.ask("containers", call(lambda: _containers(root=root)))
    driver = board.ask("the driver's files", _driver())
    held = board.ask("who has the GPU's memory", _after(gpu, lambda seen: _held(seen, request)))
    xids = board.ask("the kernel's log", _xids())
    clock = board.ask("the clocks", _clock())
    shared = board.ask("shared memory", call(lambda: _shared(root=root)))
    profiles = [_AskedProfile(board, order, request) for order in request.orders]
    wsl = _AskedWsl(board, request.environ) if on_wsl else None
    try:
        await board.settle(tell)
    finally:
        gpus.close()
    looked = [profile.seen(_seen(gpu)) for profile in profiles]
    return Host(
        scope=request.places.scope,
        account=account,
        container=not on_wsl and _in_container(),
        manager=_seen(manager),
        groups=_seen(groups),
        logins=_seen(logins),
        journal=_seen(journal),
        containers=_seen(containers),
        driver=_seen(driver),
        gpu=_seen(gpu),
        held=_seen(held),
        xids=_seen(xids),
        clock=_seen(clock),
        shared=_seen(shared),
        subjects=tuple(each for each in looked if isinstance(each, Subject)),
        refused=(*request.refused, *(each for each in looked if isinstance(each, Refused))),
        wsl=None if wsl is None else wsl.seen(),
    )


def _seen(pending: Pending[T]) -> T | Unseen:
    try:
        return pending.answer()
    except NoReplyError as error:
        return Unseen(str(error), error.remedy)


async def _after(first: Pending[S], then: Callable[[S], T]) -> T:
    """Call `then`, which may block, with the answer to `first`."""
    answer = await asyncio.shield(first.task)
    return await call(lambda: then(answer))


def _text(path: Path | str) -> str:
    """Read a small file; "" where it cannot be."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# What keeps services.


async def _manager(request: Request) -> view.Systemd | view.Supervisor:
    manager = request.manager
    if manager is None:
        raise NoReplyError(request.no_manager)
    if isinstance(manager, Supervisor):
        try:
            return view.Supervisor(await call(manager.version))
        except UserError as error:
            raise NoReplyError(error.message, remedy=error.hint) from None
    environ, show = request.environ, ("show", "--property=Version")
    said = await output(["systemctl", *show], limit=ANSWER_LIMIT, environment=environ)
    version = texts.properties(said).get("Version", "")
    if not version:
        # Without D-Bus only root may ask; what is installed is what runs, but for an upgrade.
        said = await output(["systemctl", "--version"], limit=ANSWER_LIMIT, environment=environ)
        version = texts.program_version(said)
    user = None
    if request.places.scope is Scope.USER:
        own = ["systemctl", "--user", *show]
        user = bool(await output(own, limit=ANSWER_LIMIT, environment=environ))
    return view.Systemd(texts.leading_number(version), version, user)


def _groups() -> view.Groups:
    root = Path("/sys/fs/cgroup")
    return view.Groups(
        unified=(root / "cgroup.controllers").exists(), kill=any(root.glob("*/cgroup.kill"))
    )


def _configuration(name: str) -> tuple[str, ...]:
    """Read a configuration of systemd's, such as `logind.conf`: main file and drop-ins."""
    bases = [PurePosixPath(base) / "systemd" for base in CONFIGURATION]
    main = next((text for base in bases if (text := _text(str(base / name)))), "")
    drop_ins = (
        PurePosixPath(file)
        for base in bases
        for file in sorted(Path(base / f"{name}.d").glob("*.conf"))
    )
    return (main, *(_text(str(file)) for file in texts.in_order(drop_ins)))


def _logins(account: str) -> view.Logins:
    said = texts.settings(_configuration("logind.conf"), "Login")
    only = said.get("KillOnlyUsers", "").split()
    spared = said.get("KillExcludeUsers", "root").split()
    kills = texts.is_yes(said.get("KillUserProcesses", "no"))
    return view.Logins(
        kills=kills and account not in spared and (not only or account in only),
        lingers=(LINGERING / account).exists(),
    )


def _journal() -> view.Journal:
    said = texts.settings(_configuration("journald.conf"), "Journal")
    machine = _text("/etc/machine-id").strip()
    on_disk, in_memory = (Path(base) / "log/journal" for base in ("/var", "/run"))
    storage = said.get("Storage", "auto")
    if storage == "auto":
        storage = "persistent" if on_disk.is_dir() else "volatile"
    files = (base / machine / "system.journal" for base in (on_disk, in_memory))
    burst = said.get("RateLimitBurst", "10000")
    return view.Journal(
        storage=storage,
        interval=texts.seconds(said.get("RateLimitIntervalSec", "30s")) or 0.0,
        burst=int(burst) if burst.isdecimal() else 0,
        most=texts.size(said.get("SystemMaxUse", "")),
        readable=any(os.access(file, os.R_OK) for file in files),
    )


def _containers(*, root: bool) -> tuple[str, ...]:
    if not root:
        raise NoReplyError("only root may look into containers")
    return gpu_containers()


def _in_container() -> bool:
    return bool(_text("/run/systemd/container")) or any(mark.exists() for mark in CONTAINERS)


# The GPU.


async def _driver() -> view.Driver:
    library = (await _libraries()).get("libnvidia-ml.so.1", "")
    return await call(lambda: _parts(library))


def _parts(library: str) -> view.Driver:
    nodes = [node for node in NODES if Path("/dev", node).exists()]
    return view.Driver(
        module=_text("/sys/module/nvidia/version").strip() or None,
        library=texts.version_behind(os.path.realpath(library)),
        nodes=tuple(nodes),
        closed=tuple(node for node in nodes if not os.access(f"/dev/{node}", os.R_OK | os.W_OK)),
    )


async def _libraries() -> dict[str, str]:
    """Ask the loader for the libraries that it knows, by name."""
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        if os.access(program, os.X_OK):
            return texts.libraries(await output([program, "-p"], limit=ANSWER_LIMIT))
    raise NoReplyError('"ldconfig" is not here')


def _held(seen: GpuReading, request: Request) -> tuple[view.Held, ...]:
    """Name who has the memory of each GPU, and to which profile's engine it belongs."""
    if seen.view is not GpuView.PRESENT:
        raise NoReplyError("no GPU can be asked")
    living, census = procfs.snapshot(), Census()
    holders = {pid: living[pid] for gpu in seen.devices for pid in gpu.processes if pid in living}
    owner = {pid: marker.profile for pid, marker in census.marked(holders).items()}
    owner |= _engines(request, living)

    def named(pid: int, mib: int | None) -> tuple[Process, str | None]:
        if pid in living:
            return census.describe(living[pid], mib), owner.get(pid)
        return Process(pid=0, started=0, user="", command="outside this container", mib=mib), None

    return tuple(
        view.Held(gpu.uuid, tuple(named(pid, mib) for pid, mib in gpu.processes.items()))
        for gpu in seen.devices
    )


def _engines(request: Request, living: Mapping[int, Stat]) -> dict[int, str]:
    """Name the processes of engines that run, by pid, each with its profile."""
    found: dict[int, str] = {}
    for name in request.installed:
        state = None
        with suppress(UserError):  # the check of that service says why
            state = publish.read_state(Path(request.places.state_file(name)))
        if state is not None and state.engine_pid and is_alive(state.pid, state.pid_started):
            found |= dict.fromkeys(procfs.descendants([state.engine_pid], living), name)
    return found


async def _xids() -> view.Xids:
    """Read the GPU's faults from the kernel's own buffer or, where that is closed, the journal."""
    closed = "the kernel's log may only be read by root, or in group systemd-journal"
    try:
        return await call(_kernel_buffer)
    except FileNotFoundError:
        closed = "there is no kernel's log here, as in most containers"
    except OSError:
        pass
    command = ["journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--output=cat"]
    said = ""
    with suppress(NoReplyError):
        said = await output(command, limit=ANSWER_LIMIT)
    if not said:
        raise NoReplyError(closed)
    return view.Xids(tuple(filter(None, map(xid_in, said.splitlines()))), whole=True)


def _kernel_buffer() -> view.Xids:
    log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    seen: list[Xid] = []
    first: int | None = None
    try:
        with suppress(BlockingIOError):  # the end of it
            while True:
                with suppress(BrokenPipeError):  # overwritten before it was read
                    head, _, message = os.read(log, _KERNEL_RECORD).partition(b";")
                    first = int(head.split(b",")[1]) if first is None else first
                    found = xid_in(message.partition(b"\n")[0].decode(errors="replace"))
                    seen += [found] if found is not None else []
    finally:
        os.close(log)
    return view.Xids(tuple(seen), whole=first == 0)


# The machine.


async def _clock() -> view.Clock:
    """Compare the clocks: the monotonic one stands still while the host sleeps."""
    suspended = max(0.0, _boottime() - time.monotonic())
    stepped = None
    if SYSTEMD_RUNS.is_dir():
        names = ("UserspaceTimestamp", "UserspaceTimestampMonotonic")
        command = ["systemctl", "show", "--timestamp=utc", f"--property={','.join(names)}"]
        said = texts.properties(await output(command, limit=ANSWER_LIMIT))
        began, since = (said.get(name, "") for name in names)
        at = texts.moment(began)
        if at is not None and since.isdecimal():
            # systemd wrote both down when it began; they have run on alike but for what was set.
            wall = (ledger.now() - at).total_seconds()
            stepped = wall - suspended - (time.monotonic() - int(since) / 1e6)
    return view.Clock(suspended, stepped)


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _shared(*, root: bool) -> tuple[view.SharedFile, ...]:
    """Find what engines keep in shared memory, and whether a living process has it."""
    found = [
        entry
        for entry in sorted(Path(DIRECTORY).iterdir())
        if any(fnmatch.fnmatch(entry.name, pattern) for pattern in ENGINES_FILES)
    ]
    used = used_by(procfs.pids(), procfs.ProcessReader()) if found else {}
    files = []
    for entry in found:
        with suppress(FileNotFoundError):  # it is gone by now
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(about.st_mode):
                # Another account's processes cannot be looked into, and may have it.
                told = root or about.st_uid == os.geteuid()
                has = used.get(str(entry)) == about.st_ino
                files.append(view.SharedFile(entry.name, about.st_size, has if told else None))
    return tuple(files)


# One profile.


class _AskedProfile:
    """The questions about one profile; all but the first need its plan."""

    def __init__(self, board: BoundedCalls, order: Order, request: Request) -> None:
        self._order = order
        self._installed = order.profile.name in request.installed
        about = f'profile "{order.profile.name}"'

        def then(function: Callable[[Plan], T]) -> Pending[T]:
            return board.ask(about, _after(self._plan, function))

        self._survey = board.ask(about, call(lambda: look_around(order, Tree())))
        self._plan = board.ask(
            about, _after(self._survey, lambda found: make_plan(order.profile, found.host))
        )
        self._engine = then(lambda plan: versions.look(plan.profile.engine, plan.host.executable))
        self._models = then(_models)
        self._cache = then(lambda plan: _place(plan.host.places.cache))
        self._weights = then(lambda plan: _place(_home(plan)))
        self._port = board.ask(about, call(lambda: _port(order.profile, request)))
        path = Path(request.places.ledger(order.profile.name))
        self._cut_off = board.ask(about, call(lambda: _cut_off(path)))

    def seen(self, gpu: GpuReading | Unseen) -> Subject | Refused:
        """Give what was found; a profile without a plan counts as one that cannot run."""
        try:
            survey, plan = self._survey.answer(), self._plan.answer()
        except (NoReplyError, UserError) as error:
            return Refused(self._order.profile.name, str(error))
        # What the install says of lingering is a line of its own here.
        own = self._order.manager is ManagerName.SYSTEMD and self._order.places.scope is Scope.USER
        elsewhere = set(ends_with_session()) if own else set()
        return Subject(
            profile=self._order.profile,
            plan=plan,
            installed=self._installed,
            missing=survey.missing,
            obstacles=tuple(said for said in survey.warnings if said not in elsewhere),
            engine=_seen(self._engine),
            models=_seen(self._models),
            cache=_seen(self._cache),
            weights=_seen(self._weights),
            port=_seen(self._port),
            interruptions=_seen(self._cut_off),
            gpu=gpu,
        )


def _models(plan: Plan) -> view.Models:
    """Look for a profile's weights; raises `PermissionError` where they may not be looked at."""
    profile, model = plan.profile, Path(plan.host.model)
    cache = Path(hub_cache(profile, plan.host.places))
    needs = weights.needs(profile)
    here = [Repository(cache, need.repo).listing(need.revision) for need in needs]
    sizes = [one.size for one in here if one is not None]
    if model.is_absolute() and model.exists():
        files = model.rglob("*") if model.is_dir() else [model]
        sizes.append(sum(file.stat().st_size for file in files if file.is_file()))
    return view.Models(
        names=tuple(need.repo for need in needs) or (str(model),),
        size=sum(sizes) if sizes else None,
        missing=missing(profile, plan.host.places),
    )


def _home(plan: Plan) -> PurePosixPath:
    """Name the directory where a profile's model is or, when it is the hub's, will be."""
    model = PurePosixPath(plan.host.model)
    return model.parent if model.is_absolute() else hub_cache(plan.profile, plan.host.places)


def _place(path: PurePosixPath) -> view.Place:
    """Find what a path is on; one that is not there yet will be where its parent is."""
    here = Path(path)
    while not here.exists():
        here = here.parent
    real = PurePosixPath(os.path.realpath(here))
    mount = texts.mount_of(real, texts.mounts(_text("/proc/self/mountinfo")))
    about = os.statvfs(real)
    return view.Place(
        path=path,
        kind=mount.kind if mount else "an unknown file system",
        mount=mount.at if mount else PurePosixPath("/"),
        free=about.f_bavail * about.f_frsize,
    )


def _port(profile: Profile, request: Request) -> view.PortUse:
    holder = port_holder(profile.host, profile.port, None, Census())
    if holder is None or holder.process is None:
        return view.PortUse(None)
    engines = _engines(request, procfs.snapshot())
    ours = {pid for pid, name in engines.items() if name == profile.name}
    process = holder.process
    # Without root it is only known whose process it is.
    hidden = process.pid == 0 and process.user in {procfs.user(pid) for pid in ours}
    return view.PortUse(process, own=process.pid in ours or hidden)


def _cut_off(path: Path) -> dict[Cause, int]:
    """Count a profile's runs of late that the host cut off."""
    since = ledger.now() - REMEMBERED
    try:
        records = ledger.read(path)
    except UserError as error:
        raise NoReplyError(error.message, remedy=error.hint) from None
    causes = [run.cause for run in history.runs(records) if run.began >= since]
    return {cause: count for cause in CUT_OFF if (count := causes.count(cause))}


# Windows.


class _AskedWsl:
    """The questions about Windows."""

    def __init__(self, board: BoundedCalls, environ: Mapping[str, str]) -> None:
        def ask(question: Coroutine[Any, Any, T]) -> Pending[T]:
            return board.ask("Windows", question)

        self._conf = ask(call(_wsl_conf))
        self._wslconfig = ask(_after(self._conf, _wslconfig))
        self._networking = ask(_networking())
        self._task = ask(_task(self._conf, environ))
        self._cuda = ask(_libraries())

    def seen(self) -> view.Wsl:
        """Give what was found."""
        libraries = _seen(self._cuda)
        cuda = libraries if isinstance(libraries, Unseen) else libraries.get("libcuda.so.1")
        return view.Wsl(
            conf=_seen(self._conf),
            wslconfig=_seen(self._wslconfig),
            networking=_seen(self._networking),
            task=_seen(self._task),
            device=Path("/dev/dxg").exists(),
            cuda=cuda,
        )


def _wsl_conf() -> Mapping[Key, str]:
    try:
        return conf.read(windows.WSL_CONF.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return {}


def _wslconfig(settings: Mapping[Key, str]) -> Mapping[Key, str]:
    file = windows.windows(settings).home() / WSLCONFIG
    try:
        return conf.read(conf.decode(file.read_bytes())[0])
    except FileNotFoundError:
        return {}


async def _networking() -> str:
    """Ask WSL for the networking mode that is in force, which may not be the one of the file."""
    said = await output(["wslinfo", "--networking-mode"], limit=windows.ANSWER_LIMIT)
    if not said.strip():
        raise NoReplyError('"wslinfo" does not tell the networking mode')
    return said.strip()


async def _task(settings: Pending[Mapping[Key, str]], environ: Mapping[str, str]) -> view.Task:
    found = windows.windows(await asyncio.shield(settings.task))
    name = task.task_name(await windows.distribution(environ))
    xml = await found.task(name)
    if xml is None:
        return view.Task(name=name, registered=False)
    try:
        return view.Task(name=name, registered=True, faults=tuple(task.faults(xml)))
    except ValueError as error:
        raise NoReplyError(f"Windows' answer about its task cannot be read: {error}") from None
