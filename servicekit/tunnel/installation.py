"""Installs a tunnel and takes it away again, by the same transaction as a profile.

A tunnel's manifests are a name space of their own, so that no verb for profiles meets one. A
manifest's `profile` is the tunnel's name here, and its `port` the one on this host.
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
from servicekit.install.changes import changes, record
from servicekit.install.installation import ensure_account, forget_account, tell_again
from servicekit.install.manifest import Manifest, inherited
from servicekit.install.present import look, manifests
from servicekit.install.transaction import Directory, apply, turn
from servicekit.managers import accounts
from servicekit.places import Scope
from servicekit.profiles.vocabulary import ManagerName
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
    label,
    state_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import PurePosixPath

    from servicekit.install.changes import Change
    from servicekit.install.rootfs import Tree
    from servicekit.install.transaction import Turn
    from servicekit.managers import Manager
    from servicekit.places import Places
    from servicekit.tunnel.values import HostKey, Tunnel

ACCOUNT: Final = "servicekit-tunnel"
"""Account of the system's tunnels: an engine that is broken into must not find their keys."""
SYSUSERS: Final = "servicekit-tunnel.conf"
MARGIN: Final = 15.0
"""Seconds that a manager waits beyond the service's own bounds, which are the ones that count."""
STOP_LIMIT: Final = 30.0
"""Seconds for a manager to stop a tunnel; its service takes five at most."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked for."""

    tunnel: Tunnel
    places: Places
    manager: ManagerName
    command: tuple[str, ...]
    """What the manager runs the service by."""
    pair: KeyPair
    pinned: tuple[HostKey, ...]
    force: bool = False

    @property
    def user(self) -> str | None:
        """Account of the service; `None` for whoever runs the manager."""
        # A container that has only Supervisor usually has only root, too.
        system = self.places.scope is Scope.SYSTEM and self.manager is ManagerName.SYSTEMD
        return ACCOUNT if system else None


@dataclass(frozen=True, slots=True)
class Proposal:
    """What an install would do."""

    order: Order
    changes: tuple[Change, ...]
    manifest: Manifest

    @property
    def acts(self) -> bool:
        """Whether any file is written or removed."""
        return any(change.acts for change in self.changes)


def propose(order: Order, tree: Tree) -> Proposal:
    """Compare what `order` wants with what is there. Reads only.

    Raises `UserError` where the tunnel's port on this host is a profile's or another tunnel's.
    """
    tunnel, places = order.tunnel, order.places
    installed = manifests(tree, places.for_tunnels)
    own = installed.pop(tunnel.name, None)
    if own is not None and own.manager != order.manager:
        raise UserError(
            f'tunnel "{tunnel.name}" is installed for {own.manager}, not {order.manager}',
            hint=f"`servicekit tunnel uninstall {tunnel.name}` first",
        )
    profiles = manifests(tree, places)
    if not tunnel.reverse:
        _refuse_taken(tunnel, "profile", profiles)
        _refuse_taken(tunnel, "tunnel", installed)
    wanted = artifacts(order)
    there = look(tree, _paths(wanted, own))
    # Both kinds of services are started by the same target.
    others = (*installed.values(), *profiles.values())
    made = changes(wanted, there, own, others, force=order.force)
    directories = inherited((a.path for a in wanted), others)
    manifest = Manifest(
        profile=tunnel.name,
        servicekit=__version__,
        manager=order.manager,
        user_name=None,
        port=tunnel.local,
        gpus=(),
        enabled=True,
        files=record(made, own),
        directories=directories,
    )
    return Proposal(order, made, manifest)


def _refuse_taken(tunnel: Tunnel, kind: str, installed: dict[str, Manifest]) -> None:
    for name, other in installed.items():
        if other.port == tunnel.local:
            raise UserError(
                f'port {tunnel.local} of this host is that of {kind} "{name}"',
                hint="name another one with --local, or is --reverse meant?",
                code=ExitCode.CONFIG,
            )


def artifacts(order: Order) -> tuple[Artifact, ...]:
    """Everything that a tunnel needs on disk under its manager, started at boot."""
    tunnel, places = order.tunnel, order.places
    home = directory(places, tunnel.name)
    return (
        Artifact(home / FILE, 0o644, tomli_w.dumps(tunnel.data()), None),
        Artifact(home / KEY, 0o600, order.pair.private, order.user),
        Artifact(home / PUBLIC_KEY, 0o644, order.pair.public, None),
        Artifact(home / KNOWN_HOSTS, 0o644, known_hosts(tunnel.name, order.pinned), None),
        *(_systemd(order) if order.manager is ManagerName.SYSTEMD else [_supervisor(order)]),
    )


def _systemd(order: Order) -> Iterator[Artifact]:
    tunnel, places = order.tunnel, order.places
    system = places.scope is Scope.SYSTEM
    service = f"{tunnel.unit}.service"
    text = rendered(
        "tunnel.service.j2",
        tunnel=tunnel,
        command=order.command,
        boot=places.boot_target,
        user=order.user,
        system=system,
        listens_on=None if tunnel.reverse else tunnel.local,
        start_seconds=math.ceil(LONGEST_HOLD_OFF + tunnel.up_within + MARGIN),
        restart_seconds=math.ceil(HOLD_OFF),
        codes=ExitCode,
    )
    yield Artifact(places.units / service, 0o644, text, None)
    if order.user is not None and places.sysusers is not None:
        yield Artifact(places.sysusers / SYSUSERS, 0o644, static(SYSUSERS), None)
    yield from boot(places, service)


def _supervisor(order: Order) -> Artifact:
    tunnel, places = order.tunnel, order.places
    text = rendered(
        "tunnel.conf.j2",
        tunnel=tunnel,
        command=order.command,
        log=str(places.log_file(tunnel.label)),
        codes=ExitCode,
    )
    return Artifact(places.supervisor / f"{tunnel.unit}.conf", 0o644, text, None)


@contextmanager
def turns(tree: Tree, places: Places) -> Iterator[tuple[Turn, str]]:
    """Wait for the right to change what is installed: of profiles, too, whose places these are.

    Gives it, and what was left half-done by an earlier call and is undone now.
    """
    with turn(tree, places) as outer, turn(tree, places.for_tunnels) as inner:
        yield inner, " / ".join(filter(None, (outer.undone, inner.undone)))


def install(proposal: Proposal, held: Turn, manager: Manager) -> None:
    """Carry `proposal` out, and tell `manager`."""
    order = proposal.order
    made_account = ensure_account(order.user, static(SYSUSERS), held.tree)
    logs = [Directory(order.places.logs, 0o755, None)]
    try:
        apply(
            held,
            order.tunnel.name,
            proposal.changes,
            proposal.manifest,
            # Supervisor opens the log itself; the state's directory is made where it is written.
            directories=logs if order.manager is ManagerName.SUPERVISOR else (),
            then=lambda: manager.reload(order.tunnel.unit),
            undone=lambda: tell_again(manager),
        )
    except BaseException:
        if made_account is not None:
            accounts.remove(made_account)
        raise


def removal(
    name: str, tree: Tree, places: Places, *, force: bool = False
) -> tuple[Manifest, tuple[Change, ...]]:
    """Tell what an uninstall would do. Reads only; raises `UserError` if it is not installed."""
    installed = manifests(tree, places.for_tunnels)
    own = installed.pop(name, None)
    if own is None:
        names = ", ".join(sorted(installed)) or "none"
        raise UserError(f'tunnel "{name}" is not installed', hint=f"installed are: {names}")
    there = look(tree, _paths((), own))
    others = (*installed.values(), *manifests(tree, places).values())
    return own, changes((), there, own, others, force=force)


def uninstall(
    name: str, held: Turn, places: Places, manager: Manager, *, force: bool = False
) -> tuple[Change, ...]:
    """Stop a tunnel and remove all there is of it, its key, state and log, too.

    With the last one goes the account that it ran as, if an install made it.
    Returns what was done, drift that was left among it.
    """
    tree = held.tree
    _, made = removal(name, tree, places, force=force)
    unit = f"servicekit-{label(name)}"
    was_up = manager.look([unit])[unit].is_up
    manager.stop(unit, limit=STOP_LIMIT)
    try:
        apply(held, name, made, None, then=manager.reload, undone=lambda: tell_again(manager))
    except BaseException:
        if was_up:
            manager.start(unit)
        raise
    forget(tree, places, name)
    log = places.log_file(label(name))
    for entry in tree.names(places.logs):
        if entry == log.name or entry.startswith(f"{log.name}."):
            tree.delete(places.logs / entry)
    for path in (directory(places, name).parent, places.runtime, places.logs):
        tree.delete_directory(path)
    forget_account(made, tree, places)
    return made


def forget(tree: Tree, places: Places, name: str) -> None:
    """Remove the published state of a tunnel that does not run, and with it the faults it had."""
    file = state_file(places, name)
    sweep_ssh(Path(file))
    tree.delete_tree(file.parent)


def installed_pair(tree: Tree, places: Places, name: str) -> KeyPair | None:
    """Read the key that a tunnel has already."""
    home = directory(places, name)
    private, public = (_text(tree, home / file) for file in (KEY, PUBLIC_KEY))
    return KeyPair(private, public) if private and public else None


def installed_pins(tree: Tree, places: Places, name: str) -> tuple[HostKey, ...]:
    """Read the host keys that are pinned for a tunnel already."""
    return host_keys(_text(tree, directory(places, name) / KNOWN_HOSTS))


def _text(tree: Tree, path: PurePosixPath) -> str:
    try:
        present = tree.look(path)
    except PermissionError:
        raise UserError(
            f'"{path}" cannot be read',
            hint="run it as root, or with --user for tunnels of your own",
        ) from None
    return "" if present is None else present.content.decode(errors="replace")


def _paths(wanted: Iterable[Artifact], own: Manifest | None) -> set[PurePosixPath]:
    before = own.files if own is not None else ()
    return {*(artifact.path for artifact in wanted), *(written.path for written in before)}
