"""Problems of a user's file, described so that the user can fix them. Pure.

A finding names its place as the file spells it (`probe.deadline`, `gpus[0]`), with the line where
that is known. The shape of a data error is pydantic's, the words are ours.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from servicekit.text import did_you_mean, printable, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# Keys and array indexes that lead to a value, outermost first.
Path: TypeAlias = tuple[str | int, ...]

# Line, from 1, of the value at a path.
Lines: TypeAlias = "Mapping[Path, int]"


_HUGE: Final = 10**12
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_SYNTAX: Final = re.compile(
    r"(?P<what>.*?) \(at (?P<where>line \d+, column \d+|end of document)\)\Z"
)

_WANTED: Final = {
    "string_type": "must be text in quotes",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "tuple_type": "must be an array",
    "dict_type": "must be a table",
    "model_type": "must be a table",
}
_BOUNDS: Final = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
}


class Finding(NamedTuple):
    """A problem at one place of a file; an empty path is the file itself."""

    path: Path
    message: str

    def line(self, lines: Lines) -> int | None:
        """Return the line of the innermost table or value of `path` that `lines` knows."""
        for end in range(len(self.path), 0, -1):
            if self.path[:end] in lines:
                return lines[self.path[:end]]
        return None

    def text(self, lines: Lines) -> str:
        """Describe it in one line, without the file's name."""
        line = self.line(lines)
        number = "" if line is None else f"line {line}: "
        where = f"{place(self.path)}: " if self.path else ""
        return printable(f"{number}{where}{self.message}")


def texts(findings: Iterable[Finding], lines: Lines) -> tuple[str, ...]:
    """Describe each finding once, in the order of the file's lines."""

    def order(finding: Finding) -> float:
        line = finding.line(lines)
        return float("inf") if line is None and finding.path else line or 0

    return tuple(dict.fromkeys(finding.text(lines) for finding in sorted(findings, key=order)))


def place(path: Path) -> str:
    """Format `path` as in a TOML file."""
    spelt = ""
    for part in path:
        if isinstance(part, int):
            spelt += f"[{part}]"
        else:
            dot = "." if spelt else ""
            spelt += dot + (part if _BARE.match(part) else f'"{shown(part)}"')
    return spelt


def wording(error: Mapping[str, Any]) -> str:
    """Describe an item of pydantic's `ValidationError.errors()`, other than an unknown key."""
    kind: str = error["type"]
    context, value = error.get("ctx", {}), error["input"]
    if kind == "missing":
        return "is missing"
    if kind == "value_error":
        return str(context["error"])
    if kind in _WANTED:
        return f"{_WANTED[kind]}, not {_kind(value)}"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"must be {words} {_number(context[key])}, not {_number(value)}"
    if kind in {"enum", "literal_error"}:
        choices = re.findall(r"'([^']*)'", context["expected"])
        listed = ", ".join(f'"{choice}"' for choice in choices)
        if not isinstance(value, str):
            return f"must be one of {listed}, not {_kind(value)}"
        return f'must be one of {listed}, not "{shown(value)}"{did_you_mean(value, choices)}'
    message = str(error["msg"]).replace("Input should", "must")
    return message[0].lower() + message[1:]


def _kind(value: object) -> str:
    """Name the kind of a TOML value; show numbers, which hold no secret."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return _number(value)
    for kind, name in ((str, "text"), (list | tuple, "an array"), (dict, "a table")):
        if isinstance(value, kind):
            return name
    return "a date or time"


def _number(value: float) -> str:
    # Python refuses to write an integer of thousands of digits, and TOML can hold one.
    return "a number that large" if abs(value) >= _HUGE else f"{value:.12g}"


def syntax(error: ValueError) -> str:
    """Explain why a text is not TOML, from the error of `tomllib`."""
    match = _SYNTAX.match(str(error))
    if match is None:  # from Python's int(), passed on by tomllib
        return "contains a number with too many digits"
    what = match["what"]
    return f"{match['where']}: is not TOML: {what[0].lower()}{what[1:]}"


def lines_of(text: str) -> dict[Path, int]:
    """Return the line on which each key and table of the valid TOML `text` begins.

    tomllib reports no positions, but every TOML statement is valid by itself, and no beginning of
    one is.
    """
    lines: dict[Path, int] = {}
    header: Path = ()
    statement, begin = "", 1
    for number, line in enumerate(text.split("\n"), start=1):
        statement += f"{line}\n"
        try:
            content = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue  # the value continues
        paths = list(_paths(content))
        if statement.lstrip().startswith("["):
            header = paths[-1]
            lines.setdefault(header, begin)
        else:
            for path in paths:
                lines.setdefault(header + path, begin)
        statement, begin = "", number + 1
    return lines


def _paths(table: Mapping[str, Any]) -> Iterator[Path]:
    for key, value in table.items():
        yield (key,)
        if isinstance(value, dict):
            for rest in _paths(value):
                yield (key, *rest)
