"""Writes `man/servicekit.1` from the command line itself: `python tools/manpage.py`."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typer.main import get_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PAGE: Final = Path(__file__).parents[1] / "man/servicekit.1"
VERBATIM: Final = "\b"
"""Begins a paragraph whose lines stay as they are, in the texts of the command line."""


def page() -> str:
    """Give the text of the manual page."""
    # Help that is drawn anew for every terminal has one width here.
    os.environ.pop("COLUMNS", None)
    from servicekit.cli.app import app
    from servicekit.cli.verbs import EXIT_CODES, FILES, GROUPS, OPTIONS, SUMMARY

    command: Any = get_command(app)
    context = command.make_context("servicekit", [], resilient_parsing=True)
    lines = [
        '.TH SERVICEKIT 1 "" servicekit "User commands"',
        ".SH NAME",
        r"servicekit \- run local model servers as services",
        ".SH SYNOPSIS",
        r".B servicekit",
        r"[\fIOPTIONS\fR] \fICOMMAND\fR [\fIARGS\fR]",
        ".SH DESCRIPTION",
        *paragraphs(SUMMARY),
        ".SH OPTIONS",
        *definitions(OPTIONS),
    ]
    for group, verbs in GROUPS.items():
        lines.append(f".SH {group.upper()}")
        for verb in verbs:
            lines += section(f"servicekit {verb}", command.get_command(context, verb), context)
    lines += [".SH EXIT STATUS", *definitions(EXIT_CODES), ".SH FILES", *definitions(FILES)]
    return "\n".join(lines) + "\n"


def definitions(texts: Mapping[str, str]) -> Iterator[str]:
    """List terms, each with its text."""
    for term, text in texts.items():
        yield ".TP"
        yield rf"\fB{escaped(term)}\fR"
        yield escaped(text)


def section(name: str, command: Any, parent: Any) -> Iterator[str]:  # noqa: ANN401 - click's
    """Describe one command, and those below it."""
    context = command.context_class(command, info_name=name, parent=parent)
    pieces = command.collect_usage_pieces(context)
    words = [piece.strip("{}") for piece in pieces if piece != "[OPTIONS]"]
    yield f".SS {escaped(' '.join([name, *words]))}"
    yield from paragraphs(inspect.cleandoc(command.help or ""))
    yield from options(command, context)
    if hasattr(command, "list_commands"):
        for below in command.list_commands(context):
            yield from section(f"{name} {below}", command.get_command(context, below), context)


def options(command: Any, context: Any) -> Iterator[str]:  # noqa: ANN401 - click's
    """List the options of a command, but for the one that every command has."""
    records = (parameter.get_help_record(context) for parameter in command.get_params(context))
    options = dict(record for record in records if record is not None)
    shown = {term: text for term, text in options.items() if term.startswith("-")}
    yield from definitions({term: text for term, text in shown.items() if "--help" not in term})


def paragraphs(text: str) -> Iterator[str]:
    """Set paragraphs, those that are marked so line by line."""
    for paragraph in text.strip("\n").split("\n\n"):
        yield ".PP"
        if paragraph.startswith(VERBATIM):
            yield ".nf"
            yield from map(escaped, paragraph.removeprefix(VERBATIM).strip("\n").splitlines())
            yield ".fi"
        else:
            yield escaped(" ".join(paragraph.split()))


def escaped(text: str) -> str:
    """Spell a line so that roff prints it as it is."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("`", r"\(ga")
    text = "".join(c if c.isascii() else rf"\[u{ord(c):04X}]" for c in text)
    return rf"\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
