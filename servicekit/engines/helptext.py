"""Reads the `--help` of an engine: llama.cpp's own format and that of Python's argparse. Pure.

A help text shows less of an option than the parser knows: its names, whether a value
follows, and the choices where they are listed. Types are mostly left open.
"""

from __future__ import annotations

import re
from typing import Final

from servicekit.engines.base import LegalValue

# An option's entry begins at the margin (llama.cpp) or near it (argparse).
_ENTRY: Final = re.compile(r"^ {0,4}(?=--?[A-Za-z0-9])")
LONGEST_LINE: Final = 4096  # characters of a line that are read
MOST_LINES: Final = 400  # lines of one option's help that are read
_INDENT: Final = " " * 5  # its help is further in
_NAME: Final = re.compile(r"(?:^|, )(--?[A-Za-z0-9][\w.-]*)(?: (?:(?!, -).)*)?")
_CHOICES: Final = (
    re.compile(r"\{([^{}]+)\}"),  # {a,b}
    re.compile(r"[\[<]([\w.-]*+(?:\|[\w.-]*+)++)[\]>]"),  # [a|b] and <a|b>
)
_ALLOWED: Final = re.compile(r"allowed values: ([\w, ]+?)(?= \(default|$)")
_BULLET: Final = re.compile(r" - ([\w+-]+)(?: \(default\))?: ")
_DEFAULT: Final = re.compile(r"\(default: ([a-z][\w+-]*)\)")
_QUOTED: Final = re.compile(r"'([a-z]+)'")
_LISTED: Final = re.compile(r"[a-z][\w-]*(?:,[a-z][\w-]*){2,}")
_SEVERAL: Final = re.compile(r"\[(\S+ )?\[?\S+ \.\.\.\]+|\S+ \[\S+ \.\.\.\]")


def read_help(text: str) -> dict[str, LegalValue]:
    """Return every option string of a help text, with what may follow it."""
    entries: list[list[str]] = []
    for whole in text.splitlines():
        line = whole[:LONGEST_LINE]
        if _ENTRY.match(line):
            entries.append([line.strip()])
        elif entries and line.startswith(_INDENT) and len(entries[-1]) < MOST_LINES:
            entries[-1].append(line.strip())
    options: dict[str, LegalValue] = {}
    for first, *rest in entries:
        # llama.cpp pads between its names, too; any other gap ends the invocation.
        invocation, _, help_ = re.sub(r",\s+(?=-)", ", ", first).partition("  ")
        names = _NAME.findall(invocation)
        metavar = invocation.rpartition(names[-1])[2].strip()
        value = _value(metavar, " ".join([help_.strip(), *rest]))
        options.update(dict.fromkeys(names, value))
    return options


def _value(metavar: str, help_: str) -> LegalValue:
    if "the argument has been removed" in help_:
        return LegalValue("removed")
    if not metavar:
        return LegalValue("flag")
    for pattern in _CHOICES:
        if match := pattern.search(metavar):
            return LegalValue("text", tuple(re.split(r"[,|]", match[1])), _many(metavar))
    if metavar == "N":
        return LegalValue("number", tuple(dict.fromkeys(_QUOTED.findall(help_))))
    if _LISTED.fullmatch(metavar):
        return LegalValue("text", tuple(metavar.split(",")), ",")
    if match := _ALLOWED.search(help_):
        return LegalValue("text", tuple(match[1].split(", ")))
    if metavar in {"MODE", "TYPE", "FORMAT"} and (bullets := _BULLET.findall(f" {help_}")):
        return LegalValue("text", tuple(dict.fromkeys([*bullets, *_DEFAULT.findall(help_)])))
    return LegalValue("text", (), _many(metavar))


def _many(metavar: str) -> str:
    if metavar == "START END":
        return "2"
    if _SEVERAL.fullmatch(metavar):
        return "*" if metavar.startswith("[") else "+"
    if metavar.startswith("[") and metavar.endswith("]") and metavar[1:-1].isupper():
        return "?"
    return ""
