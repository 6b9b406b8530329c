"""Hosts for tests of the checks: one on which all is well, and what may be different about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Final

import plans

from servicekit.doctor.view import (
    Clock,
    Driver,
    Groups,
    Held,
    HostView,
    Journal,
    KeepaliveTask,
    Logins,
    Models,
    Place,
    PortUse,
    ProfileView,
    SystemdView,
    Wsl,
    Xids,
)
from servicekit.doctor.wsl.conf import WslKey
from servicekit.engines.base import InstalledEngine
from servicekit.host.facts import GpuView, Process
from servicekit.host.gpu import Device, GpuReading
from servicekit.places import Scope

GIB: Final = 1 << 30
CARD: Final = Device(
    uuid="GPU-11111111",
    name="NVIDIA GeForce RTX 5090",
    pci="00000000:03:00.0",
    used=600,
    total=32607,
    processes={},
    capability="12.0",
    persistence=True,
)
LOOK: Final = GpuReading(GpuView.PRESENT, devices=(CARD,), driver="580.95.05", cuda="13.0")
DISK: Final = Place(PurePosixPath("/var/cache/servicekit"), "ext4", PurePosixPath("/"), 500 * GIB)
STRANGER: Final = Process(pid=812, started=1, user="ada", command="python train.py", mib=20480)
PACKAGES: Final = {"sglang": "0.5.23", "flashinfer-python": "0.6.16"}


def subject(
    name: str = "balanced",
    *,
    change: dict[str, Any] | None = None,
    **seen: Any,  # noqa: ANN401 - fields of a view
) -> ProfileView:
    """A profile that lacks nothing, but for what was seen; `change` is laid over its keys."""
    profile = plans.profile(name, **(change or {}))
    whole = ProfileView(
        profile=profile,
        plan=plans.plan(profile),
        installed=True,
        missing=(),
        obstacles=(),
        engine=InstalledEngine("/opt/sglang/bin/sglang", PACKAGES, "12.9"),
        models=Models((profile.model,), 20 * GIB, None),
        cache=DISK,
        weights=DISK,
        port=PortUse(None),
        interruptions={},
        gpu=LOOK,
    )
    return replace(whole, **seen)


def wsl(**seen: Any) -> Wsl:  # noqa: ANN401 - fields of a view
    """A WSL that is set up as it should be, but for what was seen."""
    whole = Wsl(
        conf={WslKey("boot", "systemd"): "true"},
        wslconfig={
            WslKey("general", "instanceidletimeout"): "-1",
            WslKey("wsl2", "vmidletimeout"): "-1",
            WslKey("experimental", "automemoryreclaim"): "disabled",
        },
        networking="nat",
        task=KeepaliveTask(name="servicekit keeps Ubuntu running", registered=True),
        device=True,
        cuda="/usr/lib/wsl/lib/libcuda.so.1",
    )
    return replace(whole, **seen)


def host(**seen: Any) -> HostView:  # noqa: ANN401 - fields of a view
    """A host on which all is well, but for what was seen."""
    whole = HostView(
        scope=Scope.SYSTEM,
        account="ada",
        container=False,
        manager=SystemdView(257, "257.9-1", None),
        groups=Groups(unified=True, kill=True),
        logins=Logins(kills=False, lingers=False),
        journal=Journal("persistent", 30.0, 10000, None, readable=True),
        containers=(),
        driver=Driver("580.95.05", "580.95.05", ("nvidiactl", "nvidia0", "nvidia-uvm")),
        gpu=LOOK,
        held=(Held(CARD.uuid, ()),),
        xids=Xids((), whole=True),
        clock=Clock(0.0, 0.0),
        shared=(),
        subjects=(),
        refused=(),
        wsl=None,
    )
    return replace(whole, **seen)
