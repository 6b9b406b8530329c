"""From a profile's options to words of a command line: the rule that all engines share. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from servicekit.profiles.vocabulary import variable_of
from servicekit.quoting import Reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.profiles.model import Profile
    from servicekit.quoting import Piece, Word


def option(name: str, *values: Piece) -> Iterator[Word]:
    """Give the words of one option: `--name`, then each of its values."""
    yield (f"--{name}",)
    for value in values:
        yield (value,)


def port(profile: Profile) -> Piece:
    """Give the port, as a reference where the environment may override it."""
    if "port" in profile.tunables:
        return Reference(variable_of("port"))
    return str(profile.port)


def compact_json(value: object) -> str:
    """Write `value` as JSON without needless spaces, its text as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def option_words(profile: Profile, *, argparse: bool = True) -> Iterator[Word]:
    """Give the words of the profile's `options`, in their order.

    `true` is the bare option and `false` none at all; a number or text follows the option as a
    word of its own, an array as one word each, a table as compact JSON; a tunable is a reference.
    For a parser that is Python's `argparse`, text that begins with a dash is joined by `=`, else it
    would be taken for an option; llama.cpp's knows no `=` and takes the next word as it is.
    """
    for name, value in profile.options.items():
        if value is False:
            continue
        if value is True:
            yield from option(name)
        elif isinstance(value, dict):
            yield from option(name, compact_json(value))
        elif isinstance(value, tuple):
            yield from option(name, *map(str, value))
        elif name in profile.tunables:
            yield from option(name, Reference(variable_of(name)))
        elif argparse and isinstance(value, str) and value.startswith("-"):
            yield (f"--{name}={value}",)
        else:
            yield from option(name, str(value))
