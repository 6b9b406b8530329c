"""`tunnel install` and `tunnel uninstall`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servicekit.cli.install import DryRun, print_changes
from servicekit.cli.options import ForManager, ForUser, session_of
from servicekit.cli.output import note, warn
from servicekit.cli.tunnel.common import TunnelName, TunnelService, installed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servicekit.cli.session import Session
    from servicekit.install.installer import Proposal
    from servicekit.install.rootfs import Tree
    from servicekit.tunnel.installation import TunnelFiles
    from servicekit.tunnel.keys import KeyPair
    from servicekit.tunnel.values import HostKey, Tunnel

To = Annotated[str | None, typer.Option("--to", metavar="USER@HOST", help="Account and server.")]
Local = Annotated[
    int | None, typer.Option("--local", metavar="PORT", help="Port on this host; default 18000.")
]
Remote = Annotated[
    int | None, typer.Option("--remote", metavar="PORT", help="Port on the server; default 18000.")
]
Reverse = Annotated[
    bool | None,
    typer.Option(
        "--reverse/--forward",
        help="The engine is on this host, or on the server, the default.",
    ),
]
SshPort = Annotated[
    int | None,
    typer.Option("--ssh-port", metavar="PORT", help="Port of the server's sshd; default 22."),
]
Identity = Annotated[
    Path | None,
    typer.Option(
        "--identity", metavar="FILE", help="Private key to copy; default: make a new key."
    ),
]
Fingerprint = Annotated[
    str | None,
    typer.Option(
        "--fingerprint",
        metavar="SHA256:…",
        help="The server's host key; default: ask on the terminal.",
    ),
]
Now = Annotated[bool, typer.Option("--now", help="Start it, too, and wait until it is up.")]
ForceInstall = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Replace files that were changed by hand, saving them as .servicekit-old; "
        "ask the server for its host key again; install although the account cannot run it.",
    ),
]
ForceRemoval = Annotated[
    bool,
    typer.Option("--force", help="Remove files that were changed by hand, saving their text."),
]


def install(
    ctx: typer.Context,
    name: TunnelName,
    *,
    to: To = None,
    local: Local = None,
    remote: Remote = None,
    reverse: Reverse = None,
    ssh_port: SshPort = None,
    identity: Identity = None,
    fingerprint: Fingerprint = None,
    manager: ForManager = None,
    user: ForUser = False,
    dry_run: DryRun = False,
    now: Now = False,
    force: ForceInstall = False,
) -> None:
    """Install a tunnel as a service that starts at boot.

    It reconnects by itself, and both of its ends are on loopback. Shows the server's host key and
    pins it, and prints the line for the server's authorized_keys. Options that are left out keep
    the values of an earlier install. On an error, nothing is changed.
    """
    from servicekit.install.rootfs import Tree
    from servicekit.tunnel.installation import TunnelFiles, propose

    session, tree = session_of(ctx, user=user), Tree()
    earlier = _earlier(session, name, replaced=to is not None)
    asked = {"to": to, "local": local, "remote": remote, "reverse": reverse, "ssh_port": ssh_port}
    tunnel = _wanted(name, asked, earlier)
    service = TunnelService(session, name, session.manager(manager))
    pinned = _pinned(session, tree, tunnel, earlier)
    files = TunnelFiles(
        tunnel=tunnel,
        places=session.places,
        manager=service.manager.name,
        command=(*session.command(), "tunnel", "run", name),
        pair=_pair(session, tree, name, identity),
        pinned=_confirmed(tunnel, pinned, fingerprint, again=force, ask=not dry_run),
    )
    if dry_run:
        print_changes(propose(files, tree, force=force).changes, diffs=True)
        return
    proposal = _carry_out(files, service, tree, force=force)
    if now and service.is_up and not proposal.acts:
        note(f'"{name}" is up already')
    elif now:
        service.start_anew()
    elif proposal.acts and service.seen().is_up:
        note(f"the old files stay in use until `servicekit tunnel restart {name}`")


def _carry_out(files: TunnelFiles, service: TunnelService, tree: Tree, *, force: bool) -> Proposal:
    """Install the tunnel, print what was done, what may keep it down, and what its server needs."""
    from servicekit.errors import UserError
    from servicekit.install.installer import install as carry_out
    from servicekit.places import Scope
    from servicekit.profiles.vocabulary import ManagerName
    from servicekit.service.host import ends_with_session
    from servicekit.tunnel.installation import barriers, propose, turns

    barred = barriers(files)
    if barred and not force:
        raise UserError("\n".join(barred), hint="--force overrules this")
    with turns(tree, files.places) as (held, undone):
        if undone:
            note(undone)
        proposal = propose(files, tree, force=force)
        carry_out(proposal, held, service.manager)
    print_changes(proposal.changes)
    own = files.manager is ManagerName.SYSTEMD and files.places.scope is Scope.USER
    for sentence in (*barred, *(ends_with_session() if own else ())):
        warn(sentence)
    _print_server_steps(files.tunnel, files.pair)
    return proposal


def uninstall(
    ctx: typer.Context,
    name: TunnelName,
    *,
    user: ForUser = False,
    dry_run: DryRun = False,
    force: ForceRemoval = False,
) -> None:
    """Stop a tunnel and remove all of its files, including its key.

    Its line in the server's authorized_keys stays.
    """
    from servicekit.install.installer import removal, tunnel_id
    from servicekit.install.rootfs import Tree
    from servicekit.tunnel.installation import turns
    from servicekit.tunnel.installation import uninstall as carry_out

    session, tree = session_of(ctx, user=user), Tree()
    own, changes = removal(tunnel_id(name), tree, session.places, force=force)
    if dry_run:
        print_changes(changes, diffs=True)
        return
    manager = session.manager(own.manager)
    with turns(tree, session.places) as (held, undone):
        if undone:
            note(undone)
        changes = carry_out(name, held, session.places, manager, force=force)
    print_changes(changes)
    note("remove its line from ~/.ssh/authorized_keys on the server")


def _earlier(session: Session, name: str, *, replaced: bool) -> Tunnel | None:
    """Read the installed tunnel; `None` where there is none, or it is broken and `replaced`."""
    from servicekit.errors import UserError
    from servicekit.tunnel.runner import load
    from servicekit.tunnel.values import checked_name

    if checked_name(name) not in installed(session):
        return None
    try:
        return load(session.places, name)
    except UserError:
        if replaced:
            return None
        raise


def _wanted(name: str, asked: dict[str, str | int | None], earlier: Tunnel | None) -> Tunnel:
    """Complete the options by the values of the earlier install."""
    from servicekit.errors import UserError
    from servicekit.profiles.trusted_toml import Document
    from servicekit.tunnel.values import Tunnel

    if asked["to"] is None and earlier is None:
        raise UserError(
            f'tunnel "{name}" is not installed yet', hint="name its server with --to USER@HOST"
        )
    settings = earlier.data() if earlier is not None else {}
    settings |= {key: value for key, value in asked.items() if value is not None}
    return Tunnel.parse(Document(settings), name=name, where=f'tunnel "{name}"')


def _pair(session: Session, tree: Tree, name: str, identity: Path | None) -> KeyPair:
    """Return the key that was named, else the installed one, else a new one."""
    import socket

    from servicekit.tunnel import keys
    from servicekit.tunnel.installation import installed_pair

    if identity is not None:
        return keys.read(identity)
    here = installed_pair(tree, session.places, name)
    return here or keys.make(f"servicekit-{name}@{socket.gethostname()}")


def _pinned(
    session: Session, tree: Tree, tunnel: Tunnel, earlier: Tunnel | None
) -> tuple[HostKey, ...]:
    """Read the host keys that an earlier install pinned for the same server."""
    from servicekit.tunnel.installation import installed_pins

    if earlier is None or (earlier.host, earlier.ssh_port) != (tunnel.host, tunnel.ssh_port):
        return ()
    return installed_pins(tree, session.places, tunnel.name)


def _confirmed(
    tunnel: Tunnel,
    pinned: tuple[HostKey, ...],
    fingerprint: str | None,
    *,
    again: bool,
    ask: bool,
) -> tuple[HostKey, ...]:
    """Return the pinned keys, or those that the server shows and somebody confirmed."""
    from servicekit.tunnel import keys
    from servicekit.tunnel.values import checked_fingerprint, matching

    wanted = None if fingerprint is None else checked_fingerprint(fingerprint)
    known = wanted is None or wanted in {key.fingerprint for key in pinned}
    if pinned and known and not again:
        return pinned
    shown = keys.scan(tunnel.host, tunnel.ssh_port)
    if wanted is not None:
        return matching(shown, wanted, tunnel.host)
    if set(shown) != set(pinned) and ask:
        _confirm(tunnel.host, shown, pinned)
    return shown


def _confirm(host: str, shown: Sequence[HostKey], pinned: Sequence[HostKey]) -> None:
    from servicekit.errors import UserError
    from servicekit.tunnel.values import SHOW_HOST_KEY

    if not sys.stdin.isatty():
        prints = ", ".join(f"{key.fingerprint} ({key.type})" for key in shown)
        raise UserError(
            f'the host key of "{host}" is not confirmed: it shows {prints}',
            hint=f"compare on the server ({SHOW_HOST_KEY}), then name the right one with "
            "--fingerprint",
        )
    if pinned:
        before = ", ".join(key.fingerprint for key in pinned)
        warn(f"the host key of {host} has changed; the pinned one was {before}")
    typer.echo(f"{host} shows these host keys:")
    for key in shown:
        typer.echo(f"  {key.fingerprint}  {key.type}")
    typer.echo(f"Compare on the server: {SHOW_HOST_KEY}.")
    if not typer.confirm("Are these the server's keys?"):
        raise UserError(
            "the host key was not confirmed; nothing was changed",
            hint="name the right one with --fingerprint",
        )


def _print_server_steps(tunnel: Tunnel, pair: KeyPair) -> None:
    from servicekit.tunnel.values import SERVER_ADVICE

    typer.echo(f"\nOn {tunnel.host}, append this line to ~/.ssh/authorized_keys of {tunnel.user}.")
    typer.echo("It permits this tunnel and nothing else.\n")
    typer.echo(tunnel.authorized_key(pair.public))
    if tunnel.reverse:
        typer.echo("\nAlso add these lines to its /etc/ssh/sshd_config:\n")
        typer.echo(SERVER_ADVICE)
    typer.echo(f"\n{tunnel.way}. Test it with `servicekit tunnel status {tunnel.name}`.")
