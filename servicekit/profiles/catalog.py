"""Profiles by name: built-in ones, and a site's own below `profiles.d`. Disk.

A built-in profile may run unless `deny` names it, a site's profile only if `allow` does.
`trusted_toml` decides which files are trusted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from servicekit import data
from servicekit.errors import ExitCode, NotAllowedError, ProfileError, UserError, reason
from servicekit.profiles import sources, trusted_toml
from servicekit.profiles.findings import Finding, texts
from servicekit.profiles.parsing import examine, merge
from servicekit.text import did_you_mean, printable, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.places import Places
    from servicekit.profiles.model import Profile
    from servicekit.profiles.settings import Settings

# Source of a profile that comes with servicekit; that of any other is its file.
BUILT_IN: Final = "built-in"

_SUFFIX: Final = ".toml"


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of `servicekit list`; figures are `None` where the file is refused."""

    name: str
    source: str
    allowed: bool
    summary: str | None = None
    engine: str | None = None
    port: int | None = None
    findings: tuple[str, ...] = ()  # why the file is refused, one line each


@dataclass(frozen=True, slots=True)
class _Loaded:
    profile: Profile
    data: Mapping[str, Any]  # as it is after `extends`, for a profile that extends this one
    sources: tuple[str, ...]
    """What it was read from, itself first: see `servicekit.profiles.sources`."""


class _NoBaseError(Exception):
    """Why the profile named by `extends` cannot be used."""


class Catalog:
    """The profiles of one host, read from disk at every call."""

    def __init__(self, settings: Settings, places: Places) -> None:
        self._settings = settings
        self._config = places.config
        self._directory = Path(places.profiles)
        self._believed = trusted_toml.owners(places.scope)

    def names(self) -> tuple[str, ...]:
        """Names of the profiles that exist and are allowed, valid or not."""
        return tuple(sorted(filter(self.allows, self._known())))

    def allows(self, name: str) -> bool:
        listed = name in _built_in() or name in self._settings.allow
        return listed and name not in self._settings.deny

    def get(self, name: str) -> Profile:
        """Return the profile `name`, or raise `NotAllowedError` or `ProfileError`."""
        return self._allowed(name).profile

    def refusal(self, name: str) -> NotAllowedError | None:
        """Return why the existing profile `name` may not run, as far as the settings decide it."""
        if name in self._settings.deny:
            hint = f"remove it from deny in {self._config}"
            return NotAllowedError(f'profile "{name}" must not run', hint=hint)
        if not self.allows(name):
            hint = f'name it in {self._config}, as in `allow = ["{name}"]`'
            return NotAllowedError(f'profile "{name}" is not allowed to run', hint=hint)
        return None

    def draft(self, name: str) -> Profile:
        """Return the profile `name`, allowed to run or not; raises as `get` does otherwise."""
        self._exists(name)
        return self._load(name).profile

    def sources(self, name: str) -> tuple[str, ...]:
        """Return what the profile `name` is read from; raises as `get` does."""
        return self._allowed(name).sources

    def describe(self) -> tuple[Listed, ...]:
        site = self._site_names()
        names = (*(name for name in _built_in() if name not in site), *site)
        return tuple(map(self._listed, names))

    def _listed(self, name: str) -> Listed:
        own = name in self._site_names()
        source = printable(str(self._file(name))) if own else BUILT_IN
        try:
            profile = self._load(name).profile
        except ProfileError as error:
            return Listed(shown(name), source, self.allows(name), findings=error.findings)
        return Listed(
            name,
            source,
            self.allows(name),
            profile.summary,
            profile.engine.value,
            profile.port,
        )

    def _allowed(self, name: str) -> _Loaded:
        self._exists(name)
        loaded = self._load(name)  # a file with an error is refused for that first
        if (refusal := self.refusal(name)) is not None:
            raise refusal
        return loaded

    def _exists(self, name: str) -> None:
        known = self._known()
        if name not in known:
            meant = did_you_mean(name, known).removeprefix("; ")
            raise NotAllowedError(
                f'there is no profile "{shown(name)}"',
                hint=meant or "`servicekit list` shows all profiles",
            )

    def _known(self) -> set[str]:
        return {*_built_in(), *self._site_names()}

    def _site_names(self) -> tuple[str, ...]:
        """Names of the site's files, valid as names of profiles or not."""
        try:
            entries = sorted(entry.name for entry in self._directory.iterdir())
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise UserError(
                f'profiles in "{self._directory}" cannot be read: {reason(error)}',
                hint="make it a directory that the services' account can read",
                code=ExitCode.CONFIG,
            ) from None
        # The lock and swap files of editors begin with a dot.
        return tuple(
            entry.removesuffix(_SUFFIX)
            for entry in entries
            if entry.endswith(_SUFFIX) and not entry.startswith(".")
        )

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}{_SUFFIX}"

    def _load(self, name: str, extended_by: tuple[str, ...] = ()) -> _Loaded:
        """Load an existing profile, allowed or not; `extended_by` lists what extends it."""
        own = name in self._site_names()
        if own and name in _built_in() and extended_by and extended_by[-1] in _built_in():
            own = False  # a file of that name is refused, but must not break the built-in ones
        if own:
            source = str(self._file(name))
            where = printable(source)
            document = self._read(name)
        else:
            source = f"{sources.BUILT_IN}{name}"
            where = f'built-in profile "{name}"'
            document = trusted_toml.parse(data.read("profiles", name).encode())
        entries, findings = dict(document.data), list(document.findings)
        profile: Profile | None = None
        read: tuple[str, ...] = (source,)
        try:
            if "extends" in entries:
                base = self._base(entries.pop("extends"), (*extended_by, name))
                entries = merge(base.data, entries)
                read += base.sources
        except _NoBaseError as error:
            findings.append(Finding(("extends",), str(error)))
        else:
            # For an unreadable file, every key would be reported as missing.
            if document.data or not document.findings:
                profile, wrong = examine(entries, name=name)
                findings += wrong
        if profile is None or findings:
            raise ProfileError(where, texts(findings, document.lines))
        return _Loaded(profile, entries, read)

    def _read(self, name: str) -> trusted_toml.Document:
        """Read a site's file, with what is wrong with its name among the findings."""
        try:
            document = trusted_toml.read(self._file(name), self._believed)
        except FileNotFoundError:
            return trusted_toml.Document(
                findings=(Finding((), "links to a file that does not exist"),)
            )
        if name not in _built_in():
            return document
        shadow = Finding(
            (),
            f'has the name of a built-in profile; rename it, and write extends = "{name}" in it '
            "to change parts of that profile",
        )
        return replace(document, findings=(shadow, *document.findings))

    def _base(self, name: object, extended_by: tuple[str, ...]) -> _Loaded:
        if not isinstance(name, str):
            raise _NoBaseError("must be the name of a profile in quotes")
        if name in extended_by:
            circle = " extends ".join(f'"{each}"' for each in (*extended_by, name))
            raise _NoBaseError(f"extends itself: {circle}")
        known = self._known()
        if name not in known:
            raise _NoBaseError(f'there is no profile "{shown(name)}"{did_you_mean(name, known)}')
        try:
            return self._load(name, extended_by)
        except ProfileError as error:
            first = error.message.partition("\n")[0]
            raise _NoBaseError(f'"{shown(name)}" is invalid: {first}') from None


@cache
def _built_in() -> tuple[str, ...]:
    return data.names("profiles")
