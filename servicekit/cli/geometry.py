"""The geometry of a profile's model, for `plan`: from this host, or from the hub."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

from servicekit.cli.forecast import local_model
from servicekit.errors import UserError
from servicekit.models.memory.description import geometry_from_config
from servicekit.models.memory.sources import LARGEST_CONFIG, find_geometry, known_geometry
from servicekit.models.weights import needs, select

if TYPE_CHECKING:
    from servicekit.cli.session import Session
    from servicekit.models.memory.geometry import Geometry
    from servicekit.service.plan import Plan

CONFIG = "config.json"


class _Silent:
    """Hears of a download that is too small to show."""

    def moved(self, size: int) -> None:
        """Do nothing."""

    def broke_off(self) -> None:
        """Do nothing."""


def geometry_of(session: Session, plan: Plan, *, from_hub: bool = False) -> Geometry:
    """Return the geometry of the model of `plan`.

    `from_hub` reads the configuration of a model that is not on this host from the hub, and the
    sizes of its files; no weights are downloaded.
    """
    name = plan.profile.model
    path = local_model(plan)
    wanted = next((need for need in needs(plan.profile) if need.role == "model"), None)
    if not from_hub or path is not None or wanted is None or known_geometry(name) is not None:
        return find_geometry(name, path)
    if wanted.gguf is not None:
        raise UserError(
            f'a GGUF file is planned from its own header, and "{name}" is not in the cache',
            hint=f"`servicekit fetch {plan.profile.name}` downloads it",
        )
    from servicekit.cli.fetch import hub_of

    hub = hub_of(session, plan.profile)
    listing = hub.list(wanted)
    sizes = {file.name: file.size for file in listing.files}
    config = next((file for file in listing.files if file.name == CONFIG), None)
    if config is None or config.size > LARGEST_CONFIG:
        raise UserError(f'"{name}" has no usable {CONFIG} on the hub')
    into = io.BytesIO()
    hub.read(wanted, listing.commit, config, into, _Silent())
    try:
        table = json.loads(into.getvalue())
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):
        raise UserError(f'the {CONFIG} of "{name}" is not a table')
    chosen = select(wanted, sizes)
    weights = sum(sizes[file] for file in chosen if file.endswith((".safetensors", ".bin")))
    return geometry_from_config(table, checkpoint=name, weights=weights or None)
