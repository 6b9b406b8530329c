"""The host as the checks see it: frozen values, read by `look`, invented by tests. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import PurePosixPath

    from servicekit.diagnosis.causes import Cause
    from servicekit.doctor.wsl.conf import WslKey
    from servicekit.engines.base import InstalledEngine
    from servicekit.host.facts import Process
    from servicekit.host.gpu import GpuReading
    from servicekit.host.xid import Xid
    from servicekit.models.weights import Missing
    from servicekit.places import Scope
    from servicekit.profiles.model import Profile
    from servicekit.service.plan import Plan


# Without the last one CUDA finds no GPU, and some engines silently run on the CPU.
DRIVER_NODES: Final = ("nvidiactl", "nvidia0", "nvidia-uvm")


@dataclass(frozen=True, slots=True)
class Unseen:
    """Stands for a fact that could not be read."""

    why: str
    remedy: str = ""  # what makes it readable, where known


@dataclass(frozen=True, slots=True)
class SystemdView:
    """systemd, as PID 1."""

    version: int
    text: str  # the version as it calls itself, such as "252.39-1~deb12u1"
    user: bool | None = None  # whether the user's own systemd runs; `None` for system services


@dataclass(frozen=True, slots=True)
class SupervisorView:
    """A supervisord that replies."""

    version: str


@dataclass(frozen=True, slots=True)
class Groups:
    """How control groups are set up."""

    unified: bool  # whether all controllers are in the one hierarchy of version 2
    kill: bool  # whether a group can be killed as a whole (Linux 5.14)


@dataclass(frozen=True, slots=True)
class Logins:
    """What logind does at a logout."""

    kills: bool  # whether it kills the current account's processes
    lingers: bool  # whether the account's own systemd runs without a login


@dataclass(frozen=True, slots=True)
class Journal:
    """How journald is configured."""

    storage: str  # `persistent`, `volatile` or `none`, as it takes effect
    interval: float  # seconds of the rate limit; 0 for no limit
    burst: int  # messages of one service that it takes in that time; 0 for no limit
    # Bytes that it may take of the disk; `None` for its default, a tenth and up to 4 GiB.
    most: int | None
    readable: bool  # whether the current account may read the system's journal


@dataclass(frozen=True, slots=True)
class Driver:
    """The parts of NVIDIA's driver, which must be of one version."""

    module: str | None  # version of the loaded kernel module; `None` without one
    library: str | None  # version of the library that the loader finds
    nodes: tuple[str, ...]  # device nodes that are there
    closed: tuple[str, ...] = ()  # those that the current account may not open


@dataclass(frozen=True, slots=True)
class Held:
    """Processes that use memory of one GPU, each with its profile; `None`: foreign process."""

    gpu: str  # UUID
    by: tuple[tuple[Process, str | None], ...]


@dataclass(frozen=True, slots=True)
class Xids:
    """GPU errors in the kernel log."""

    seen: tuple[Xid, ...]
    whole: bool  # whether the log still reaches back to the boot


@dataclass(frozen=True, slots=True)
class Clock:
    """Differences of the clocks since boot, in seconds."""

    suspended: float  # time that the host was suspended
    # By how much the wall clock was set ahead or back; `None` where that is unknown.
    stepped: float | None


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file in /dev/shm that looks like an engine's."""

    name: str
    size: int  # bytes
    # Whether a process has it open or mapped; `None` where some processes are hidden.
    used: bool | None


@dataclass(frozen=True, slots=True)
class Place:
    """A path and its file system."""

    path: PurePosixPath
    kind: str  # type of the file system, such as `ext4`
    mount: PurePosixPath
    free: int  # bytes that an ordinary account may still write


@dataclass(frozen=True, slots=True)
class Models:
    """The weights that a profile names."""

    names: tuple[str, ...]
    size: int | None  # bytes of what is here; `None` where that is not known
    missing: Missing | None  # what an engine would not find


@dataclass(frozen=True, slots=True)
class PortUse:
    """Who listens on a profile's port."""

    holder: Process | None  # `None` where the port is free
    own: bool = False  # whether it is the profile's own running service


@dataclass(frozen=True, slots=True)
class RefusedProfile:
    """A profile that is invalid or not allowed."""

    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileView:
    """One profile, and what it needs from the host."""

    profile: Profile
    plan: Plan
    installed: bool
    missing: tuple[str, ...]  # what it needs and is not there, one sentence each
    obstacles: tuple[str, ...]  # what its account probably cannot read, one sentence each
    engine: InstalledEngine | Unseen
    models: Models | Unseen
    cache: Place | Unseen  # for downloads and compile caches
    weights: Place | Unseen  # where its weights are, or will be
    port: PortUse | Unseen
    # Number of its runs that the host cut off, by cause.
    interruptions: Mapping[Cause, int] | Unseen
    gpu: GpuReading | Unseen  # the GPUs of the host
    bug: str | Unseen = ""  # the first bug in reporting that the watchdog of its last run met
    # What is missing of the tools that its engine compiles kernels with; nothing where it does not.
    compiler: tuple[str, ...] | Unseen = ()
    # Weakenings of its service's protection: of the profile, and those that its install accepted
    # (`None`: not recorded).
    weakenings: tuple[str, ...] = ()
    trusted: tuple[str, ...] | None = None
    # As `systemd-analyze security` rates the installed unit and the built-in one; `None` under
    # other managers, or where it cannot tell.
    exposure: tuple[float, float] | Unseen | None = None
    as_root: bool = False  # whether Supervisor runs it as its own account, which is root's


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepaliveTask:
    """The Windows task that keeps the distribution running."""

    name: str
    registered: bool
    faults: tuple[str, ...] = ()  # why it fails to, each a predicate of "the task"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wsl:
    """The Windows that this runs under."""

    conf: Mapping[WslKey, str] | Unseen  # settings of /etc/wsl.conf
    wslconfig: Mapping[WslKey, str] | Unseen  # settings of the Windows account's .wslconfig
    networking: str | Unseen  # networking mode that is in force
    task: KeepaliveTask | Unseen
    device: bool  # whether the GPU's device is there
    # Path of the CUDA library that the loader takes, `None` where it finds none.
    cuda: str | Unseen | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """The host at one point in time."""

    scope: Scope
    account: str  # the current one
    container: bool
    manager: SystemdView | SupervisorView | Unseen
    groups: Groups | Unseen
    logins: Logins | Unseen
    journal: Journal | Unseen
    containers: tuple[str, ...] | Unseen  # running containers that see a GPU
    driver: Driver | Unseen
    gpu: GpuReading | Unseen
    held: tuple[Held, ...] | Unseen
    xids: Xids | Unseen
    clock: Clock | Unseen
    shared: tuple[SharedFile, ...] | Unseen
    subjects: tuple[ProfileView, ...]
    refused: tuple[RefusedProfile, ...]
    wsl: Wsl | None  # `None` where this is no WSL

    @property
    def wants_gpu(self) -> bool:
        """Whether a profile needs a GPU; true without any profile."""
        return not self.subjects or any(subject.profile.gpus for subject in self.subjects)
