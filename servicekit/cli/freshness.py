"""Compares what is installed with the current profile and settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from servicekit.cli.output import note, ours
from servicekit.errors import UserError
from servicekit.profiles.sources import differ
from servicekit.service.installed import InstalledPlan, denied

if TYPE_CHECKING:
    from servicekit.cli.session import Session


def outdated(session: Session, name: str) -> str:
    """Say how what is installed of `name` differs from its profile now; empty where it does not.

    Nothing is parsed while no file has changed, so that a verb that only looks stays quick.
    """
    try:
        plan = session.installed_plan(name)
    except UserError as error:
        return str(error)
    try:
        if plan is None:
            return (
                "installed by servicekit 0.1.0, so a start takes the profile as it is now: "
                f"`servicekit install {name}`"
            )
        if not differ(plan.sources):
            return ""
        if denied(plan, os.environ):
            return f"a start is refused: {session.places.config} names it in deny"
        changed = _changed(session, plan)
    except UserError as error:
        first = error.message.partition("\n")[0]
        return f"profile or settings are refused, and the service runs as installed: {first}"
    if not changed:
        return ""
    return (
        f"{changed} changed since it was installed: `servicekit diff {name}`, "
        f"`servicekit install {name}`"
    )


def _changed(session: Session, plan: InstalledPlan) -> str:
    """Return what a new install would change: profile, settings or nothing."""
    from servicekit.cli.orders import account_of
    from servicekit.install.rootfs import Tree

    name = plan.profile.name
    now = session.profile(name)
    if session.installed_profile(name) != now:
        return "profile"
    manifest = session.manifest(name)
    user = account_of(session, now, manifest.manager, manifest.user_name, Tree())
    settings = session.settings
    wanted = (session.places, user, settings.alert_command, settings.log_format)
    installed = (plan.places, plan.user, plan.alert_command, plan.log_format)
    return "" if installed == wanted else "settings"


def note_outdated(session: Session, name: str) -> str:
    """Print what `outdated` returns, and return it."""
    if words := outdated(session, name):
        note(ours(f'"{name}": {words}'))
    return words
