"""What files and programs of the host say, read as far as the checks need it. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import PurePath, PurePosixPath

_UNITS: Final = {
    "us": 1e-6,
    "ms": 1e-3,
    **dict.fromkeys(("s", "sec", "second", "seconds", ""), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_SIZES: Final = {unit: 1024**power for power, unit in enumerate(("", "K", "M", "G", "T"))}


def properties(text: str) -> dict[str, str]:
    """Read what `systemctl show` prints."""
    return dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)


def leading_number(text: str) -> int:
    """Read the number at the beginning of a version; 0 where there is none."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def program_version(text: str) -> str:
    """Read the version that `systemctl --version` prints, in full if it prints that."""
    match = re.match(r"systemd (\S+)(?: \(([^)]+)\))?", text)
    return (match[2] or match[1]) if match else "of unknown version"


def moment(text: str) -> datetime | None:
    """Read a time in UTC as `systemctl --timestamp=utc` prints it; `None` for anything else."""
    match = re.search(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC", text)
    if match is None:
        return None
    return datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)


def settings(texts: Iterable[str], section: str) -> dict[str, str]:
    """Read one section of systemd's configuration files; what comes later counts."""
    result: dict[str, str] = {}
    for text in texts:
        current = ""
        for raw in re.sub(r"\\\n", " ", text).splitlines():
            line = raw.strip()
            if line.startswith("[") and line.endswith("]"):
                current = line[1:-1]
            elif current == section and "=" in line and line[0] not in "#;":
                name, _, value = line.partition("=")
                result[name.strip()] = value.strip()
    return result


def in_order(files: Iterable[PurePath]) -> tuple[PurePath, ...]:
    """Sort drop-in files as systemd reads them; `files` come by directory, the strongest first.

    They are read by name, and of one name only that of the strongest directory.
    """
    by_name: dict[str, PurePath] = {}
    for file in files:
        by_name.setdefault(file.name, file)
    return tuple(by_name[name] for name in sorted(by_name))


def is_yes(text: str) -> bool:
    """Read systemd's yes or no."""
    return text.lower() in {"yes", "true", "on", "y", "t", "1"}


def seconds(text: str) -> float | None:
    """Read a time span such as `1min 30s`; `None` where it is none."""
    pieces = re.findall(r"([0-9.]+)\s*([a-z]*)", text.strip())
    try:
        return sum(float(number) * _UNITS[unit] for number, unit in pieces) if pieces else None
    except (KeyError, ValueError):
        return None


def size(text: str) -> int | None:
    """Read a size such as `500M`; `None` where it is none."""
    match = re.fullmatch(r"(\d+)([KMGT]?)", text.strip())
    return int(match[1]) * _SIZES[match[2]] if match else None


class Mount(NamedTuple):
    """One mounted file system."""

    at: PurePosixPath
    kind: str


def mount_of(path: PurePosixPath, mounted: Iterable[Mount]) -> Mount | None:
    """Find what an absolute path without links is on: of the deepest mounts, the last one."""
    best: Mount | None = None
    for mount in mounted:
        if path.is_relative_to(mount.at) and (
            best is None or len(mount.at.parts) >= len(best.at.parts)
        ):
            best = mount
    return best


def libraries(ldconfig: str) -> dict[str, str]:
    """Read `ldconfig -p`: path by library, the first of 64 bits, as the loader chooses."""
    result: dict[str, str] = {}
    for line in ldconfig.splitlines():
        match = re.match(r"\s+(\S+) \(([^)]*)\) => (\S+)", line)
        if match is not None and "64" in match[2]:
            result.setdefault(match[1], match[3])
    return result


def version_behind(name: str) -> str | None:
    """Read the version in the name of a driver's library, such as `libcuda.so.580.95.05`."""
    match = re.search(r"\.so\.(\d+\.\d+[\d.]*)\Z", name)
    return match[1] if match else None
