"""The tables that servicekit ships, as TOML: profiles, models, options, signatures, suites."""

from __future__ import annotations

import pkgutil

SUFFIX = ".toml"


def read(folder: str, name: str) -> str:
    """Return the text of table `name` of `folder`; raise `FileNotFoundError` if there is none."""
    content = pkgutil.get_data(__name__, f"{folder}/{name}{SUFFIX}")
    if content is None:  # pragma: no cover - only loaders without data files answer so
        raise FileNotFoundError(name)
    return content.decode()


def names(folder: str) -> tuple[str, ...]:
    """Return the names of the tables in `folder`, sorted."""
    from importlib.resources import files

    found = (entry.name for entry in (files(__name__) / folder).iterdir())
    return tuple(sorted(name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX)))
