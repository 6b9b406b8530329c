"""Option combinations that an engine's parser accepts but that fail or disappoint. Pure.

Known combinations are in `data/options/incompatibilities.toml`, each with its source. This module
matches them, and checks those that need arithmetic.
"""

from __future__ import annotations

import ipaddress
import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from servicekit.engines.base import PACKAGE
from servicekit.engines.options.parser import Level, Remark, place_of, reads
from servicekit.engines.options.tables import shipped
from servicekit.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from servicekit.engines.base import InstalledEngine
    from servicekit.engines.options.parser import Use
    from servicekit.profiles.model import Profile


def check_known(
    profile: Profile, uses: Sequence[Use], installed: InstalledEngine
) -> tuple[Remark, ...]:
    """Check the options of a command line, as read by `read_argv`, against known issues."""
    options = emitted(uses)
    remarks: list[Remark] = []
    for known in _known():
        holds = _fits(known, profile, options) and _facts(known, profile, installed)
        # An entry about no option of this profile deserves no note about unknown versions.
        if holds is False or (holds is None and "options" not in known):
            continue
        level, message = Level(known["level"]), str(known["says"])
        if holds is None:
            level, message = Level.NOTE, f"{_when(known)}: {message}"
        remarks.append(Remark(level, _place(known, profile), message, known["source"]))
    return (*remarks, *_check_draft_tokens(options), *_check_host(profile, options))


def _place(known: Mapping[str, Any], profile: Profile) -> str:
    """Return the profile's key of an entry: that of its first option."""
    named = [*known.get("options", ()), *known.get("without", ())]
    return place_of(profile, named[0]) if named else "engine"


def emitted(uses: Iterable[Use]) -> dict[str, str]:
    """Return every option without its dashes with its value; a JSON value also key by key."""
    options: dict[str, str] = {}
    for use in uses:
        name, value = use.name.lstrip("-"), " ".join(use.values)
        options[name] = value
        if value.startswith("{") and reads(json.loads, value):
            options |= {f"{name}.{key}": str(item) for key, item in json.loads(value).items()}
    return options


def _fits(known: Mapping[str, Any], profile: Profile, options: Mapping[str, str]) -> bool:
    """Whether the conditions on the profile alone hold."""
    return (
        known.get("engine", profile.engine) == profile.engine
        and re.search(known.get("model", ""), profile.model) is not None
        and not any(name in options for name in known.get("without", ()))
        and all(_chosen(options.get(n), wanted) for n, wanted in known.get("options", {}).items())
    )


def _chosen(value: str | None, wanted: list[str] | Literal[True]) -> bool:
    if value is None or wanted is True:
        return value is not None
    return value.casefold() in {each.casefold() for each in wanted}


def _facts(known: Mapping[str, Any], profile: Profile, installed: InstalledEngine) -> bool | None:
    """Whether the conditions on versions and hardware hold; `None` if one is unknown."""
    ranges = dict(known.get("packages", {}))
    if "versions" in known:
        ranges[PACKAGE[profile.engine]] = known["versions"]
    answers = [
        in_range(spec, installed.packages.get(name), profile.requires.get(name))
        for name, spec in ranges.items()
    ]
    if "cuda" in known:
        answers.append(in_range(known["cuda"], installed.cuda, None))
    if not profile.gpus and ("capability" in known or "not_capability" in known):
        return False
    for key, right in (("capability", True), ("not_capability", False)):
        if key in known:
            capability = installed.capability
            answers.append(None if capability is None else (capability in known[key]) is right)
    if False in answers:
        return False
    return None if None in answers else True


_CONDITIONS: Final = {
    "versions": "{engine} {}",
    "cuda": "CUDA {}",
    "capability": "compute capability {}",
    "not_capability": "any compute capability but {}",
}


def _when(known: Mapping[str, Any]) -> str:
    parts = [f"{name} {spec}" for name, spec in known.get("packages", {}).items()]
    for key, words in _CONDITIONS.items():
        if key in known:
            wanted = known[key] if isinstance(known[key], str) else " or ".join(known[key])
            parts.append(words.format(wanted, engine=known.get("engine")))
    return f"with {' and '.join(parts)}"


def in_range(spec: str, version: str | None, required: str | None) -> bool | None:
    """Whether a version is in `spec`; where it is unknown, whether what is required rules it out.

    `None` where both remain possible. llama.cpp's builds may be written with their b.
    """
    wanted = specifiers(spec)
    if version is not None:
        return wanted.contains(version, prereleases=True)
    if required is None:
        return None
    demanded = specifiers(required)
    named = [Version(each.version.removesuffix(".*")) for each in (*wanted, *demanded)]
    # Where some version is in both ranges, one of these is: they lie at the bounds or next to them.
    beside = [Version(f"{each.base_version}.1") for each in named]
    both = any(
        wanted.contains(each, prereleases=True) and demanded.contains(each, prereleases=True)
        for each in (*named, *beside, Version("0"))
    )
    return None if both else False


def specifiers(spec: str) -> SpecifierSet:
    """Parse a range of versions such as `>=0.5.16,<0.6` or `>=b11434`."""
    return SpecifierSet(re.sub(r"\bb(?=\d)", "", spec))


def _check_draft_tokens(options: Mapping[str, str]) -> Iterator[Remark]:
    tokens = options.get("speculative-num-draft-tokens")
    if tokens is None or options.get("speculative-algorithm", "").casefold() != "dspark":
        return
    where, source = "options.speculative-num-draft-tokens", "SGLang's speculative_hook.py"
    block = options.get("speculative-dspark-block-size", "")
    if not block.isdecimal():
        message = "must be the checkpoint's gamma + 1 with DSpark; it is derived where left out"
        yield Remark(Level.WARNING, where, message, source)
    elif tokens != (right := str(int(block) + 1)):
        message = f"must be speculative-dspark-block-size + 1 ({right}), not {tokens}"
        yield Remark(Level.ERROR, where, message, source)


def _check_host(profile: Profile, options: Mapping[str, str]) -> Iterator[Remark]:
    """Refuse an address that others can reach: engines have no access control of their own."""
    host = options.get("host")
    if host is None:
        return
    try:
        guarded = ipaddress.ip_address(host).is_loopback
    except ValueError:
        guarded = host == "localhost"
    if not guarded:
        message = f'--host must be a loopback address such as "127.0.0.1", not "{shown(host)}"'
        yield Remark(Level.ERROR, place_of(profile, "--host"), message)


@cache
def _known() -> tuple[dict[str, Any], ...]:
    return tuple(shipped("incompatibilities")["known"])
