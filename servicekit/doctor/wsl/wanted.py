"""What a service needs of WSL's two files, each setting with its reason. Pure.

Names, defaults and what a value means are those of WSL's source, 2.9; `vmIdleTimeout` alone keeps
no distribution running, and systemd's services count for nothing when WSL decides what is idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from servicekit.doctor.wsl.conf import WslKey, merge, read

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

WSLCONFIG: Final = ".wslconfig"
"""In the home directory of the Windows account, for all of its distributions."""
WSL_CONF: Final = "wsl.conf"
"""In /etc of one distribution."""


def _is_never(value: str) -> bool:
    """Whether a time in milliseconds is one that never comes: as C reads numbers."""
    try:
        return int(value, 0) < 0
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Wanted:
    """One setting."""

    file: str
    key: WslKey
    value: str
    """What it is set to where it does not do."""
    default: str
    """What WSL takes where it is not set."""
    does: Callable[[str], bool]
    """Whether a value is good enough to be left alone."""
    why: str
    aliases: tuple[WslKey, ...] = ()
    """Other places where WSL takes it from."""

    def said(self, settings: Mapping[WslKey, str]) -> str | None:
        """Give its value in a file as it was read, `None` where that does not set it."""
        places = {key.folded for key in (self.key, *self.aliases)}
        return next((value for key, value in settings.items() if key in places), None)

    def holds(self, settings: Mapping[WslKey, str]) -> bool:
        """Whether a file, and the default where that says nothing, is as wanted."""
        said = self.said(settings)
        return self.does(self.default if said is None else said)


SYSTEMD: Final = Wanted(
    WSL_CONF,
    WslKey("boot", "systemd"),
    "true",
    "false",
    lambda value: value.lower() in {"true", "1"},
    "systemd runs and starts the services",
)
INSTANCE_IDLE: Final = Wanted(
    WSLCONFIG,
    WslKey("general", "instanceIdleTimeout"),
    "-1",
    "15000",
    _is_never,
    "the distribution is not stopped when its last window is closed",
)
VM_IDLE: Final = Wanted(
    WSLCONFIG,
    WslKey("wsl2", "vmIdleTimeout"),
    "-1",
    "60000",
    _is_never,
    "the virtual machine is not stopped when no distribution runs for a minute",
)
MEMORY_RECLAIM: Final = Wanted(
    WSLCONFIG,
    WslKey("experimental", "autoMemoryReclaim"),
    "disabled",
    "dropCache",
    lambda value: value.lower() == "disabled",
    "the weights stay in the page cache, from which a restart reads them",
)
NETWORKING: Final = Wanted(
    WSLCONFIG,
    WslKey("wsl2", "networkingMode"),
    "nat",
    "nat",
    lambda value: value.lower() != "mirrored",
    "connections over loopback complete, which mirrored networking has broken more than once",
    aliases=(WslKey("experimental", "networkingMode"),),
)

ALL: Final = (SYSTEMD, INSTANCE_IDLE, VM_IDLE, MEMORY_RECLAIM, NETWORKING)


@dataclass(frozen=True, slots=True)
class Merged:
    """One of the two files as it should be."""

    name: str
    text: str
    changed: tuple[tuple[Wanted, str | None], ...]
    """What was changed or added, each with the value before."""


def merged(name: str, text: str, *, keep: Container[str] = ()) -> Merged:
    """Return the file `name`, now `text`, with everything that services need.

    `keep` names keys that stay as they are, in lower case.
    """
    changed: list[tuple[Wanted, str | None]] = []
    for wanted in _of(name):
        settings = read(text)
        if not wanted.holds(settings) and wanted.key.name.lower() not in keep:
            changed.append((wanted, wanted.said(settings)))
            text = merge(text, wanted.key, wanted.value, aliases=wanted.aliases)
    return Merged(name, text, tuple(changed))


def _of(name: str) -> Iterable[Wanted]:
    return (wanted for wanted in ALL if wanted.file == name)
