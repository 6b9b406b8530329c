"""`list`, `show`, `render` and `schema`: print profiles, and files made of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from servicekit.cli.freshness import outdated
from servicekit.cli.options import AsJson, ForManager, ForUser, ProfileName, session_of
from servicekit.cli.orders import order_of
from servicekit.cli.output import as_json, note, ours, table, warn
from servicekit.cli.verification import verification_status_of
from servicekit.errors import UserError, reason
from servicekit.install.installation import look_around
from servicekit.install.rootfs import Tree
from servicekit.profiles.model import Profile
from servicekit.profiles.schema import json_schema
from servicekit.service.plan import make_plan
from servicekit.service.render import Artifact, artifacts
from servicekit.text import printable


def list_profiles(ctx: typer.Context, *, json: AsJson = False, user: ForUser = False) -> None:
    """List the available profiles.

    Built-in profiles are always allowed; a site profile must be named in `allow` in the settings.
    A profile with an error is listed with the error.
    """
    session = session_of(ctx, user=user)
    every, installed = session.catalog.describe(), session.manifests()
    changed = {name: outdated(session, name) for name in installed}
    if json:
        as_json(
            [
                {
                    "name": listed.name,
                    "source": listed.source,
                    "allowed": listed.allowed,
                    "installed": listed.name in installed,
                    "outdated": changed.get(listed.name, ""),
                    "engine": listed.engine,
                    "port": listed.port,
                    "summary": listed.summary,
                    "findings": list(listed.findings),
                }
                for listed in every
            ]
        )
        return
    rows = []
    for listed in every:
        what = listed.summary or f"refused: {listed.findings[0]}"
        standing = (
            "refused" if listed.findings
            else "not allowed" if not listed.allowed
            else "installed" if listed.name in installed
            else "available"
        )  # fmt: skip
        rows.append((listed.name, listed.engine or "", str(listed.port or ""), standing, what))
    table(("PROFILE", "ENGINE", "PORT", "", "SUMMARY"), rows)
    for name, words in changed.items():
        if words:
            note(ours(f'"{name}": {words}'))


def show(
    ctx: typer.Context, profile: ProfileName, *, json: AsJson = False, user: ForUser = False
) -> None:
    """Show a profile with everything it extends.

    Defaults are included. The first line, with --json the key `verified`, shows whether the profile
    is verified and what changed since.
    """
    session = session_of(ctx, user=user)
    recipe = session.profile(profile)
    data = _plain(recipe)
    verified = verification_status_of(session, profile).text
    if json:
        as_json(data | {"verified": verified})
        return
    import tomli_w

    for opted_out in recipe.service.without:
        note(f'this profile leaves the hardening directive "{opted_out}" out of its unit')
    typer.echo(f"# {printable(verified)}")
    typer.echo(tomli_w.dumps(data), nl=False)


def _plain(profile: Profile) -> dict[str, Any]:
    """Return a profile as TOML can hold it: no empty keys, scalars before tables."""
    data = profile.model_dump(mode="json", exclude_none=True)
    tables = {key: value for key, value in data.items() if isinstance(value, dict)}
    return {key: value for key, value in data.items() if key not in tables} | tables


def render(
    ctx: typer.Context,
    profile: ProfileName,
    *,
    manager: ForManager = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write the files below DIR instead.")
    ] = None,
    user: ForUser = False,
) -> None:
    """Print the files that an install would write.

    They are for reading, or for another way of installing them.
    """
    session, tree = session_of(ctx, user=user), Tree()
    name = session.manager_name(manager)
    order = order_of(session, session.profile(profile), tree, manager=name)
    survey = look_around(order, tree)
    for sentence in (*survey.missing, *survey.barred, *survey.warnings, *survey.weakenings):
        warn(sentence)
    files = artifacts(make_plan(order.profile, survey.host), order.manager)
    if out is not None:
        _write(out, files)
        return
    for file in files:
        typer.echo(f"# ==> {file.path} (mode {file.mode & 0o7777:04o})")
        typer.echo(file.text, nl=not file.text.endswith("\n"))


def _write(out: Path, files: Iterable[Artifact]) -> None:
    """Write files below `out`, with their modes, replacing existing ones."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        tree = Tree(str(out))
        for file in files:
            for directory in tree.missing([file.path.parent]):
                tree.make_directory(directory)
            tree.delete(file.path)
            tree.stage(file.path, file.text.encode(), file.mode)
            typer.echo(out / file.path.relative_to("/"))
    except OSError as error:
        raise UserError(f'cannot write "{error.filename}": {reason(error)}') from None


def schema() -> None:
    """Print the JSON schema of profile files.

    Editors complete and check TOML with it.
    """
    as_json(json_schema())
