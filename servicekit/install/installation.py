"""Installs a profile and takes it away again: what would be done as a value, then done."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from servicekit import __version__
from servicekit.errors import UserError
from servicekit.install.changes import Act, changes, record
from servicekit.install.manifest import Manifest, inherited
from servicekit.install.present import look, manifests
from servicekit.install.transaction import Directory, apply, make_directory
from servicekit.managers import accounts
from servicekit.places import Scope
from servicekit.profiles.vocabulary import ManagerName
from servicekit.service.host import rivals, survey
from servicekit.service.plan import make_plan
from servicekit.service.render import artifacts
from servicekit.service.unit import moved_directories
from servicekit.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import PurePosixPath

    from servicekit.install.changes import Change
    from servicekit.install.rootfs import Tree
    from servicekit.install.transaction import Turn
    from servicekit.managers import Manager
    from servicekit.places import Places
    from servicekit.profiles.model import Profile
    from servicekit.service.host import Survey
    from servicekit.service.render import Artifact


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked for."""

    profile: Profile
    places: Places
    manager: ManagerName
    user: str | None
    """Account of the service; `None` for whoever runs the manager."""
    user_name: str | None
    """The same, where the command line named it."""
    command: tuple[str, ...]
    """What the manager runs servicekit by."""
    path: str
    """Search path for the engine's program."""
    enable: bool | None = None
    """Whether to start it at boot; `None`: unless another one that excludes it does."""
    force: bool = False
    gpus: tuple[str, ...] = ()
    """Names of the profile's GPUs: those that it uses itself, and others that they are known by."""
    uuids: tuple[str, ...] = ()
    """UUIDs of the profile's GPUs, in its order, where the driver told all of them."""
    kv_tokens: int | None = None
    """Tokens that the memory plan sees in the pool, where the GPU could be asked."""
    alert_command: tuple[str, ...] = ()
    """What the settings run for a service that stays failed."""
    sources: Mapping[str, str | None] = field(default_factory=dict)
    """Files that profile and settings were read from, with their hashes."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What an install would do."""

    order: Order
    survey: Survey
    changes: tuple[Change, ...]
    manifest: Manifest
    directories: tuple[Directory, ...]
    sysusers: str
    """Text of the account's description, for systemd-sysusers."""
    enabled_rivals: tuple[str, ...]
    """Profiles that exclude this one and start at boot."""

    @property
    def acts(self) -> bool:
        """Whether any file is written or removed."""
        return any(change.acts for change in self.changes)


def propose(order: Order, tree: Tree) -> Proposal:
    """Compare what `order` wants with what is there. Reads only."""
    profile, places = order.profile, order.places
    found = look_around(order, tree)
    installed = manifests(tree, places)
    own = installed.pop(profile.name, None)
    if own is not None and own.manager != order.manager:
        raise UserError(
            f'profile "{profile.name}" is installed for {own.manager}, not {order.manager}',
            hint=f"`servicekit uninstall {profile.name}` first",
        )
    at_boot = tuple(name for name in found.host.rivals if installed[name].enabled)
    enable = order.enable
    if enable is None:
        enable = own.enabled if own is not None else not at_boot
    wanted = artifacts(make_plan(profile, found.host), order.manager, enabled=enable)
    there = look(tree, _paths(wanted, own))
    # Tunnels are started by the same target, and may stand in the same directories.
    others = (*installed.values(), *manifests(tree, places.for_tunnels).values())
    made = changes(wanted, there, own, others, force=order.force)
    manifest = Manifest(
        profile=profile.name,
        servicekit=__version__,
        manager=order.manager,
        user_name=order.user_name,
        port=profile.port,
        gpus=order.gpus,
        enabled=enable,
        files=record(made, own),
        directories=inherited((artifact.path for artifact in wanted), others),
        kv_tokens=order.kv_tokens,
        uuids=order.uuids,
        kv_precision_accepted=profile.kv_precision_accepted,
    )
    return Proposal(
        order=order,
        survey=found,
        changes=made,
        manifest=manifest,
        directories=tuple(directories(order)),
        sysusers=_sysusers(wanted, places),
        enabled_rivals=at_boot,
    )


def look_around(order: Order, tree: Tree) -> Survey:
    """Find what `order` needs on the host, or in the image."""
    found = survey(
        order.profile,
        order.places,
        command=order.command,
        manager=order.manager,
        user=order.user,
        excluded=rivals(order.profile, manifests(tree, order.places), order.gpus),
        path=order.path,
        root=Path(tree.root),
    )
    host = replace(
        found.host,
        uuids=order.uuids,
        kv_tokens=order.kv_tokens,
        alert_command=order.alert_command,
        sources=order.sources,
    )
    return replace(found, host=host)


def directories(order: Order) -> Iterable[Directory]:
    """Name the directories that the service needs and its manager does not make.

    systemd makes those of its services itself, at every start, but for what the settings moved.
    """
    places, name, user = order.places, order.profile.name, order.user
    if order.manager is ManagerName.SUPERVISOR:
        # Supervisor opens the log itself; all others are the watchdog's and the engine's.
        yield Directory(places.logs, 0o755, None)
        yield Directory(places.state / name, 0o755, user)
        yield Directory(places.runtime / name, 0o755, user)
        yield Directory(places.cache, 0o755, user)
    elif places.scope is Scope.SYSTEM:
        for path in moved_directories(places, name):
            yield Directory(path, 0o755, user)


def make_directories(order: Order, tree: Tree) -> None:
    """Make those of `directories` that are missing, as their install did."""
    wanted = {directory.path: directory for directory in directories(order)}
    for path in tree.missing(wanted):
        make_directory(tree, wanted.get(path, Directory(path, 0o755, None)))


def install(proposal: Proposal, turn: Turn, manager: Manager | None) -> Manifest:
    """Carry `proposal` out under `turn`, and tell `manager` (`None` for an image)."""
    order = proposal.order
    unit = order.profile.unit
    made_account = ensure_account(order.user, proposal.sysusers, turn.tree)
    try:
        manifest = apply(
            turn,
            order.profile.name,
            proposal.changes,
            proposal.manifest,
            directories=proposal.directories,
            then=lambda: manager.reload(unit) if manager is not None else None,
            undone=lambda: tell_again(manager),
        )
    except BaseException:
        if made_account is not None:
            accounts.remove(made_account)
        raise
    return manifest or proposal.manifest


def uninstall(
    profile: str,
    turn: Turn,
    manager: Manager | None,
    *,
    stop_limit: float,
    force: bool = False,
    purge: bool = False,
) -> tuple[Change, ...]:
    """Stop `profile` and take away what its install wrote; `purge`: all it ever had, too.

    Returns what was done, drift that was left among it. Caches and models stay in any case, and
    with them the account that they belong to.
    """
    tree, places = turn.tree, turn.places
    _, made = removal(profile, tree, places, force=force)
    unit = f"servicekit-{profile}"
    was_up = False
    if manager is not None:
        was_up = manager.look([unit])[unit].is_up
        manager.stop(unit, limit=stop_limit)
    try:
        apply(
            turn,
            profile,
            made,
            None,
            then=lambda: manager.reload() if manager is not None else None,
            undone=lambda: tell_again(manager),
        )
    except BaseException:
        if was_up and manager is not None:
            manager.start(unit)
        raise
    # Gone with the run that it tells of.
    tree.delete_tree(places.runtime / profile)
    if purge:
        _delete_own(profile, tree, places)
    left = _delete_common(tree, places)
    # As long as a model or a history is left, it belongs to the account that wrote it.
    if purge and not left:
        forget_account(made, tree, places)
    return made


def purge_remains(profile: str, turn: Turn) -> bool:
    """Take away what an uninstall without `purge` left of `profile`; tell whether there was any.

    It must not be installed. The account that an install made stays, as it stayed then.
    """
    tree, places = turn.tree, turn.places
    if profile not in tree.names(places.state) or profile in manifests(tree, places):
        return False
    _delete_own(profile, tree, places)
    _delete_common(tree, places)
    return True


def _delete_own(profile: str, tree: Tree, places: Places) -> None:
    """Delete history, secrets and logs of a profile."""
    tree.delete_tree(places.state / profile)
    tree.delete_tree(places.secrets / profile)
    tree.delete_directory(places.secrets)
    log = places.log_file(profile)
    for name in tree.names(places.logs):
        if name == log.name or name.startswith(f"{log.name}."):
            tree.delete(places.logs / name)


def _delete_common(tree: Tree, places: Places) -> list[PurePosixPath]:
    """Delete directories of all profiles that are empty, and give the others."""
    common = (places.runtime, places.state, places.logs, places.cache)
    return [directory for directory in common if not tree.delete_directory(directory)]


def removal(
    profile: str, tree: Tree, places: Places, *, force: bool = False
) -> tuple[Manifest, tuple[Change, ...]]:
    """Tell what an uninstall would do. Reads only; raises `UserError` if it is not installed."""
    installed = manifests(tree, places)
    own = installed.pop(profile, None)
    if own is None:
        names = ", ".join(sorted(installed)) or "nothing"
        raise UserError(
            f'profile "{shown(profile)}" is not installed', hint=f"installed is: {names}"
        )
    there = look(tree, _paths((), own))
    others = (*installed.values(), *manifests(tree, places.for_tunnels).values())
    return own, changes((), there, own, others, force=force)


def _paths(wanted: Iterable[Artifact], own: Manifest | None) -> set[PurePosixPath]:
    before = own.files if own is not None else ()
    return {*(artifact.path for artifact in wanted), *(written.path for written in before)}


def _sysusers(wanted: Iterable[Artifact], places: Places) -> str:
    return next((a.text for a in wanted if a.path.parent == places.sysusers), "")


def ensure_account(user: str | None, sysusers: str, tree: Tree) -> str | None:
    """Make the service's account where there is none; return its name if it was made now.

    `sysusers` is its description for systemd-sysusers.
    """
    if user is None or tree.is_image or accounts.exists(user) or os.geteuid() != 0:
        return None
    accounts.create(user, sysusers)
    if not accounts.exists(user):
        raise UserError(f'account "{user}" could not be made', hint="make it, and install again")
    return user


def forget_account(made: Iterable[Change], tree: Tree, places: Places) -> None:
    """Remove the account whose description was removed, if an install made it."""
    if tree.is_image or os.geteuid() != 0:
        return
    for change in made:
        gone = change.act is Act.REMOVE and change.path.parent == places.sysusers
        if gone and change.before is not None:
            accounts.remove_made(change.before.content.decode(errors="replace"))


def tell_again(manager: Manager | None) -> None:
    """Let the manager see the restored files, as well as it can."""
    if manager is not None:
        try:
            manager.reload()
        except UserError:
            return  # the first refusal is the one that is reported
