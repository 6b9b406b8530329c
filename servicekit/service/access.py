"""Whether a service's account can read and execute all that a run needs, inside its sandbox.

Every directory and link on the way to a file is walked. Where this process is root, a child with
the account's rights tries each step, so that ACLs and network file systems count too; elsewhere
the modes decide.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from servicekit.host import untrusted
from servicekit.places import Scope
from servicekit.profiles.vocabulary import ManagerName
from servicekit.service.plan import hub_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from servicekit.profiles.model import Profile
    from servicekit.service.plan import Host

READ: Final = os.R_OK
EXECUTE: Final = os.R_OK | os.X_OK
MOST_LINKS: Final = 40  # the kernel's own limit
SHEBANG: Final = 256  # bytes of a script that the kernel reads for its interpreter
HOMES: Final = (Path("/home"), Path("/root"), Path("/run/user"))
TEMPORARY: Final = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - what PrivateTmp= replaces
_SHARED: Final = Path("/dev/shm")  # noqa: S108 - what the unit mounts anew
OWN_PLACE: Final = "install servicekit below /opt, in a virtual environment of its own"


@dataclass(frozen=True, slots=True)
class Account:
    """Who reads a file: ids as the kernel compares them."""

    name: str
    uid: int | None  # `None` for an account that does not exist yet: it owns nothing
    gids: frozenset[int] = field(default_factory=frozenset)
    group: int = 0  # its own group

    def may(self, path: Path, want: int) -> bool:
        """Whether the mode of `path` grants `want`."""
        if self.uid == 0:
            return path.exists()
        try:
            status = path.stat()
        except OSError:
            return False
        shift = 6 if status.st_uid == self.uid else 3 if status.st_gid in self.gids else 0
        return (stat.S_IMODE(status.st_mode) >> shift) & want == want


class RequiredAccess(NamedTuple):
    """A file that a run reads or executes."""

    what: str
    path: Path
    want: int = READ
    remedy: str = "move it, to /opt say"
    place_only: bool = False
    """The file is written by the install: only the directories on the way count."""
    secret: bool = False
    """Its mode is no remedy: nobody else may read it."""


class Hidden(NamedTuple):
    """A directory that a unit's sandbox hides."""

    path: Path
    directive: str
    remedy: str = ""


def account(name: str) -> Account:
    """Look up `name`; one that does not exist yet can read what everybody can."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return Account(name, None)
    groups = {entry.pw_gid, *(g.gr_gid for g in grp.getgrall() if name in g.gr_mem)}
    return Account(name, entry.pw_uid, frozenset(groups), entry.pw_gid)


def barriers(
    needs: Iterable[RequiredAccess], reader: str | None, hidden: Iterable[Hidden]
) -> list[str]:
    """Say what keeps the account `reader` from each of `needs`, decided by modes.

    `None` is the account of this process.
    """
    who = None if reader is None else account(reader)
    if who is not None and who.uid is None:  # a secret is handed over once the account exists
        needs = [need for need in needs if not need.secret]
    return list(_sentences(needs, reader, tuple(hidden), os.access if who is None else who.may))


def proved(
    needs: Iterable[RequiredAccess], reader: str | None, hidden: Iterable[Hidden]
) -> list[str]:
    """As `barriers`, tried with the rights of the account where this process can take them on."""
    wanted, covered = tuple(needs), tuple(hidden)
    who = None if reader is None else account(reader)
    if who is None or who.uid is None or os.geteuid() != 0:
        return barriers(wanted, reader, covered)
    uid = who.uid

    reading, writing = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(sorted(who.gids))
            os.setresgid(who.group, who.group, who.group)
            os.setresuid(uid, uid, uid)
            sentences = list(_sentences(wanted, reader, covered, os.access))
            with os.fdopen(writing, "w") as pipe:
                json.dump(sentences, pipe)
        finally:  # whatever happens, nothing of the parent's is done a second time
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    # No answer: this root may not become another account, as in some containers.
    return list(map(str, json.loads(answer))) if answer else barriers(wanted, reader, covered)


def _sentences(
    needs: Iterable[RequiredAccess],
    reader: str | None,
    hidden: tuple[Hidden, ...],
    may: Callable[[Path, int], bool],
) -> Iterator[str]:
    """Name the first barrier of each need; what lies behind the same one is named once."""
    seen: set[object] = set()
    for need in needs:
        for key, sentence in _first(need, reader, hidden, may):
            if key not in seen:
                seen.add(key)
                yield sentence
            break


def _first(
    need: RequiredAccess,
    reader: str | None,
    hidden: tuple[Hidden, ...],
    may: Callable[[Path, int], bool],
) -> Iterator[tuple[object, str]]:
    what, path = need.what, need.path
    steps = way(path)
    for each in hidden:
        if any(step.is_relative_to(each.path) for step in (path, *steps)):
            sentence = f'{what} "{path}" is below {each.path}, which the unit hides'
            key = (what.rpartition(" of ")[2], each.path)  # of its parts one is enough
            yield key, f"{sentence} ({each.directive}): {need.remedy}{each.remedy}"
    name = "this account" if reader is None else f'"{reader}"'
    last = steps[-1]
    for step in steps:
        if step == last and need.place_only:
            break
        if not _is_there(step):
            if need.place_only:
                break
            yield step, f'{what} "{path}" does not exist: install it, or correct the profile'
        want = need.want if step == last else os.X_OK
        if may(step, want):
            continue
        if step == last and need.want & os.X_OK and _is_noexec(step) and may(step, os.R_OK):
            yield step, f'{what} "{path}" is on a file system that is mounted noexec: {need.remedy}'
        do = "execute" if need.want == EXECUTE else "read"
        because = "" if step == path else f' because of "{step}"'
        grant = "o+x" if step != last else "o+rx" if want & os.X_OK else "o+r"
        chmod = "" if need.secret else f"`chmod {grant} {step}`, or "
        yield step, f'{name} cannot {do} {what} "{path}"{because}: {chmod}{need.remedy}'


def _is_there(path: Path) -> bool:
    """Whether `path` exists, as far as this account can tell."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _is_noexec(path: Path) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except OSError:
        return False


def way(path: Path) -> tuple[Path, ...]:
    """Name all directories that opening `path` passes, through every link, and then the file."""
    passed: dict[Path, None] = {Path("/"): None}
    here, ahead, links = Path("/"), list(reversed(path.parts[1:])), 0
    while ahead:
        part = ahead.pop()
        if part == "..":
            here = here.parent
            continue
        step = here / part
        try:
            target = Path(os.readlink(step))  # noqa: PTH115 - one system call
        except OSError:
            here = step
            passed.setdefault(here)
            continue
        links += 1
        if links > MOST_LINKS:
            break
        if target.is_absolute():
            here = Path("/")
        ahead += reversed([one for one in target.parts if one != "/"])
    return tuple(passed)


def only_root_changes(directory: Path) -> bool:
    """Whether root alone can write `directory` and replace what opening it passes.

    On the way, a sticky directory such as /tmp may be open to all: other accounts cannot replace
    root's entries in it.
    """
    for step in (*way(directory), directory):
        status = step.stat()
        shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        sticky = status.st_mode & stat.S_ISVTX and step != directory
        if status.st_uid != 0 or (shared and not sticky):
            return False
    return True


def program(
    what: str, path: Path, remedy: str = "move it, to /opt say"
) -> Iterator[RequiredAccess]:
    """Name what starting `path` reads: itself, its interpreter, its environment's packages."""
    yield RequiredAccess(what, path, EXECUTE, remedy)
    words = _shebang(path)
    interpreter = Path(os.fsdecode(words[0])) if words else path
    if words and interpreter.is_absolute():
        yield RequiredAccess(f"the interpreter of {what}", interpreter, EXECUTE, remedy)
    if (interpreter.parent.parent / "pyvenv.cfg").exists():
        for folder in interpreter.parent.parent.glob("lib/python3*/site-packages"):
            yield RequiredAccess(f"the packages of {what}", folder, EXECUTE, remedy)


def script_faults(what: str, path: Path) -> Iterator[str]:
    """Say what is wrong with the first line of a script."""
    words = _shebang(path)
    if not words:
        return
    interpreter = os.fsdecode(words[0])
    if interpreter.endswith("\r") or (words[-1].endswith(b"\r")):
        yield (
            f'the first line of {what} "{path}" ends with CR LF, and the kernel takes the CR for a '
            f"part of it: `sed -i 's/\\r$//' {path}`"
        )
    elif not Path(interpreter).exists():
        yield (
            f'{what} "{path}" names the interpreter "{interpreter}", which does not exist: '
            "install it, or correct the first line"
        )


def _shebang(path: Path) -> list[bytes]:
    """Read the words of a script's first line; none for what is not a script."""
    try:
        with os.fdopen(untrusted.open_linked(path), "rb") as stream:
            first = stream.read(SHEBANG)
    except OSError:
        return []
    # Not `split()` at any white space: a CR is a part of the name to the kernel.
    return [w for w in first[2:].split(b"\n", 1)[0].split(b" ") if w] if first[:2] == b"#!" else []


def needs_of(profile: Profile, host: Host, manager: ManagerName) -> Iterator[RequiredAccess]:
    """Name all that a run of `profile` reads and executes."""
    places = host.places
    yield from program("the program servicekit", Path(host.servicekit[0]), OWN_PLACE)
    own = Path(__file__).parents[1]
    yield RequiredAccess("the packages of the program servicekit", own, EXECUTE, OWN_PLACE)
    if host.executable.startswith("/"):
        yield from program("the engine", Path(host.executable))
    for path in (places.wrapper(profile.name), places.plan(profile.name)):
        yield RequiredAccess(
            "the installed file", Path(path), READ, "move places.wrappers", place_only=True
        )
    for what, named in _files(profile, host):
        if _is_there(named):
            yield RequiredAccess(what, named)
    if manager is ManagerName.SUPERVISOR or places.scope is Scope.USER:
        for name in profile.secrets:
            file = Path(places.secret(profile.name, name))
            if _is_there(file):
                remedy = f"run `servicekit secret set {profile.name} {name}` again"
                yield RequiredAccess(f"the secret {name}", file, READ, remedy, secret=True)


def _files(profile: Profile, host: Host) -> Iterator[tuple[str, Path]]:
    """Name the model, the drafter, the cache of the hub, and files that options name."""
    for what, word in (("the model", host.model), ("the drafter", profile.drafter or "")):
        if word.startswith("/"):
            yield what, Path(word)
            yield from ((f"a file of {what}", file) for file in _unlike(Path(word)))
    yield "the models' cache", Path(hub_cache(profile, host.places))
    words = [(f"options.{name}", value) for name, value in profile.options.items()]
    words += [("arguments", word.rpartition("=")[2]) for word in profile.arguments]
    for name, value in words:
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, str) and one.startswith("/"):
                yield f"the file of {name}", Path(one)


def _unlike(folder: Path) -> Iterable[Path]:
    """Pick a file of `folder` for each owner and mode that its files have; weights may be many."""
    found: dict[tuple[int, int, int], Path] = {}
    with suppress(OSError):  # no directory, or closed to us
        for file in sorted(folder.iterdir()):
            about = file.stat()
            if stat.S_ISREG(about.st_mode):
                found.setdefault((about.st_uid, about.st_gid, about.st_mode), file)
    return found.values()


def hidden_of(profile: Profile, host: Host, manager: ManagerName) -> tuple[Hidden, ...]:
    """Name what the sandbox of the unit of `profile` hides."""
    if manager is not ManagerName.SYSTEMD or host.places.scope is not Scope.SYSTEM:
        return ()
    way_out = ', or set service.home = "read-only" in the profile'
    homes = HOMES if profile.service.home == "hidden" else ()
    every = (
        *(Hidden(path, "ProtectHome", way_out) for path in homes),
        *(Hidden(path, "PrivateTmp") for path in TEMPORARY),
        Hidden(_SHARED, "TemporaryFileSystem"),
    )
    return tuple(each for each in every if each.directive not in profile.service.without)
