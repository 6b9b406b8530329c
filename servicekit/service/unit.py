"""What the systemd unit of a plan says: each decision, so that the template has none. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from math import ceil
from typing import TYPE_CHECKING, Final

from servicekit.errors import ExitCode, UserError
from servicekit.places import Scope, system_places
from servicekit.profiles.vocabulary import LONGEST_HOLD_OFF, SHARED_ACCOUNT
from servicekit.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from pathlib import PurePosixPath

    from servicekit.places import Places
    from servicekit.profiles.model import Profile
    from servicekit.service.plan import Plan

TARGET: Final = "servicekit.target"  # starts and stops all services together
LONGEST_GROUP: Final = 31  # characters of a group's name that systemd accepts
MARGIN: Final = 15.0
"""Seconds that a manager waits beyond the watchdog's own bounds, which are the ones that count."""


@dataclass(frozen=True, slots=True)
class Directive:
    """One directive of the sandbox, with the reason that the unit gives for it."""

    name: str
    settings: tuple[str, ...]  # what it is set to, one line each, ready to be written
    reason: str


@dataclass(frozen=True, slots=True)
class Unit:
    """Values of one unit, each used in the template where its name says."""

    description: str
    after: str
    wants: str
    rivals: str  # units that cannot run beside this one
    command: tuple[str, ...]
    identifier: str
    user: str | None
    group: str | None  # primary group of this service alone; `None`: the account's own
    start_seconds: int
    stop_seconds: int
    directories: tuple[tuple[str, str], ...]
    """Directives and values for the directories that systemd makes before a start."""
    credentials: tuple[tuple[str, str], ...]  # variables and the files that hold their values
    sandbox: tuple[Directive, ...]
    writable: tuple[str, ...]
    """What the sandbox leaves writable beyond the service's own directories."""


def unit_of(plan: Plan) -> Unit:
    """Decide what the unit of `plan` says.

    Raises `UserError` if the profile leaves out a directive that the sandbox does not have.
    """
    profile, host, places = plan.profile, plan.host, plan.host.places
    system = places.scope is Scope.SYSTEM
    rivals = tuple(f"servicekit-{rival}.service" for rival in host.rivals)
    module, daemon = (
        (("modprobe@nvidia_uvm.service",), ("nvidia-persistenced.service",))
        if system and profile.gpus
        else ((), ())
    )
    # Without a network an engine downloads nothing: it cannot write the weights of all.
    read_only = {places.cache} if profile.service.network == "loopback" else set()
    moved = (path for path in moved_directories(places, profile.name) if path not in read_only)
    made = _made_directories(places, profile.name, read_only)
    return Unit(
        description=f"servicekit {profile.name}: {profile.summary}",
        after=" ".join((places.boot_target, TARGET, *module, *daemon, *rivals)),
        wants=" ".join(module),
        rivals=" ".join(rivals),
        command=plan.watchdog,
        identifier=profile.unit,
        user=host.user if system else None,
        group=group_of(plan),
        start_seconds=start_seconds(profile),
        stop_seconds=stop_seconds(profile),
        directories=tuple(made) if system else (),
        credentials=tuple(
            (name, str(places.secret(profile.name, name))) for name in profile.secrets if system
        ),
        sandbox=sandbox(profile, places.scope),
        writable=(*map(str, moved), *profile.service.read_write) if system else (),
    )


def own_group(profile: str) -> str:
    """Name the primary group that the service of `profile` has to itself.

    The kernel lets a process open another one of its account only if their groups are the same.
    """
    name = f"{SHARED_ACCOUNT}_{profile}"  # no account has this name: "_" is in no profile's name
    digest = sha256(profile.encode()).hexdigest()
    return name if len(name) <= LONGEST_GROUP else f"{SHARED_ACCOUNT}_{digest[:16]}"


def group_of(plan: Plan) -> str | None:
    """Return the primary group of the unit of `plan`; `None` for that of an account of its own."""
    system = plan.host.places.scope is Scope.SYSTEM
    shared = system and plan.host.user == SHARED_ACCOUNT
    return own_group(plan.profile.name) if shared else None


def start_seconds(profile: Profile) -> int:
    """Seconds that a manager must grant a start: the watchdog's own bounds, and a margin.

    The watchdog gives up a start without progress much earlier. A short time that it would extend
    is forgotten by systemd at a daemon-reload, as any other install brings it about.
    """
    start = profile.start
    return ceil(LONGEST_HOLD_OFF + start.gpu_wait + start.limit + MARGIN)


def stop_seconds(profile: Profile) -> int:
    """Seconds that a manager must grant a stop: the watchdog's own bounds, and a margin."""
    stop = profile.stop
    return ceil(stop.grace + stop.kill + stop.settle + MARGIN)


def sandbox(profile: Profile, scope: Scope) -> tuple[Directive, ...]:
    """What confines the service of `profile`, without what the profile leaves out.

    Raises `UserError` if it leaves out what is not there.
    """
    directives = [*(_system(profile) if scope is Scope.SYSTEM else ()), *_ANY_SCOPE]
    names = [directive.name for directive in directives]
    for name in profile.service.without:
        if name not in names:
            message = f'profile "{profile.name}": service.without names "{name}"'
            meant = did_you_mean(name, names)
            raise UserError(f"{message}, which the unit does not set{meant}", code=ExitCode.CONFIG)
    return tuple(d for d in directives if d.name not in profile.service.without)


def moved_directories(places: Places, name: str) -> tuple[PurePosixPath, ...]:
    """Directories of a system's service that the settings moved to where systemd makes none."""
    usual = _directories(system_places(), name).values()
    return tuple(path for path in _directories(places, name).values() if path not in usual)


def _made_directories(
    places: Places, name: str, left_out: Container[PurePosixPath]
) -> Iterator[tuple[str, str]]:
    """Name the directories that systemd makes, below where each of its directives makes them."""
    usual = _directories(system_places(), name)
    for directive, path in _directories(places, name).items():
        if path == usual[directive] and path not in left_out:
            yield directive, "/".join(path.parts[path.parts.index("servicekit") :])


def _directories(places: Places, name: str) -> dict[str, PurePosixPath]:
    return {
        "StateDirectory": places.ledger(name).parent,
        "RuntimeDirectory": places.state_file(name).parent,
        "CacheDirectory": places.cache,
    }


def _system(profile: Profile) -> Iterator[Directive]:
    """Name what only the system's manager can set up."""
    if profile.gpus:
        yield Directive("DevicePolicy", ("closed",), "No device but what follows.")
        yield Directive(
            "DeviceAllow",
            ("char-nvidia* rw", "/dev/dxg rw"),
            "The GPU, and the GPU as WSL2 has it; one that is not there is passed over.",
        )
    else:
        yield Directive("PrivateDevices", ("yes",), "It needs no GPU, so it sees no device.")
    if profile.service.network == "loopback":
        yield Directive("IPAddressDeny", ("any",), "Nothing beyond loopback, in or out.")
        yield Directive("IPAddressAllow", ("localhost",), "Clients on this host, and the probe.")
    yield Directive("CapabilityBoundingSet", ("",), "No part of root's power.")
    yield Directive("ProtectSystem", ("strict",), "Read-only, but for its own directories.")
    # systemd 252 leaves /run writable beside ProtectKernelTunables=.
    yield Directive("ReadOnlyPaths", ("/run",), "The same for /run, which strict may leave out.")
    home = "yes" if profile.service.home == "hidden" else profile.service.home
    yield Directive("ProtectHome", (home,), "People's files are none of its business.")
    yield Directive("PrivateTmp", ("yes",), "Its own /tmp, removed when it stops.")
    yield Directive(
        "TemporaryFileSystem",
        ("/dev/shm:mode=1777,size=50%",),  # noqa: S108 - where POSIX shared memory is
        "Shared memory that a killed engine left behind would be in the next one's way.",
    )
    yield Directive("RemoveIPC", ("yes",), "The same for System V shared memory.")
    yield Directive("PrivateIPC", ("yes",), "No System V memory or queue of another service.")
    yield Directive("PrivateMounts", ("yes",), "What it mounts, the host does not see.")
    yield Directive("ProtectKernelTunables", ("yes",), "Settings of the kernel are read-only.")
    yield Directive("ProtectKernelModules", ("yes",), "It loads no kernel module.")
    yield Directive("ProtectKernelLogs", ("yes",), "It reads no kernel log.")
    yield Directive("ProtectClock", ("yes",), "It sets no clock.")
    yield Directive("ProtectHostname", ("yes",), "It does not rename the host.")
    yield Directive("RestrictNamespaces", ("yes",), "It makes no containers.")
    yield Directive("KeyringMode", ("private",), "It sees no other service's keys.")


_ANY_SCOPE: Final = (
    Directive("NoNewPrivileges", ("yes",), "Nothing that it starts has more rights than itself."),
    Directive(
        "RestrictAddressFamilies",
        ("AF_UNIX AF_INET AF_INET6 AF_NETLINK",),
        "Netlink too: ZeroMQ, by which engines talk to their workers, aborts without it.",
    ),
    Directive("RestrictRealtime", ("yes",), "It cannot starve the host of its processors."),
    Directive("RestrictSUIDSGID", ("yes",), "It makes no set-user-ID files."),
    Directive("LockPersonality", ("yes",), "It does not change how the kernel executes."),
    Directive("SystemCallArchitectures", ("native",), "No system calls of another architecture."),
    Directive(
        "SystemCallFilter",
        ("@system-service",),
        "What services need; @resources stays in it, since engines bind memory to NUMA nodes.",
    ),
    Directive(
        "SystemCallErrorNumber", ("EPERM",), "A refused call is an error to handle, not a death."
    ),
    Directive("UMask", ("0077",), "What it writes is its own, unless it says otherwise."),
)
