"""The files of a tunnel, which `install.installer` installs and removes as it does a profile's.

Tunnels have manifests of their own, so that no verb for profiles finds one. In such a manifest
`profile` is the tunnel's name and `port` its port on this host.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import tomli_w

from servicekit import __version__
from servicekit.errors import ExitCode, UserError
from servicekit.install.installer import (
    Proposal,
    compare,
    delete_logs,
    forget_account,
    neighbours,
    remove,
    tunnel_id,
)
from servicekit.install.transaction import PRIVATE, Directory, turn
from servicekit.places import Scope
from servicekit.profiles.vocabulary import ManagerName
from servicekit.service.access import HOMES, OWN_PLACE, TEMPORARY, Hidden, program, proved
from servicekit.service.manifest import Manifest
from servicekit.service.render import Artifact, boot, rendered, static
from servicekit.tunnel.keys import KeyPair
from servicekit.tunnel.state import sweep_ssh
from servicekit.tunnel.values import (
    FILE,
    HOLD_OFF,
    KEY,
    KNOWN_HOSTS,
    LONGEST_HOLD_OFF,
    PUBLIC_KEY,
    directory,
    host_keys,
    known_hosts,
    state_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import PurePosixPath

    from servicekit.install.changes import Change
    from servicekit.install.rootfs import Tree
    from servicekit.install.transaction import Turn
    from servicekit.managers import Manager
    from servicekit.places import Places
    from servicekit.tunnel.values import HostKey, Tunnel

# The account of system tunnels: a compromised engine must not find their keys.
ACCOUNT: Final = "servicekit-tunnel"
SYSUSERS: Final = "servicekit-tunnel.conf"
MARGIN: Final = 15.0  # seconds that a manager waits beyond the service's own time limits
STOP_LIMIT: Final = 30.0  # seconds to stop a tunnel, which takes five at most


@dataclass(frozen=True, slots=True)
class TunnelFiles:
    """What a tunnel's files are made of."""

    tunnel: Tunnel
    places: Places
    manager: ManagerName
    command: tuple[str, ...]  # what the manager runs the service by
    pair: KeyPair
    pinned: tuple[HostKey, ...]

    @property
    def user(self) -> str | None:
        """Account of the service; `None` for the account that runs the manager."""
        # A container that has only Supervisor usually has only root, too.
        system = self.places.scope is Scope.SYSTEM and self.manager is ManagerName.SYSTEMD
        return ACCOUNT if system else None

    def artifacts(self) -> tuple[Artifact, ...]:
        """Everything that the tunnel needs on disk under its manager, started at boot."""
        tunnel, home = self.tunnel, directory(self.places, self.tunnel.name)
        systemd = self.manager is ManagerName.SYSTEMD
        return (
            Artifact(home / FILE, 0o644, tomli_w.dumps(tunnel.data()), None),
            Artifact(home / KEY, 0o600, self.pair.private, self.user),
            Artifact(home / PUBLIC_KEY, 0o644, self.pair.public, None),
            Artifact(home / KNOWN_HOSTS, 0o644, known_hosts(tunnel.name, self.pinned), None),
            *(self._systemd() if systemd else [self._supervisor()]),
        )

    def _systemd(self) -> Iterator[Artifact]:
        tunnel, places = self.tunnel, self.places
        service = f"{tunnel.unit}.service"
        text = rendered(
            "tunnel.service.j2",
            tunnel=tunnel,
            command=self.command,
            boot=places.boot_target,
            user=self.user,
            system=places.scope is Scope.SYSTEM,
            listens_on=None if tunnel.reverse else tunnel.local,
            start_seconds=math.ceil(LONGEST_HOLD_OFF + tunnel.up_within + MARGIN),
            restart_seconds=math.ceil(HOLD_OFF),
            codes=ExitCode,
        )
        yield Artifact(places.units / service, 0o644, text, None)
        if self.user is not None and places.sysusers is not None:
            yield Artifact(places.sysusers / SYSUSERS, 0o644, static(SYSUSERS), None)
        yield from boot(places, service)

    def _supervisor(self) -> Artifact:
        tunnel, places = self.tunnel, self.places
        text = rendered(
            "tunnel.conf.j2",
            tunnel=tunnel,
            command=self.command,
            log=str(places.log_file(tunnel.label)),
            codes=ExitCode,
        )
        return Artifact(places.supervisor / f"{tunnel.unit}.conf", 0o644, text, None)


def propose(files: TunnelFiles, tree: Tree, *, force: bool = False) -> Proposal:
    """Compare `files` with what is there. Reads only.

    Raises `UserError` where a profile or another tunnel uses the tunnel's port on this host.
    """
    tunnel, places = files.tunnel, files.places
    service = tunnel_id(tunnel.name)
    beside = neighbours(service, tree, places)
    if not tunnel.reverse:
        _refuse_taken(tunnel, "profile", beside.profiles)
        _refuse_taken(tunnel, "tunnel", beside.tunnels)
    # Supervisor opens the log itself; the state's directory is made where it is written.
    logs = [Directory(places.logs, PRIVATE, None)]
    proposed = Proposal(
        service=service,
        user=files.user,
        changes=(),
        manifest=Manifest(
            profile=tunnel.name,
            servicekit=__version__,
            manager=files.manager,
            user_name=None,
            port=tunnel.local,
            gpus=(),
            enabled=True,
            files=(),
            directories=(),
        ),
        directories=tuple(logs if files.manager is ManagerName.SUPERVISOR else ()),
        sysusers=static(SYSUSERS),
    )
    return compare(proposed, files.artifacts(), beside, tree, force=force)


def barriers(files: TunnelFiles) -> list[str]:
    """Say why the service's account cannot run servicekit, inside the unit's sandbox."""
    if files.user is None:
        return []
    hidden = (
        *(Hidden(path, "ProtectHome") for path in HOMES),
        *(Hidden(path, "PrivateTmp") for path in TEMPORARY),
    )
    needs = program("the program servicekit", Path(files.command[0]), OWN_PLACE)
    return proved(needs, files.user, hidden)


def _refuse_taken(tunnel: Tunnel, kind: str, installed: dict[str, Manifest]) -> None:
    for name, other in installed.items():
        if other.port == tunnel.local:
            raise UserError(
                f'port {tunnel.local} on this host is used by {kind} "{name}"',
                hint="choose another with --local, or add --reverse if the engine is here",
                code=ExitCode.CONFIG,
            )


@contextmanager
def turns(tree: Tree, places: Places) -> Iterator[tuple[Turn, str]]:
    """Take the lock on what is installed, profiles included.

    Yields it, and what was undone of an interrupted call.
    """
    with turn(tree, places) as outer, turn(tree, places.for_tunnels) as inner:
        yield inner, " / ".join(filter(None, (outer.undone, inner.undone)))


def uninstall(
    name: str, held: Turn, places: Places, manager: Manager, *, force: bool = False
) -> tuple[Change, ...]:
    """Stop a tunnel and remove all there is of it, including its key, state and log.

    The last one takes the account along, if an install created it.
    Returns what was done, including drift that was kept.
    """
    tree, service = held.tree, tunnel_id(name)
    changes = remove(service, held, places, manager, stop_limit=STOP_LIMIT, force=force)
    forget(tree, places, name)
    delete_logs(service, tree, places)
    for path in (directory(places, name).parent, places.runtime, places.logs):
        tree.delete_directory(path)
    forget_account(changes, tree, places)
    return changes


def forget(tree: Tree, places: Places, name: str) -> None:
    """Remove the published state of a stopped tunnel, and with it the count of its faults."""
    file = state_file(places, name)
    sweep_ssh(Path(file))
    tree.delete_tree(file.parent)


def installed_pair(tree: Tree, places: Places, name: str) -> KeyPair | None:
    home = directory(places, name)
    private, public = (_text(tree, home / file) for file in (KEY, PUBLIC_KEY))
    return KeyPair(private, public) if private and public else None


def installed_pins(tree: Tree, places: Places, name: str) -> tuple[HostKey, ...]:
    return host_keys(_text(tree, directory(places, name) / KNOWN_HOSTS))


def _text(tree: Tree, path: PurePosixPath) -> str:
    try:
        present = tree.look(path)
    except PermissionError:
        raise UserError(
            f'"{path}" cannot be read',
            hint="run as root, or with --user for your own tunnels",
        ) from None
    return "" if present is None else present.content.decode(errors="replace")
