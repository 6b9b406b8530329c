"""Installs a profile and takes it away again: what would be done as a value, then done."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from servicekit import __version__
from servicekit.install.installer import (
    Proposal,
    compare,
    delete_logs,
    forget_account,
    neighbours,
    profile_id,
    remove,
)
from servicekit.install.present import manifests
from servicekit.install.transaction import PRIVATE, Directory, apply, make_directory
from servicekit.managers import accounts
from servicekit.places import Scope
from servicekit.profiles.vocabulary import ManagerName
from servicekit.service.host import rivals, survey
from servicekit.service.manifest import Manifest
from servicekit.service.plan import make_plan
from servicekit.service.render import artifacts
from servicekit.service.unit import group_of, moved_directories, own_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import PurePosixPath

    from servicekit.install.changes import Change, Present
    from servicekit.install.rootfs import Tree
    from servicekit.install.transaction import Turn
    from servicekit.managers import Manager
    from servicekit.places import Places
    from servicekit.profiles.model import Profile
    from servicekit.service.host import Survey


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked for."""

    profile: Profile
    places: Places
    manager: ManagerName
    user: str | None  # account of the service; `None` for the account that runs the manager
    user_name: str | None  # the same, where the command line named it
    command: tuple[str, ...]  # what the manager runs servicekit by
    path: str  # search path for the engine's program
    enable: bool | None = None
    """Whether to start it at boot; `None`: unless another one that excludes it does."""
    force: bool = False
    gpus: tuple[str, ...] = ()
    """Names of the profile's GPUs: those that it uses itself, and others that they are known by."""
    uuids: tuple[str, ...] = ()
    """UUIDs of the profile's GPUs, in its order, if the driver listed all of them."""
    kv_tokens: int | None = None
    """Tokens that the memory plan sees in the pool, where the GPU could be asked."""
    planned: Mapping[str, float] = field(default_factory=dict)
    """The memory plan's figures, by the names of those of a boot log."""
    alert_command: tuple[str, ...] = ()
    log_format: str = "auto"  # what the settings run for a service that stays failed
    sources: Mapping[str, str | None] = field(default_factory=dict)
    """Files that profile and settings were read from, with their hashes."""
    overruled: tuple[str, ...] = ()  # errors that `--anyway` overruled, one sentence each
    trusted: tuple[str, ...] | None = None
    """Weakenings that were accepted; `None` where they were not recorded."""


def propose(order: Order, tree: Tree) -> Proposal:
    """Compare what `order` wants with what is there. Reads only."""
    profile, places = order.profile, order.places
    surveyed = look_around(order, tree)
    beside = neighbours(profile_id(profile.name), tree, places)
    at_boot = tuple(name for name in surveyed.host.rivals if beside.profiles[name].enabled)
    enable = order.enable
    if enable is None:
        enable = beside.own.enabled if beside.own is not None else not at_boot
    plan = make_plan(profile, surveyed.host)
    wanted = artifacts(plan, order.manager, enabled=enable)
    proposed = Proposal(
        service=profile_id(profile.name),
        user=order.user,
        changes=(),
        manifest=Manifest(
            profile=profile.name,
            servicekit=__version__,
            manager=order.manager,
            user_name=order.user_name,
            port=profile.port,
            gpus=order.gpus,
            enabled=enable,
            files=(),
            directories=(),
            kv_tokens=order.kv_tokens,
            planned=dict(order.planned),
            uuids=order.uuids,
            kv_precision_accepted=profile.kv_precision_accepted,
            overruled=order.overruled,
            trusted=order.trusted,
        ),
        directories=tuple(directories(places, profile.name, order.manager, order.user)),
        sysusers="".join(a.text for a in wanted if a.path.parent == places.sysusers),
        group=group_of(plan) if order.manager is ManagerName.SYSTEMD else None,
        enabled_rivals=at_boot,
    )
    return compare(proposed, wanted, beside, tree, force=order.force)


def look_around(order: Order, tree: Tree) -> Survey:
    """Find what `order` needs on the host, or in the image."""
    surveyed = survey(
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
        surveyed.host,
        uuids=order.uuids,
        kv_tokens=order.kv_tokens,
        alert_command=order.alert_command,
        log_format=order.log_format,
        sources=order.sources,
    )
    return replace(surveyed, host=host)


def directories(places: Places, name: str, manager: str, user: str | None) -> Iterable[Directory]:
    """Name the directories that the service needs and its manager does not make.

    systemd makes those of its services itself, at every start, but for what the settings moved.
    """
    if manager == ManagerName.SUPERVISOR:
        # Supervisor opens the log itself; all others are the watchdog's and the engine's.
        yield Directory(places.logs, PRIVATE, None)
        yield Directory(places.state / name, 0o755, user)
        yield Directory(places.runtime / name, 0o755, user)
        yield Directory(places.cache, 0o755, user)
    elif places.scope is Scope.SYSTEM:
        for path in moved_directories(places, name):
            yield Directory(path, 0o755, user)


def make_directories(wanted_ones: Iterable[Directory], tree: Tree) -> None:
    """Make those of `directories` that are missing, as their install did."""
    wanted = {directory.path: directory for directory in wanted_ones}
    for path in tree.missing(wanted):
        make_directory(tree, wanted.get(path, Directory(path, 0o755, None)))


def record_overruled(profile: str, overruled: tuple[str, ...], turn: Turn) -> None:
    """Record in the manifest of `profile` which errors a start overruled."""
    own = manifests(turn.tree, turn.places).get(profile)
    if own is not None and own.overruled != overruled:
        apply(turn, profile, (), replace(own, overruled=overruled))


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
    service = profile_id(profile)
    made = remove(service, turn, places, manager, stop_limit=stop_limit, force=force)
    # It is gone with its run.
    tree.delete_tree(places.runtime / profile)
    if purge:
        _delete_own(profile, tree, places)
    left = _delete_common(tree, places)
    # As long as a model or a history is left, it belongs to the account that wrote it.
    if purge and not left:
        forget_account(made, tree, places)
        _forget_created(made, profile, tree, places)
    return made


def _forget_created(made: Iterable[Change], profile: str, tree: Tree, places: Places) -> None:
    """Remove the account that the install of a Supervisor service made, after its last use."""
    path = places.plan(profile)
    gone = next((each.before for each in made if each.acts and each.path == path), None)
    if gone is None or tree.is_image or places.scope is not Scope.SYSTEM or os.geteuid() != 0:
        return
    others = (tree.look(places.plan(name)) for name in manifests(tree, places))
    user = _user_in(gone)
    if user is not None and user not in {_user_in(other) for other in others if other is not None}:
        accounts.remove_created(user)


def _user_in(plan: Present) -> str | None:
    """Return the account that an installed plan names; `None` where it names or is none."""
    try:
        user = json.loads(plan.content)["user"]
    except (ValueError, KeyError, TypeError):
        return None
    return user if isinstance(user, str) else None


def purge_remains(profile: str, turn: Turn) -> bool:
    """Take away what an uninstall without `purge` left of `profile`; return whether there was any.

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
    for order in (places.reset(profile), places.stop_note(profile)):
        tree.delete(order)
        tree.delete_directory(order.parent)
    tree.delete_tree(places.secrets / profile)
    tree.delete_directory(places.secrets)
    delete_logs(profile_id(profile), tree, places)
    if not tree.is_image and os.geteuid() == 0 and places.sysusers is not None:
        accounts.remove_group(own_group(profile))


def _delete_common(tree: Tree, places: Places) -> list[PurePosixPath]:
    """Delete directories of all profiles that are empty, and give the others."""
    common = (places.runtime, places.state, places.logs, places.cache)
    return [directory for directory in common if not tree.delete_directory(directory)]
