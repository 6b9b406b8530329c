"""`.wslconfig` and `wsl.conf`: read as WSL reads them, and changed in place. Pure.

WSL's parser has the dialect of git, which Python's configparser does not read: a key may be
indented, a section may be repeated, names ignore case, a comment may follow a value, a backslash
continues a line, and the first of two lines for one key counts. What WSL ignores with a warning is
ignored here.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_SECTION: Final = re.compile(r"[ \t]*\[([A-Za-z][A-Za-z0-9]*)\][ \t]*(?=[#\r\n]|\Z)")
_KEY: Final = re.compile(r"[ \t]*([A-Za-z][A-Za-z0-9]*)[ \t]*=[ \t]*")
# What stands for what behind a backslash; any other character makes the line invalid.
_ESCAPED: Final = {"\\": "\\", '"': '"', "b": "\b", "n": "\n", "t": "\t", "\n": ""}


class WslKey(NamedTuple):
    """Section and name of a setting, in any case."""

    section: str
    name: str

    @property
    def folded(self) -> WslKey:
        """The same for comparison."""
        return WslKey(self.section.lower(), self.name.lower())

    @override
    def __str__(self) -> str:
        return f"[{self.section}] {self.name}"


@dataclass(frozen=True, slots=True)
class _Entry:
    """One valid line: a setting or a section heading."""

    key: WslKey  # of a heading, one without a name
    value: str
    begin: int  # where the value's text begins, without white space around it
    end: int
    line_end: int  # where the line ends, before its line break


def decode(data: bytes) -> tuple[str, str]:
    """Decode a file that a Windows editor may have written; return its text and its encoding.

    Windows PowerShell writes UTF-16, editors a UTF-8 byte order mark; other bytes are kept.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace"), "utf-16"
    encoding = "utf-8-sig" if data.startswith(codecs.BOM_UTF8) else "utf-8"
    return data.decode(encoding, errors="surrogateescape"), encoding


def encode(text: str, encoding: str) -> bytes:
    return text.encode(encoding, errors="surrogateescape")


def read(text: str) -> Mapping[WslKey, str]:
    """Read the settings of a file, by folded key; without a section a key's section is ""."""
    settings: dict[WslKey, str] = {}
    for entry in _entries(text):
        if entry.key.name:
            settings.setdefault(entry.key.folded, entry.value)
    return settings


def merge(text: str, key: WslKey, value: str, *, aliases: Iterable[WslKey] = ()) -> str:
    """Return `text` with one setting changed, or added where its section ends.

    `aliases` are other keys for the same setting: the first line of any of them is changed, since
    that one counts. Every other character stays.
    """
    wanted = {each.folded for each in (key, *aliases)}
    last: _Entry | None = None
    for entry in _entries(text):
        if entry.key.folded in wanted:
            return f"{text[: entry.begin]}{value}{text[entry.end :]}"
        if entry.key.section.lower() == key.section.lower():
            last = entry
    newline = "\r\n" if "\r\n" in text else "\n"
    if last is not None:
        added = f"{newline}{key.name}={value}"
        return f"{text[: last.line_end]}{added}{text[last.line_end :]}"
    gap = "" if not text else newline if text.endswith("\n") else newline * 2
    if text.endswith("\\"):
        gap = f" {gap}"  # else it would continue its line, which WSL finds invalid as it is
    return f"{text}{gap}[{key.section}]{newline}{key.name}={value}{newline}"


def _entries(text: str) -> Iterator[_Entry]:
    section, at = "", 0
    while at < len(text):
        if heading := _SECTION.match(text, at):
            section = heading[1]
            at = _line_end(text, heading.end())
            yield _Entry(WslKey(section, ""), "", heading.end(), heading.end(), at)
        elif key := _KEY.match(text, at):
            value, stop = _value(text, key.end())
            at = _line_end(text, stop)
            if value is not None:
                yield _Entry(WslKey(section, key[1]), value, key.end(), stop, at)
        else:
            at = _line_end(text, at)
        at += 2 if text.startswith("\r\n", at) else 1


def _value(text: str, at: int) -> tuple[str | None, int]:
    """Read a value; return it and where its text ends.

    It is `None` where WSL finds the line invalid, which then goes on from there to its end.
    """
    value, kept, stop = "", 0, at
    quoted = False
    while at < len(text) and text[at] not in "\r\n":
        character = text[at]
        if character == "#" and not quoted:
            break
        if character == "\\":
            at += 1
            if at >= len(text) or text[at] not in _ESCAPED:
                return None, min(at, len(text))
            value += _ESCAPED[text[at]]
        elif character == '"':
            quoted = not quoted
        else:
            value += character
        at += 1
        if character not in " \t":
            kept, stop = len(value), at
    return (None, at) if quoted else (value[:kept], stop)


def _line_end(text: str, at: int) -> int:
    """Find where the line ends, before its line break."""
    end = text.find("\n", at)
    if end < 0:
        return len(text)
    return end - 1 if end > at and text[end - 1] == "\r" else end
