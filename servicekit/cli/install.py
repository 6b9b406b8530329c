"""`install`, `uninstall` and `diff`: make services of profiles, and remove them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

import typer

from servicekit.cli.control import follow, order
from servicekit.cli.fetch import note_missing
from servicekit.cli.options import Anyway, ForManager, ForUser, OneProfile, ProfileName, session_of
from servicekit.cli.orders import order_as_installed, order_of
from servicekit.cli.output import note, paint, warn
from servicekit.cli.refusals import refuse, require_trust
from servicekit.cli.session import Installed, Session
from servicekit.doctor.services import LINGER_FAULT
from servicekit.errors import UserError
from servicekit.install.changes import Act, Change
from servicekit.install.installation import Order, look_around, propose, purge_remains
from servicekit.install.installation import uninstall as remove_service
from servicekit.install.installer import Proposal, profile_id, removal
from servicekit.install.installer import install as carry_out
from servicekit.install.present import manifests
from servicekit.install.rootfs import Tree
from servicekit.install.transaction import Turn, turn
from servicekit.managers import Manager
from servicekit.managers.containers import gpu_containers
from servicekit.managers.systemd import Systemd
from servicekit.places import Scope
from servicekit.profiles.settings import variable
from servicekit.profiles.vocabulary import ManagerName

Root = Annotated[
    Path | None,
    typer.Option("--root", metavar="DIR", help="Write into the image below DIR; run nothing."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")]
UserName = Annotated[
    str | None,
    typer.Option("--user-name", metavar="NAME", help="Account that the engine runs as."),
]
Enable = Annotated[
    bool | None,
    typer.Option(
        "--enable/--no-enable",
        help="Start at boot; by default yes, unless a profile that excludes this one does.",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Replace files that were changed by hand, saving them as .servicekit-old; "
        "install although the engine or the model is missing.",
    ),
]


def install(
    ctx: typer.Context,
    profile: OneProfile = None,
    *,
    every: Annotated[
        bool, typer.Option("--all", help="Install every allowed profile whose engine is present.")
    ] = False,
    manager: ForManager = None,
    root: Root = None,
    user: ForUser = False,
    user_name: UserName = None,
    enable: Enable = None,
    dry_run: DryRun = False,
    now: Annotated[
        bool, typer.Option("--now", help="Also start it, and wait until it is ready.")
    ] = False,
    anyway: Anyway = False,
    force: Force = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Accept what makes the service less protected; recorded, needed once."
        ),
    ] = False,
) -> None:
    """Install a profile as a service.

    If it is installed already, its files are updated. On an error, nothing is changed. Files that
    were changed by hand are reported and kept. Without --now, nothing is started or stopped. A
    profile that cannot run here is refused with all reasons. A profile that makes its service less
    protected than the built-in unit is refused without --trust.
    """
    if root is not None and now:
        raise UserError("--now starts a service, and an image has none", hint="omit one of them")
    named = _one(profile, every=every)
    if every and (now or enable):
        raise UserError(
            "--all cannot be combined with --now or --enable: profiles exclude each other"
        )
    session, tree = session_of(ctx, user=user), _tree(root)
    # Which manager runs here says nothing about an image.
    runs = None if root is not None else session.manager(manager)
    work = _Work(
        session,
        tree,
        runs,
        manager=session.manager_name(manager) if runs is None else runs.name,
        user_name=user_name,
        enable=enable,
        dry_run=dry_run,
        anyway=anyway,
        force=force,
        trust=trust,
    )
    if every:
        _each(session.catalog.names(), work.install_if_here)
    else:
        work.install(work.order(named), now=now)


def _one(profile: str | None, *, every: bool) -> str:
    """Return the named profile; exactly one of it and --all must be given."""
    if (profile is None) != every:
        raise typer.BadParameter("give either a profile or --all")
    return profile or ""


def _each(profiles: Iterable[str], act: Callable[[str], None]) -> None:
    """Do the same for all; an error in one does not stop the rest."""
    failed = False
    for profile in profiles:
        typer.echo(f"{profile}:")
        try:
            act(profile)
        except UserError as error:
            failed = True
            for line in str(error).splitlines():
                note(line)
    if failed:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Work:
    """Options that all installs of one command share."""

    session: Session
    tree: Tree
    runs: Manager | None  # `None` for an image
    _: KW_ONLY
    manager: ManagerName
    user_name: str | None = None
    enable: bool | None = None
    dry_run: bool = False
    anyway: bool = False
    force: bool = False
    trust: bool = False

    def order(self, profile: str) -> Order:
        return order_of(
            self.session,
            self.session.profile(profile),
            self.tree,
            manager=self.manager,
            user_name=self.user_name,
            enable=self.enable,
            force=self.force,
        )

    def install_if_here(self, profile: str) -> None:
        """Install a profile if nothing is missing, else print what is."""
        order = self.order(profile)
        missing = look_around(order, self.tree).missing
        if missing and profile not in manifests(self.tree, order.places):
            note(f"left out: {missing[0]}")
        else:
            self.install(order)

    def install(self, order: Order, *, now: bool = False, restarts: bool = False) -> None:
        """Install one profile, or with `dry_run` show what that would do.

        With `restarts` the caller restarts the service, and no hint asks for it.
        """
        image, recipe = self.runs is None, order.profile
        root = Path(self.tree.root)
        if self.dry_run:
            order, survey = refuse(order, self.tree, anyway=True)
            for sentence in (*survey.warnings, *survey.weakenings):
                warn(sentence)
            proposal = propose(order, self.tree)
            print_changes(proposal.changes, diffs=True)
            note_missing(recipe, order.places, root)
            return
        if not image and not self.force:
            _refuse_invisible_settings(self.session)
        incomplete = image or self.force
        order, survey = refuse(order, self.tree, anyway=self.anyway, incomplete=incomplete)
        for sentence in (*(survey.missing if incomplete else ()), *survey.warnings):
            warn(sentence)
        order = require_trust(self.session, order, survey, trust=self.trust)
        with turn(self.tree, order.places) as held:
            _note_undone(held, self.runs)
            proposal = propose(order, self.tree)
            if proposal.acts:
                _warn_of_containers(self.runs)
            carry_out(proposal, held, self.runs)
        print_changes(proposal.changes)
        _note_enablement(proposal)
        _warn_of_root(order)
        warn_of_logouts(self.session, self.runs)
        if not now:  # a start says it itself
            note_missing(recipe, order.places, root)
        if self.runs is not None and not restarts:
            _start_or_hint(self.session, proposal, self.runs, now=now)


def start_at_boot(session: Session, new: Installed, instead_of: Iterable[Installed]) -> None:
    """Enable `new` at boot, then disable those that it excludes; all stay as installed."""
    tree = _tree(None)
    with turn(tree, session.places) as held:
        _note_undone(held, new.manager)
        # In this order, what fails in between leaves a host that serves after a boot.
        for one, enable in ((new, True), *((old, False) for old in instead_of)):
            proposal = propose(order_as_installed(session, one, tree, enable=enable), tree)
            carry_out(proposal, held, one.manager)
            print_changes(proposal.changes)


def install_again(session: Session, service: Installed, *, anyway: bool) -> None:
    """Install a service again from its current profile, with its earlier options."""
    work = _Work(session, _tree(None), service.manager, manager=service.manager.name, anyway=anyway)
    work.install(work.order(service.manifest.profile), restarts=True)


def uninstall(
    ctx: typer.Context,
    profile: OneProfile = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Remove every installed profile.")] = False,
    root: Root = None,
    user: ForUser = False,
    dry_run: DryRun = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove the history, log and secrets.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Remove files that were changed by hand, too, saving them first."
        ),
    ] = False,
) -> None:
    """Stop a service and remove its files.

    Models, caches and, without --purge, the history stay. --purge also works after an uninstall.
    """
    session, tree = session_of(ctx, user=user), _tree(root)
    options = {"dry_run": dry_run, "purge": purge, "force": force}
    if not every:
        _uninstall(session, tree, _one(profile, every=every), **options)
        return
    _one(profile, every=every)
    installed = sorted(manifests(tree, session.places))
    if not installed:
        note("nothing is installed")
    _each(installed, lambda each: _uninstall(session, tree, each, **options))


def _uninstall(
    session: Session, tree: Tree, profile: str, *, dry_run: bool, purge: bool, force: bool
) -> None:
    if purge and not dry_run and profile not in manifests(tree, session.places):
        with turn(tree, session.places) as held:
            if purge_remains(profile, held):
                typer.echo(f"{profile}: history, log and secrets of an earlier install are removed")
                return
    own, changes = removal(profile_id(profile), tree, session.places, force=force)
    if dry_run:
        print_changes(changes, diffs=True)
        return
    manager = None if tree.is_image else _manager_of(session, own.manager, force=force)
    with turn(tree, session.places) as held:
        _note_undone(held, manager)
        _warn_of_containers(manager)
        changes = remove_service(
            profile, held, manager, stop_limit=session.stop_limit(profile), force=force, purge=purge
        )
    print_changes(changes)


def diff(ctx: typer.Context, profile: ProfileName, *, user: ForUser = False) -> None:
    """Show what an install would change.

    These are files changed by hand, and changes of the profile, the settings or servicekit. Exit
    code 1 if there are any.
    """
    session, tree = session_of(ctx, user=user), _tree(None)
    recipe = session.profile(profile)
    name = session.installed(profile).manager.name
    proposal = propose(order_of(session, recipe, tree, manager=name), tree)
    differing = [change for change in proposal.changes if change.acts or change.act is Act.DRIFTED]
    if differing:
        print_changes(differing, diffs=True)
        raise typer.Exit(1)


def _tree(root: Path | None) -> Tree:
    if root is not None and not root.is_dir():
        raise UserError(f'image "{root}" is not a directory', hint="create it first")
    return Tree() if root is None else Tree(str(root))


def _manager_of(session: Session, name: str, *, force: bool) -> Manager | None:
    try:
        return session.manager(name)
    except UserError as error:
        if not force:
            raise UserError(
                error.message, hint="--force removes the files without stopping the service"
            ) from None
        warn(f"{error.message}; continuing without it: the service is not stopped")
        return None


def _note_undone(held: Turn, manager: Manager | None) -> None:
    """Report that an interrupted command was undone; the manager may have seen its files."""
    if held.undone:
        note(held.undone)
        if manager is not None:
            manager.reload()


def _refuse_invisible_settings(session: Session) -> None:
    """Refuse variables of this command that the service would not have."""
    deciding = {variable(key) for key in ("allow", "deny", "root", "places")}
    seen = sorted(deciding & set(session.settings.variables))
    if seen:
        raise UserError(
            f"{' and '.join(seen)} is set for this command only; the service would not have it",
            hint=f"set it in {session.places.config}, or use --config FILE",
        )


def print_changes(changes: Iterable[Change], *, diffs: bool = False) -> None:
    """Print the changes, and files kept because they were changed by hand."""
    acted = False
    for change in changes:
        if not change.acts and change.act is not Act.DRIFTED:
            continue
        acted = acted or change.acts
        why = f": {change.why}" if change.why else ""
        if change.saved:
            why += f"; saved as {change.path.name}.servicekit-old"
        elif change.act is Act.DRIFTED:
            why += "; kept (--force replaces or removes it)"
        typer.echo(f"{paint(change.act.value, f'{change.act.value:8}')} {change.path}{why}")
        if diffs and (text := change.diff()):
            typer.echo(text)
    if not acted:
        typer.echo("nothing to do")


def _warn_of_root(order: Order) -> None:
    """Warn where a system service of Supervisor has no account of its own."""
    supervised = order.manager is ManagerName.SUPERVISOR and order.places.scope is Scope.SYSTEM
    if supervised and order.user is None:
        warn(
            "the engine runs as supervisord's account, usually root: its own account does not "
            "exist and cannot be created here; create one and install again with --user-name"
        )


def _note_enablement(proposal: Proposal) -> None:
    name, rivals = proposal.service.name, proposal.enabled_rivals
    if rivals and not proposal.manifest.enabled:
        note(f'"{name}" does not start at boot, since "{rivals[0]}" does and excludes it')
    elif rivals:
        warn(
            f'"{rivals[0]}" starts at boot, too, and excludes "{name}"; '
            f"`servicekit install {rivals[0]} --no-enable` disables it"
        )


def _warn_of_containers(manager: Manager | None) -> None:
    """Warn that systemd's reload takes the GPU from running containers."""
    if manager is None or manager.name is not ManagerName.SYSTEMD or os.geteuid() != 0:
        return
    containers = gpu_containers()
    if containers:
        warn(
            f"running GPU containers lose their GPU when systemd reads its units again: "
            f"{', '.join(containers)}; restart them afterwards"
        )


def warn_of_logouts(session: Session, manager: Manager | None) -> None:
    """Warn of the systemd version that stops a user's services despite lingering."""
    if (
        isinstance(manager, Systemd)
        and session.scope is Scope.USER
        and manager.version() == LINGER_FAULT
    ):
        warn(
            f"systemd {LINGER_FAULT} may stop your services at your last logout, even where you "
            "linger; install as root, for a system service"
        )


def _start_or_hint(session: Session, proposal: Proposal, manager: Manager, *, now: bool) -> None:
    service = proposal.service
    is_up = manager.look([service.unit])[service.unit].is_up
    if now:
        installed = Installed(proposal.manifest, manager)
        order(session, installed, again=is_up and proposal.acts)
        follow(session, installed)
    elif is_up and proposal.acts:
        note(
            f"still running the old files; `servicekit restart {service.name}` applies the new ones"
        )
