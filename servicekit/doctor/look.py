"""Gathers the view of the host: runs every query at once, each with its own time limit.

What does not reply in time is left out. Nothing is changed. A child process queries the GPU driver,
since such a call may hang for ever.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from servicekit.doctor import look_host
from servicekit.doctor.look_host import ANSWER_LIMIT
from servicekit.doctor.look_profile import ProfileQuestions
from servicekit.doctor.look_windows import WslQuestions
from servicekit.doctor.queries import after, seen_or_not
from servicekit.doctor.view import HostView, ProfileView, RefusedProfile
from servicekit.doctor.wsl.windows import WSL_CONF
from servicekit.host import procfs
from servicekit.host.bounded import BoundedCalls, call
from servicekit.host.gpu import Gpus
from servicekit.managers import SYSTEMD_RUNS
from servicekit.watchdog import evidence

if TYPE_CHECKING:
    from collections.abc import Callable

    from servicekit.doctor.queries import DoctorRequest

LIMIT: Final = 8.0  # seconds for all questions: with Python's start and the printing, less than ten


def look(request: DoctorRequest, report: Callable[[tuple[str, ...]], None]) -> HostView:
    """Read the host; `report` what is still running after two seconds."""
    return asyncio.run(_look(request, report))


async def _look(request: DoctorRequest, report: Callable[[tuple[str, ...]], None]) -> HostView:
    root, account = os.geteuid() == 0, procfs.account(os.geteuid())
    on_wsl = evidence.on_wsl()
    board = BoundedCalls(LIMIT)
    gpus = Gpus((), environment=request.environ, limit=ANSWER_LIMIT)
    gpu = board.ask("the GPU driver", gpus.look())
    manager = board.ask("the service manager", look_host.manager(request))
    groups = board.ask("control groups", call(look_host.groups))
    logins = board.ask("logind", call(lambda: look_host.logins(account)))
    journal = board.ask("journald", call(look_host.journal))
    containers = board.ask("containers", call(lambda: look_host.containers(root=root)))
    driver = board.ask("the driver files", look_host.driver())
    held = board.ask("GPU memory", after(gpu, lambda seen: look_host.held(seen, request)))
    xids = board.ask("the kernel log", look_host.xids())
    clock = board.ask("the clocks", look_host.clock(systemd=SYSTEMD_RUNS.is_dir()))
    shared = board.ask("shared memory", call(lambda: look_host.shared(root=root)))
    profiles = [ProfileQuestions(board, order, request) for order in request.orders]
    wsl = WslQuestions(board, request.environ, WSL_CONF) if on_wsl else None
    try:
        await board.settle(report)
    finally:
        gpus.close()
    looked = [profile.seen(seen_or_not(gpu)) for profile in profiles]
    return HostView(
        scope=request.places.scope,
        account=account,
        container=not on_wsl and look_host.in_container(),
        manager=seen_or_not(manager),
        groups=seen_or_not(groups),
        logins=seen_or_not(logins),
        journal=seen_or_not(journal),
        containers=seen_or_not(containers),
        driver=seen_or_not(driver),
        gpu=seen_or_not(gpu),
        held=seen_or_not(held),
        xids=seen_or_not(xids),
        clock=seen_or_not(clock),
        shared=seen_or_not(shared),
        subjects=tuple(each for each in looked if isinstance(each, ProfileView)),
        refused=(*request.refused, *(each for each in looked if isinstance(each, RefusedProfile))),
        wsl=None if wsl is None else wsl.seen(),
    )
