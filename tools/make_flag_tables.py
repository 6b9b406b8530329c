"""Make the option tables that servicekit ships from dumps of the engines' real parsers.

    tools/make_flag_tables.py OUT DUMP...

A dump is named ENGINE_VERSION_flags.json or ENGINE_VERSION_help.txt. The first is a JSON object of
a Python parser's options, each with what argparse's action says of it: `nargs`, the name of its
`type`, its `choices` and, as `cls`, the name of its class. The second is what `llama-server --help`
prints.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from servicekit.engines.base import LegalValue
from servicekit.engines.helptext import read_help

KINDS: Final = {
    "int": "int",
    "float": "float",
    "human_readable_int": "count",
    "human_readable_int_or_auto": "count-or-auto",
    "json_list_type": "json",
    "loads": "json",
    "parse_dataclass": "json",
}
"""Names of argparse types to kinds; every other type reads text in a way of its own."""


BEFORE: Final = {"sglang": {"--model-type": LegalValue("text")}}
"""Options that an engine's program takes away before its parser sees the rest."""


def from_action(action: dict[str, Any]) -> LegalValue:
    """Read what argparse knows of one option."""
    nargs, kind = action["nargs"], action["type"]
    # vLLM wraps the type of what may be None; its configurations are JSON all the same.
    if kind == "_optional_type" and action["dest"].endswith("_config"):
        kind = "parse_dataclass"
    return LegalValue(
        takes="flag" if nargs == 0 else KINDS.get(kind, "text"),
        choices=tuple(str(choice) for choice in action["choices"] or ()),
        many="" if nargs in {0, None} else str(nargs),
        deprecated=str(action.get("cls")).startswith("Deprecated"),
    )


def read_dump(path: Path) -> dict[str, LegalValue]:
    """Read a dump of either form."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".txt":
        return read_help(text)
    options = {name: from_action(action) for name, action in json.loads(text).items()}
    return options | BEFORE.get(path.name.partition("_")[0], {})


def render(options: dict[str, LegalValue], source: str) -> str:
    """Write a table as TOML: names by what they take, then choices, then what is deprecated."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, value in sorted(options.items()):
        names[f"{value.takes} {value.many}".strip()].append(name)
    deprecated = [name for name, value in sorted(options.items()) if value.deprecated]
    chosen = {name: value.choices for name, value in sorted(options.items()) if value.choices}
    return "\n".join(
        [
            f"# Made by tools/make_flag_tables.py from {source}. Do not edit.",
            *([f'deprecated = """{_wrap(deprecated)}"""'] if deprecated else []),
            "",
            "[takes]",
            *(f'"{kind}" = """{_wrap(members)}"""' for kind, members in sorted(names.items())),
            "",
            "[choices]",
            *(f'{name} = """{_wrap(choices)}"""' for name, choices in chosen.items()),
            "",
        ]
    )


def _wrap(words: list[str] | tuple[str, ...]) -> str:
    text = " ".join(words)
    if len(text) < 60:  # noqa: PLR2004 - what fits beside a name
        return text
    return "\n" + textwrap.fill(text, 98, break_on_hyphens=False, break_long_words=False) + "\n"


def main(out: str, *dumps: str) -> None:
    """Write one table per dump into the directory `out`."""
    for path in map(Path, dumps):
        stem, _, _ = path.stem.rpartition("_")
        table = render(read_dump(path), path.name)
        Path(out, f"{stem}.toml").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
