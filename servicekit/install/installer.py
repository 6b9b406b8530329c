"""Installs and removes one service, a profile's or a tunnel's: as a value first, then done.

Both kinds start by the same systemd target and may share directories, so that each looks at the
manifests of the other. Their manifests are two name spaces: a tunnel may have a profile's name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from servicekit.errors import UserError
from servicekit.install.changes import Act, changes, record
from servicekit.install.present import look, manifests
from servicekit.install.transaction import PRIVATE, apply
from servicekit.managers import accounts
from servicekit.service.manifest import inherited
from servicekit.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import PurePosixPath

    from servicekit.install.changes import Change
    from servicekit.install.rootfs import Tree
    from servicekit.install.transaction import Directory, Turn
    from servicekit.managers import Manager
    from servicekit.places import Places
    from servicekit.service.manifest import Manifest
    from servicekit.service.render import Artifact


class ServiceKind(StrEnum):
    """What a service runs."""

    PROFILE = "profile"
    TUNNEL = "tunnel"


class ServiceId(NamedTuple):
    """One service of servicekit's."""

    kind: ServiceKind
    name: str

    @property
    def label(self) -> str:
        """Name of its directories and log. No profile has an "@" in its name."""
        return self.name if self.kind is ServiceKind.PROFILE else f"tunnel@{self.name}"

    @property
    def unit(self) -> str:
        """What its service manager calls it."""
        return f"servicekit-{self.label}"

    def places(self, places: Places) -> Places:
        """Where its manifest is, and all else as in `places`."""
        return places if self.kind is ServiceKind.PROFILE else places.for_tunnels


def profile_id(name: str) -> ServiceId:
    """Name the service of a profile."""
    return ServiceId(ServiceKind.PROFILE, name)


def tunnel_id(name: str) -> ServiceId:
    """Name the service of a tunnel."""
    return ServiceId(ServiceKind.TUNNEL, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What an install would do."""

    service: ServiceId
    user: str | None  # account of the service; `None` for the account that runs the manager
    changes: tuple[Change, ...]
    manifest: Manifest
    directories: tuple[Directory, ...] = ()
    sysusers: str = ""  # text of the account's description, for systemd-sysusers
    group: str | None = None  # primary group that the service has to itself
    enabled_rivals: tuple[str, ...] = ()  # profiles that exclude this one and start at boot

    @property
    def acts(self) -> bool:
        """Whether any file is written or removed."""
        return any(change.acts for change in self.changes)


class Neighbours(NamedTuple):
    """What is installed beside one service."""

    own: Manifest | None  # the service itself, as it is installed now
    profiles: dict[str, Manifest]
    tunnels: dict[str, Manifest]

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """All of them."""
        return (*self.profiles.values(), *self.tunnels.values())


def neighbours(service: ServiceId, tree: Tree, places: Places) -> Neighbours:
    """Read the manifests of `service` and of all others."""
    profiles, tunnels = manifests(tree, places), manifests(tree, places.for_tunnels)
    same = profiles if service.kind is ServiceKind.PROFILE else tunnels
    return Neighbours(same.pop(service.name, None), profiles, tunnels)


def compare(
    proposed: Proposal, wanted: Sequence[Artifact], beside: Neighbours, tree: Tree, *, force: bool
) -> Proposal:
    """Complete `proposed` by the changes that make `wanted` of what is on disk. Reads only."""
    service, own, manifest = proposed.service, beside.own, proposed.manifest
    if own is not None and own.manager != manifest.manager:
        verb = "uninstall" if service.kind is ServiceKind.PROFILE else "tunnel uninstall"
        raise UserError(
            f'{service.kind} "{service.name}" is installed for {own.manager}, '
            f"not {manifest.manager}",
            hint=f"`servicekit {verb} {service.name}` first",
        )
    there = look(tree, _paths(wanted, own))
    made = changes(wanted, there, own, beside.manifests, force=force)
    directories = inherited((artifact.path for artifact in wanted), beside.manifests)
    written = replace(manifest, files=record(made, own), directories=directories)
    return replace(proposed, changes=made, manifest=written)


def _paths(wanted: Iterable[Artifact], own: Manifest | None) -> set[PurePosixPath]:
    before = own.files if own is not None else ()
    return {*(artifact.path for artifact in wanted), *(written.path for written in before)}


def install(proposal: Proposal, turn: Turn, manager: Manager | None) -> Manifest:
    """Carry `proposal` out under `turn`, then reload `manager` (`None` for an image)."""
    user, group = proposal.user, proposal.group
    had_group = group is None or accounts.has_group(group)
    made_account = ensure_account(user, proposal.sysusers, turn.tree, group)
    try:
        _hand_over(proposal, turn.tree)
        manifest = apply(
            turn,
            proposal.service.name,
            proposal.changes,
            proposal.manifest,
            directories=proposal.directories,
            then=_reload(manager, proposal.service.unit),
            undone=lambda: _reload_again(manager),
        )
    except BaseException:
        if made_account is not None:
            accounts.remove(made_account)
        if group is not None and not had_group:
            accounts.remove_group(group)
        raise
    manifest = manifest or proposal.manifest
    for directory in proposal.directories:
        if directory.mode == PRIVATE and directory.path in manifest.directories:
            turn.tree.restrict(directory.path, PRIVATE)
    return manifest


def _hand_over(proposal: Proposal, tree: Tree) -> None:
    """Give the account what the service left behind when it ran as root."""
    ids = None if proposal.user is None else tree.account(proposal.user)
    if ids is None or tree.is_image or os.geteuid() != 0:
        return
    for directory in proposal.directories:
        if directory.owner is not None:
            tree.hand_over(directory.path, ids)


def removal(
    service: ServiceId, tree: Tree, places: Places, *, force: bool = False
) -> tuple[Manifest, tuple[Change, ...]]:
    """Return the manifest and what an uninstall would do. Reads only.

    Raises `UserError` if `service` is not installed.
    """
    beside = neighbours(service, tree, places)
    if beside.own is None:
        same = beside.profiles if service.kind is ServiceKind.PROFILE else beside.tunnels
        raise UserError(
            f'{service.kind} "{shown(service.name)}" is not installed',
            hint=f"installed: {', '.join(sorted(same)) or 'none'}",
        )
    there = look(tree, _paths((), beside.own))
    return beside.own, changes((), there, beside.own, beside.manifests, force=force)


def remove(
    service: ServiceId,
    turn: Turn,
    places: Places,
    manager: Manager | None,
    *,
    stop_limit: float,
    force: bool = False,
) -> tuple[Change, ...]:
    """Stop `service` and remove the files that its install wrote.

    Returns what was done, including drift that was kept. Starts it again where that fails.
    """
    _, planned = removal(service, turn.tree, places, force=force)
    was_up = False
    if manager is not None:
        was_up = manager.look([service.unit])[service.unit].is_up
        manager.stop(service.unit, limit=stop_limit)
    try:
        apply(
            turn,
            service.name,
            planned,
            None,
            then=_reload(manager),
            undone=lambda: _reload_again(manager),
        )
    except BaseException:
        if was_up and manager is not None:
            manager.start(service.unit)
        raise
    return planned


def delete_logs(service: ServiceId, tree: Tree, places: Places) -> None:
    """Delete the log that Supervisor wrote, and its rotated parts."""
    log = places.log_file(service.label)
    for name in tree.names(places.logs):
        if name == log.name or name.startswith(f"{log.name}."):
            tree.delete(places.logs / name)


def ensure_account(
    user: str | None, sysusers: str, tree: Tree, group: str | None = None
) -> str | None:
    """Make the service's account and group where missing; return the account if it was made now.

    `sysusers` is their description for systemd-sysusers.
    """
    if user is None or tree.is_image or os.geteuid() != 0:
        return None
    had_account = accounts.exists(user)
    if had_account and (group is None or accounts.has_group(group)):
        return None
    accounts.create(user, sysusers)
    if not accounts.exists(user):
        raise UserError(f'cannot create account "{user}"', hint="create it, then install again")
    if group is not None and not accounts.has_group(group):
        raise UserError(f'cannot create group "{group}"', hint="create it, then install again")
    return None if had_account else user


def forget_account(made: Iterable[Change], tree: Tree, places: Places) -> None:
    """Remove the account whose description was removed, if an install made it."""
    if tree.is_image or os.geteuid() != 0:
        return
    for change in made:
        gone = change.act is Act.REMOVE and change.path.parent == places.sysusers
        if gone and change.before is not None:
            accounts.remove_made(change.before.content.decode(errors="replace"))


def _reload(manager: Manager | None, unit: str = "") -> Callable[[], None]:
    return lambda: manager.reload(unit) if manager is not None else None


def _reload_again(manager: Manager | None) -> None:
    """Let the manager read the restored files; only the first refusal is reported."""
    if manager is not None:
        try:
            manager.reload()
        except UserError:
            return
