"""What a verification is valid for: profile, versions, weights, driver and GPU. Disk, driver."""

from __future__ import annotations

import hashlib
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from servicekit import __version__
from servicekit.engines.versions import look
from servicekit.errors import reason
from servicekit.host import procfs
from servicekit.host.gpu import Gpus
from servicekit.lab.verify.record import Fingerprint
from servicekit.models.hub_cache import Repository
from servicekit.models.weights import needs
from servicekit.service.plan import hub_cache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.service.plan import Plan


CLOCKS: Final = 1.0  # seconds by which a file's time and a process's start may be off


async def fingerprint(plan: Plan) -> Fingerprint:
    """Return the fingerprint of `plan`; takes a second, and no network."""
    profile = plan.profile
    content = json.dumps(profile.model_dump(mode="json"), sort_keys=True)
    gpus = Gpus(profile.gpus)
    try:
        seen = await gpus.look() if profile.gpus else None
    finally:
        gpus.close()
    return Fingerprint(
        profile=_hash(content),
        servicekit=__version__,
        engine=look(profile.engine, plan.host.executable, account=plan.host.user).version(
            profile.engine
        )
        or "",
        model=_model(plan),
        driver=seen.driver if seen else "",
        gpu=", ".join(device.name for device in seen.devices) if seen else "",
    )


def outdated(plan: Plan, watchdog: int) -> str:
    """Say why the engine of the process `watchdog` is not as `plan` has it; empty where it may be.

    A fingerprint is of what is installed now. What was started before that was is something else.
    """
    from servicekit.service.render import wrapper

    script = wrapper(plan)
    file = Path(script.path)
    try:
        if file.read_text(encoding="utf-8", errors="replace") != script.text:
            return "its wrapper is not what an install would write now"
        began = _began(watchdog)
        for path, what in ((file, "its files"), (Path(plan.host.executable), "its engine")):
            if path.stat().st_mtime > began + CLOCKS:
                return f"{what} changed after it was started"
    except OSError as error:
        return f'"{error.filename}" cannot be read: {reason(error)}'
    return ""


def _began(pid: int) -> float:
    """Return the time of day at which a process began; that of now where it is gone."""
    stat = procfs.stat(pid)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    age = now - stat.started / procfs.TICKS if stat else 0.0
    return datetime.now(UTC).timestamp() - age


async def vram(names: tuple[str, ...]) -> int | None:
    """Return the MiB in use on the GPUs `names`; `None` if unknown."""
    if not names:
        return None
    gpus = Gpus(names)
    try:
        used = [device.used for device in (await gpus.look()).devices]
    finally:
        gpus.close()
    known = [mib for mib in used if mib is not None]
    return sum(known) if known else None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _model(plan: Plan) -> str:
    """Commit of each model on the hub; for what is a file or folder, a hash of sizes and times."""
    cache = Path(hub_cache(plan.profile, plan.host.places))
    try:
        commits = [Repository(cache, n.repo).commit(n.revision) or "?" for n in needs(plan.profile)]
        if commits:
            return " ".join(commits)
        files = sorted(_files(Path(plan.host.model)))
    except OSError:
        return ""
    return _hash(json.dumps(files)) if files else ""


def _files(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, bytes and time of each file at or below `path`."""
    every = (
        [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
        if path.is_dir()
        else [path] * path.is_file()
    )
    for file in every:
        stat = file.stat()
        yield str(file), stat.st_size, stat.st_mtime_ns
