"""Paths of servicekit's files, for the whole system or for one user. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# The beginning of a command of ours, but of none that always concerns the system's services.
_COMMAND: Final = re.compile("`servicekit (?!--user)(?=[^`]*`(?! as root))")


class Scope(StrEnum):
    """Whose services: the machine's or one user's."""

    SYSTEM = "system"
    USER = "user"


def spelt(text: str, scope: Scope) -> str:
    """Add --user to our commands in `text` where they concern a user's services."""
    return _COMMAND.sub("`servicekit --user ", text) if scope is Scope.USER else text


@dataclass(frozen=True, slots=True)
class Places:
    """Absolute directories and files, as the running system sees them (without any `--root`)."""

    scope: Scope
    config: PurePosixPath  # the settings file, `servicekit.toml`
    profiles: PurePosixPath  # directory of site profiles
    state: PurePosixPath  # below it one directory per profile, with the ledger
    runtime: PurePosixPath  # below it one directory per profile, with `state.json`
    cache: PurePosixPath  # engines' caches and downloaded weights
    logs: PurePosixPath  # log files under Supervisor
    wrappers: PurePosixPath  # one script per installed profile
    manifests: PurePosixPath  # one manifest per installed profile: what was written, with hashes
    secrets: PurePosixPath
    """Below it one file per profile and variable, readable by their owner alone."""
    units: PurePosixPath  # where systemd looks for units
    supervisor: PurePosixPath  # Supervisor's include directory
    sysusers: PurePosixPath | None = None
    """Directory of systemd's account declarations; `None` where accounts are not ours to make."""
    catalog: PurePosixPath | None = None
    """Directory of journal message catalogs; `None` where a user cannot write one."""

    @property
    def for_tunnels(self) -> Places:
        """The same places, with a directory of their own for the manifests of tunnels."""
        return replace(self, manifests=self.manifests / "tunnels")

    @property
    def boot_target(self) -> str:
        """The target that systemd reaches at the end of the boot, or of a user's first login."""
        return "multi-user.target" if self.scope is Scope.SYSTEM else "default.target"

    def manifest(self, profile: str) -> PurePosixPath:
        return self.manifests / f"{profile}.json"

    def ledger(self, profile: str) -> PurePosixPath:
        return self.state / profile / "history.jsonl"

    def reset(self, profile: str) -> PurePosixPath:
        """The operator's last reset of the restart count; not writable by the service's account."""
        return self.state / ".resets" / profile

    def stop_note(self, profile: str) -> PurePosixPath:
        """The command that stops the service, for its watchdog; written by the operator only."""
        return self.state / ".stops" / profile

    def state_file(self, profile: str) -> PurePosixPath:
        return self.runtime / profile / "state.json"

    def log_file(self, profile: str) -> PurePosixPath:
        return self.logs / f"{profile}.log"

    def wrapper(self, profile: str) -> PurePosixPath:
        return self.wrappers / profile

    def plan(self, profile: str) -> PurePosixPath:
        """The resolved profile that the watchdog runs."""
        return self.wrappers / f"{profile}.plan.json"

    def secret(self, profile: str, variable: str) -> PurePosixPath:
        return self.secrets / profile / variable


def system_places() -> Places:
    """Places of system services, after the file system hierarchy standard."""
    etc, var = PurePosixPath("/etc"), PurePosixPath("/var")
    return Places(
        scope=Scope.SYSTEM,
        config=etc / "servicekit/servicekit.toml",
        profiles=etc / "servicekit/profiles.d",
        state=var / "lib/servicekit",
        runtime=PurePosixPath("/run/servicekit"),
        cache=var / "cache/servicekit",
        logs=var / "log/servicekit",
        wrappers=PurePosixPath("/usr/local/lib/servicekit/wrappers"),
        manifests=etc / "servicekit/installed",
        secrets=etc / "servicekit/secrets",
        units=etc / "systemd/system",
        supervisor=etc / "supervisor/conf.d",
        sysusers=etc / "sysusers.d",
        catalog=PurePosixPath("/usr/local/lib/systemd/catalog"),
    )


def user_places(home: str, uid: int, environment: Mapping[str, str]) -> Places:
    """Places of one user's services, after the XDG base directory specification."""

    def base(variable: str, fallback: PurePosixPath) -> PurePosixPath:
        value = environment.get(variable, "")
        return PurePosixPath(value) if value.startswith("/") else fallback

    root = PurePosixPath(home)
    config = base("XDG_CONFIG_HOME", root / ".config")
    states = base("XDG_STATE_HOME", root / ".local/state")
    return Places(
        scope=Scope.USER,
        config=config / "servicekit/servicekit.toml",
        profiles=config / "servicekit/profiles.d",
        state=states / "servicekit",
        runtime=base("XDG_RUNTIME_DIR", PurePosixPath(f"/run/user/{uid}")) / "servicekit",
        cache=base("XDG_CACHE_HOME", root / ".cache") / "servicekit",
        # Not below `state`, where a profile named "log" would have its own directory.
        logs=states / "servicekit-log",
        wrappers=root / ".local/lib/servicekit/wrappers",
        manifests=config / "servicekit/installed",
        secrets=config / "servicekit/secrets",
        units=config / "systemd/user",
        supervisor=config / "servicekit/supervisor.d",
    )


def below(root: str) -> Places:
    """Places all below one directory."""
    base = PurePosixPath(root)
    return Places(
        scope=Scope.USER,
        config=base / "servicekit.toml",
        profiles=base / "profiles.d",
        state=base / "state",
        runtime=base / "run",
        cache=base / "cache",
        logs=base / "log",
        wrappers=base / "wrappers",
        manifests=base / "installed",
        secrets=base / "secrets",
        units=base / "units",
        supervisor=base / "supervisor.d",
    )
