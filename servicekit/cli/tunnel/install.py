"""`tunnel install` and `tunnel uninstall`: from an address to a service, and back to nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servicekit.cli.install import DryRun, tell_changes
from servicekit.cli.options import ForManager, ForUser, session
from servicekit.cli.output import note, warn
from servicekit.cli.tunnel.common import TunnelName, installed
from servicekit.cli.tunnel.control import Service

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servicekit.cli.session import Session
    from servicekit.install.rootfs import Tree
    from servicekit.tunnel.installation import Proposal
    from servicekit.tunnel.keys import KeyPair
    from servicekit.tunnel.values import HostKey, Tunnel


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
    from servicekit.install.rootfs import Tree
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
    service = Service(mine, name, runs)
    if now and service.is_up and not proposal.acts:
        note(f'"{name}" is up already')
    elif now:
        service.start_anew()
    elif proposal.acts and runs.look([tunnel.unit])[tunnel.unit].is_up:
        note(f"it runs as it was before; `servicekit tunnel restart {name}` takes the new files")


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
    from servicekit.install.rootfs import Tree
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


def _earlier(mine: Session, name: str, *, anew: bool) -> Tunnel | None:
    """The tunnel as it is installed now; `None` where it is not, or cannot be read and need not."""
    from servicekit.errors import UserError
    from servicekit.tunnel.runner import load
    from servicekit.tunnel.values import checked_name

    if checked_name(name) not in installed(mine):
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
    from servicekit.profiles.trusted_toml import Document
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
    from servicekit.places import Scope
    from servicekit.profiles.vocabulary import ManagerName
    from servicekit.service.host import account, ends_with_session, hidden, unreadable

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
