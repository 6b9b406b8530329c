"""Finds what prevents a profile from running, before anything is written or stopped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from servicekit.cli.forecast import (
    ask_gpus,
    budget_of,
    devices_of,
    installed_engine,
    local_model,
    misfit,
)
from servicekit.cli.orders import installed_account, order_of
from servicekit.cli.output import note, warn
from servicekit.cli.session import Installed, Session
from servicekit.engines.base import InstalledEngine as Engine
from servicekit.engines.options.parser import Level, Remark
from servicekit.errors import UserError
from servicekit.host import procfs, sockets
from servicekit.install.installation import Order, look_around, record_overruled
from servicekit.install.rootfs import Tree
from servicekit.install.transaction import turn
from servicekit.models.memory.outcome import Budget
from servicekit.profiles.model import Profile
from servicekit.service.access import hidden_of, needs_of, proved, script_faults
from servicekit.service.check import Report, check
from servicekit.service.host import Survey
from servicekit.service.plan import Plan, make_plan
from servicekit.service.preflight import check_context, check_secrets
from servicekit.service.weakenings import weakenings
from servicekit.watchdog.census import Census


def report_of(
    plan: Plan, *, image: bool = False, ask: bool = False, weaker: Iterable[str] = ()
) -> Report:
    """Check `plan` on this host, or for an image of another one.

    `ask` starts the engine for its own list of options. `weaker` are listed as warnings.
    """
    profile = plan.profile
    if image:  # whose programs are not run here, and whose secrets are stored there
        return check(profile, plan, Engine())
    engine = installed_engine(plan, ask=ask)
    engine = replace(engine, capability=ask_gpus(profile.gpus).capability)
    parts = (each.partition(": ") for each in weaker)
    host = (
        *(Remark(Level.WARNING, where, what) for where, _, what in parts),
        *check_secrets(profile, plan.host.places),
        *check_context(profile, local_model(plan)),
    )
    return check(profile, plan, engine, host=host)


def refuse(
    order: Order, tree: Tree, *, anyway: bool, incomplete: bool = False, known: Collection[str] = ()
) -> tuple[Order, Survey]:
    """Refuse an order whose profile cannot run, and give all reasons together.

    With `anyway` they are printed as warnings and recorded in the order. With `incomplete` the
    program and the model may be missing. What is in `known` is no reason to refuse. Returns the
    order, completed by what the driver of the GPUs answers and by the memory plan, and what was
    found on the host.
    """
    profile = order.profile
    gpus = ask_gpus(() if tree.is_image else profile.gpus)
    order = replace(order, gpus=gpus.names or order.gpus, uuids=gpus.uuids or order.uuids)
    survey = look_around(order, tree)
    plan = make_plan(profile, survey.host)
    budget = None if gpus.memory is None else _budget(plan, gpus.memory)
    report = report_of(plan, image=tree.is_image)
    errors = [
        *(() if incomplete else survey.missing),
        *(() if tree.is_image else _barriers(order, survey)),
        *(f'profile "{profile.name}": {each}' for each in report.errors),
        *misfit(profile.name, budget),
    ]
    if not anyway and (new := [each for each in errors if each not in known]):
        raise UserError("\n".join(new), hint="--anyway overrules this")
    for sentence in errors:
        warn(sentence)
    kv_tokens, planned = (budget.kv_tokens, budget.figures) if budget else (None, {})
    order = replace(order, kv_tokens=kv_tokens, planned=planned, overruled=tuple(errors))
    return order, survey


def require_trust(session: Session, order: Order, survey: Survey, *, trust: bool) -> Order:
    """Refuse weakenings of the service's protection that no install has accepted.

    Prints all of them, and returns the order with those to record.
    """
    name, weaker = order.profile.name, survey.weakenings
    for sentence in weaker:
        warn(sentence)
    accepted = (
        _installed_weakenings(session, order, survey) if order.trusted is None else order.trusted
    )
    new = [each for each in weaker if each not in accepted]
    if new and not trust:
        times = f"{len(new)} ways that were" if len(new) > 1 else "a way that was"
        raise UserError(
            f'profile "{name}" weakens the protection of its service in {times} not accepted yet',
            hint=f"change the profile, or accept all with `servicekit install {name} --trust`",
        )
    return replace(order, trusted=weaker)


def _installed_weakenings(session: Session, order: Order, survey: Survey) -> tuple[str, ...]:
    """Return the weakenings of what an older servicekit installed, which recorded none."""
    name = order.profile.name
    plan = session.installed_plan(name)
    user = order.user if plan is None else plan.user
    profile = session.installed_profile(name)
    return weakenings(profile, order.places, order.manager, user, survey.host.executable)


def _barriers(order: Order, survey: Survey) -> Iterator[str]:
    """Yield what the account cannot use, tried with its rights where possible."""
    profile, host, manager = order.profile, survey.host, order.manager
    hidden = hidden_of(profile, host, manager)
    for sentence in (
        *script_faults("the engine", Path(host.executable)),
        *proved(needs_of(profile, host, manager), host.user, hidden),
    ):
        yield f'profile "{profile.name}": {sentence}'


def _budget(plan: Plan, memory: int) -> Budget | None:
    try:
        return budget_of(plan, memory)
    except UserError:
        return None  # no memory plan for this engine or model; the engine itself will report it


def _foreign_holders(session: Session, service: Installed, recipe: Profile) -> Iterator[str]:
    """Name foreign processes that hold the profile's port or the memory of its GPUs.

    An engine of ours is no obstacle: the manager or the watchdog stops it first.
    """
    held = sockets.listeners(recipe.host, recipe.port)
    devices = devices_of(recipe.gpus)
    if not held and not any(device.processes for device in devices):
        return
    census = Census()
    living = census.look()
    units = [f"servicekit-{name}" for name in session.manifests()]
    watchdogs = [seen.pid for seen in service.manager.look(units).values() if seen.pid]
    ours = {*procfs.descendants(watchdogs, living), *census.marked(living)}
    for socket in held:
        holder = sockets.held_by(socket.inode, living)
        if holder is not None and holder not in ours:
            who = census.describe(living[holder]).named
            yield (
                f'profile "{recipe.name}": port {recipe.port} is held by {who}: stop it, or give '
                "the profile another port"
            )
    allowance = recipe.watch.stranger_allowance
    for device in devices:
        foreign = {
            pid: mib for pid, mib in device.processes.items() if pid in living and pid not in ours
        }
        if sum(mib or 0 for mib in foreign.values()) > allowance:
            who = ", ".join(census.describe(living[pid], mib).named for pid, mib in foreign.items())
            yield f'profile "{recipe.name}": the memory of {device.name} is held by {who}: stop it'


def refuse_start(
    session: Session,
    service: Installed,
    recipe: Profile,
    *,
    anyway: bool,
    known: Collection[str] = (),
) -> None:
    """Refuse an installed profile that cannot run; record what `anyway` overrules."""
    tree = Tree()
    order = order_of(session, recipe, tree, manager=service.manager.name)
    order = replace(order, user=installed_account(session, service.manifest))
    if holders := tuple(_foreign_holders(session, service, recipe)):
        if not anyway:
            raise UserError("\n".join(holders), hint="--anyway starts it, to wait for them")
        for sentence in holders:
            warn(sentence)
    order, _ = refuse(order, tree, anyway=anyway, known=known)
    if order.overruled == service.manifest.overruled:
        return
    try:
        with turn(tree, session.places) as held:
            record_overruled(recipe.name, order.overruled, held)
    except UserError as error:
        note(f"cannot record what --anyway overrules: {error}")
