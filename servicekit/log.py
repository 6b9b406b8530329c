"""Writes events and the engine's lines: to the journal with fields, elsewhere as plain lines.

Nothing here blocks for long: a reader that stopped reading must not stop the watchdog. Lines that
it does not take in time are dropped and counted.
"""

from __future__ import annotations

import base64
import json
import os
import re
import select
import sys
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

from servicekit.text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

IDENTIFIER: Final = "servicekit"
BACKLOG: Final = 1 << 20  # bytes that may wait for a reader before lines are dropped
SHORTEST_SECRET: Final = 4
"""Characters from which a secret is looked for in text; a shorter one would blot out anything."""
SHORTEST_BASE64: Final = 8  # characters from which a secret is looked for in base64
_URL_SAFE: Final = str.maketrans("+/", "-_")
REDACTED: Final = "[redacted]"
_AT_ONCE: Final = select.PIPE_BUF
"""Bytes that a pipe takes without blocking once it is said to be writable."""


class Priority(IntEnum):
    """Priorities of the journal, as syslog numbers them."""

    CRITICAL = 2
    ERROR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6
    DEBUG = 7


class Redactor:
    """Removes secrets from text, also as JSON, URLs and base64 spell them, in any case.

    It cannot find a secret that a program disguises, such as one spelt backwards.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        spelt = {
            spelling
            for secret in secrets
            for spelling in _spellings(secret)
            if len(secret) >= SHORTEST_SECRET
        }
        longest_first = sorted(spelt, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first))
        self._pattern = re.compile(pattern, re.IGNORECASE) if spelt else None
        self.longest = max((len(spelling.encode()) for spelling in spelt), default=0)
        """Bytes of the longest spelling of a secret."""

    def __call__(self, text: str) -> str:
        return self._pattern.sub(REDACTED, text) if self._pattern else text

    def count(self, text: bytes) -> int:
        """Count the secrets in `text`."""
        if self._pattern is None:
            return 0
        return len(self._pattern.findall(plain(text.decode(errors="replace"))))


def _spellings(secret: str) -> Iterator[str]:
    """Yield the ways in which a program may print a secret."""
    yield from (secret, json.dumps(secret)[1:-1], quote(secret, safe=""), quote(secret))
    raw = secret.encode()
    for before in range(3):
        # Base64 of a text that has so many bytes before it, without what its neighbours share.
        encoded = base64.b64encode(bytes(before) + raw).decode("ascii")
        whole = len(encoded.rstrip("=")) - ((before + len(raw)) % 3 != 0)
        inner = encoded[(0, 2, 3)[before] : whole]
        if len(inner) >= SHORTEST_BASE64:
            yield from (inner, inner.translate(_URL_SAFE))


_LEVELS: Final[Mapping[str, Priority]] = {
    "CRITICAL": Priority.CRITICAL,
    "FATAL": Priority.CRITICAL,
    "ERROR": Priority.ERROR,
    "E": Priority.ERROR,
    "WARNING": Priority.WARNING,
    "WARN": Priority.WARNING,
    "W": Priority.WARNING,
    "INFO": Priority.INFO,
    "I": Priority.INFO,
    "DEBUG": Priority.DEBUG,
    "D": Priority.DEBUG,
}
_LEVEL: Final = re.compile(
    r"""(?:\([^)]*\)\s|\[[^\]]*\]\s)*        # (EngineCore pid=812), [2026-11-30 10:00:00 TP0]
        (?:[\d.]+\s(?=[DIWE]\s))?            # llama.cpp's clock
        (?P<level>CRITICAL|FATAL|ERROR|WARNING|WARN|INFO|DEBUG|(?<=\d\s)[DIWE])\b""",
    re.VERBOSE,
)
_BAD: Final = re.compile(
    r"""(?:\([^)]*\)\s|\[[^\]]*\]\s)*
        (?:(?:error|fatal|panic)\b[:\s]      # what programs without levels say first
        |(?:[\w.]+\.)?\w*(?:Error|Exception)(?::|$)
        |terminate\scalled|Segmentation\sfault|Aborted|Illegal\sinstruction)
        |.*\b(?:CUDA|ggml_cuda)\b.{0,20}\berror\b""",
    re.VERBOSE,
)
_TRACEBACK: Final = re.compile(
    r"^(?:\([^)]*\)\s|\[[^\]]*\]\s)*Traceback \(most recent call last\):"
)
# What an engine logs for each request that succeeds: llama.cpp's slots, and access logs.
ROUTINE: Final = re.compile(
    r"""(?:\([^)]*\)\s|\[[^\]]*\]\s)*
        (?:(?:[\d.]+\s)?[IW]\s(?:slot\s|srv\s+log_server_r:)
        |.*\s"(?:GET|POST)\s/\S*\sHTTP/[\d.]+"\s200\b)""",
    re.VERBOSE,
)


class Priorities:
    """Determines the priority of each line of an engine from its text."""

    def __init__(self) -> None:
        self._in_traceback = False

    def of(self, line: str) -> Priority:
        """Return the priority of the next line; a traceback is an error to its end."""
        if _TRACEBACK.match(line):
            self._in_traceback = True
            return Priority.ERROR
        if self._in_traceback:
            # Its frames are indented; the first line that is not names the exception.
            self._in_traceback = line.startswith((" ", "\t"))
            return Priority.ERROR
        if level := _LEVEL.match(line):
            return _LEVELS[level["level"]]
        return Priority.ERROR if _BAD.match(line) else Priority.INFO


class Output:
    """Writes lines to a descriptor whose reader may be slow, without waiting for it.

    It changes no flag of the descriptor, which may be shared with other processes.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self.gone = False  # whether its reader is

    def write(self, line: str) -> None:
        if self._size > BACKLOG:
            self._dropped += 1
        else:
            self._put(line)
        self.flush()

    def _put(self, line: str) -> None:
        data = line.encode(errors="replace") + b"\n"
        for start in range(0, len(data), _AT_ONCE):
            self._waiting.append(data[start : start + _AT_ONCE])
        self._size += len(data)

    def flush(self, limit: float = 0.0) -> bool:
        """Write what the reader takes within `limit` seconds; return whether all is written."""
        while self._waiting or self._dropped:
            if not self._waiting:
                count, self._dropped = self._dropped, 0
                self._put(f"servicekit: {count} lines were dropped, since no reader took them")
            if not self._poll.poll(limit * 1000):
                return False
            piece = self._waiting[0]
            try:
                written = os.write(self._descriptor, piece)
            except OSError:  # the reader is gone: so is the use of all this
                self._waiting.clear()
                self._size = self._dropped = 0
                self.gone = True
                return True
            self._size -= written
            if written == len(piece):
                self._waiting.popleft()
            else:
                self._waiting[0] = piece[written:]
        return True


class Events(Protocol):
    """Logs the watchdog's own events and the engine's lines."""

    def event(
        self, message: str, priority: Priority, *, message_id: str = "", **fields: str
    ) -> None:
        """Log an event; `fields` are lower case, such as `state="ready"`."""

    def engine(self, line: str, *, probe: bool = False) -> None:
        """Pass a line of the engine on; with `probe` it is one that our own request caused."""

    def flush(self) -> None:
        """Write lines that waited for a slow reader, without waiting."""

    def close(self, limit: float) -> None:
        """Wait for the reader, at most `limit` seconds, and release all resources."""


class JournalEvents:
    """Events as journal entries of their own, with fields; the engine's lines with a priority."""

    def __init__(
        self, fields: Mapping[str, str], descriptor: int, *, socket_path: str | None = None
    ) -> None:
        from logging_journald import JournaldTransport  # type: ignore[import-untyped]

        self._fields = fields
        self._transport = JournaldTransport(socket_path, connected=False)
        self._transport.socket.settimeout(0)
        self._output = Output(descriptor)
        self._priorities = Priorities()

    def event(
        self, message: str, priority: Priority, *, message_id: str = "", **fields: str
    ) -> None:
        """Send a journal entry; where the journal does not take it, write a line instead."""
        entry: dict[str, Any] = {"MESSAGE": message, "PRIORITY": int(priority)}
        entry |= {"SYSLOG_IDENTIFIER": IDENTIFIER, "MESSAGE_ID": message_id or None}
        for name, value in {**self._fields, **fields}.items():
            entry[f"SERVICEKIT_{name.upper()}"] = value or None
        try:
            self._transport.send(entry.items())
        except OSError:
            self._output.write(f"<{priority}>{message}")

    def engine(self, line: str, *, probe: bool = False) -> None:
        priority = self._priorities.of(line)
        if probe:
            priority = Priority.DEBUG
        if not self._output.gone:
            self._output.write(f"<{priority}>{line}")
        if self._output.gone:  # a journald that was stopped has closed its stream for good
            name = f"{IDENTIFIER}-{self._fields.get('profile', '')}"
            entry = {"MESSAGE": line, "PRIORITY": int(priority), "SYSLOG_IDENTIFIER": name}
            with suppress(OSError):
                self._transport.send(entry.items())

    def flush(self) -> None:
        self._output.flush()

    def close(self, limit: float) -> None:
        self._output.flush(limit)
        self._transport.socket.close()


def logfmt(fields: Mapping[str, str]) -> str:
    """Write fields as one line of logfmt; text that is not one plain word is quoted as in JSON.

    The line is printable, whatever the text is: a terminal may show it.
    """
    return " ".join(f"{name}={_quoted(text)}" for name, text in fields.items())


def _quoted(text: str) -> str:
    if not text.isprintable():
        return json.dumps(text)
    return text if _WORD.fullmatch(text) else json.dumps(text, ensure_ascii=False)


_WORD: Final = re.compile(r'[^\s="\\]+')


def _renderer(log_format: str, *, terminal: bool) -> Callable[[dict[str, str]], str]:
    """Choose how an event becomes a line.

    structlog is loaded only where its form is asked for: a service would hold 5 MiB for it as long
    as it lives.
    """
    if log_format == "json":
        from structlog.processors import JSONRenderer

        as_json = JSONRenderer()
        return lambda entry: str(as_json(None, "", dict(entry)))
    if log_format == "console" or terminal:
        from structlog.dev import ConsoleRenderer

        console = ConsoleRenderer(timestamp_key="time", colors=terminal)
        return lambda entry: console(None, "", dict(entry))
    return logfmt


class LineEvents:
    """Events and the engine's lines as plain lines on one descriptor.

    An event is a line of logfmt, for a terminal or as `console` a coloured one, as `json` an
    object. The engine's lines stay as they are, since `diagnose` reads them.
    """

    def __init__(
        self, fields: Mapping[str, str], descriptor: int, log_format: str = "auto"
    ) -> None:
        self._fields = fields
        self._output = Output(descriptor)
        self._render = _renderer(log_format, terminal=os.isatty(descriptor))

    def event(
        self, message: str, priority: Priority, *, message_id: str = "", **fields: str
    ) -> None:
        del message_id  # a catalog of explanations is the journal's alone
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {"time": now, "level": priority.name.lower(), "event": message}
        entry |= {name: text for name, text in fields.items() if text}
        self._output.write(self._render({**entry, **self._fields}))

    def engine(self, line: str, *, probe: bool = False) -> None:
        del probe  # a plain line has no priority
        self._output.write(line)

    def flush(self) -> None:
        self._output.flush()

    def close(self, limit: float) -> None:
        self._output.flush(limit)


def open_events(
    fields: Mapping[str, str],
    environment: Mapping[str, str],
    descriptor: int | None = None,
    *,
    log_format: str = "auto",
) -> Events:
    """Write to stderr or `descriptor`; with "auto", to the journal itself where it reads that."""
    if descriptor is None:
        descriptor = sys.stderr.fileno()
    reads = _journal_reads(descriptor, environment.get("JOURNAL_STREAM", ""))
    if reads and log_format == "auto":
        return JournalEvents(fields, descriptor)
    return LineEvents(fields, descriptor, log_format)


def _journal_reads(descriptor: int, stream: str) -> bool:
    """Whether `descriptor` is still the stream that systemd connected to the journal."""
    status = os.fstat(descriptor)
    return stream == f"{status.st_dev}:{status.st_ino}"
