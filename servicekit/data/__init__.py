"""The tables that servicekit ships, as TOML: profiles, models, options, signatures, suites."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

SUFFIX = ".toml"


def read(*path: str) -> str:
    """Return the text of the table at `path`, such as `("profiles", "mtp")`.

    Raises `FileNotFoundError` if there is none.
    """
    # This is all that `pkgutil.get_data` does, which takes longer to load than to run.
    loader: Any = sys.modules[__name__].__loader__
    content: bytes = loader.get_data(f"{Path(__file__).parent.joinpath(*path)}{SUFFIX}")
    return content.decode()


def names(folder: str) -> tuple[str, ...]:
    """Return the names of the tables in `folder`, sorted."""
    from importlib.resources import files

    entries = (entry.name for entry in (files(__name__) / folder).iterdir())
    return tuple(sorted(name.removesuffix(SUFFIX) for name in entries if name.endswith(SUFFIX)))
