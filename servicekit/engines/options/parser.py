"""Checks an engine's command line against the option table of its own parser. Pure.

A misspelt option costs a start of minutes, and a renamed one costs it after an upgrade.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from servicekit.engines.options.tables import shipped
from servicekit.profiles.rules import MANAGED
from servicekit.profiles.vocabulary import EngineName
from servicekit.text import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from servicekit.engines.base import FlagTable, LegalValue
    from servicekit.profiles.model import Profile

# What argparse takes for a negative number, and so for a value, though it begins with a dash.
_NUMBER: Final = re.compile(r"-\d+$|-\d*\.\d+$")

# How each engine lets a whole number be shortened.
_COUNTS: Final[Mapping[EngineName, tuple[re.Pattern[str], str]]] = {
    EngineName.SGLANG: (
        re.compile(r"\d+(?:\.\d+)?[kMGT]|\d+(?:Ki|Mi|Gi|Ti)"),
        "32k is 32,000 and 32Ki is 32,768",
    ),
    EngineName.VLLM: (
        re.compile(r"\d+(?:\.\d+)?[kmgt]|\d+[KMGT]"),
        "32k is 32,000 and 32K is 32,768",
    ),
}

# How a kind of value is read, and what to say where it cannot be.
_PARSERS: Final[Mapping[str, tuple[Callable[[str], object], str]]] = {
    "int": (int, "must be a whole number"),
    "float": (float, "must be a number"),
    "number": (float, "must be a number"),
    "json": (json.loads, "must be JSON, which a table gives"),
}

LISTED: Final = 12  # names that a remark lists


class Level(StrEnum):
    """Severity of a remark."""

    ERROR = "error"  # the engine will not start or not serve
    WARNING = "warning"  # the engine may start and work badly
    NOTE = "note"  # something could not be checked, or is worth knowing


@dataclass(frozen=True, slots=True)
class Remark:
    """One finding about a profile's command line."""

    level: Level
    where: str  # key of the profile, such as `options.max-total-tokens` or `arguments`
    message: str  # reads behind `where`
    source: str = ""  # where it was read or seen, if not in a parser


@dataclass(frozen=True, slots=True)
class Use:
    """One option on a command line."""

    name: str  # with its dashes, without any `=value`
    values: tuple[str, ...]


def read_argv(argv: Sequence[str], table: FlagTable) -> tuple[Use, ...]:
    """Read the options of a command line (program first) as the engine's own parser does."""
    if table.engine is EngineName.LLAMACPP:
        return tuple(_read_fixed(argv[1:], table))
    return tuple(_read_argparse(argv[1:]))


def _read_argparse(words: Sequence[str]) -> Iterator[Use]:
    name, values = "", list[str]()
    for word in words:
        if len(word) > 1 and word.startswith("-") and not _NUMBER.match(word):
            if name:
                yield Use(name, tuple(values))
            name, joined, value = word.partition("=")
            values = [value] if joined else []
        else:
            values.append(word)
    if name:
        yield Use(name, tuple(values))


def _read_fixed(words: Sequence[str], table: FlagTable) -> Iterator[Use]:
    """Read as llama.cpp does: an option takes a fixed number of words."""
    rest = iter(words)
    for word in rest:
        legal = table.options.get(word)
        if legal is not None:
            count = int(legal.many) if legal.many.isdecimal() else int(legal.takes != "flag")
            yield Use(word, tuple(islice(rest, count)))
        elif word.startswith("-"):
            yield Use(word, ())


def check_flags(profile: Profile, argv: Sequence[str], table: FlagTable) -> tuple[Remark, ...]:
    """Check every option of `argv` (program first) against the table of the engine's parser."""
    remarks: list[Remark] = []
    for use in read_argv(argv, table):
        where = place_of(profile, use.name)
        legal = _legal(use.name, table)
        if legal is None or legal.takes == "removed":
            level, message = Level.ERROR, _unknown(use.name, table)
        elif message := _wrong_value(use, legal, table.engine):
            level = Level.ERROR
        elif legal.deprecated:
            level = Level.WARNING
            message = f"is deprecated in {release(table)}{_renamed(use.name, table)}"
        else:
            continue
        remarks.append(Remark(level, where, message))
    return (*remarks, *_omitted(profile, table))


def place_of(profile: Profile, name: str) -> str:
    """Return the profile's key that put an option on the command line."""
    option = name.lstrip("-")
    if option.partition(".")[0] in profile.options:
        return f"options.{option}"
    return MANAGED[profile.engine].get(option, "arguments").partition(" ")[0].rstrip(",")


def _legal(name: str, table: FlagTable) -> LegalValue | None:
    legal = table.options.get(name)
    if legal is None and table.engine is EngineName.VLLM:
        # vLLM lets a key of a JSON value be set by itself, as --speculative-config.method.
        whole = table.options.get(name.partition(".")[0])
        return whole if whole is not None and whole.takes in {"json", "text"} else None
    return legal


def release(table: FlagTable) -> str:
    if table.engine is EngineName.LLAMACPP and not table.version.isdecimal():
        return table.version  # a program of its own
    if table.engine is EngineName.LLAMACPP:
        return f"llama.cpp b{table.version}"
    return f"{table.engine} {table.version}"


def _unknown(name: str, table: FlagTable) -> str:
    says = f"{name} is not an option of {release(table)}"
    if renamed := _renamed(name, table):
        return says + renamed
    if table.engine is not EngineName.LLAMACPP and name.startswith("--"):
        begun = sorted(option for option in table.options if option.startswith(name))
        if len(begun) > 1:
            return f"{says}: it could stand for {_listed(begun)}"
        if begun:
            return f"{says}: its parser takes it for {begun[0]}, other releases may not"
    alive = (option for option, value in table.options.items() if value.takes != "removed")
    # The dashes would make any two options look alike.
    return says + did_you_mean(name.lstrip("-"), [option.lstrip("-") for option in alive])


def _renamed(name: str, table: FlagTable) -> str:
    """Return what took the place of an option, or nothing."""
    option = name.removeprefix("--")
    for entry in _renames():
        if entry["engine"] != table.engine or option not in entry["from"]:
            continue
        note = f" ({entry['note']})" if "note" in entry else ""
        if "to" not in entry:
            return f": it was removed{note}"
        now = [new for new in entry["to"] if f"--{new}" in table.options]
        if now:
            return f": it is {' or '.join(f'--{new}' for new in now)} there{note}"
    return ""


def _wrong_value(use: Use, legal: LegalValue, engine: EngineName) -> str:
    """Say what is wrong with an option's values, or nothing."""
    count = len(use.values)
    if legal.takes == "flag":
        return f'takes no value, but "{shown(use.values[0])}" follows it' if count else ""
    if not count and legal.many not in {"?", "*"}:
        return "needs a value"
    if count > 1 and legal.many in {"", "?", ","}:
        return f'takes one value, but "{shown(use.values[1])}" follows as well'
    if legal.many.isdecimal() and count != int(legal.many):
        return f"takes {legal.many} values, not {count}"
    if "." in use.name:
        return ""  # a key inside a JSON value
    values = use.values[0].split(",") if legal.many == "," else use.values
    return next(filter(None, (_wrong(value, legal, engine) for value in values)), "")


def _wrong(value: str, legal: LegalValue, engine: EngineName) -> str:
    if legal.choices:
        spelt = {value}
        if engine is EngineName.VLLM:  # it lets some names be spelt with dashes
            spelt.add(value.lower().replace("-", "_"))
        if spelt & set(legal.choices):
            return ""
        if legal.takes != "number":
            begun = [choice for choice in legal.choices if choice.startswith(value)]
            meant = did_you_mean(value, begun or legal.choices)
            return f'must be one of {_listed(legal.choices)}, not "{shown(value)}"{meant}'
    if legal.takes.startswith("count"):
        pattern, example = _COUNTS[engine]
        automatic = value == "auto" and legal.takes == "count-or-auto"
        if automatic or reads(int, value) or pattern.fullmatch(value.strip()):
            return ""
        return f'must be a whole number, where {example}, not "{shown(value)}"'
    parser, wanted = _PARSERS.get(legal.takes, (str, ""))
    return "" if reads(parser, value) else f'{wanted}, not "{shown(value)}"'


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:LISTED], *("…" for _ in names[LISTED : LISTED + 1])])


def reads(parser: Callable[[str], object], value: str) -> bool:
    try:
        parser(value)
    except ValueError:
        return False
    return True


def _omitted(profile: Profile, table: FlagTable) -> Iterator[Remark]:
    """Find a `false` that should turn something off but only leaves the option out."""
    for option, value in profile.options.items():
        if value is False and f"--no-{option}" in table.options:
            yield Remark(
                Level.WARNING,
                f"options.{option}",
                f"false only leaves the option out; no-{option} = true turns it off",
            )


@cache
def _renames() -> tuple[dict[str, Any], ...]:
    return tuple(shipped("renames")["rename"])
