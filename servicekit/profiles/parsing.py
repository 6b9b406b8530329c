"""Turns a file's data into a profile, or reports everything that is wrong. Pure."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pydantic import (
    BaseModel,
    ValidationError,
)

from servicekit.errors import ProfileError
from servicekit.profiles.findings import Finding, Lines, texts, wording
from servicekit.profiles.model import Profile
from servicekit.profiles.rules import CHECKS
from servicekit.profiles.vocabulary import EngineName
from servicekit.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping


def _sections() -> Mapping[str, type[BaseModel]]:
    """Tables of a profile whose keys are fixed, by name."""
    return {
        key: field.annotation
        for key, field in Profile.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }


# Values in place of wrong ones, so that the checks which do not read them can run.
_STAND_IN: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "name": "stand-in",
        "summary": "stands in",
        "engine": EngineName.SGLANG,
        "model": "stand/in",
        "served_name": "stand-in",
        "port": 1024,
        "context": {"requested": 1},
    }
)


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `change` laid over it: tables key by key at any depth, all else replaced.

    `false` in `options` and `environment` takes the key away. Neither argument is changed.
    """
    merged = _laid_over(base, change)
    for table in ("options", "environment"):
        if isinstance(merged.get(table), dict):
            merged[table] = {
                key: value for key, value in merged[table].items() if value is not False
            }
    return merged


def _laid_over(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in change.items():
        under = merged.get(key)
        both = isinstance(value, dict) and isinstance(under, dict)
        merged[key] = _laid_over(under, value) if both else value  # type: ignore[arg-type]
    return merged


def parse(
    data: Mapping[str, Any], *, name: str, where: str, lines: Lines = MappingProxyType({})
) -> Profile:
    """Make a profile of `data`, the parsed TOML of the file `where`.

    Raises `ProfileError` with all findings together; `lines` maps keys to lines.
    """
    profile, findings = examine(data, name=name)
    if profile is None:
        raise ProfileError(where, texts(findings, lines))
    return profile


def examine(data: Mapping[str, Any], *, name: str) -> tuple[Profile | None, tuple[Finding, ...]]:
    findings = []
    broken: set[str] = set()
    if "name" in data:
        findings.append(Finding(("name",), "is the file's name without .toml; remove it"))
    given = {**data, "name": name}
    try:
        profile = Profile.model_validate(given)
    except ValidationError as error:
        items = error.errors(include_url=False)
        findings.extend(Finding(item["loc"], _finding(dict(item))) for item in items)
        broken = {str(item["loc"][0]) for item in items}
        sound = {key: value for key, value in given.items() if key not in broken}
        profile = Profile.model_validate({**_STAND_IN, **sound})
    for reads, check in CHECKS:
        if not reads & broken:
            findings.extend(check(profile))
    return (None, tuple(findings)) if findings else (profile, ())


def _finding(error: Mapping[str, Any]) -> str:
    """Describe an error; for an unknown key, also where it might belong."""
    if error["type"] != "extra_forbidden":
        return wording(error)
    *table, key = (str(part) for part in error["loc"])
    sections = _sections()
    if table and key in Profile.model_fields:
        return "unknown key in this table; write it above the first [table] of the file"
    homes = [name for name, model in sections.items() if key in model.model_fields]
    if not table and homes:
        return f"unknown key; it belongs below [{homes[0]}]"
    known = sections[table[0]].model_fields if table else Profile.model_fields
    return f"unknown key{did_you_mean(key, known) or '; see `servicekit schema`'}"
