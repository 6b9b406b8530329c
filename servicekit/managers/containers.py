"""Containers that lose their GPU when systemd reloads its units.

Many container runtimes write a container's device list themselves; `daemon-reload` makes systemd
rewrite it without the GPU, and the container's next CUDA call fails with "Failed to initialize
NVML: Unknown Error".
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

DEVICES: Final = ("dev/nvidiactl", "dev/nvidia0")
_CONTAINER: Final = re.compile(r"(?<![a-z])(?P<runtime>[a-z]++)?[-/](?P<id>[0-9a-f]{64})")


def gpu_containers(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Name running containers that see an NVIDIA GPU; root is needed for other accounts'."""
    own = _container(proc / "self")
    holds_gpu: dict[str, bool] = {}
    for process in proc.iterdir():
        if not process.name.isdecimal():
            continue
        name = _container(process)
        # Every process of a container has the same root: one test is enough.
        if name is not None and name != own and name not in holds_gpu:
            holds_gpu[name] = any((process / "root" / device).exists() for device in DEVICES)
    return tuple(sorted(name for name, has_gpu in holds_gpu.items() if has_gpu))


def _container(process: Path) -> str | None:
    try:
        match = _CONTAINER.search((process / "cgroup").read_text(errors="replace"))
    except OSError:
        return None
    return match and f"{match['runtime'] or 'container'} {match['id'][:12]}"
