"""Loads what a run may need later while its engine loads.

An upgrade replaces the package below a running watchdog. Whatever is loaded after that is of the
other version, or no longer there: so nothing is, once the engine serves.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from servicekit.diagnosis.causes import Cause
from servicekit.managers import SERVER_URL

if TYPE_CHECKING:
    from collections.abc import Mapping

MODULES: Final = (
    *("hashlib", "unicodedata", "uuid"),
    *("servicekit.host.xid", "servicekit.watchdog.gpu_holders"),
)
SUPERVISOR: Final = ("servicekit.managers.supervisor",)  # requests a fast restart


def preload(environment: Mapping[str, str]) -> None:
    """Load modules and texts that a fault or an end needs under the manager of `environment`."""
    for name in (*MODULES, *(SUPERVISOR if environment.get(SERVER_URL) else ())):
        import_module(name)
    Cause.UNKNOWN.first_remedy(gpu=True)  # reads the texts of all
