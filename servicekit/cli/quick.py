"""Where things are, for verbs that only look and must be quick.

Checking the settings takes longer than all that `status` has to do. Where the settings' file says
nothing that such a verb needs but where things are, that is read here without checking the rest;
whatever is not plain is left to `servicekit.profiles.settings`, which says what is wrong with it.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from servicekit.places import Places, Scope, below, system_places, user_places

if TYPE_CHECKING:
    from collections.abc import Mapping

MOVERS: Final = ("ROOT", "PLACES", "MANAGER", "SUPERVISOR_SOCKET")
"""Settings that matter here; one that is a variable is left to `servicekit.profiles.settings`."""


class Quick(NamedTuple):
    """Settings that a read-only verb needs."""

    places: Places
    manager: str
    supervisor_socket: str


def quick(config: Path | None, environ: Mapping[str, str], scope: Scope) -> Quick | None:
    """Read these settings; `None` if that needs the full check."""
    if any(environ.get(f"SERVICEKIT_{name}") for name in MOVERS):
        return None
    usual = _usual(environ, scope)
    if usual is None:
        return None
    file = config or Path(environ.get("SERVICEKIT_CONFIG") or usual.config)
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        named = config or environ.get("SERVICEKIT_CONFIG")
        return None if named else Quick(usual, "auto", "")
    except (OSError, ValueError):
        return None
    return _moved(settings, usual, file)


def _usual(environ: Mapping[str, str], scope: Scope) -> Places | None:
    if scope is Scope.SYSTEM:
        return system_places()
    home = environ.get("HOME", "")
    return user_places(home, os.getuid(), environ) if home.startswith("/") else None


def _moved(settings: dict[str, Any], usual: Places, file: Path) -> Quick | None:
    root, places = settings.get("root"), settings.get("places", {})
    manager, socket = settings.get("manager", "auto"), settings.get("supervisor_socket", "")
    movable = {field.name for field in dataclasses.fields(Places)} - {"scope", "config"}
    plain = (
        isinstance(root, str | None)
        and isinstance(socket, str)
        and manager in {"auto", "systemd", "supervisor"}
        and isinstance(places, dict)
        and movable >= places.keys()
        and all(isinstance(path, str) and path.startswith("/") for path in places.values())
    )
    if not plain or (root is not None and not root.startswith("/")):
        return None
    moved: dict[str, Any] = {name: PurePosixPath(path) for name, path in places.items()}
    base = below(root) if root else usual
    result = dataclasses.replace(base, **moved, config=PurePosixPath(file.absolute()))
    return Quick(result, manager, socket)
