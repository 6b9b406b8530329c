"""Options of an install, from the command line, the profile and the last install."""

from __future__ import annotations

import os
from dataclasses import replace

from servicekit.cli.session import Installed, Session
from servicekit.errors import UserError
from servicekit.host.unprivileged import trusted_path
from servicekit.install.installation import Order
from servicekit.install.present import manifests
from servicekit.install.rootfs import Tree
from servicekit.managers import accounts
from servicekit.places import Scope
from servicekit.profiles.model import Profile
from servicekit.profiles.vocabulary import ManagerName
from servicekit.service.manifest import Manifest


def order_of(
    session: Session,
    profile: Profile,
    tree: Tree,
    *,
    manager: ManagerName,
    user_name: str | None = None,
    enable: bool | None = None,
    force: bool = False,
) -> Order:
    """Complete the options of an install by settings, profile and the previous install."""
    own = manifests(tree, session.places).get(profile.name)
    user_name = user_name or (own.user_name if own is not None else None)
    known = own is not None and {*profile.gpus} <= {*own.gpus}
    return Order(
        profile=profile,
        places=session.places,
        manager=manager,
        user=account_of(session, profile, manager, user_name, tree),
        user_name=user_name,
        gpus=own.gpus if own is not None and known else profile.gpus,
        uuids=own.uuids if own is not None and known else (),
        command=session.command(),
        kv_tokens=own.kv_tokens if own is not None else None,
        planned=own.planned if own is not None else {},
        trusted=own.trusted if own is not None else (),
        alert_command=session.settings.alert_command,
        log_format=session.settings.log_format,
        sources=session.sources(profile.name),
        path=_search_path(session),
        enable=enable,
        force=force,
    )


def order_as_installed(session: Session, service: Installed, tree: Tree, *, enable: bool) -> Order:
    """Repeat the last install with another `enable`, ignoring later edits."""
    own = service.manifest
    profile = session.installed_profile(own.profile)
    order = order_of(session, profile, tree, manager=service.manager.name, enable=enable)
    order = replace(order, kv_tokens=own.kv_tokens, planned=own.planned, overruled=own.overruled)
    plan = session.installed_plan(own.profile)
    if plan is None:
        return order
    return replace(
        order,
        user=plan.user,
        command=plan.command,
        alert_command=plan.alert_command,
        log_format=plan.log_format,
        sources=plan.sources,
    )


def _search_path(session: Session) -> str:
    """Return PATH; for root only directories that only root can write."""
    path = os.environ.get("PATH", os.defpath)
    return trusted_path(path) if session.places.scope is Scope.SYSTEM and not os.geteuid() else path


def account_of(
    session: Session, profile: Profile, manager: str, user_name: str | None, tree: Tree
) -> str | None:
    """Return the account of the service; `None` for the manager's own."""
    named = user_name or profile.service.user
    if session.places.scope is Scope.USER:
        if user_name is not None:
            raise UserError(
                "--user-name applies to system services only; user services run as you",
                hint="leave it out",
            )
        return None
    default = session.settings.service_user
    if named is None and manager == ManagerName.SUPERVISOR and not _can_have(default, tree):
        return None
    return named or default


def _can_have(account: str, tree: Tree) -> bool:
    """Whether an install for Supervisor finds or makes `account`; of an image it makes none."""
    return tree.account(account) is not None or (not tree.is_image and accounts.can_create())


def installed_account(session: Session, manifest: Manifest) -> str | None:
    """Return the account that an installed service runs as; `None` for that of the manager."""
    plan = session.installed_plan(manifest.profile)
    if plan is not None:
        return plan.user
    profile = session.profile(manifest.profile)
    if manifest.manager == ManagerName.SUPERVISOR:
        # 0.1.0 ran it as root, unless an account was named.
        return manifest.user_name or profile.service.user
    return account_of(session, profile, manifest.manager, manifest.user_name, Tree())
