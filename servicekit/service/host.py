"""What an install finds on the host: the engine's program, the model's file, who may read them."""

from __future__ import annotations

import importlib.util
import os
import pwd
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from servicekit.engines import engine
from servicekit.places import Scope
from servicekit.profiles.vocabulary import PACKAGED, ManagerName
from servicekit.service.access import barriers, hidden_of, needs_of, script_faults
from servicekit.service.plan import Host
from servicekit.service.weakenings import weakenings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from servicekit.places import Places
    from servicekit.profiles.model import Profile
    from servicekit.service.manifest import Manifest

LINGERING: Final = Path("/var/lib/systemd/linger")
"""Has a file for each user whose services run without a session."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The host as a profile's install finds it."""

    host: Host
    missing: tuple[str, ...] = ()
    """What the service cannot start without and is not there, one sentence each."""
    barred: tuple[str, ...] = ()
    """What is there and its account cannot use, one sentence each, decided by modes."""
    warnings: tuple[str, ...] = ()
    """What will probably keep it from working, one sentence each, with what would do."""
    weakenings: tuple[str, ...] = ()
    """What makes it less protected than the built-in unit, one sentence each."""


def survey(
    profile: Profile,
    places: Places,
    *,
    command: tuple[str, ...],
    manager: ManagerName,
    user: str | None,
    excluded: tuple[str, ...],
    path: str,
    root: Path = Path("/"),
) -> Survey:
    """Find what `profile` needs on this host, or in the image below `root`.

    `command` runs servicekit, `user` is the account of the service, `excluded` are the installed
    profiles that cannot run beside this one, `path` is the search path for programs.
    """
    executable = find_executable(profile, path, root)
    model = find_model(profile, root)
    wanted = profile.executable or engine(profile.engine).default_executable or ""
    missing = []
    if executable is None:
        missing.append(
            f'profile "{profile.name}": the engine\'s program "{wanted}" was not found; '
            "install it, or name its absolute path as executable in the profile"
        )
    if model is None:
        missing.append(f'profile "{profile.name}": the model "{profile.model}" does not exist')
    host = Host(
        places=places,
        servicekit=command,
        executable=executable or wanted,
        model=model or profile.model,
        user=user,
        rivals=excluded,
    )
    barred: list[str] = []
    warnings = []
    if not _below(root, command[0]).exists():
        warnings.append(f'the image has no "{command[0]}", by which its services run servicekit')
    if root == Path("/"):
        barred += script_faults("the engine", Path(host.executable))
        needs = needs_of(profile, host, manager)
        barred += barriers(needs, user, hidden_of(profile, host, manager))
    if manager is ManagerName.SYSTEMD and places.scope is Scope.USER and root == Path("/"):
        warnings += list(ends_with_session())
    here = host.executable if root == Path("/") else ""
    weaker = weakenings(profile, places, manager, user, here)
    return Survey(host, tuple(missing), tuple(barred), tuple(warnings), weaker)


def own_command() -> tuple[str, ...]:
    """Return the absolute command of the servicekit that is running."""
    script = Path(sys.executable).with_name("servicekit")
    if os.access(script, os.X_OK):
        return (str(script),)
    return (sys.executable, "-m", "servicekit")


def find_executable(profile: Profile, path: str, root: Path = Path("/")) -> str | None:
    """Return the absolute path of the engine's program, `None` where it is not here.

    A name is looked for on `path`, then beside the interpreter that runs servicekit: an engine in
    the same virtual environment is found although it is not activated, as under sudo.
    """
    wanted = profile.executable or engine(profile.engine).default_executable
    if wanted is None:
        return None
    if wanted.startswith("/"):
        candidates = [wanted]
    else:
        folders = [*path.split(os.pathsep), str(Path(sys.executable).parent)]
        candidates = [f"{folder}/{wanted}" for folder in folders if folder.startswith("/")]
    for candidate in candidates:
        inside = _below(root, candidate)
        # By mode: that the account may not execute it is another finding.
        if inside.is_file() and inside.stat().st_mode & 0o111:
            return candidate
    return None


def find_model(profile: Profile, root: Path = Path("/")) -> str | None:
    """Return what the engine is given as its model, `None` for a file that is not here."""
    packaged = PACKAGED.match(profile.model)
    if packaged is None:
        is_file = profile.model.startswith("/")
        return None if is_file and not _below(root, profile.model).exists() else profile.model
    try:
        spec = importlib.util.find_spec(packaged["package"])
    except (ImportError, ValueError):
        return None
    folders = spec.submodule_search_locations if spec else None
    files = (Path(folder) / packaged["file"] for folder in folders or ())
    return next((str(file) for file in files if _below(root, str(file)).is_file()), None)


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def rivals(
    profile: Profile, installed: Mapping[str, Manifest], gpus: Collection[str] = ()
) -> tuple[str, ...]:
    """Name installed profiles that share a GPU or the port with `profile`, sorted.

    `gpus` are further names of its GPUs: one may be called by index here and by UUID there.
    """
    own = {*profile.gpus, *gpus}
    return tuple(
        sorted(
            name
            for name, other in installed.items()
            if name != profile.name and (other.port == profile.port or own & {*other.gpus})
        )
    )


def ends_with_session(lingering: Path = LINGERING) -> Iterator[str]:
    """Say what becomes of a user's own services without that user's session."""
    me = pwd.getpwuid(os.getuid()).pw_name
    if not (lingering / me).exists():
        yield (
            f'services of "{me}" stop when the last session ends, and do not start at boot; '
            f"`loginctl enable-linger {me}` fixes that"
        )
