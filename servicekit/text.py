"""Text of others, made fit for one line of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable


LONGEST_QUOTE: Final = 60  # characters of a user's value that a finding repeats


def printable(text: str) -> str:
    """Make `text` fit for a line of a terminal: whole, with control characters spelt out."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def shown(text: str) -> str:
    """Make a user's `text` fit to be repeated: short, and printable."""
    return printable(text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Give `; did you mean "…"?` for the name in `known` closest to `word`, else nothing."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1)
    return f'; did you mean "{close[0]}"?' if close else ""
