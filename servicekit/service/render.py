"""A plan becomes files. The only door to Jinja: values arrive ready, templates lay them out."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, assert_never

from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape

from servicekit import quoting
from servicekit.diagnosis.causes import Cause
from servicekit.errors import ExitCode, UserError
from servicekit.places import Scope
from servicekit.profiles.vocabulary import SHARED_ACCOUNT, ManagerName
from servicekit.service.installed import plan_text
from servicekit.service.unit import TARGET, stop_seconds, unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import PurePosixPath

    from servicekit.places import Places
    from servicekit.quoting import Word
    from servicekit.service.plan import Plan


def catalog_text(text: str) -> str:
    """A sentence of `servicekit.diagnosis` for the journal, which fills in the profile's name."""
    return text.replace("{profile}", "@SERVICEKIT_PROFILE@")


FILTERS: Final = (
    quoting.sh_word,
    quoting.sh_default,
    quoting.systemd_words,
    quoting.systemd_value,
    quoting.systemd_path,
    quoting.supervisor_words,
    quoting.supervisor_logfile,
    catalog_text,
)
ALERT: Final = "servicekit-alert@.service"  # given for a service that stays failed
BOOT: Final = "servicekit-boot.service"  # starts the enabled services when the boot is over
BOOT_PATIENCE: Final = 60
"""Seconds that it waits for the end of the boot; the services come up in any case."""
_MAKE_ACCOUNTS: Final = ("/bin/sh", "-c", 'exec systemd-sysusers "$0"/servicekit*.conf')
LINK: Final = stat.S_IFLNK | 0o777  # mode of a symbolic link, whose text is its target


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file of an installed profile, or the link that has it started at boot."""

    path: PurePosixPath  # absolute, as the running system sees it (without any `--root`)
    mode: int  # permission bits; `LINK` for a symbolic link
    text: str
    owner: str | None  # account that owns it; `None` for the account that installs it


def artifacts(plan: Plan, manager: ManagerName, *, enabled: bool = True) -> tuple[Artifact, ...]:
    """Everything that `plan` needs on disk under `manager`, started at boot if `enabled`.

    Files that profiles share are the same for each of them. Raises `UserError` for a value that a
    file has no way to hold.
    """
    try:
        match manager:
            case ManagerName.SYSTEMD:
                return (wrapper(plan), plan_file(plan), *_systemd(plan, enabled=enabled))
            case ManagerName.SUPERVISOR:
                return (wrapper(plan), plan_file(plan), _supervisor(plan, enabled=enabled))
            case _:
                assert_never(manager)
    except quoting.UnquotableError as error:
        message = f'profile "{plan.profile.name}" cannot be written down: {error}'
        raise UserError(message, code=ExitCode.CONFIG) from None


def wrapper(plan: Plan) -> Artifact:
    """The script that becomes the engine; it can be run by hand."""
    places, name = plan.host.places, plan.profile.name
    text = rendered(
        "wrapper.sh.j2",
        plan=plan,
        command=list(_lines(plan.words)),
        secrets=str(places.secrets / name),
    )
    return Artifact(places.wrapper(name), 0o755, text, None)


def plan_file(plan: Plan) -> Artifact:
    """The installed plan, which the watchdog reads."""
    return Artifact(plan.host.places.plan(plan.profile.name), 0o644, plan_text(plan), None)


def _lines(words: tuple[Word, ...]) -> Iterator[list[Word]]:
    """Lay a command line out for reading: each option begins a line, with its values behind it."""
    line: list[Word] = []
    for word in words:
        first = word[0]
        if line and isinstance(first, str) and first.startswith("-"):
            yield line
            line = []
        line.append(word)
    yield line


def _systemd(plan: Plan, *, enabled: bool) -> Iterator[Artifact]:
    places, profile = plan.host.places, plan.profile
    unit = unit_of(plan)
    service = f"{profile.unit}.service"
    yield _file(places.units / service, "systemd.service.j2", unit=unit, codes=ExitCode)
    yield _file(
        places.units / f"servicekit-alert@{service}.d" / "servicekit.conf",
        "alert.conf.j2",
        alert=(
            *(*plan.host.servicekit, "alert", profile.name),
            *("--plan", str(places.plan(profile.name))),
        ),
        system=places.scope is Scope.SYSTEM,
    )
    yield _static(places.units / ALERT)
    if unit.user not in {None, "root"} and places.sysusers is not None:
        # One file for each account, the same from every profile that runs as it.
        shared = unit.user == SHARED_ACCOUNT
        name = SHARED_ACCOUNT if shared else f"servicekit-user-{unit.user}"
        values = {"user": unit.user, "shared": shared}
        yield _file(places.sysusers / f"{name}.conf", "sysusers.conf.j2", **values)
    if unit.group is not None and places.sysusers is not None:
        group = places.sysusers / f"servicekit-group-{profile.name}.conf"
        yield _file(group, "sysusers_group.conf.j2", group=unit.group)
    if places.catalog is not None:
        yield _file(places.catalog / "servicekit.catalog", "servicekit.catalog.j2", causes=Cause)
    yield from boot(places, service, enabled=enabled)


def boot(places: Places, service: str, *, enabled: bool = True) -> Iterator[Artifact]:
    """What has `service` started when the boot is over, if `enabled`, so that it holds none up."""
    yield _static(places.units / TARGET)
    yield _file(
        places.units / BOOT,
        "boot.service.j2",
        boot=places.boot_target,
        systemctl="systemctl" if places.scope is Scope.SYSTEM else "systemctl --user",
        patience=BOOT_PATIENCE,
        system=places.scope is Scope.SYSTEM,
        accounts=(*_MAKE_ACCOUNTS, str(places.sysusers)) if places.sysusers else (),
    )
    if enabled:
        for target, wanted in ((TARGET, service), (places.boot_target, BOOT)):
            yield Artifact(places.units / f"{target}.wants" / wanted, LINK, f"../{wanted}", None)


def _supervisor(plan: Plan, *, enabled: bool) -> Artifact:
    places, profile = plan.host.places, plan.profile
    return _file(
        places.supervisor / f"{profile.unit}.conf",
        "supervisor.conf.j2",
        plan=plan,
        autostart="true" if enabled else "false",
        codes=ExitCode,
        log=str(places.log_file(profile.name)),
        stop_seconds=stop_seconds(profile),
    )


def _static(path: PurePosixPath) -> Artifact:
    return Artifact(path, 0o644, static(path.name), None)


def _file(path: PurePosixPath, template: str, **values: object) -> Artifact:
    return Artifact(path, 0o644, rendered(template, **values), None)


def rendered(template: str, **values: object) -> str:
    """Fill in one template; raises `UnquotableError` for a value that it has no way to hold."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    environment = Environment(
        # Of other templates, each value has its own filter.
        autoescape=select_autoescape(("html.j2",), default=False),
        loader=FunctionLoader(lambda name: (files("servicekit.templates") / name).read_text()),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update({quote.__name__: quote for quote in FILTERS})
    return environment


@cache
def static(name: str) -> str:
    """Return the text of a file of `units/`."""
    return (files("servicekit.units") / name).read_text()
