"""`alert`: sends the alert for a service that stays failed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from servicekit.cli.options import ForUser, PlanFile, ProfileName, session_of
from servicekit.cli.output import note
from servicekit.cli.session import Session
from servicekit.errors import UserError, reason
from servicekit.managers import Seen
from servicekit.service.installed import read_plan
from servicekit.watchdog.status import Status, status_of

WEBHOOK_LIMIT: Final = 20.0  # seconds that the webhook may take to answer
FIELDS: Final = ("profile", "state", "cause", "why", "remedy", "since", "run", "restarts")
"""Of `status --json`: the fields of an alert."""


def alert(
    ctx: typer.Context,
    profile: ProfileName,
    *,
    exit_code: Annotated[
        int | None,
        typer.Option(
            "--exit-code", metavar="N", help="Exit code of the watchdog that is about to end."
        ),
    ] = None,
    plan: PlanFile = None,
    user: ForUser = False,
) -> None:
    """Send the configured alert for a service.

    systemd runs this when a service stays failed, and under Supervisor its watchdog runs it before
    it ends. The program `alert_command` gets the fields below as JSON on its standard input, and in
    its environment as SERVICEKIT_PROFILE and so on; the JSON is posted to the URL `alert_webhook`,
    with a line for a person as "text". Without either nothing happens. If the settings cannot be
    read, the `alert_command` of the last install is used.

    Fields: profile, state, cause, why, remedy, since, run, restarts.
    """
    session = session_of(ctx, user=user)
    # The unit that runs this knows the service by its unit's name.
    name = profile.removesuffix(".service").removeprefix("servicekit-")
    command, webhook = _channels(session, name, plan)
    if not command and webhook is None:
        return
    state = _look(session, name, exit_code).as_json()
    fields = {key: state[key] for key in FIELDS}
    if webhook is not None:
        _post(webhook, fields)
    if command:
        _become(command, fields)


def _channels(session: Session, name: str, file: Path | None) -> tuple[tuple[str, ...], str | None]:
    """Return the command and the webhook; the installed command where the settings are refused."""
    try:
        webhook = session.settings.alert_webhook
    except UserError as error:
        plan = None if file is None else read_plan(file, name)
        if plan is None:
            raise
        note(f"using the alert_command of the last install: {error.message}")
        session.use_plan(plan)
        return plan.alert_command, None
    return session.settings.alert_command, None if webhook is None else webhook.get_secret_value()


def _look(session: Session, name: str, exit_code: int | None) -> Status:
    # systemd 251 and newer tells the unit that OnFailure= starts. So the alert's account can do
    # without D-Bus, which rejects an account that no NSS module knows.
    status = os.environ.get("MONITOR_EXIT_STATUS", "")
    if exit_code is None and status.isdecimal():
        exit_code = int(status)
    if exit_code is None:
        return session.look(session.installed(name))
    return status_of(session.manifest(name), session.places, Seen("failed", exit_code=exit_code))


def _post(url: str, fields: dict[str, Any]) -> None:
    """Post to the webhook; an unreachable webhook must not prevent the command."""
    import httpx

    reason_text = "; ".join(filter(None, (fields["why"], fields["remedy"])))
    text = f"servicekit {fields['profile']}: {fields['state']}: {reason_text}"
    try:
        httpx.post(url, json={"text": text, **fields}, timeout=WEBHOOK_LIMIT).raise_for_status()
    except httpx.HTTPStatusError as error:
        note(f"cannot reach the webhook: {error.response.status_code}")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        # The URL holds a secret as a rule, and an error's text may hold the URL.
        note(f"cannot reach the webhook: {type(error).__name__}")


def _become(command: tuple[str, ...], fields: dict[str, Any]) -> None:
    """Replace this process by the command, whose exit code becomes that of the alert."""
    environment = dict(os.environ)
    for key, value in fields.items():
        environment[f"SERVICEKIT_{key.upper()}"] = "" if value is None else str(value)
    # A file without a name holds any amount, where a pipe would fill up.
    stdin = os.memfd_create("alert")
    os.write(stdin, json.dumps(fields).encode())
    os.lseek(stdin, 0, os.SEEK_SET)
    os.dup2(stdin, 0)
    # A watchdog that ends has its signals blocked, and its children inherit that.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execve(command[0], command, environment)  # noqa: S606 - no shell is the point
    except OSError as error:
        raise UserError(f'cannot run alert_command "{command[0]}": {reason(error)}') from None
