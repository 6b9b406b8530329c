"""What the verbs share: settings, places, profiles and managers, each loaded when used."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from servicekit.cli.output import speak_of
from servicekit.errors import ExitCode, UserError
from servicekit.places import Scope

if TYPE_CHECKING:
    from servicekit.cli.quick import Quick
    from servicekit.managers import Manager, Seen
    from servicekit.places import Places
    from servicekit.profiles.catalog import Catalog
    from servicekit.profiles.model import Profile
    from servicekit.profiles.settings import Settings
    from servicekit.profiles.vocabulary import ManagerName
    from servicekit.service.installed import InstalledPlan
    from servicekit.service.manifest import Manifest
    from servicekit.watchdog.publish import State
    from servicekit.watchdog.status import Status


SLACK: Final = 10.0
"""Seconds beyond the manager's own limit for a stop, so that its error is the one shown."""
STOP_LIMIT: Final = 300.0  # seconds, for a service whose profile cannot be read any more


class Installed(NamedTuple):
    """An installed profile and its manager."""

    manifest: Manifest
    manager: Manager

    @property
    def unit(self) -> str:
        return f"servicekit-{self.manifest.profile}"


class Session:
    """One run of the command line."""

    def __init__(self, config: Path | None, *, user: bool) -> None:
        self._config = config
        self._user = user
        speak_of(self.scope)

    def ask_for_user(self, *, user: bool) -> None:
        """Apply a `--user` that follows the verb."""
        self._user = self._user or user
        speak_of(self.scope)

    @property
    def scope(self) -> Scope:
        return Scope.USER if self._user else Scope.SYSTEM

    @cached_property
    def settings(self) -> Settings:
        from servicekit.profiles.settings import load_settings

        return load_settings(self._config, os.environ, scope=self.scope)

    @cached_property
    def _quick(self) -> Quick:
        from servicekit.cli.quick import Quick, quick

        quickly = quick(self._config, os.environ, self.scope)
        if quickly is not None:
            return quickly
        from servicekit.profiles.settings import places_of

        settings = self.settings
        places = places_of(settings, os.environ, scope=self.scope)
        return Quick(places, settings.manager, settings.supervisor_socket or "")

    @property
    def places(self) -> Places:
        return self._quick.places

    @cached_property
    def catalog(self) -> Catalog:
        from servicekit.profiles.catalog import Catalog

        return Catalog(self.settings, self.places)

    def profile(self, name: str) -> Profile:
        return self.catalog.get(name)

    def settings_error(self) -> UserError | None:
        """Return why the settings are refused; installed services start all the same."""
        from servicekit.profiles.settings import load_settings

        try:
            load_settings(self._config, os.environ, scope=self.scope)
        except UserError as error:
            return error
        return None

    def sources(self, name: str) -> dict[str, str | None]:
        """Return the files that profile `name` is made of, with their hashes."""
        from servicekit.profiles.sources import digests

        try:
            settings = str(self.settings.file or self.places.config)
            return digests((settings, *self.catalog.sources(name)))
        except UserError:  # the installed plan is used, and its profile is refused
            return {}

    def installed_plan(self, name: str) -> InstalledPlan | None:
        """Return the plan of the last install; `None` if 0.1.0 made it."""
        from servicekit.service.installed import read_plan

        return read_plan(Path(self.places.plan(name)), name)

    def installed_profile(self, name: str) -> Profile:
        """Return the profile as installed, or the current one if there is no plan."""
        plan = self.installed_plan(name)
        if plan is None:
            return self.profile(name)
        from servicekit.profiles.model import Profile

        try:
            return Profile.model_validate(plan.data)
        except ValueError:
            raise UserError(
                f'plan "{self.places.plan(name)}" is not one of this servicekit',
                hint=f"run `servicekit install {name}`",
                code=ExitCode.CONFIG,
            ) from None

    def use_plan(self, plan: InstalledPlan) -> None:
        """Take the places from an installed plan instead of the settings."""
        from servicekit.cli.quick import Quick

        self._quick = Quick(plan.places, "auto", "")

    def manifests(self) -> dict[str, Manifest]:
        return self._read(self.places)

    def tunnels(self) -> dict[str, Manifest]:
        return self._read(self.places.for_tunnels)

    @staticmethod
    def _read(places: Places) -> dict[str, Manifest]:
        from servicekit.install.present import manifests
        from servicekit.install.rootfs import Tree

        return manifests(Tree(), places)

    def manager(self, name: str | None = None) -> Manager:
        """Return the named manager, the configured one, or the running one."""
        from servicekit.managers import find_manager
        from servicekit.profiles.vocabulary import ManagerName

        wanted = name or self._quick.manager
        return find_manager(
            self.places,
            os.environ,
            name=None if wanted == "auto" else ManagerName(wanted),
            socket=self._quick.supervisor_socket,
        )

    def manifest(self, profile: str) -> Manifest:
        """Return the manifest of `profile`; raise `UserError` if it is not installed."""
        manifest = self.manifests().get(profile)
        if manifest is None:
            # Report an unknown profile as such before reporting that it is not installed.
            self.catalog.get(profile)
            raise UserError(
                f'profile "{profile}" is not installed',
                hint=f"`servicekit install {profile}` makes it a service",
            )
        return manifest

    def installed(self, profile: str) -> Installed:
        """Return a service with its manager; raise `UserError` if either is missing."""
        manifest = self.manifest(profile)
        return Installed(manifest, self.manager(manifest.manager))

    def look(self, service: Installed) -> Status:
        from servicekit.watchdog.status import status_of

        seen = service.manager.look([service.unit])[service.unit]
        return status_of(service.manifest, self.places, seen)

    def live_state(self, profile: str) -> State | None:
        """Return the state that a running watchdog published."""
        from servicekit.watchdog.publish import read_state
        from servicekit.watchdog.status import is_believed

        state = read_state(Path(self.places.state_file(profile)))
        return state if state is not None and is_believed(state, self._seen(profile)) else None

    def _seen(self, profile: str) -> Seen | None:
        """Return the manager's view of a service; `None` if it cannot be queried."""
        try:
            service = self.installed(profile)
            return service.manager.look([service.unit])[service.unit]
        except UserError:
            return None

    def stop_limit(self, profile: str) -> float:
        """Return the seconds that a stop of `profile` may take."""
        from servicekit.service.unit import stop_seconds

        try:
            plan = self.installed_plan(profile)
            recipe = self.profile(profile) if plan is None else plan.profile
            return stop_seconds(recipe) + SLACK
        except UserError:  # its file is gone or damaged; it must be stoppable all the same
            return STOP_LIMIT

    def manager_name(self, name: str | None) -> ManagerName:
        """Return the manager to write files for: the running one, systemd if there is none."""
        from servicekit.profiles.vocabulary import ManagerName

        if name is not None:
            return ManagerName(name)
        try:
            return self.manager().name
        except UserError:
            return ManagerName.SYSTEMD

    def command(self) -> tuple[str, ...]:
        """Return the absolute command that runs this servicekit for these services."""
        from servicekit.profiles.settings import default_places

        command = self._as_user()
        file = self.settings.file
        if file is not None and str(file) != str(
            default_places(os.environ, scope=self.scope).config
        ):
            command += ("--config", str(file))
        return command

    def own_command(self) -> tuple[str, ...]:
        """Return the command of this process, ignoring the settings."""
        config = () if self._config is None else ("--config", str(self._config))
        return (*self._as_user(), *config)

    def _as_user(self) -> tuple[str, ...]:
        from servicekit.service.host import own_command

        return (*own_command(), *(("--user",) if self._user else ()))
