"""README.md, read so that tests can run what it says and compare what it shows.

A fenced block's info string says what it is: `console WHERE` has commands behind prompts, `#` for
root and `$` for anybody, each followed by lines of its output; `toml PATH` and `ini PATH` are
files; `text demo` is a transcript. Lines of output are a selection, in order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"

FENCE = re.compile(r"^```(?P<info>\S[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)

# What differs between one run and the next, in the order in which it is to be taken out.
DIFFERS = (
    (re.compile(r"/\S*/servicekit-demo-\w+"), "HOME"),
    (re.compile(r"\d+ (d|h|min) \d+ (h|min|s)"), "0 s"),
    (re.compile(r"\d+([.,:]\d+)*"), "0"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True)
class Command:
    """A command line, and the lines of its output that are shown."""

    as_root: bool
    line: str
    shows: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    kind: str
    """The first word of its info string."""
    where: str
    """The second one."""
    text: str

    def commands(self) -> list[Command]:
        """The commands of a console, in order."""
        found: list[Command] = []
        for line in self.text.splitlines():
            if line.startswith(("# ", "$ ")):
                found.append(Command(line[0] == "#", line[2:], ()))
            else:
                last = found.pop()
                found.append(Command(last.as_root, last.line, (*last.shows, line)))
        return found


def blocks(*kinds: str, where: str = "") -> list[Block]:
    """Give the blocks of these kinds (and this place), in order."""
    found = []
    for match in FENCE.finditer(README.read_text(encoding="utf-8")):
        kind, _, place = match["info"].partition(" ")
        if kind in kinds and where in {"", place}:
            found.append(Block(kind, place, match["text"]))
    return found


def alike(line: str) -> str:
    """Give a line without what differs between one run and the next."""
    for pattern, instead in DIFFERS:
        line = pattern.sub(instead, line)
    return line.strip()


def not_shown(wanted: list[str], said: str) -> list[str]:
    """Give those of the lines `wanted` that are not in `said`, in order, nor part of a line."""
    lines, position, missing = [alike(line) for line in said.splitlines()], 0, []
    for line in filter(None, wanted):
        found = [place for place in range(position, len(lines)) if alike(line) in lines[place]]
        if found:
            position = found[0] + 1
        else:
            missing.append(line)
    return missing
