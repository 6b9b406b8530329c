"""`tunnel`: an engine's port on another host, or there for an engine here."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from servicekit.cli.output import as_json, duration, note, paint, table, warn
from servicekit.cli.session import AsJson, ForManager, ForUser, session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from servicekit.cli.session import Session
    from servicekit.managers import Manager, Seen
    from servicekit.manifest import Manifest
    from servicekit.tree import Tree
    from servicekit.tunnel.installation import Proposal
    from servicekit.tunnel.keys import KeyPair
    from servicekit.tunnel.state import State
    from servicekit.tunnel.status import Expected, Report
    from servicekit.tunnel.values import HostKey, Tunnel

LOOK: Final = 0.1
"""Seconds between looks at a tunnel that is starting."""
UP_WITHIN: Final = 5.0
"""Seconds within which a manager must have taken up an order to start."""

app = typer.Typer(
    name="tunnel",
    help="Keep an engine's port reachable over ssh.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


def complete_tunnel(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of installed tunnels, for the shell's completion; none where they cannot be read."""
    from servicekit.cli.session import Session
    from servicekit.errors import UserError

    root = ctx.find_root().params
    try:
        names = _installed(Session(root.get("config"), user=bool(root.get("user"))))
    except (UserError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete)]


TunnelName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of a tunnel.", autocompletion=complete_tunnel),
]
SomeTunnel = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="Name of a tunnel; all of them without.",
        autocompletion=complete_tunnel,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]


@app.command("install")
def install(
    ctx: typer.Context,
    name: TunnelName,
    *,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="USER@HOST", help="Account and server."),
    ] = None,
    local: Annotated[
        int | None, typer.Option("--local", metavar="PORT", help="Port on this host; 18000.")
    ] = None,
    remote: Annotated[
        int | None, typer.Option("--remote", metavar="PORT", help="Port on the server; 18000.")
    ] = None,
    reverse: Annotated[
        bool | None,
        typer.Option(
            "--reverse/--forward",
            help="The engine is here and the server gets the port, or, as usual, the other way.",
        ),
    ] = None,
    ssh_port: Annotated[
        int | None,
        typer.Option("--ssh-port", metavar="PORT", help="Port of the server's sshd; 22."),
    ] = None,
    identity: Annotated[
        Path | None,
        typer.Option(
            "--identity",
            metavar="FILE",
            help="Private key to take a copy of; without, the tunnel gets one of its own.",
        ),
    ] = None,
    fingerprint: Annotated[
        str | None,
        typer.Option(
            "--fingerprint",
            metavar="SHA256:…",
            help="The server's host key; without, you are asked on a terminal.",
        ),
    ] = None,
    manager: ForManager = None,
    user: ForUser = False,
    dry_run: DryRun = False,
    now: Annotated[bool, typer.Option("--now", help="Start it, too, and wait until it is up.")] = (
        False
    ),
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace files that were changed by hand, their text saved beside them as "
            ".servicekit-old; ask the server for its host key again.",
        ),
    ] = False,
) -> None:
    """Make a tunnel a service that starts at boot.

    It reconnects by itself, and both of its ends are loopback. The server's host key is shown and
    pinned now; the line for its authorized_keys is printed. Of a tunnel that is installed already,
    what is not said stays as it is. All of it happens, or none of it.
    """
    from servicekit.cli.install import tell_changes
    from servicekit.tree import Tree
    from servicekit.tunnel.installation import Order, propose, turns
    from servicekit.tunnel.installation import install as carry_out

    mine, tree = session(ctx, user=user), Tree()
    earlier = _earlier(mine, name, anew=to is not None)
    asked = {"local": local, "remote": remote, "reverse": reverse, "ssh_port": ssh_port}
    tunnel = _wanted(name, to, asked, earlier)
    runs = mine.manager(manager)
    order = Order(
        tunnel=tunnel,
        places=mine.places,
        manager=runs.name,
        command=(*mine.command(), "tunnel", "run", name),
        pair=_pair(mine, tree, name, identity),
        pinned=_pins(
            mine, tree, tunnel, earlier, fingerprint=fingerprint, again=force, dry_run=dry_run
        ),
        force=force,
    )
    if dry_run:
        tell_changes(propose(order, tree).changes, diffs=True)
        return
    with turns(tree, mine.places) as (held, undone):
        if undone:
            note(undone)
        proposal = propose(order, tree)
        carry_out(proposal, held, runs)
    tell_changes(proposal.changes)
    _warn(proposal)
    _tell_server(order.tunnel, order.pair)
    if now:
        _start(mine, proposal, runs)
    elif proposal.acts and _seen(runs, tunnel).is_up:
        note(f"it runs as it was before; `servicekit tunnel install {name} --now` starts it anew")


@app.command("uninstall")
def uninstall(
    ctx: typer.Context,
    name: TunnelName,
    *,
    user: ForUser = False,
    dry_run: DryRun = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Remove files that were changed by hand; their text is saved."
        ),
    ] = False,
) -> None:
    """Stop a tunnel and remove all there is of it, its key, too.

    What remains is its line in the server's authorized_keys.
    """
    from servicekit.cli.install import tell_changes
    from servicekit.tree import Tree
    from servicekit.tunnel.installation import removal, turns
    from servicekit.tunnel.installation import uninstall as carry_out

    mine, tree = session(ctx, user=user), Tree()
    own, made = removal(name, tree, mine.places, force=force)
    if dry_run:
        tell_changes(made, diffs=True)
        return
    manager = mine.manager(own.manager)
    with turns(tree, mine.places) as (held, undone):
        if undone:
            note(undone)
        made = carry_out(name, held, mine.places, manager, force=force)
    tell_changes(made)
    note("its line in ~/.ssh/authorized_keys on the server is yours to remove")


@app.command("status")
def status(
    ctx: typer.Context,
    name: SomeTunnel = None,
    *,
    deep: Annotated[
        bool, typer.Option("--deep", help="Does the engine give a real answer through it, too?")
    ] = False,
    json: AsJson = False,
    user: ForUser = False,
) -> None:
    """Look through the installed tunnels, or through one.

    \b
    The states:
      up           something answers through it: the engine, where its profile is known
      engine-down  the tunnel stands, and nothing answers at its other end
      port-taken   another process has the port that it would listen on
      down         ssh is not connected, and why
      stopped      it does not run, as was asked

    With --json one object, or a list of them without NAME. With NAME the exit code is 1 unless it
    is up.
    """  # noqa: D301 - the character itself keeps the lines apart
    from servicekit.tunnel.status import Standing

    mine = session(ctx, user=user)
    if name is not None:
        report = _reports(mine, [_manifest(mine, name)], deep=deep)[0]
        if json:
            as_json(report.as_json())
        else:
            _tell(report)
        raise typer.Exit(0 if report.state is Standing.UP else 1)
    every = _reports(mine, list(_installed(mine).values()), deep=deep)
    if json:
        as_json([report.as_json() for report in every])
    elif every:
        table(("TUNNEL", "STATE", "BOOT", "WHY"), [_row(report) for report in every])
    else:
        _tell_none()


@app.command("list")
def list_tunnels(ctx: typer.Context, *, user: ForUser = False) -> None:
    """List the installed tunnels, without looking through them."""
    from servicekit.tunnel.runner import load

    mine = session(ctx, user=user)
    rows = []
    for name, manifest in _installed(mine).items():
        tunnel = load(mine.places, name)
        rows.append((name, tunnel.to, tunnel.way, manifest.manager))
    if rows:
        table(("TUNNEL", "SERVER", "WAY", "MANAGER"), rows)
    else:
        _tell_none()


@app.command("run")
def run(ctx: typer.Context, name: TunnelName, *, user: ForUser = False) -> None:
    """Be a tunnel, in the foreground.

    This is what the service manager runs. By hand, ^C stops it.
    """
    from servicekit.tunnel.runner import run as carry_out

    raise typer.Exit(carry_out(session(ctx, user=user).places, name))


def _tell_none() -> None:
    note("no tunnel is installed; `servicekit tunnel install NAME --to USER@HOST` makes one")


def _installed(mine: Session) -> dict[str, Manifest]:
    from servicekit.apply import manifests
    from servicekit.tree import Tree

    return dict(sorted(manifests(Tree(), mine.places.for_tunnels).items()))


def _manifest(mine: Session, name: str) -> Manifest:
    from servicekit.errors import UserError

    installed = _installed(mine)
    if name not in installed:
        raise UserError(
            f'tunnel "{name}" is not installed',
            hint="`servicekit tunnel list` shows those that are",
        )
    return installed[name]


def _earlier(mine: Session, name: str, *, anew: bool) -> Tunnel | None:
    """The tunnel as it is installed now; `None` where it is not, or cannot be read and need not."""
    from servicekit.errors import UserError
    from servicekit.tunnel.runner import load
    from servicekit.tunnel.values import checked_name

    if checked_name(name) not in _installed(mine):
        return None
    try:
        return load(mine.places, name)
    except UserError:
        if anew:
            return None
        raise


def _wanted(
    name: str, to: str | None, asked: dict[str, int | bool | None], earlier: Tunnel | None
) -> Tunnel:
    """What is asked for, completed by what was asked for before."""
    from servicekit.errors import UserError
    from servicekit.trusted import Document
    from servicekit.tunnel.values import Tunnel

    if to is None and earlier is None:
        raise UserError(
            f'tunnel "{name}" is not installed yet', hint="name its server with --to USER@HOST"
        )
    said = earlier.data() if earlier is not None else {}
    said |= {} if to is None else {"to": to}
    said |= {key: value for key, value in asked.items() if value is not None}
    return Tunnel.parse(Document(said), name=name, where=f'tunnel "{name}"')


def _pair(mine: Session, tree: Tree, name: str, identity: Path | None) -> KeyPair:
    """The tunnel's key: the one that is named, else the one it has, else a new one."""
    import socket

    from servicekit.tunnel import keys
    from servicekit.tunnel.installation import installed_pair

    if identity is not None:
        return keys.read(identity)
    here = installed_pair(tree, mine.places, name)
    return here or keys.make(f"servicekit-{name}@{socket.gethostname()}")


def _pins(
    mine: Session,
    tree: Tree,
    tunnel: Tunnel,
    earlier: Tunnel | None,
    *,
    fingerprint: str | None,
    again: bool,
    dry_run: bool,
) -> tuple[HostKey, ...]:
    """The server's host keys: pinned before, or shown now and found to be the right ones."""
    from servicekit.tunnel import keys
    from servicekit.tunnel.installation import installed_pins
    from servicekit.tunnel.values import checked_fingerprint, matching

    wanted = None if fingerprint is None else checked_fingerprint(fingerprint)
    pinned: tuple[HostKey, ...] = ()
    if earlier is not None and (earlier.host, earlier.ssh_port) == (tunnel.host, tunnel.ssh_port):
        pinned = installed_pins(tree, mine.places, tunnel.name)
    known = wanted is None or wanted in {key.fingerprint for key in pinned}
    if pinned and known and not again:
        return pinned
    shown = keys.scan(tunnel.host, tunnel.ssh_port)
    if wanted is not None:
        return matching(shown, wanted, tunnel.host)
    if set(shown) != set(pinned) and not dry_run:
        _confirm(tunnel, shown, pinned)
    return shown


def _confirm(tunnel: Tunnel, shown: Sequence[HostKey], pinned: Sequence[HostKey]) -> None:
    """Have a person say that these are the server's own keys."""
    from servicekit.errors import UserError

    if not sys.stdin.isatty():
        prints = ", ".join(f"{key.fingerprint} ({key.type})" for key in shown)
        raise UserError(
            f'the host key of "{tunnel.host}" is not confirmed: it shows {prints}',
            hint="compare on the server (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`), "
            "then name the right one with --fingerprint",
        )
    if pinned:
        was = ", ".join(key.fingerprint for key in pinned)
        warn(f"the host key of {tunnel.host} is not the pinned one any more, which was {was}")
    typer.echo(f"{tunnel.host} shows these host keys:")
    for key in shown:
        typer.echo(f"  {key.fingerprint}  {key.type}")
    typer.echo("On the server, `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` shows its own.")
    if not typer.confirm("Are they the server's?"):
        raise UserError("the host key was not confirmed; nothing was changed")


def _warn(proposal: Proposal) -> None:
    """Tell what will probably keep the service from running."""
    from servicekit.host import account, ends_with_session, hidden, unreadable
    from servicekit.places import Scope
    from servicekit.values import ManagerName

    order = proposal.order
    if order.manager is not ManagerName.SYSTEMD:
        return
    programs = [Path(order.command[0])]
    if order.user is not None:
        found = [*unreadable(programs, [], account(order.user)), *hidden(programs, [])]
    else:
        found = list(ends_with_session()) if order.places.scope is Scope.USER else []
    for sentence in found:
        warn(sentence)


def _tell_server(tunnel: Tunnel, pair: KeyPair) -> None:
    """Say what the server needs, which is not ours to change."""
    from servicekit.tunnel.values import SERVER_ADVICE

    typer.echo(f"\nOn {tunnel.host}, this line lets the tunnel in, and lets it do nothing else.")
    typer.echo(f"Append it to ~/.ssh/authorized_keys of {tunnel.user}:\n")
    typer.echo(tunnel.authorized_key(pair.public))
    if tunnel.reverse:
        typer.echo("\nAnd these lines belong into its /etc/ssh/sshd_config:\n")
        typer.echo(SERVER_ADVICE)
    typer.echo(f"\n{tunnel.way}. `servicekit tunnel status {tunnel.name}` looks through it.")


def _seen(manager: Manager, tunnel: Tunnel) -> Seen:
    return manager.look([tunnel.unit])[tunnel.unit]


def _start(mine: Session, proposal: Proposal, manager: Manager) -> None:
    """Start it, or start it anew where it runs with other files, and see what becomes of it."""
    from servicekit.tree import Tree
    from servicekit.tunnel.installation import STOP_LIMIT, forget

    tunnel = proposal.order.tunnel
    state = _state(mine, tunnel.name)
    if not proposal.acts and state is not None and state.is_alive and state.phase == "up":
        note(f'"{tunnel.name}" is up already')
        return
    manager.stop(tunnel.unit, limit=STOP_LIMIT)
    # Earlier faults are forgiven: whoever starts it has mended them.
    forget(Tree(), mine.places, tunnel.name)
    manager.start(tunnel.unit)
    _follow(mine, tunnel, manager)


def _state(mine: Session, name: str) -> State | None:
    from servicekit.tunnel.state import read_state
    from servicekit.tunnel.values import state_file

    return read_state(Path(state_file(mine.places, name)))


def _follow(mine: Session, tunnel: Tunnel, manager: Manager) -> None:
    began = time.monotonic()
    while True:
        passed = time.monotonic() - began
        state = _state(mine, tunnel.name)
        if state is not None and state.phase == "up" and state.is_alive:
            typer.echo(f"{tunnel.name}: {paint('up')} after {duration(passed)}")
            return
        if state is not None and state.code:
            typer.echo(f"{tunnel.name}: {paint('down')}: {state.why}")
            if state.remedy:
                typer.echo(f"  remedy: {state.remedy}")
            if state.faults:
                typer.echo("  it is tried again, for ever")
            raise typer.Exit(1)
        if passed > UP_WITHIN and not _seen(manager, tunnel).is_up:
            typer.echo(f"{tunnel.name}: {paint('down')}: its service could not begin")
            raise typer.Exit(1)
        time.sleep(LOOK)


def _reports(mine: Session, installed: Sequence[Manifest], *, deep: bool) -> list[Report]:
    """Look at tunnels, and through those that are up, all at once."""
    import asyncio

    return asyncio.run(_look(mine, installed, deep=deep))


async def _look(mine: Session, installed: Sequence[Manifest], *, deep: bool) -> list[Report]:
    import asyncio
    from dataclasses import replace

    from servicekit.apply import drifted
    from servicekit.tree import Tree
    from servicekit.tunnel.values import label

    said: dict[str, Seen] = {}
    for manager in sorted({manifest.manager for manifest in installed}):
        units = [f"servicekit-{label(m.profile)}" for m in installed if m.manager == manager]
        said |= _ask(mine, manager, units)
    drift = drifted(Tree(), installed)
    looks = []
    for manifest in installed:
        found = _concluded(mine, manifest, said)
        report = replace(found, drift=drift[manifest.profile])
        looks.append(_through(mine, report, deep=deep))
    return await asyncio.gather(*looks)


def _concluded(mine: Session, manifest: Manifest, said: Mapping[str, Seen]) -> Report:
    """What is known of a tunnel without looking through it."""
    from dataclasses import replace

    from servicekit.errors import UserError
    from servicekit.tunnel.runner import load
    from servicekit.tunnel.status import Report, Standing, conclude
    from servicekit.tunnel.values import LOOPBACK
    from servicekit.watchdog.engine import Census, port_holder

    name = manifest.profile
    try:
        tunnel = load(mine.places, name)
    except UserError as error:  # of several tunnels, the others are still worth telling of
        return Report(name, Standing.DOWN, " / ".join(error.message.splitlines()))
    report = conclude(tunnel, manifest, said.get(tunnel.unit), _state(mine, name))
    if report.state is Standing.PORT_TAKEN and not tunnel.reverse:
        holder = port_holder(LOOPBACK, tunnel.local, None, Census())
        if holder is not None:
            return replace(report, why=f"{report.why}; {holder.who} has it")
    return report


async def _through(mine: Session, report: Report, *, deep: bool) -> Report:
    from servicekit.tunnel.runner import load
    from servicekit.tunnel.status import Standing, look_through

    if report.state is not Standing.UP:
        return report
    tunnel = load(mine.places, report.name)
    return await look_through(report, tunnel, mine.places, _expected(mine, tunnel, deep=deep))


def _ask(mine: Session, manager: str, units: list[str]) -> dict[str, Seen]:
    from servicekit.errors import UserError

    try:
        return mine.manager(manager).look(units)
    except UserError as error:
        # What the services published is still worth telling.
        note(f"the manager cannot be asked: {error.message}")
        return {}


def _expected(mine: Session, tunnel: Tunnel, *, deep: bool) -> Expected:
    """Profiles that the tunnel may lead to, with the API keys that are known here."""
    import os

    from servicekit import credentials
    from servicekit.errors import UserError
    from servicekit.tunnel.status import Expected

    found = []
    for listed in mine.catalog.describe():
        if listed.allowed and listed.port == tunnel.engine_port:
            profile = mine.catalog.get(listed.name)
            try:
                values = credentials.read(profile, mine.places, os.environ)
            except UserError:
                values = {}  # what it wants is not known here; it says so itself
            found.append((profile, values.get(profile.api_key or "")))
    return Expected(tuple(found), deep)


def _row(report: Report) -> tuple[str, ...]:
    why = report.why
    if report.drift:
        why += f" ({len(report.drift)} of its files changed by hand)"
    return report.name, report.state, "yes" if report.enabled else "no", why


def _tell(report: Report) -> None:
    from servicekit.cli.status import age

    boot = "starts at boot" if report.enabled else "does not start at boot"
    since = f" for {age(report.since)}" if report.since else ""
    typer.echo(f"{report.name}: {paint(report.state)}{since}")
    for label, text in (
        ("why", report.why),
        ("remedy", report.remedy),
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
