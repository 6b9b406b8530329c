"""What an install finds on the host: the engine's program, the model's file, who may read them."""

from __future__ import annotations

import grp
import importlib.util
import os
import pwd
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from servicekit.engines import engine
from servicekit.places import Scope
from servicekit.profiles.vocabulary import PACKAGED, ManagerName
from servicekit.service.plan import Host

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from servicekit.install.manifest import Manifest
    from servicekit.places import Places
    from servicekit.profiles.model import Profile

HOMES: Final = (Path("/home"), Path("/root"), Path("/run/user"))
"""What `ProtectHome=` hides."""
LINGERING: Final = Path("/var/lib/systemd/linger")
"""Has a file for each user whose services run without a session."""
SHEBANG: Final = 256
"""Bytes of a script that are looked at for its interpreter: what the kernel reads, too."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The host as a profile's install finds it."""

    host: Host
    missing: tuple[str, ...] = ()
    """What the service cannot start without and is not there, one sentence each."""
    warnings: tuple[str, ...] = ()
    """What will probably keep it from working, one sentence each, with what would do."""


@dataclass(frozen=True, slots=True)
class Account:
    """Who reads a file: ids as the kernel compares them."""

    name: str
    uid: int | None
    """`None` for an account that does not exist yet: it owns nothing."""
    gids: frozenset[int] = field(default_factory=frozenset)


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
            f'profile "{profile.name}": the engine\'s program "{wanted}" is not here; '
            "install it, or name its absolute path as executable in the profile"
        )
    if model is None:
        missing.append(f'profile "{profile.name}": the model "{profile.model}" is not here')
    host = Host(
        places=places,
        servicekit=command,
        executable=executable or wanted,
        model=model or profile.model,
        user=user,
        rivals=excluded,
    )
    programs = [Path(word) for word in (command[0], executable) if word]
    files = [Path(host.model)] if model is not None and model.startswith("/") else []
    warnings = []
    if not _below(root, command[0]).exists():
        warnings.append(f'the image has no "{command[0]}", by which its services run servicekit')
    if user is not None and root == Path("/"):
        warnings += list(unreadable(programs, files, account(user)))
    if _hides_home(profile, places, manager):
        way_out = ', or set service.home = "read-only" in the profile'
        warnings += list(hidden(programs, files, way_out))
    if manager is ManagerName.SYSTEMD and places.scope is Scope.USER and root == Path("/"):
        warnings += list(ends_with_session())
    return Survey(host, tuple(missing), tuple(warnings))


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
        if inside.is_file() and os.access(inside, os.X_OK):
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


def account(name: str) -> Account:
    """Look up `name`; one that does not exist yet can read what everybody can."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return Account(name, None)
    groups = {entry.pw_gid, *(g.gr_gid for g in grp.getgrall() if name in g.gr_mem)}
    return Account(name, entry.pw_uid, frozenset(groups))


def obstacle(path: Path, reader: Account, want: int) -> Path | None:
    """Return what on the way to `path` keeps `reader` from it; `want` is of `os.R_OK | os.X_OK`."""
    for resolved in dict.fromkeys((path, path.resolve())):
        for parent in (*reversed(resolved.parents), resolved):
            needed = want if parent == resolved else os.X_OK
            try:
                found = parent.stat()
            except OSError:
                return parent
            if not _may(found, reader, needed):
                return parent
    return None


def _may(found: os.stat_result, reader: Account, want: int) -> bool:
    if reader.uid == 0:
        return True
    shift = 6 if found.st_uid == reader.uid else 3 if found.st_gid in reader.gids else 0
    return (stat.S_IMODE(found.st_mode) >> shift) & want == want


def unreadable(programs: Iterable[Path], files: Iterable[Path], reader: Account) -> Iterator[str]:
    """Say what of a service's programs and files its account cannot read, and why."""
    told: set[Path] = set()
    needs = [(path, os.R_OK | os.X_OK) for program in programs for path in _parts(program)]
    for path, want in (*needs, *((file, os.R_OK) for file in files)):
        barrier = obstacle(path, reader, want)
        if barrier is not None and barrier not in told:
            told.add(barrier)
            because = "" if barrier == path else f', because of the mode of "{barrier}"'
            yield (
                f'"{path}" cannot be read by "{reader.name}"{because}; '
                "move it, to /opt say, or let that account read it"
            )


def _hides_home(profile: Profile, places: Places, manager: ManagerName) -> bool:
    return (
        manager is ManagerName.SYSTEMD
        and places.scope is Scope.SYSTEM
        and profile.service.home == "hidden"
        and "ProtectHome" not in profile.service.without
    )


def hidden(programs: Iterable[Path], files: Iterable[Path], way_out: str = "") -> Iterator[str]:
    """Say what of them is below the homes that a unit hides; `way_out` is another one."""
    told: set[Path] = set()
    for path in (*(part for program in programs for part in _parts(program)), *files):
        home = next((h for h in HOMES for p in (path, path.resolve()) if p.is_relative_to(h)), None)
        if home is not None and path not in told:
            told.add(path)
            yield (f'"{path}" is below {home}, which the unit hides; move it, to /opt say{way_out}')


def ends_with_session(lingering: Path = LINGERING) -> Iterator[str]:
    """Say what becomes of a user's own services without that user's session."""
    me = pwd.getpwuid(os.getuid()).pw_name
    if not (lingering / me).exists():
        yield (
            f'services of "{me}" stop when the last session ends, and do not start at boot; '
            f"`loginctl enable-linger {me}` mends that"
        )


def _parts(program: Path) -> Iterator[Path]:
    """Name what starting `program` reads: itself, its interpreter, its environment's packages."""
    yield program
    try:
        with program.open("rb") as stream:
            first = stream.read(SHEBANG)
    except OSError:
        return
    if not first.startswith(b"#!"):
        return
    words = first[2:].split(b"\n", 1)[0].split()
    interpreter = Path(os.fsdecode(words[0])) if words else program
    if interpreter.is_absolute() and interpreter != program:
        yield interpreter
        if (interpreter.parent.parent / "pyvenv.cfg").exists():
            yield from interpreter.parent.parent.glob("lib/python3*/site-packages")
