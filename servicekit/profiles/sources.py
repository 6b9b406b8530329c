"""Digests of the files that a profile was read from, by which a later change is noticed.

Nothing is parsed here, so this is cheap enough for `status`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from servicekit import data

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Before the name of a profile that comes with servicekit; all other sources are absolute paths.
BUILT_IN: Final = "built-in:"


def digests(sources: Iterable[str]) -> dict[str, str | None]:
    """Hash the content of each source; `None` for one that does not exist.

    Raises `OSError` for a source that this account cannot read.
    """
    return {source: _digest(source) for source in sources}


def differ(known: Mapping[str, str | None]) -> bool:
    """Return whether a source differs from `known`; an unreadable one does not count."""
    for source, digest in known.items():
        try:
            if _digest(source) != digest:
                return True
        except PermissionError:
            continue
        except OSError:
            return True
    return False


def _digest(source: str) -> str | None:
    try:
        if source.startswith(BUILT_IN):
            content = data.read("profiles", source.removeprefix(BUILT_IN)).encode()
        else:
            content = Path(source).read_bytes()
    except FileNotFoundError:
        return None
    return hashlib.sha256(content).hexdigest()
