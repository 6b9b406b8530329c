"""A PNG with something countable in it, drawn on the spot. Pure."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from typing import Final

SIDE: Final = 224  # pixels; what vision towers of this size and larger take without enlarging
SQUARE: Final = 36
_WHITE: Final = bytes((255, 255, 255))
_RED: Final = bytes((220, 20, 20))


def squares(count: int) -> bytes:
    """Draw up to four red squares in a row on white, as a PNG."""
    step = SIDE // 4
    offset = (step - SQUARE) // 2
    starts = [each * step + offset for each in range(count)]
    inside = {x for start in starts for x in range(start, start + SQUARE)}
    crossed = b"".join(_RED if x in inside else _WHITE for x in range(SIDE))
    top = (SIDE - SQUARE) // 2
    rows = (
        b"\0" + (crossed if top <= y < top + SQUARE else _WHITE * SIDE) for y in range(SIDE)
    )  # fmt: skip
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(b"".join(rows))),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_url(png: bytes) -> str:
    return f"data:image/png;base64,{b64encode(png).decode()}"
