"""Makes text of other programs and of users safe for one line of a terminal or a log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable


_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,32}m")
LONGEST_QUOTE: Final = 60  # characters of a user's value that a finding repeats


def printable(text: str) -> str:
    """Escape the control characters of `text`."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def plain(line: str) -> str:
    """Make a line of another program safe for a log and a terminal.

    Colours are removed, other control characters escaped; tabs and wide spaces stay.
    """
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    if line.isprintable():
        return line
    return "".join(
        each.encode("unicode_escape").decode("ascii") if _is_obeyed(each) else each for each in line
    )


def _is_obeyed(character: str) -> bool:
    if character.isprintable() or character == "\t":
        return False
    from unicodedata import category

    return category(character) != "Zs"  # a space of another width


def shown(text: str) -> str:
    """Shorten a user's `text` and make it printable, for quoting it in a message."""
    return printable(text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean "…"?` for the name in `known` closest to `word`, else nothing."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1)
    return f'; did you mean "{close[0]}"?' if close else ""
