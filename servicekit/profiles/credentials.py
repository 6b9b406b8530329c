"""Values of a profile's secrets, read where they are used and kept nowhere else.

systemd passes them below `$CREDENTIALS_DIRECTORY`; elsewhere they are files that only the service's
account can read. The wrapper reads the same files, so no value is ever an argument.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from servicekit.errors import ExitCode, UserError, reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from servicekit.places import Places
    from servicekit.profiles.model import Profile


def directory(profile: Profile, places: Places, environ: Mapping[str, str]) -> Path:
    return Path(environ.get("CREDENTIALS_DIRECTORY") or places.secrets / profile.name)


def api_key(profile: Profile, places: Places, environ: Mapping[str, str]) -> str | None:
    """Read the engine's API key, and no other secret; `None` if it has none."""
    if profile.api_key is None:
        return None
    return read(profile, places, environ, only=(profile.api_key,))[profile.api_key]


def read(
    profile: Profile,
    places: Places,
    environ: Mapping[str, str],
    *,
    only: Iterable[str] | None = None,
) -> dict[str, str]:
    """Read every secret that `profile` names, or `only` some.

    Raises `UserError` for the first that is missing.
    """
    where = directory(profile, places, environ)
    values = {}
    for name in profile.secrets if only is None else only:
        try:
            values[name] = (where / name).read_text(encoding="utf-8").rstrip("\n")
        except FileNotFoundError:
            raise UserError(
                f'profile "{profile.name}" needs the secret {name}, which is not set',
                hint=f"run `servicekit secret set {profile.name} {name}`",
                code=ExitCode.CONFIG,
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            denied = isinstance(error, PermissionError)
            raise UserError(
                f'secret {name} of profile "{profile.name}" cannot be read: {reason(error)}',
                hint="run it as root, or as the service's account"
                if denied
                else f"store it again: `servicekit secret set {profile.name} {name}`",
                code=ExitCode.CONFIG,
            ) from None
    return values
