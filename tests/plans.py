"""Plans for tests, made of built-in profiles on a host that is always the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from servicekit.places import Scope, below, system_places, user_places
from servicekit.profiles.catalog import Catalog
from servicekit.profiles.parsing import merge, parse
from servicekit.profiles.settings import Settings
from servicekit.profiles.vocabulary import EngineName
from servicekit.service.plan import Host, Plan, make_plan

if TYPE_CHECKING:
    from servicekit.places import Places
    from servicekit.profiles.model import Profile

BUILT_IN = (
    "balanced",
    "demo",
    "dflash",
    "dspark",
    "long-context",
    "max-context",
    "mtp",
)
SYSTEM = system_places()
USER = user_places("/home/ada", 1000, {})

EXECUTABLES = {
    EngineName.SGLANG: "/opt/sglang/bin/sglang",
    EngineName.VLLM: "/opt/vllm/bin/vllm",
    EngineName.LLAMACPP: "/opt/servicekit/bin/servicekit-llama-server",
    EngineName.OPENAI: "/opt/server/bin/serve",
}


def profile(name: str, **changes: object) -> Profile:
    """The built-in profile `name`, with `changes` laid over its keys."""
    found = Catalog(Settings(), below("/nonexistent")).get(name)
    data = found.model_dump(mode="json", exclude={"name"}, exclude_unset=True)
    return parse(merge(data, changes), name=name, where="test")


def plan(
    of: str | Profile,
    places: Places = SYSTEM,
    *,
    servicekit: tuple[str, ...] = ("/opt/servicekit/bin/servicekit",),
    executable: str | None = None,
    rivals: tuple[str, ...] = (),
) -> Plan:
    """The plan of a profile, by name or by value."""
    wanted = profile(of) if isinstance(of, str) else of
    packaged = wanted.model.partition(":")[2]
    host = Host(
        places=places,
        servicekit=servicekit,
        executable=executable or EXECUTABLES[wanted.engine],
        model=str(Path("/opt/models") / packaged) if packaged else wanted.model,
        user="servicekit" if places.scope is Scope.SYSTEM else None,
        rivals=rivals,
    )
    return make_plan(wanted, host)
