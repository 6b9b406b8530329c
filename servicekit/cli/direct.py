"""Runs `--help`, `--version`, `status`, `probe` and `watch` without the command-line library.

Only a command line that is certainly right is run here. Any other one, with its error message, its
help or its completion, is left to the library: `parse` gives `None` for it.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMPLETION: Final = "_SERVICEKIT_COMPLETE"


class Grammar(NamedTuple):
    """The words that may follow another."""

    flags: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()  # options that take a file
    profiles: tuple[int, ...] = (0,)  # how many names of profiles


GLOBAL: Final = Grammar(frozenset({"--user"}), frozenset({"--config"}))
GRAMMARS: Final = {
    "-h": Grammar(),
    "--help": Grammar(),
    "--version": Grammar(),
    "status": Grammar(frozenset({"--user", "--json"}), profiles=(0, 1)),
    "probe": Grammar(frozenset({"--user", "--live", "--ready", "--deep"}), profiles=(1,)),
    "watch": Grammar(frozenset({"--user"}), frozenset({"--plan"}), profiles=(1,)),
}
EXCLUSIVE: Final = frozenset({"--live", "--ready", "--deep"})


class CommandLine(NamedTuple):
    """A command line that needs no library."""

    verb: str
    flags: set[str]
    files: dict[str, Path]
    profile: str | None


def parse(words: Sequence[str], environment: Mapping[str, str]) -> CommandLine | None:
    """Parse a command line; `None` if the library must."""
    if COMPLETION in environment or not all(word and word.isprintable() for word in words):
        return None
    line = CommandLine("", set(), {}, None)
    rest = _options(list(words), GLOBAL, line)
    if rest is None or not rest or rest[0] not in GRAMMARS:
        return None
    verb, grammar, profiles = rest[0], GRAMMARS[rest[0]], []
    rest = rest[1:]
    while rest := _options(rest, grammar, line):
        profiles.append(rest.pop(0))
    known = rest is not None and not any(word.startswith("-") for word in profiles)
    if not known or len(profiles) not in grammar.profiles or len(line.flags & EXCLUSIVE) > 1:
        return None
    return line._replace(verb=verb, profile=profiles[0] if profiles else None)


def _options(words: list[str], grammar: Grammar, line: CommandLine) -> list[str] | None:
    """Move leading options into `line`; return the rest, or `None` after an unusual one."""
    while words and words[0] in grammar.flags | grammar.files:
        option, *words = words
        if option in grammar.flags:
            line.flags.add(option)
        elif option in line.files or not words or words[0].startswith("-"):
            return None
        else:
            line.files[option] = Path(words.pop(0))
    return words


def run(line: CommandLine) -> int:
    """Run a command line; return its exit code."""
    gc.disable()  # nothing that is loaded is garbage, and most verbs end before it would pay off
    if line.verb in {"-h", "--help"}:
        from servicekit.cli.verbs import help_text

        print(help_text())
        return 0
    if line.verb == "--version":
        from servicekit import __version__

        print(f"servicekit {__version__}")
        return 0
    from servicekit.cli.session import Session

    session = Session(line.files.get("--config"), user="--user" in line.flags)
    if line.profile is None or line.verb == "status":
        from servicekit.cli.status import status

        status(session, line.profile, json="--json" in line.flags)
        return 0
    if line.verb == "probe":
        from servicekit.cli.probe import Question, probe

        given = next(iter(line.flags & EXCLUSIVE), "--ready")
        return probe(session, line.profile, Question(given.removeprefix("--")))
    from servicekit.cli.watch import watch

    return watch(session, line.profile, line.files.get("--plan"))
