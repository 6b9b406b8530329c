"""`watch`: runs the watchdog."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from servicekit.cli.session import Session
from servicekit.errors import ExitCode, UserError
from servicekit.managers import SERVER_URL
from servicekit.managers.supervised import request_fast_restart, send_alert
from servicekit.service.installed import InstalledPlan, denied, of_profile, read_plan, tuned


def watch(session: Session, profile: str, plan: Path | None) -> int:
    """Run an engine under its watchdog; return the exit code for the manager."""
    named = () if plan is None else ("--plan", str(plan))
    command: tuple[str, ...] = ()
    try:
        installed = _installed(session, profile, plan)
        _refuse_root(installed)
        command = installed.command
        code = _watch(installed)
    except UserError as error:
        send_alert(command or session.own_command(), profile, error.code, os.environ, named)
        raise
    send_alert(command, profile, code, os.environ, named)
    return code


def _watch(plan: InstalledPlan) -> ExitCode:
    from servicekit.watchdog.daemon import watch as run

    gc.enable()  # it was disabled for the imports

    if denied(plan, os.environ):
        raise UserError(
            f'profile "{plan.profile.name}" must not run',
            hint=f"remove it from deny in {plan.places.config}, and start it again",
            code=ExitCode.CONFIG,
        )
    code = run(tuned(plan, os.environ))
    if code is ExitCode.TEMPFAIL and os.environ.get(SERVER_URL):
        request_fast_restart(plan.places, os.environ)
    return code


def _refuse_root(plan: InstalledPlan) -> None:
    """Refuse to run as root, by hand, what was installed for another account.

    Its directories are that account's, which may have put links there that lead root elsewhere.
    """
    import pwd

    name, account = plan.profile.name, plan.user
    if account is None or os.geteuid() != 0:
        return
    try:
        same = pwd.getpwnam(account).pw_uid == 0
    except KeyError:
        same = False
    if not same:
        raise UserError(
            f'profile "{name}" is installed for account "{account}" and does not run as root',
            hint=f"run `servicekit start {name}`, or this command as that account: "
            f"setpriv --reuid={account} --regid={account} --init-groups",
            code=ExitCode.CONFIG,
        )


def _installed(session: Session, name: str, file: Path | None) -> InstalledPlan:
    """Read the installed plan; make one of the profile if 0.1.0 installed it."""
    plan = session.installed_plan(name) if file is None else read_plan(file, name)
    if plan is not None:
        return plan
    if file is not None:
        raise UserError(
            f'plan "{file}" of profile "{name}" does not exist',
            hint=f"run `servicekit install {name}`",
            code=ExitCode.CONFIG,
        )
    return of_profile(session.profile(name), session.places, session.own_command())
