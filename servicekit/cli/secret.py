"""`secret`: stores values that are in no other file and in no argument."""

from __future__ import annotations

import os
import sys
from pathlib import PurePosixPath
from typing import Annotated, Final

import typer

from servicekit.cli.options import ForUser, ProfileName, session_of
from servicekit.cli.orders import order_of
from servicekit.cli.output import note, table
from servicekit.cli.session import Session
from servicekit.errors import UserError, refused
from servicekit.install.rootfs import Tree
from servicekit.profiles.model import Profile
from servicekit.profiles.vocabulary import ManagerName

OWNER_ONLY: Final = 0o600
LONGEST: Final = 64 * 1024
"""Bytes of a value; the kernel starts no program with a variable of more than twice that."""

SecretName = Annotated[
    str, typer.Argument(metavar="NAME", help="One of the profile's secrets, such as HF_TOKEN.")
]

app = typer.Typer(
    name="secret",
    help="Store, list and remove the secrets of a profile.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("set")
def set_secret(
    ctx: typer.Context, profile: ProfileName, variable: SecretName, *, user: ForUser = False
) -> None:
    """Store a value, from a prompt or from stdin.

    The value is never an argument, which a process list would show. Only the owner can read the
    file; systemd passes a copy to the service, under Supervisor the service's account owns it.
    """
    session = session_of(ctx, user=user)
    recipe = session.profile(profile)
    place = _place(session, recipe, variable)
    if sys.stdin.isatty():
        value = str(typer.prompt(f"{variable} of {profile}", hide_input=True))
    else:
        try:
            value = sys.stdin.buffer.read(LONGEST + 2).decode().removesuffix("\n")
        except UnicodeDecodeError:
            raise UserError(f"the value of {variable} must be text in UTF-8") from None
    if not value or "\0" in value or "\n" in value:
        raise UserError(f"the value of {variable} must be one line that is not empty")
    if len(value) > LONGEST:
        raise UserError(f"the value of {variable} must have at most {LONGEST} bytes")
    tree = Tree()
    new = place.with_name(f".{variable}.servicekit-new")
    try:
        for directory in tree.missing([place.parent]):
            tree.make_directory(directory)
        tree.delete(new)
        tree.stage(new, value.encode() + b"\n", OWNER_ONLY, _owner(session, recipe, tree))
        tree.move(new, place)
        tree.sync(place.parent)
    except OSError as error:
        raise refused(f'cannot write "{error.filename}"', error) from None
    typer.echo(f"{variable} of {profile} is stored; the next start uses it")


@app.command("list")
def list_secrets(ctx: typer.Context, profile: ProfileName, *, user: ForUser = False) -> None:
    """List a profile's secrets, and which of them are stored."""
    session = session_of(ctx, user=user)
    recipe = session.profile(profile)
    there = Tree().names(session.places.secrets / profile)
    rows = [(name, "stored" if name in there else "missing") for name in recipe.secrets]
    if rows:
        table(("SECRET", ""), rows)
    else:
        note(f'profile "{profile}" has no secrets')


@app.command("remove")
def remove_secret(
    ctx: typer.Context, profile: ProfileName, variable: SecretName, *, user: ForUser = False
) -> None:
    """Remove the stored value of a secret."""
    session = session_of(ctx, user=user)
    place = _place(session, session.profile(profile), variable)
    tree = Tree()
    try:
        tree.delete(place)
        for directory in (place.parent, place.parent.parent):
            tree.delete_directory(directory)
    except OSError as error:
        raise refused(f'cannot write "{error.filename}"', error) from None
    typer.echo(f"{variable} of {profile} is removed")


def _place(session: Session, profile: Profile, variable: str) -> PurePosixPath:
    if variable not in profile.secrets:
        known = f"; it has: {', '.join(profile.secrets)}" if profile.secrets else ""
        raise UserError(
            f'profile "{profile.name}" has no secret "{variable}"',
            hint=f"add it to `secrets` in the profile{known}",
        )
    return session.places.secret(profile.name, variable)


def _owner(session: Session, profile: Profile, tree: Tree) -> tuple[int, int] | None:
    """Return the owner of the file: under Supervisor the service's account, else the caller."""
    own = session.manifests().get(profile.name)
    manager = session.manager_name(None if own is None else own.manager)
    if manager is ManagerName.SYSTEMD or os.geteuid() != 0:
        return None
    account = order_of(session, profile, tree, manager=manager).user
    return None if account is None else tree.account(account)
