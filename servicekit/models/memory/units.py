"""Parses and formats sizes: `31.4GiB`, `20.14 GiB`. Pure."""

from __future__ import annotations

import re
from typing import Final

from servicekit.errors import UserError

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

_UNITS: Final = {
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
}
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\Z")


def parse_size(text: str) -> int:
    """Return the bytes that `text` names: `31.4GiB`, `24 GB`, `512 B`.

    A bare number is refused: without a unit, people usually mean GiB.
    """
    match = _SIZE.match(text.strip())
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        meant = f'; did you mean "{match[1]}GiB"?' if match and not match[2] else ""
        raise UserError(f'a memory size must be like "31.4GiB", not "{text}"{meant}')
    return round(float(match[1]) * unit)


def gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def short(size: int) -> str:
    """Format `size` bytes in a fitting unit, to a tenth: `74.8 MiB`, `32.0 KiB`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size) >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} B"


def counted(number: int, noun: str) -> str:
    """Format a count: `1 request`, `200,000 requests`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def product(*factors: str) -> str:
    """Write a product of quantities that are words already."""
    return " \N{MULTIPLICATION SIGN} ".join(factors)


def ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
