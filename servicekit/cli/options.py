"""Options and arguments that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from servicekit.cli.session import Session
from servicekit.errors import UserError


def session_of(ctx: typer.Context, *, user: bool) -> Session:
    """Return the session of a verb, with its own `--user`."""
    session: Session = ctx.obj
    session.ask_for_user(user=user)
    return session


def complete_profile(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return profile names for shell completion; none if they cannot be read."""
    try:
        root = ctx.find_root().params
        names = Session(root.get("config"), user=bool(root.get("user"))).catalog.names()
    except UserError:
        return []
    return [name for name in names if name.startswith(incomplete)]


_ARGUMENT: Final = typer.Argument(
    metavar="PROFILE", help="Name of a profile.", autocompletion=complete_profile
)

PlanFile = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="Installed plan to use; the profile's by default."),
]
ProfileName = Annotated[str, _ARGUMENT]
OneProfile = Annotated[str | None, _ARGUMENT]
SomeProfile = Annotated[
    str | None,
    typer.Argument(
        metavar="PROFILE",
        help="Name of a profile; by default all.",
        autocompletion=complete_profile,
    ),
]
ForUser = Annotated[bool, typer.Option("--user", help="Manage the services of the calling user.")]
Anyway = Annotated[
    bool,
    typer.Option("--anyway", help="Proceed although the plan or the check predicts a failure."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ForManager = Annotated[
    Literal["systemd", "supervisor"] | None,
    typer.Option("--manager", help="Service manager; by default the running one."),
]
