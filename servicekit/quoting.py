"""Quotes values for POSIX sh, systemd's unit files and Supervisor's configuration.

There is one function for each kind of place. The dialect's own parser reads back exactly the value
that was quoted; a value that a dialect cannot express raises `UnquotableError`. The tests prove
both with the real parsers. Templates use these functions as filters, and nothing else quotes.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence


class UnquotableError(ValueError):
    """A value that a dialect cannot express. The message names the place and the character."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The value that the environment variable `name` has when the wrapper runs."""

    name: str

    def __post_init__(self) -> None:
        """Refuse a name that is not valid in sh."""
        _require_variable(self.name)


Piece: TypeAlias = str | Reference
# One argument as a sequence of pieces, such as `--port=` and a reference to the port.
Word: TypeAlias = tuple[Piece, ...]

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# The kernel ends an argument at NUL, and a lone surrogate has no UTF-8 to be written in.
_NOWHERE: Final = re.compile("[\0\ud800-\udfff]")

# Valid UTF-8 except for systemd and D-Bus: the unit would run, but `systemctl status` fail.
_NONCHARACTERS: Final = "\ufdd0-\ufdef" + "".join(
    chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF)
)

_SYSTEMD_PLAIN: Final = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_SYSTEMD_SPECIAL: Final = re.compile(r'[%"\\\x01-\x1f\x7f]')


def sh_word(word: Word) -> str:
    """One word of a POSIX shell command; a variable's value is neither split nor expanded again."""
    return "".join(
        f'"${{{piece.name}}}"' if isinstance(piece, Reference) else _sh_literal(piece)
        for piece in word or ("",)
    )


def sh_default(name: str, value: str) -> str:
    """A POSIX shell command that sets the variable `name` to `value` where it is unset or empty."""
    # `: "${NAME:=value}"` would be shorter, but shells disagree on quotes between those braces.
    _require_variable(name)
    return f'[ -n "${{{name}:-}}" ] || {name}={_sh_literal(value)}'


def systemd_words(argv: Sequence[str]) -> str:
    """The command line `argv` for `ExecStart=` and similar; it begins with an absolute path."""
    _require_program(argv)
    program = argv[0]
    if not program.startswith("/"):
        raise UnquotableError(f'a systemd command must begin with "/", not "{program}"')
    _refuse(r"[\x01-\x1f\x7f'\"\\]", program, "the program of a systemd command")
    words = " ".join(map(_systemd_quoted, argv))
    # The colon turns variables off. Doubling would not do: in the program systemd undoubles "$" for
    # argv[0], but not for the path that it executes.
    return f":{words}" if "$" in words else words


def systemd_path(path: str) -> str:
    """One path of a list, as in `ReadWritePaths=`, where a backslash can only escape a quote."""
    _refuse(f"[\x01-\x1f\x7f{_NONCHARACTERS}]", path, "a path in a systemd unit")
    escaped = re.sub(r'["\\]', r"\\\g<0>", path).replace("%", "%%")
    return escaped if _SYSTEMD_PLAIN.fullmatch(path) else f'"{escaped}"'


def systemd_value(text: str) -> str:
    """A value that systemd takes whole, as in `Description=`. Nothing can be quoted there."""
    place = "a plain value in a systemd unit"
    _refuse(f"[\r\n{_NONCHARACTERS}]", text, place)
    _refuse_edges(text, place)
    if (len(text) - len(text.rstrip("\\"))) % 2:
        raise UnquotableError(f"{place} cannot end in a backslash, which would continue the line")
    return text.replace("%", "%%")


def supervisor_words(argv: Sequence[str]) -> str:
    """The command line `argv` for `command=`. A newline in it continues on an indented line."""
    _require_program(argv)
    return " ".join(map(_supervisor_quoted, argv))


def supervisor_value(text: str) -> str:
    """A value that Supervisor takes whole, as in `directory=`. Nothing can be quoted there."""
    place = "a plain value in a Supervisor configuration"
    _refuse(r"[\r\n]", text, place)
    _refuse_edges(text, place)
    _refuse(r"(?<=\s)[;#]", text, place, why=" after white space, where it begins a comment")
    if "%(here)s" in text:
        raise UnquotableError(
            f'{place} cannot contain "%(here)s", which is replaced even if quoted'
        )
    return text.replace("%", "%%")


def supervisor_logfile(path: str) -> str:
    """The path of `stdout_logfile=` or `stderr_logfile=`, which Supervisor expands twice."""
    return supervisor_value(path).replace("%", "%%")


def _sh_literal(text: str) -> str:
    _refuse(_NOWHERE, text, "a shell script")
    return shlex.quote(text)


def _systemd_quoted(text: str) -> str:
    _refuse(f"[{_NONCHARACTERS}]", text, "a systemd unit")
    escaped = _SYSTEMD_SPECIAL.sub(_systemd_escape, text)
    return escaped if _SYSTEMD_PLAIN.fullmatch(text) else f'"{escaped}"'


def _systemd_escape(match: re.Match[str]) -> str:
    character = match[0]
    if character == "%":
        return "%%"
    return "\\" + character if character in '"\\' else f"\\x{ord(character):02x}"


def _supervisor_quoted(text: str) -> str:
    # Python reads the file with universal newlines, so a carriage return never arrives as one.
    _refuse(r"\r", text, "a Supervisor command")
    quoted = shlex.quote(text).replace("%", "%%")
    # The parser of the file knows nothing of quotes: it begins a comment at ";" or "#" behind white
    # space, and "%(here)s" is replaced even where its "%" is doubled. Closing the quotes and
    # opening them again parts each of these pairs.
    quoted = re.sub(r"(?<=\s)(?=[;#])|(?<=%)(?=\()", "''", quoted)
    # The parser also strips every line of a value: so each line begins and ends with a quote.
    return quoted.replace("\n", "'\"\n \"'")


def _require_variable(name: str) -> None:
    if not _VARIABLE.fullmatch(name):
        raise UnquotableError(f'"{name}" is not the name of a variable: use A-Z, 0-9 and "_"')


def _require_program(argv: Sequence[str]) -> None:
    if not argv or not argv[0]:
        raise UnquotableError("a command must begin with a program")


def _refuse(pattern: str | re.Pattern[str], text: str, place: str, *, why: str = "") -> None:
    match = _NOWHERE.search(text) or re.search(pattern, text)
    if match is not None:
        character = match[0]
        shown = f' "{character}"' if character.isprintable() else ""
        raise UnquotableError(f"{place} cannot contain U+{ord(character):04X}{shown}{why}")


def _refuse_edges(text: str, place: str) -> None:
    if text != text.strip():
        raise UnquotableError(f"{place} cannot begin or end with white space")
