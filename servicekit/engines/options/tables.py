"""Option tables of the engine versions that servicekit knows, and what is known against options.

`tools/make_flag_tables.py` made the tables from the real parsers. SGLang 0.5.16 and 0.5.23 and
vLLM 0.32.0 are their argparse parsers, complete with types and choices. llama.cpp b11549 is the
`--help` of the parser in the wheel `xllamacpp` 2026.10.11549: every option of the server, but types
and choices only where that text has them. What is known of build b11434 agrees with it.
"""

from __future__ import annotations

import tomllib
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from packaging.version import Version

from servicekit import data
from servicekit.engines.base import FlagTable, LegalValue
from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from collections.abc import Mapping

# Versions with a table, oldest first. A build of llama.cpp is its number alone, without the b.
KNOWN: Final[Mapping[EngineName, tuple[str, ...]]] = {
    EngineName.SGLANG: ("0.5.16", "0.5.23"),
    EngineName.VLLM: ("0.32.0",),
    EngineName.LLAMACPP: ("11549",),
    EngineName.OPENAI: (),
}


def shipped(name: str) -> dict[str, Any]:
    """Return the parsed table `name` of `servicekit/data/options`."""
    return tomllib.loads(data.read("options", name))


@cache
def table(engine: EngineName, version: str) -> FlagTable:
    parsed = shipped(f"{engine}_{version}")
    choices: dict[str, str] = parsed["choices"]
    deprecated = set(parsed.get("deprecated", "").split())
    options: dict[str, LegalValue] = {}
    for kind, names in parsed["takes"].items():
        takes, _, many = kind.partition(" ")
        for name in names.split():
            listed = tuple(choices.get(name, "").split())
            options[name] = LegalValue(takes, listed, many, name in deprecated)
    return FlagTable(engine, version, options)


def tables(engine: EngineName) -> tuple[FlagTable, ...]:
    """Return all tables of an engine, oldest first."""
    return tuple(table(engine, version) for version in KNOWN[engine])


def nearest(engine: EngineName, version: str) -> FlagTable | None:
    """Return the newest table not newer than `version`, else the oldest; `None` where none is."""
    known = tables(engine)
    older = [each for each in known if Version(each.version) <= Version(version)]
    for each in (*reversed(older), *known):
        return each
    return None
