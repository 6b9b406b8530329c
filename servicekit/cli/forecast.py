"""A profile's use of GPU memory, as `plan` prints it and a start checks it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from servicekit.cli.orders import order_of
from servicekit.cli.output import note
from servicekit.cli.session import Session
from servicekit.engines.base import PACKAGE, InstalledEngine
from servicekit.engines.versions import look
from servicekit.host.gpu import Device, Gpus
from servicekit.install.installation import look_around
from servicekit.install.rootfs import Tree
from servicekit.models.memory.outcome import Budget, Fit
from servicekit.models.memory.planning import AVERAGE_LENGTH, plan_memory
from servicekit.models.memory.recipe import Recipe, recipe_of
from servicekit.models.memory.units import MIB, parse_size
from servicekit.models.weights import description, needs
from servicekit.profiles.model import Profile
from servicekit.service.host import Survey
from servicekit.service.plan import Plan, hub_cache, make_plan
from servicekit.watchdog.evidence import on_wsl

_PIN: Final = r"==[0-9][^,*]*"
USUAL_GPU: Final = "31.4GiB"
"""What an RTX 5090 leaves of its 32 GB; planned for where no GPU can be asked."""


def plan_of(session: Session, profile: Profile, manager: str | None = None) -> Plan:
    """Make the plan of `profile` for this host, even if parts are missing."""
    return make_plan(profile, survey_of(session, profile, manager).host)


def survey_of(session: Session, profile: Profile, manager: str | None = None) -> Survey:
    """Find what an install of `profile` would find on this host."""
    tree = Tree()
    order = order_of(session, profile, tree, manager=session.manager_name(manager))
    return look_around(order, tree)


def installed_engine(plan: Plan, *, ask: bool = False) -> InstalledEngine:
    """Identify the engine that `plan` would start; `ask` runs it for its options."""
    return look(plan.profile.engine, plan.host.executable, account=plan.host.user, options=ask)


def budget_of(plan: Plan, gpu_memory_bytes: int, *, average_length: int | None = None) -> Budget:
    """Plan memory; raise `UserError` if it cannot be computed."""
    recipe = recipe_for(plan)
    return plan_memory(
        recipe,
        gpu_memory_bytes,
        model_path=local_model(plan),
        average_length=average_length or AVERAGE_LENGTH,
    )


def recipe_for(plan: Plan, version: str | None = None) -> Recipe:
    """Return what the arithmetic needs of a profile.

    The engine is of the given version, else of the installed one, else of the one that the profile
    pins.
    """
    profile = plan.profile
    pinned = profile.requires.get(PACKAGE.get(profile.engine, ""), "")
    known = version or installed_engine(plan).version(profile.engine)
    return recipe_of(profile, known or (pinned[2:] if re.fullmatch(_PIN, pinned) else ""))


def memory_of(profile: Profile) -> int:
    """Return the bytes available to `profile`: its GPU's, or for the CPU the host's."""
    if not profile.gpus:
        return psutil.virtual_memory().total
    memory = ask_gpus(profile.gpus).memory
    if memory is not None:
        return memory
    note(f"no GPU found; planned for the {USUAL_GPU} of an RTX 5090")
    return parse_size(USUAL_GPU)


class Found(NamedTuple):
    """What the driver reports about the GPUs of a profile."""

    memory: int | None
    """Bytes of the smallest; `None` where no driver answers or memory is shared with the CPU."""
    names: tuple[str, ...]  # everything that they are called: indices and UUIDs
    capability: str | None = None  # compute capability of the first, such as "12.0"
    uuids: tuple[str, ...] = ()
    """UUIDs in the order that was asked in, where all are known and mean the same to CUDA."""


def ask_gpus(names: Sequence[str]) -> Found:
    """Query the driver about the GPUs called `names`; takes a few seconds at most."""
    if not names:
        return Found(None, ())
    every = asyncio.run(_devices())
    known = {
        name: (str(index), device)
        for index, device in enumerate(every)
        for name in names
        if name == str(index) or device.uuid.startswith(name)
    }
    totals = [device.total for _, device in known.values() if device.total is not None]
    aliases = {alias for index, device in known.values() for alias in (index, device.uuid)}
    capability = next((device.capability for _, device in known.values()), None)
    memory = min(totals) * MIB if totals else None
    # What CUDA under WSL makes of a UUID was not tried.
    uuids = () if {*names} - {*known} or on_wsl() else tuple(known[n][1].uuid for n in names)
    return Found(memory, tuple(sorted({*names, *aliases})), capability, uuids)


def devices_of(names: Sequence[str]) -> tuple[Device, ...]:
    """Query the driver about the GPUs called `names`; empty where it does not answer."""
    if not names:
        return ()
    every = asyncio.run(_devices())
    return tuple(
        device
        for index, device in enumerate(every)
        if any(name == str(index) or device.uuid.startswith(name) for name in names)
    )


async def _devices() -> tuple[Device, ...]:
    gpus = Gpus(())
    try:
        return (await gpus.look()).devices
    finally:
        gpus.close()


def misfit(profile: str, budget: Budget | None) -> Iterator[str]:
    if budget is not None and budget.verdict is Fit.DOES_NOT_FIT:
        lever = f"; {budget.levers[0]}" if budget.levers else ""
        yield f'profile "{profile}" does not fit its GPU: {budget.reason}{lever}'


def local_model(plan: Plan) -> Path | None:
    """Return the local file or directory that describes the model, if it is present."""
    if plan.host.model.startswith("/"):
        return Path(plan.host.model)
    cache = Path(hub_cache(plan.profile, plan.host.places))
    need = next((need for need in needs(plan.profile) if need.role == "model"), None)
    try:
        return None if need is None else description(need, cache)
    except PermissionError:
        return None
