"""`doctor`: checks the host and its services for problems."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from itertools import groupby
from typing import Annotated

import typer

from servicekit.cli.freshness import note_outdated
from servicekit.cli.options import AsJson, ForUser, complete_profile, session_of
from servicekit.cli.orders import installed_account, order_of
from servicekit.cli.output import as_json, duration, note, ours, paint, say
from servicekit.cli.session import Session
from servicekit.doctor.answer import CheckResult, CheckStatus
from servicekit.doctor.examination import Examination, examine
from servicekit.doctor.look import look
from servicekit.doctor.queries import DoctorRequest
from servicekit.doctor.view import RefusedProfile
from servicekit.errors import UserError
from servicekit.install.rootfs import Tree

TheProfile = Annotated[
    str | None,
    typer.Argument(
        metavar="PROFILE",
        help="Check this profile, installed or not; by default all installed profiles.",
        autocompletion=complete_profile,
    ),
]


def doctor(
    ctx: typer.Context, profile: TheProfile = None, *, json: AsJson = False, user: ForUser = False
) -> None:
    """Check the host and every service for problems.

    \b
    Each check is one line with its remedy:
      ok    no problem
      warn  services run, but a slowdown or an outage is likely
      fail  a service cannot start, or will not survive normal operation
      skip  not applicable, or not readable by this account

    Nothing is changed, and root is not needed. Exit code 1 if a check fails.
    """  # noqa: D301 - the character itself keeps the lines apart
    began = time.monotonic()
    outdated: dict[str, str] = {}
    request = _request(session_of(ctx, user=user), profile, outdated)
    examination = examine(look(request, _note_waiting))
    seconds = time.monotonic() - began
    if json:
        as_json({**examination.as_json(), "outdated": outdated, "seconds": round(seconds, 3)})
    else:
        _print(examination, seconds)
    raise typer.Exit(1 if examination.verdict is CheckStatus.FAIL else 0)


def _request(session: Session, only: str | None, outdated: dict[str, str]) -> DoctorRequest:
    """Collect what `doctor` examines, and in `outdated` what changed since its install."""
    installed = session.manifests()
    manager, no_manager = None, ""
    try:
        manager = session.manager(installed[only].manager if only in installed else None)
    except UserError as error:
        no_manager = error.message
    orders, refused, accounts = [], [], {}
    for name in sorted(installed) if only is None else [only]:
        try:
            recipe = session.profile(name)
        except UserError as error:
            if only is not None:
                raise
            refused.append(RefusedProfile(name, error.message.partition("\n")[0]))
        else:
            if name in installed:
                with suppress(UserError):  # a plan that cannot be read is reported by other checks
                    accounts[name] = installed_account(session, installed[name])
                if words := note_outdated(session, name):
                    outdated[name] = ours(words)
            named = session.manager_name(None if manager is None else manager.name)
            orders.append(order_of(session, recipe, Tree(), manager=named))
    return DoctorRequest(
        places=session.places,
        environ=os.environ,
        manager=manager,
        no_manager=no_manager,
        orders=tuple(orders),
        refused=tuple(refused),
        installed=installed,
        accounts=accounts,
    )


def _note_waiting(what: tuple[str, ...]) -> None:
    note(f"still waiting for {', '.join(what)}")


def _print(examination: Examination, seconds: float) -> None:
    width = max(len(check.title) for check in examination.checks)
    for group, checks in groupby(examination.checks, key=lambda check: check.group):
        typer.echo(group)
        for check in checks:
            say(_line(check, width))
        typer.echo()
    typer.echo(f"{paint(examination.verdict.value)}: {examination.summary}, in {duration(seconds)}")


def _line(check: CheckResult, width: int) -> str:
    verdict = paint(check.verdict.value, check.verdict.value.ljust(4))
    return f"  {verdict}  {check.title.ljust(width)}  {ours(check.line)}"
