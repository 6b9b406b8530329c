"""The settings that a service needs in WSL's two files, with reasons. Pure.

Names, defaults and meanings are those of WSL 2.9's source. `vmIdleTimeout` alone keeps no
distribution running, and WSL ignores systemd's services when it decides what is idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from servicekit.doctor.wsl.conf import WslKey, merge, read

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

# In the home directory of the Windows account, for all of its distributions.
WSLCONFIG: Final = ".wslconfig"
WSL_CONF: Final = "wsl.conf"  # in /etc of one distribution


def _is_never(value: str) -> bool:
    """Whether a time in milliseconds, as C reads numbers, is negative: never."""
    try:
        return int(value, 0) < 0
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Wanted:
    """One setting."""

    file: str
    key: WslKey
    value: str  # set where the present value does not do
    default: str  # what WSL uses where it is not set
    does: Callable[[str], bool]  # whether a value can stay
    why: str
    aliases: tuple[WslKey, ...] = ()  # other keys for the same setting

    def value_in(self, settings: Mapping[WslKey, str]) -> str | None:
        places = {key.folded for key in (self.key, *self.aliases)}
        return next((value for key, value in settings.items() if key in places), None)

    def holds(self, settings: Mapping[WslKey, str]) -> bool:
        """Whether the value in a file, or its default, can stay."""
        value = self.value_in(settings)
        return self.does(self.default if value is None else value)


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
    "the distribution does not stop when its last window is closed",
)
VM_IDLE: Final = Wanted(
    WSLCONFIG,
    WslKey("wsl2", "vmIdleTimeout"),
    "-1",
    "60000",
    _is_never,
    "the virtual machine does not stop when no distribution runs for a minute",
)
MEMORY_RECLAIM: Final = Wanted(
    WSLCONFIG,
    WslKey("experimental", "autoMemoryReclaim"),
    "disabled",
    "dropCache",
    lambda value: value.lower() == "disabled",
    "the weights stay in the page cache, so that a restart is fast",
)
NETWORKING: Final = Wanted(
    WSLCONFIG,
    WslKey("wsl2", "networkingMode"),
    "nat",
    "nat",
    lambda value: value.lower() != "mirrored",
    "loopback connections work; mirrored networking has broken them more than once",
    aliases=(WslKey("experimental", "networkingMode"),),
)

ALL: Final = (SYSTEMD, INSTANCE_IDLE, VM_IDLE, MEMORY_RECLAIM, NETWORKING)


class Merged(NamedTuple):
    """One of the two files, corrected."""

    text: str
    # What was changed or added, each with the value before.
    changed: tuple[tuple[Wanted, str | None], ...]


def merged(name: str, text: str, *, keep: Container[str] = ()) -> Merged:
    """Return the file `name`, now `text`, with all settings that services need.

    `keep` names keys that stay as they are, in lower case.
    """
    changed: list[tuple[Wanted, str | None]] = []
    for wanted in (one for one in ALL if one.file == name):
        settings = read(text)
        if not wanted.holds(settings) and wanted.key.name.lower() not in keep:
            changed.append((wanted, wanted.value_in(settings)))
            text = merge(text, wanted.key, wanted.value, aliases=wanted.aliases)
    return Merged(text, tuple(changed))
