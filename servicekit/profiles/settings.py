"""Settings: one TOML file, overridden by SERVICEKIT_… variables. Disk.

The settings decide which site profiles may run, which service manager is used and where files are
stored. Every key is also a variable: `service_user` is SERVICEKIT_SERVICE_USER. Other such
variables are tunables of profiles.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import re
import shlex
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, PrivateAttr, SecretStr, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict
from typing_extensions import override

from servicekit.errors import ExitCode, UserError
from servicekit.places import Places, Scope, below, system_places, user_places
from servicekit.profiles import trusted_toml, vocabulary
from servicekit.profiles.findings import Finding, texts, wording
from servicekit.profiles.model import Account, Directory, Line, Name
from servicekit.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo
    from pydantic_settings import PydanticBaseSettingsSource

CONFIG: Final = "SERVICEKIT_CONFIG"  # variable that names the settings file

# Places that the settings may move.
PLACES: Final = tuple(
    field.name for field in dataclasses.fields(Places) if field.name not in {"scope", "config"}
)


def _places(places: dict[str, str]) -> dict[str, str]:
    for name in places:
        if name not in PLACES:
            raise ValueError(f'has no place "{name}"{did_you_mean(name, PLACES)}')
    return places


def _command(command: tuple[str, ...]) -> tuple[str, ...]:
    if command and not command[0].startswith("/"):
        raise ValueError("must begin with the absolute path of a program")
    return command


def _url(url: SecretStr) -> SecretStr:
    if not re.fullmatch(r"https?://[^\s/][^\s]*", url.get_secret_value()):
        raise ValueError("must be a URL that begins with https:// or http://")
    return url


class Settings(BaseSettings):
    """Settings for all profiles. Made by `load_settings`; `Settings()` has all defaults."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="SERVICEKIT_", hide_input_in_errors=True
    )

    allow: tuple[Name, ...] = Field(default=(), description="site profiles that may run")
    deny: tuple[Name, ...] = Field(
        default=(), description="profiles, built-in too, that must not run"
    )
    manager: Literal["auto", "systemd", "supervisor"] = Field(
        default="auto", description='service manager; "auto" uses the one that runs'
    )
    supervisor_socket: Directory | None = Field(
        default=None, description="Supervisor's socket, if it is not found automatically"
    )
    service_user: Account = Field(
        default=vocabulary.SHARED_ACCOUNT,
        description="account that runs the engines of system services",
    )
    root: Directory | None = Field(
        default=None, description="one directory for all files, instead of the usual places"
    )
    places: Annotated[dict[str, Directory], AfterValidator(_places)] = Field(
        default_factory=dict, description="single places to move elsewhere, by name"
    )
    log_format: Literal["auto", "console", "json"] = Field(
        default="auto",
        description="form of servicekit's own log; auto: the journal's under systemd, else text; "
        "console, json: lines of text or of JSON",
    )
    alert_command: Annotated[tuple[Line, ...], AfterValidator(_command)] = Field(
        default=(),
        description="program with arguments that runs when a service stays failed; off if empty",
    )
    alert_webhook: Annotated[SecretStr, AfterValidator(_url)] | None = Field(
        default=None,
        description="URL that gets an alert when a service stays failed; off if empty",
    )

    _file: Path | None = PrivateAttr(default=None)
    _variables: tuple[str, ...] = PrivateAttr(default=())

    @classmethod
    @override
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what `load_settings` gives, which reads the environment itself."""
        return (init_settings,)

    @property
    def file(self) -> Path | None:
        """Absolute path of the settings file; `None` if there is none."""
        return self._file

    @property
    def variables(self) -> tuple[str, ...]:
        """Variables that override settings here. An installed service does not get them."""
        return self._variables


class _Environment(EnvSettingsSource):
    """The given environment, with lists separated by commas or spaces."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(Settings)
        self.env_vars = {
            name.lower(): value for name, value in environ.items() if value and name.isupper()
        }

    @override
    def decode_complex_value(self, field_name: str, field: FieldInfo, value: str) -> Any:
        try:
            if value.lstrip().startswith(("[", "{")):
                return json.loads(value)
            if field_name == "alert_command":
                return shlex.split(value)
        except ValueError as error:
            where, why = variable(field_name), str(error)
            raise UserError(
                f"environment: {where} cannot be read: {why[0].lower()}{why[1:]}",
                code=ExitCode.CONFIG,
            ) from None
        return [word for word in re.split(r"[,\s]+", value) if word]


def variable(key: str) -> str:
    return f"SERVICEKIT_{key.upper()}"


def load_settings(config: Path | None, environ: Mapping[str, str], *, scope: Scope) -> Settings:
    """Read the settings from `config`, else from $SERVICEKIT_CONFIG, else from the usual file.

    Raises `UserError` with one line per problem. Only the usual file may be missing.
    """
    named = config or (Path(environ[CONFIG]) if environ.get(CONFIG) else None)
    root = environ.get(variable("root"))
    usual = below(root) if root else default_places(environ, scope=scope)
    file: Path | None = (named or Path(usual.config)).absolute()
    try:
        document = trusted_toml.read(Path(str(file)), trusted_toml.owners(scope))
    except FileNotFoundError:
        if named:
            raise UserError(
                f'settings file "{file}" does not exist',
                hint="create it, or omit --config and SERVICEKIT_CONFIG",
                code=ExitCode.CONFIG,
            ) from None
        document, file = trusted_toml.Document(), None
    overrides = _Environment(environ)()
    known = Settings.model_fields
    wrong = [
        *document.findings,
        *(
            Finding((key,), f"unknown key{did_you_mean(key, known)}")
            for key in document.data
            if key not in known
        ),
    ]
    wrong_outside: list[str] = []
    # Unknown keys must not get here: pydantic-settings would obey `_env_file`.
    given = {key: value for key, value in document.data.items() if key in known} | overrides
    try:
        settings = Settings(**given)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            key, words = str(item["loc"][0]), wording(dict(item))
            if key in overrides:
                wrong_outside.append(f"environment: {variable(key)} {words}")
            else:
                wrong.append(Finding(item["loc"], words))
    else:
        if not wrong:
            settings._file = file  # noqa: SLF001 - what no source may set
            settings._variables = tuple(map(variable, overrides))  # noqa: SLF001 - as above
            return settings
    lines = [f"{file}: {text}" for text in texts(wrong, document.lines)]
    raise UserError("\n".join([*lines, *wrong_outside]), code=ExitCode.CONFIG)


def default_places(environ: Mapping[str, str], *, scope: Scope, uid: int | None = None) -> Places:
    """Places without settings; those of a user are below the home of `uid`, by default ours."""
    if scope is Scope.SYSTEM:
        return system_places()
    uid = os.getuid() if uid is None else uid
    home = environ.get("HOME", "")
    if not home.startswith("/"):
        try:
            home = pwd.getpwuid(uid).pw_dir
        except KeyError:
            raise UserError(f"user id {uid} has no home directory", hint="set HOME") from None
    return user_places(home, uid, environ)


def places_of(settings: Settings, environ: Mapping[str, str], *, scope: Scope) -> Places:
    """Places after the settings are applied; `config` is the file that was read."""
    usual = below(settings.root) if settings.root else default_places(environ, scope=scope)
    moved: dict[str, Any] = {name: PurePosixPath(path) for name, path in settings.places.items()}
    if settings.file is not None:
        moved["config"] = PurePosixPath(settings.file)
    return dataclasses.replace(usual, **moved)
