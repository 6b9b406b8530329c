"""`tunnel status` and `tunnel list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from servicekit.cli.options import AsJson, ForUser, session_of
from servicekit.cli.output import as_json, note, ours, paint, table
from servicekit.cli.tunnel.common import SomeTunnel, installed, manifest_of, published

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from servicekit.cli.session import Session
    from servicekit.managers import Seen
    from servicekit.service.manifest import Manifest
    from servicekit.tunnel.status import ExpectedEngines, TunnelReport
    from servicekit.tunnel.values import Tunnel


def status(
    ctx: typer.Context,
    name: SomeTunnel = None,
    *,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also request a completion through it.")
    ] = False,
    json: AsJson = False,
    user: ForUser = False,
) -> None:
    """Show the state of tunnels, tested by a request through each.

    \b
    The states:
      up           the other end answers; with its name, if its profile is known here
      engine-down  the tunnel is up, but nothing answers at its other end
      port-taken   another process uses its port
      down         ssh is not connected
      stopped      it was stopped

    With NAME, the exit code is 1 unless it is up. --json prints one object, or a list without NAME.
    """  # noqa: D301 - the character itself keeps the lines apart
    import asyncio

    from servicekit.tunnel.status import TunnelStatus

    session = session_of(ctx, user=user)
    chosen = installed(session).values() if name is None else [manifest_of(session, name)]
    reports = asyncio.run(_look(session, list(chosen), deep=deep))
    if name is not None:
        report = reports[0]
        if json:
            as_json(report.as_json())
        else:
            _show(report)
        raise typer.Exit(0 if report.state is TunnelStatus.UP else 1)
    if json:
        as_json([report.as_json() for report in reports])
    elif reports:
        table(("TUNNEL", "STATE", "BOOT", "WHY"), [_row(report) for report in reports])
    else:
        _note_none()


def list_tunnels(ctx: typer.Context, *, user: ForUser = False) -> None:
    """List the installed tunnels, without testing them."""
    from servicekit.errors import UserError
    from servicekit.tunnel.runner import load

    session = session_of(ctx, user=user)
    rows = []
    for name, manifest in installed(session).items():
        try:
            tunnel = load(session.places, name)
        except UserError as error:  # the others are listed all the same
            rows.append((name, "", f"invalid: {error.message}", manifest.manager))
        else:
            rows.append((name, tunnel.to, tunnel.way, manifest.manager))
    if rows:
        table(("TUNNEL", "SERVER", "WAY", "MANAGER"), rows)
    else:
        _note_none()


def _note_none() -> None:
    note("no tunnel is installed; see `servicekit tunnel install NAME --to USER@HOST`")


async def _look(session: Session, chosen: Sequence[Manifest], *, deep: bool) -> list[TunnelReport]:
    """Test all chosen tunnels at once."""
    import asyncio
    from dataclasses import replace

    from servicekit.install.installer import tunnel_id
    from servicekit.install.present import drifted
    from servicekit.install.rootfs import Tree

    states: dict[str, Seen] = {}
    for manager in sorted({manifest.manager for manifest in chosen}):
        units = [tunnel_id(m.profile).unit for m in chosen if m.manager == manager]
        states |= _ask(session, manager, units)
    drift = drifted(Tree(), chosen, (*session.manifests().values(), *session.tunnels().values()))
    reports = await asyncio.gather(*(_report(session, each, states, deep=deep) for each in chosen))
    return [replace(report, drift=drift[report.name]) for report in reports]


async def _report(
    session: Session, manifest: Manifest, states: Mapping[str, Seen], *, deep: bool
) -> TunnelReport:
    from dataclasses import replace

    from servicekit.errors import UserError
    from servicekit.tunnel.runner import load
    from servicekit.tunnel.status import TunnelReport, TunnelStatus, conclude, look_through
    from servicekit.tunnel.values import LOOPBACK
    from servicekit.watchdog.census import Census
    from servicekit.watchdog.ports import port_holder

    name = manifest.profile
    try:
        tunnel = load(session.places, name)
    except UserError as error:  # the other tunnels are shown all the same
        return TunnelReport(name, TunnelStatus.DOWN, " / ".join(error.message.splitlines()))
    report = conclude(tunnel, manifest, states.get(tunnel.unit), published(session, name))
    if report.state is TunnelStatus.UP:
        expected = _expected(session, tunnel, deep=deep)
        return await look_through(report, tunnel, session.places, expected)
    if report.state is TunnelStatus.PORT_TAKEN and not tunnel.reverse:
        holder = port_holder(LOOPBACK, tunnel.local, None, Census())
        if holder is not None:
            return replace(report, why=f"{report.why}; used by {holder.who}")
    return report


def _ask(session: Session, manager: str, units: list[str]) -> dict[str, Seen]:
    from servicekit.errors import UserError

    try:
        return session.manager(manager).look(units)
    except UserError as error:
        # Show what the services published.
        note(f"the service manager does not reply: {error.message}")
        return {}


def _expected(session: Session, tunnel: Tunnel, *, deep: bool) -> ExpectedEngines:
    """Profiles with the port of the tunnel's other end, with API keys where readable."""
    import os

    from servicekit.errors import UserError
    from servicekit.profiles import credentials
    from servicekit.tunnel.status import ExpectedEngines

    profiles = []
    for listed in session.catalog.describe():
        if listed.allowed and listed.port == tunnel.engine_port:
            profile = session.catalog.get(listed.name)
            try:
                api_key = credentials.api_key(profile, session.places, os.environ)
            except UserError:
                api_key = None  # the engine will report that the key is missing
            profiles.append((profile, api_key))
    return ExpectedEngines(tuple(profiles), deep)


def _row(report: TunnelReport) -> tuple[str, ...]:
    why = report.why
    if report.drift:
        why += f" ({len(report.drift)} files changed by hand)"
    return report.name, report.state, "yes" if report.enabled else "no", why


def _show(report: TunnelReport) -> None:
    from servicekit.cli.status import age

    boot = "starts at boot" if report.enabled else "does not start at boot"
    since = f" for {age(report.since)}" if report.since else ""
    typer.echo(f"{report.name}: {paint(report.state)}{since}")
    for label, text in (
        ("why", report.why),
        ("remedy", ours(report.remedy)),
        ("cause", report.cause),
        ("way", report.way),
        ("server", report.to),
        ("reach it", report.url),
        ("faults", f"{report.faults} in a row" if report.faults else ""),
        ("manager", f"{report.manager}, {boot}"),
    ):
        if text:
            typer.echo(f"  {label + ':':10} {text}")
    for path in report.drift:
        typer.echo(f"  {'drift:':10} {path}")
