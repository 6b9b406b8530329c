"""Exposure of an installed unit and of the built-in one, from `systemd-analyze security`."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from servicekit.host import programs
from servicekit.profiles.model import Service
from servicekit.profiles.vocabulary import SHARED_ACCOUNT, ManagerName
from servicekit.service.plan import make_plan
from servicekit.service.render import artifacts

if TYPE_CHECKING:
    from servicekit.service.plan import Plan

LIMIT: Final = 5.0  # seconds
_OVERALL: Final = re.compile(r"Overall exposure level for [^:\n]{1,300}: ([0-9]+\.[0-9]+)")


def exposures(plan: Plan) -> tuple[float, float] | None:
    """Rate the installed unit of `plan`, and the unit that it would have without weakenings.

    `None` where systemd-analyze cannot: it rates files since systemd 250.
    """
    installed = _rate(f"{plan.profile.unit}.service")
    if installed is None:
        return None
    with tempfile.TemporaryDirectory(prefix="servicekit-") as folder:
        unit = Path(folder, f"{plan.profile.unit}.service")
        unit.write_text(_built_in(plan), encoding="utf-8")
        built_in = _rate("--offline=yes", str(unit))
    return None if built_in is None else (installed, built_in)


def _built_in(plan: Plan) -> str:
    profile = plan.profile.model_copy(update={"service": Service()})
    user = SHARED_ACCOUNT if plan.host.user == "root" else plan.host.user
    plain = make_plan(profile, replace(plan.host, user=user))
    unit = plan.host.places.units / f"{profile.unit}.service"
    files = artifacts(plain, ManagerName.SYSTEMD)
    return next(file.text for file in files if file.path == unit)


def _rate(*words: str) -> float | None:
    try:
        done = programs.run(["systemd-analyze", "--no-pager", "security", *words], limit=LIMIT)
    except programs.NotRunError:
        return None
    match = _OVERALL.search(done.stdout)
    return None if match is None else float(match[1])
