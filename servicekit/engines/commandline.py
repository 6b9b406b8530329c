"""Turns a profile's options into command-line words, alike for all engines. Pure."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

from servicekit.profiles.vocabulary import variable_of
from servicekit.quoting import Reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.profiles.model import Profile
    from servicekit.quoting import Piece, Word


def option(name: str, *values: Piece) -> Iterator[Word]:
    """Yield the words of one option: `--name`, then each value."""
    yield (f"--{name}",)
    for value in values:
        yield (value,)


def port(profile: Profile) -> Piece:
    """Return the port, or a reference if the environment may override it."""
    if "port" in profile.tunables:
        return Reference(variable_of("port"))
    return str(profile.port)


def compact_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def option_words(profile: Profile, *, argparse: bool = True) -> Iterator[Word]:
    """Yield the words of the profile's `options`, in order.

    `true` is the bare option and `false` nothing. A number or text is a word after the option, an
    array one word per item, a table compact JSON, a tunable a reference. For Python's `argparse`,
    text that begins with a dash is joined by `=`, else it would be taken for an option; llama.cpp
    does not support `=` and takes the next word as it is.
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


def given(profile: Profile, *names: str) -> str | None:
    """Return the value of an option among `options` or `arguments`; `None` if it is not given."""
    for name, value in profile.options.items():
        if name.replace("_", "-") in names and value is not False:
            return str(value)
    for word, following in pairwise((*profile.arguments, "")):
        name, _, joined = word.lstrip("-").partition("=")
        if word.startswith("-") and name.replace("_", "-") in names:
            return joined or following
    return None
