"""The installed plan, `plan.json`: all that a service needs to know of its profile when it runs.

An install writes it and the watchdog reads it, so that a boot, a crash and a restart run what was
installed, whatever has become of profile and settings since. Reading it needs no library.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from servicekit import __version__
from servicekit.errors import ExitCode, ProfileError, UserError, reason
from servicekit.places import Places, Scope
from servicekit.profiles import vocabulary
from servicekit.profiles.vocabulary import EngineName, Reason, variable_of
from servicekit.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from servicekit.profiles.findings import Finding
    from servicekit.profiles.model import Profile
    from servicekit.service.plan import Plan

FORMAT: Final = 1  # version of the file's layout
DRIFT: Final = 0.05
"""Share of the planned pool by which the real one may differ before that is reported."""
LARGEST: Final = 1 << 20  # bytes of a file that can be a plan
SECTIONS: Final = ("context", "probe", "start", "watch", "stop", "restart", "service")
"""Tables of a profile whose keys are fixed."""

_PORTS: Final = range(1024, 65536)
_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]*")
_DECIMAL: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
# Options that bound the context: who lowers one by the environment asks for that much.
_CONTEXT_OPTIONS: Final = ("context-length", "max-total-tokens")


@dataclass(frozen=True, slots=True)
class InstalledPlan:
    """A profile as it was resolved by its install."""

    data: Mapping[str, Any]
    """The profile as JSON; `servicekit.profiles.parsing` makes a checked `Profile` of it."""
    profile: Profile
    """The same as attributes: it answers as a `Profile` does, and was checked by the install."""
    places: Places
    command: tuple[str, ...]  # absolute command that runs servicekit
    user: str | None = None  # account of the service; `None` for that of the manager
    kv_tokens: int | None = None
    """Tokens of the KV pool by the memory plan; `None` where the GPU could not be asked."""
    alert_command: tuple[str, ...] = ()
    log_format: str = "auto"
    sources: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    """Files that the profile was read from, with their hashes."""
    servicekit: str = __version__  # version that wrote it


def plan_text(plan: Plan) -> str:
    """Return the text of `plan.json`. It holds no secret: those have files of their own."""
    host = plan.host
    data = {
        "format": FORMAT,
        "servicekit": __version__,
        "profile": plan.profile.model_dump(mode="json"),
        "places": {
            name: None if path is None else str(path)
            for name, path in dataclasses.asdict(host.places).items()
        },
        "command": host.servicekit,
        "user": host.user,
        "kv_tokens": host.kv_tokens,
        "alert_command": host.alert_command,
        "log_format": host.log_format,
        "sources": dict(host.sources),
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def read_plan(path: Path, name: str) -> InstalledPlan | None:
    """Read the installed plan of profile `name`; `None` where there is none.

    Raises `UserError` for one that cannot be read, with exit code 78.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(LARGEST)
        plan = parse_plan(raw.decode("utf-8"), where=str(path))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(str(path), reason(error), name) from None
    if plan.profile.name != name:
        raise _unreadable(str(path), f'it is the plan of "{shown(plan.profile.name)}"', name)
    return plan


def of_profile(profile: Profile, places: Places, command: tuple[str, ...]) -> InstalledPlan:
    """Return what an install of 0.1.0, which wrote no plan, is run by."""
    data = profile.model_dump(mode="json")
    return InstalledPlan(data, profile_of(data), places, command)


def parse_plan(text: str, *, where: str) -> InstalledPlan:
    """Read the `text` of the file `where`, or raise `UserError`."""
    name = Path(where).name.partition(".")[0]
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise UserError(
                f'plan "{where}" has format {data["format"]!r}, and this servicekit reads {FORMAT}',
                hint=f"run `servicekit install {name} --force`",
                code=ExitCode.CONFIG,
            )
        return InstalledPlan(
            data=data["profile"],
            profile=profile_of(data["profile"]),
            places=_places(data["places"]),
            command=tuple(data["command"]),
            user=data["user"],
            kv_tokens=data["kv_tokens"],
            alert_command=tuple(data["alert_command"]),
            log_format=str(data.get("log_format", "auto")),
            sources=data["sources"],
            servicekit=str(data["servicekit"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(where, f"{type(error).__name__}: {error}", name) from None


def _unreadable(where: str, why: str, name: str) -> UserError:
    return UserError(
        f'plan "{where}" cannot be read: {shown(why)}',
        # Without --force an install keeps a file that was changed by hand.
        hint=f"run `servicekit install {name} --force`",
        code=ExitCode.CONFIG,
    )


def _places(data: Mapping[str, str | None]) -> Places:
    paths = {key: None if path is None else PurePosixPath(path) for key, path in data.items()}
    return Places(**cast("dict[str, Any]", paths | {"scope": Scope(str(data["scope"]))}))


def profile_of(data: Mapping[str, Any]) -> Profile:
    """Return an object that answers as the `Profile` which wrote `data` did."""
    sections = {key: _section(data[key]) for key in SECTIONS}
    context, restart = sections["context"], sections["restart"]
    context.floor = context.requested // 2 if context.minimum is None else context.minimum
    restart.on = tuple(map(Reason, restart.on))
    profile = SimpleNamespace(**vars(_section(data)) | sections)
    profile.engine = EngineName(data["engine"])
    profile.options = {key: _frozen(value) for key, value in data["options"].items()}
    profile.unit = f"servicekit-{profile.name}"
    return cast("Profile", profile)


def _section(data: Mapping[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(**{key: _frozen(value) for key, value in data.items()})


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def tuned(plan: InstalledPlan, environment: Mapping[str, str]) -> InstalledPlan:
    """Return `plan` as the environment's tunables change it, or raise `UserError` naming them.

    The wrapper reads the same variables, so that watchdog and engine agree.
    """
    profile = plan.profile
    given = {
        variable_of(tunable): tunable
        for tunable in profile.tunables
        if environment.get(variable_of(tunable))  # to the wrapper, empty is as good as unset
    }
    if not given:
        return plan
    data = json.loads(json.dumps(plan.data))
    for variable, tunable in given.items():
        text = environment[variable]
        if tunable in profile.environment:
            data["environment"][tunable] = text
        elif tunable == "port":
            data["port"] = _typed(text, profile.port, variable)
        else:
            data["options"][tunable] = _typed(text, profile.options[tunable], variable)
            if tunable in _CONTEXT_OPTIONS:
                _bound(data["context"], data["options"][tunable])
    changed = profile_of(data)
    findings = tuple(_findings(changed))
    if findings:
        from servicekit.profiles.findings import texts

        where = f"environment ({', '.join(given)})"
        refused = ProfileError(where, texts(findings, {}))
        raise UserError(str(refused), code=ExitCode.CONFIG)
    return dataclasses.replace(plan, data=data, profile=changed)


def _findings(profile: Profile) -> Iterator[Finding]:
    """Check a tuned profile: its other values were checked by the install."""
    from servicekit.profiles.findings import Finding
    from servicekit.profiles.rules import CHECKS

    if profile.port not in _PORTS:
        bound = "at most 65535" if profile.port > _PORTS[-1] else "at least 1024"
        yield Finding(("port",), f"must be {bound}, not {profile.port}")
    for table, values in (("environment", profile.environment), ("options", profile.options)):
        for key, value in values.items():
            try:
                vocabulary.option_value(value)
            except ValueError as error:
                yield Finding((table, key), str(error))
    for _, check in CHECKS:
        yield from check(profile)


def _typed(text: str, like: object, variable: str) -> object:
    """Read `text` as a value of the kind of `like`, as strictly as any engine's parser does."""
    if isinstance(like, int) and _WHOLE.fullmatch(text):
        return int(text)
    if isinstance(like, float) and _DECIMAL.fullmatch(text):
        return float(text)
    if isinstance(like, str) and not text.startswith("-"):
        return text
    kinds = {int: "a whole number", float: "a decimal number", str: 'text that begins without "-"'}
    raise UserError(
        f'environment: {variable} must be {kinds[type(like)]}, not "{shown(text)}"',
        code=ExitCode.CONFIG,
    )


def _bound(context: dict[str, Any], limit: object) -> None:
    """Ask for no more context than a tunable leaves."""
    if isinstance(limit, int):
        for key in ("requested", "minimum"):
            if context.get(key) is not None:
                context[key] = min(context[key], limit)


def at(profile: Profile, host: str, port: int) -> Profile:
    """Return `profile` as it is served at another address."""
    return cast("Profile", SimpleNamespace(**vars(profile) | {"host": host, "port": port}))


def denied(plan: InstalledPlan, environment: Mapping[str, str]) -> bool:
    """Return whether the settings name the profile in `deny`.

    Only that is read of them: settings that are broken or cannot be read stop no service.
    """
    name = plan.profile.name
    if name in re.split(r"[][\",\s]+", environment.get("SERVICEKIT_DENY", "")):
        return True
    try:
        with open(plan.places.config, "rb", opener=_open) as stream:
            raw = stream.read(LARGEST)
    except OSError:
        return False
    if b"deny" not in raw:
        return False
    import tomllib

    try:
        settings = tomllib.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return False
    names = settings.get("deny")
    return isinstance(names, list) and name in names


def _open(path: str, flags: int) -> int:
    """Open without waiting for a writer, as a named pipe would have it."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def pool_drift(planned: int | None, physical: int | None) -> str:
    """Say how far a pool of `physical` tokens is from the planned; empty where it is near."""
    if not planned or physical is None:
        return ""
    off = (physical - planned) / planned
    if abs(off) <= DRIFT:
        return ""
    more = "more" if off > 0 else "fewer"
    return f"the pool holds {physical} tokens, {abs(off):.0%} {more} than the {planned} of the plan"
