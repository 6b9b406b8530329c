"""The host as the checks see it: frozen values, gathered by `look`, made up by tests. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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


@dataclass(frozen=True, slots=True)
class Unseen:
    """In the place of a fact that could not be looked at."""

    why: str
    remedy: str = ""
    """What would let it be looked at, where that is known."""


@dataclass(frozen=True, slots=True)
class SystemdView:
    """systemd, as PID 1."""

    version: int
    text: str
    """The version as it calls itself, such as "252.39-1~deb12u1"."""
    user: bool | None = None
    """Whether the user's own systemd runs; `None` where nobody's services are asked about."""


@dataclass(frozen=True, slots=True)
class SupervisorView:
    """A supervisord that answers."""

    version: str


@dataclass(frozen=True, slots=True)
class Groups:
    """Control groups as systemd has them."""

    unified: bool
    """Whether all controllers are in the one hierarchy of version 2."""
    kill: bool
    """Whether a group can be killed as a whole (Linux 5.14)."""


@dataclass(frozen=True, slots=True)
class Logins:
    """What logind does with the processes of someone who logs out."""

    kills: bool
    """Whether it kills them, for the account that asks."""
    lingers: bool
    """Whether the account's own systemd runs without a login."""


@dataclass(frozen=True, slots=True)
class Journal:
    """journald, as its configuration makes it."""

    storage: str
    """`persistent`, `volatile` or `none`, as it takes effect."""
    interval: float
    """Seconds of the rate limit; 0 for no limit."""
    burst: int
    """Messages of one service that it takes in that time; 0 for no limit."""
    most: int | None
    """Bytes that it may take of the disk; `None` for its own choice, a tenth and up to 4 GiB."""
    readable: bool
    """Whether the account that asks may read the system's journal."""


@dataclass(frozen=True, slots=True)
class Driver:
    """The parts of NVIDIA's driver, which must be of one version."""

    module: str | None
    """Version of the loaded kernel module; `None` without one."""
    library: str | None
    """Version of the library that the loader finds."""
    nodes: tuple[str, ...]
    """Device nodes that are there."""
    closed: tuple[str, ...] = ()
    """Those that the account that asks may not open."""


@dataclass(frozen=True, slots=True)
class Held:
    """Who has memory of one GPU, each with the profile it belongs to, `None` for a stranger."""

    gpu: str
    """UUID."""
    by: tuple[tuple[Process, str | None], ...]


@dataclass(frozen=True, slots=True)
class Xids:
    """The GPU's faults in the kernel's log."""

    seen: tuple[Xid, ...]
    whole: bool
    """Whether the log still reaches back to the boot."""


@dataclass(frozen=True, slots=True)
class Clock:
    """What became of the clocks since the boot, in seconds."""

    suspended: float
    """How long the host slept."""
    stepped: float | None
    """By how much the wall clock was set on or back; `None` where nobody remembers."""


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file in /dev/shm that looks like an engine's."""

    name: str
    size: int
    """Bytes."""
    used: bool | None
    """Whether a living process has it open or mapped; `None` where not all may be looked at."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file system keeps something."""

    path: PurePosixPath
    kind: str
    """Type of the file system, such as `ext4`."""
    mount: PurePosixPath
    free: int
    """Bytes that an ordinary account may still write."""


@dataclass(frozen=True, slots=True)
class Models:
    """The weights that a profile names."""

    names: tuple[str, ...]
    size: int | None
    """Bytes of what is here; `None` where that is not known."""
    missing: Missing | None
    """What an engine would not find."""


@dataclass(frozen=True, slots=True)
class PortUse:
    """Who listens where a profile wants to."""

    holder: Process | None
    """`None` where the port is free."""
    own: bool = False
    """Whether it is the profile's own running service."""


@dataclass(frozen=True, slots=True)
class RefusedProfile:
    """A profile that may not run, or is none."""

    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileView:
    """One profile, and what it needs of the host."""

    profile: Profile
    plan: Plan
    installed: bool
    missing: tuple[str, ...]
    """What it cannot start without and is not here, one sentence each."""
    obstacles: tuple[str, ...]
    """What will probably keep its account from it, one sentence each."""
    engine: InstalledEngine | Unseen
    models: Models | Unseen
    cache: Place | Unseen
    """Where weights are downloaded to and engines keep what they compile."""
    weights: Place | Unseen
    """Where its weights are, or will be."""
    port: PortUse | Unseen
    interruptions: Mapping[Cause, int] | Unseen
    """How many of its runs were cut off from outside, by cause."""
    gpu: GpuReading | Unseen
    """What a look at the GPUs of the host found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepaliveTask:
    """The task of Windows that keeps the distribution running."""

    name: str
    registered: bool
    faults: tuple[str, ...] = ()
    """What keeps it from doing so, each behind "it"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wsl:
    """The Windows that this runs under."""

    conf: Mapping[WslKey, str] | Unseen
    """Settings of /etc/wsl.conf."""
    wslconfig: Mapping[WslKey, str] | Unseen
    """Settings of the Windows account's .wslconfig."""
    networking: str | Unseen
    """Networking mode that is in force."""
    task: KeepaliveTask | Unseen
    device: bool
    """Whether the GPU's device is there."""
    cuda: str | Unseen | None
    """Path of the CUDA library that the loader takes, `None` where it finds none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """The host at one moment."""

    scope: Scope
    account: str
    """Who asks."""
    container: bool
    manager: SystemdView | SupervisorView | Unseen
    groups: Groups | Unseen
    logins: Logins | Unseen
    journal: Journal | Unseen
    containers: tuple[str, ...] | Unseen
    """Running containers that see a GPU."""
    driver: Driver | Unseen
    gpu: GpuReading | Unseen
    held: tuple[Held, ...] | Unseen
    xids: Xids | Unseen
    clock: Clock | Unseen
    shared: tuple[SharedFile, ...] | Unseen
    subjects: tuple[ProfileView, ...]
    refused: tuple[RefusedProfile, ...]
    wsl: Wsl | None
    """`None` where this is no WSL."""

    @property
    def wants_gpu(self) -> bool:
        """Whether a GPU is needed: a profile says so, or none was asked about."""
        return not self.subjects or any(subject.profile.gpus for subject in self.subjects)
