"""Questions about one profile: its engine, weights, disk, port and history. Reads only."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, TypeVar

import psutil

from servicekit.diagnosis.causes import Cause
from servicekit.doctor import texts, view
from servicekit.doctor.exposure import exposures
from servicekit.doctor.look_host import engines
from servicekit.doctor.queries import after, seen_or_not
from servicekit.doctor.recipe import compiles
from servicekit.doctor.view import ProfileView, RefusedProfile
from servicekit.engines import versions
from servicekit.errors import UserError
from servicekit.host import procfs
from servicekit.host.bounded import NoReplyError, call
from servicekit.host.unprivileged import PATH
from servicekit.install.installation import look_around
from servicekit.install.rootfs import Tree
from servicekit.models import weights
from servicekit.models.hub_cache import Repository
from servicekit.places import Scope
from servicekit.profiles.vocabulary import ManagerName
from servicekit.service.host import ends_with_session
from servicekit.service.missing import missing
from servicekit.service.plan import hub_cache, make_plan
from servicekit.watchdog import history, ledger, publish
from servicekit.watchdog.census import Census
from servicekit.watchdog.ports import port_holder

if TYPE_CHECKING:
    from collections.abc import Callable

    from servicekit.doctor.queries import DoctorRequest
    from servicekit.doctor.view import Unseen
    from servicekit.host.bounded import BoundedCalls, Pending
    from servicekit.host.gpu import GpuReading
    from servicekit.install.installation import Order
    from servicekit.profiles.model import Profile
    from servicekit.service.plan import Plan

REMEMBERED: Final = timedelta(days=14)  # how far back a profile's history is read
# Causes that concern the host, not the engine.
CUT_OFF: Final = (Cause.IDLE_KILL, Cause.SUSPEND, Cause.POWER_LOSS)

T = TypeVar("T")


class ProfileQuestions:
    """Questions about one profile; all but the first need its plan."""

    def __init__(self, board: BoundedCalls, order: Order, request: DoctorRequest) -> None:
        self._order = order
        self._installed = order.profile.name in request.installed
        about = f'profile "{order.profile.name}"'

        def then(function: Callable[[Plan], T]) -> Pending[T]:
            return board.ask(about, after(self._plan, function))

        self._survey = board.ask(about, call(lambda: look_around(order, Tree())))
        self._plan = board.ask(
            about, after(self._survey, lambda survey: make_plan(order.profile, survey.host))
        )
        self._engine = then(
            lambda plan: versions.look(
                plan.profile.engine, plan.host.executable, account=plan.host.user
            )
        )
        self._models = then(models_of)
        self._cache = then(lambda plan: place_of(plan.host.places.state))
        self._compiler = then(missing_tools)
        self._weights = then(lambda plan: place_of(_home(plan)))
        self._port = board.ask(about, call(lambda: port_use(order.profile, request)))
        path = Path(request.places.ledger(order.profile.name))
        self._cut_off = board.ask(about, call(lambda: cut_off(path)))
        state = Path(request.places.state_file(order.profile.name))
        self._bug = board.ask(about, call(lambda: bug_of(state)))
        own = request.installed.get(order.profile.name)
        self._trusted = None if own is None else own.trusted
        account = request.accounts.get(order.profile.name, "")
        self._as_root = (
            own is not None
            and (own.manager, request.places.scope) == (ManagerName.SUPERVISOR, Scope.SYSTEM)
            and account in {None, "root"}
        )
        self._exposure = then(lambda plan: exposures(plan) if self._is_unit else None)

    @property
    def _is_unit(self) -> bool:
        """Whether it is installed as a unit of the system's systemd."""
        order = self._order
        system = order.places.scope is Scope.SYSTEM
        return self._installed and system and order.manager is ManagerName.SYSTEMD

    def seen(self, gpu: GpuReading | Unseen) -> ProfileView | RefusedProfile:
        """Return the answers; a profile that cannot be planned counts as refused."""
        try:
            survey, plan = self._survey.answer(), self._plan.answer()
        except (NoReplyError, UserError) as error:
            return RefusedProfile(self._order.profile.name, str(error))
        # Lingering has a check of its own.
        own = self._order.manager is ManagerName.SYSTEMD and self._order.places.scope is Scope.USER
        elsewhere = set(ends_with_session()) if own else set()
        return ProfileView(
            profile=self._order.profile,
            plan=plan,
            installed=self._installed,
            missing=survey.missing,
            obstacles=(
                *survey.barred,
                *(each for each in survey.warnings if each not in elsewhere),
            ),
            engine=seen_or_not(self._engine),
            models=seen_or_not(self._models),
            cache=seen_or_not(self._cache),
            weights=seen_or_not(self._weights),
            compiler=seen_or_not(self._compiler),
            port=seen_or_not(self._port),
            interruptions=seen_or_not(self._cut_off),
            gpu=gpu,
            bug=seen_or_not(self._bug),
            weakenings=survey.weakenings,
            trusted=self._trusted,
            exposure=seen_or_not(self._exposure),
            as_root=self._as_root,
        )


def models_of(plan: Plan) -> view.Models:
    """Find a profile's weights; raise `PermissionError` where they are not readable."""
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


def missing_tools(
    plan: Plan, *, path: str = PATH, default: str = "/usr/local/cuda"
) -> tuple[str, ...]:
    """Name what the engine lacks to compile CUDA kernels; nothing where it does not compile.

    CUDA is looked for as torch and FlashInfer do: by CUDA_HOME, by nvcc on the engine's PATH, then
    at `default`.
    """
    if not compiles(plan.profile):
        return ()
    folders = f"{Path(plan.host.executable).parent}{os.pathsep}{path}"
    nvcc = shutil.which("nvcc", path=folders)
    named = plan.profile.environment.get("CUDA_HOME")
    home = Path(named or (Path(nvcc).parent.parent if nvcc else default))
    tools = {
        "ninja": shutil.which("ninja", path=folders) is not None,
        f"nvcc ({home}/bin/nvcc)": os.access(home / "bin/nvcc", os.X_OK),
        f"the CUDA headers ({home}/include/cuda_runtime.h)": (
            home / "include/cuda_runtime.h"
        ).is_file(),
    }
    return tuple(name for name, is_there in tools.items() if not is_there)


def _home(plan: Plan) -> PurePosixPath:
    """Return the directory of a profile's model, or where the hub's will be."""
    model = PurePosixPath(plan.host.model)
    return model.parent if model.is_absolute() else hub_cache(plan.profile, plan.host.places)


def mounts() -> tuple[texts.Mount, ...]:
    """Return every mounted file system, in the order of mounting."""
    every = psutil.disk_partitions(all=True)
    return tuple(texts.Mount(PurePosixPath(each.mountpoint), each.fstype) for each in every)


def place_of(path: PurePosixPath) -> view.Place:
    """Find the file system of a path, or of its nearest existing parent."""
    here = Path(path)
    while not here.exists():
        here = here.parent
    real = PurePosixPath(os.path.realpath(here))
    mount = texts.mount_of(real, mounts())
    about = os.statvfs(real)
    return view.Place(
        path=path,
        kind=mount.kind if mount else "an unknown file system",
        mount=mount.at if mount else PurePosixPath("/"),
        free=about.f_bavail * about.f_frsize,
    )


def port_use(profile: Profile, request: DoctorRequest) -> view.PortUse:
    holder = port_holder(profile.host, profile.port, None, Census())
    if holder is None or holder.process is None:
        return view.PortUse(None)
    processes = engines(request, procfs.snapshot())
    ours = {pid for pid, name in processes.items() if name == profile.name}
    process = holder.process
    # Without root, only the account of the process is known.
    hidden = process.pid == 0 and process.user in {procfs.user(pid) for pid in ours}
    return view.PortUse(process, own=process.pid in ours or hidden)


def cut_off(path: Path) -> dict[Cause, int]:
    """Count a profile's recent runs that the host cut off."""
    since = ledger.now() - REMEMBERED
    causes = [run.cause for run in history.runs(ledger.read(path)) if run.began >= since]
    return {cause: count for cause in CUT_OFF if (count := causes.count(cause))}


def bug_of(path: Path) -> str:
    """Return the first bug in reporting that the run which wrote the state file `path` met."""
    state = publish.read_state(path)
    return state.bug if state is not None else ""
