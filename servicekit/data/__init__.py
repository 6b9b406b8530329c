"""The tables that servicekit ships, as TOML: profiles, models, options, signatures, suites."""

from __future__ import annotations

import pkgutil

SUFFIX = ".toml"


def read(*path: str) -> str:
    """Return the text of the table at `path`, such as `("profiles", "mtp")`.

    Raises `FileNotFoundError` if there is none.
    """
    content = pkgutil.get_data(__name__, f"{'/'.join(path)}{SUFFIX}")
    if content is None:  # pragma: no cover - only loaders without data files answer so
        raise FileNotFoundError("/".join(path))
    return content.decode()


def names(folder: str) -> tuple[str, ...]:
    """Return the names of the tables in `folder`, sorted."""
    from importlib.resources import files

    found = (entry.name for entry in (files(__name__) / folder).iterdir())
    return tuple(sorted(name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX)))
