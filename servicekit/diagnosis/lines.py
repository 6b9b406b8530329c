"""One line of a log: its prefixes, what may be shown of it, whether it is quoted. Pure."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from typing import Final

SHOWN: Final = 400  # characters of one line that are kept as evidence
TRACEBACK: Final = "Traceback (most recent call last):"
ERROR_WORDS: Final = (
    *(b"rror", b"ERROR", b"xception", b"ailed", b"atal", b"FATAL", b"CRITICAL", b"ssert", b" E "),
    *(b"egmentation", b"terminate called", b"core dumped"),
)
"""Every line that looks like an error has one of them."""
_NARROWEST: Final = 60  # columns of a terminal
_WRAPPED: Final = 3  # lines of the full width, at least, where a terminal wrapped them
_LOOK_BACK: Final = 200  # lines before an error text that are searched for an open quotation

_ESCAPE: Final = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])"
)
# journalctl -o json writes a message with control characters, such as colours, as numbers.
_AS_NUMBERS: Final = re.compile(rb'"MESSAGE" ?: ?\[([\d, ]{1,65536})\]')
_IN_JSON: Final = re.compile(
    r'(?:data: |\x1e)?\{.{0,4000}?"(?:MESSAGE|log)" ?: ?("(?:[^"\\]|\\.)*")'
    r'|[ \t]*"MESSAGE" ?: ?("(?:[^"\\]|\\.)*"),?$'
    r'| {9}"msg": ("(?:[^"\\]|\\.)*"),?$'  # dmesg --json
)
_PREFIX: Final = re.compile(
    r"""
      <\d>                                              # a syslog priority
    | <\d{1,3}>1(?:\ \S+){5}\ (?:-|\[[^\]]*\])\           # RFC 5424
    | (?:[A-Z][a-z]{2}\ )?[A-Z][a-z]{2}\ [\ \d]\d\ [\d:]{8}(?:\.\d+)?\      # journalctl -o short
        \S+\ [^\s:\[]+(?:\[\d+\])?:\                   #
    | (?:[A-Z][a-z]{2}\ )?\d{4}-\d\d-\d\d[T\ ]\d\d:\d\d:\d\d(?:[.,]\d+)?
        (?:Z|[+-]\d\d:?\d\d|\ [A-Z]{3,4}(?=\ ))?\ +     # ISO, -o short-full, then
        (?:std(?:out|err)\ [FP]\                        # a container's
          |-\ [\w.]{1,60}\ -\ (?P<named>[A-Z]+)\ -\       # or Python's logging with a name
          |\|\ (?P<loguru>[A-Z]+)\ +\|\ \S+:\S*:\d+\ -\     # or loguru's
          |\S+\ [^\s:\[]+(?:\[\d+\])?:\                 # or a journal's
          |-\ )?                                        # or Python's logging
    | \d{10}\.\d{6}\ \S+\ [^\s:\[]+(?:\[\d+\])?:\      # journalctl -o short-unix
    | [A-Z][a-z]{2}\ [\ \d]\d\ \d\d:\d\d:\d\d\          # a time alone, as `ts` has it
    | \d{4}/\d\d/\d\d\ [\d:]{8}(?:\.\d+)?\ (?:[\w.]+\.go:\d+:\ )?  # Go's log
    | \[\d\d:\d\d:\d\d\]\                               # rich
    | \[\ *\d+\.\d{6}(?:\ *<\ *[\d.]+\ *>|\ +)?\]       # kernel's uptime, short-delta
        (?:\ \S+\ [^\s:\[]+(?:\[\d+\])?:)?\ ?            #
    | \[(?:[A-Z][a-z]{2}\ ?\d{1,2}\ \d\d:\d\d|\ *[+<]\ *\d+\.\d{6}>?)\]\   # dmesg -H
    | [a-z]{3,8}\ *:[a-z]{3,7}\ *:\ (?=\[)               # dmesg -x
    | \[\ *[TC]\d+\]\ ?                                # the kernel's caller
    | \ {4,}(?=NVRM:\ )                               # a further line of the driver
    | \[[A-Z][a-z]{2}\ [A-Z][a-z]{2}\ [\ \d]\d\ [\d:]{8}\ \d{4}\]\    # dmesg -T
    | [\ \t]*_?MESSAGE=                                # journalctl -o verbose and export
    | [\w.-]{1,80}\ +\|\                               # docker compose
    | \ {2,}[|+]\                                      # an exception group
    | \((?:(?P<process>[\w.-]+),?\ )?(?:rank=\d+\ )?pid=\d+(?:,\ ip=\S+)?\)\ ?  # vLLM's, Ray's
    | \[(?P<torch>(?:rank|default)\d+)\]:\ ?              # torch's rank, torchrun's
    | (?P<vllm>DEBUG|INFO|WARNING|ERROR|CRITICAL)\ (?:\d\d-\d\d\ [\d:]{8}\ \[?|\[)[^\]\s]+:\d+\]\ ?
    | \[(?P<structlog>debug|info|warning|error|critical)\ *\]\       # structlog's level
    | (?:time|ts)=\S+\ level=(?P<logfmt>\w+)\ (?:\w+=\S+\ )*msg="?  # logfmt
    | (?P<basic>DEBUG|INFO|WARNING|ERROR|CRITICAL):[A-Za-z_][\w.]*:(?=\S)  # logging's default
    | \[(?P<bracket>DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\]\ ?
    | (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):?\ +(?:-\ \S+\ -\ (?:[a-z][\w.]*:\ )?)?(?:-\ )?
    | \[\d{4}-\d\d-\d\d\ [\d:]{8}(?:[.,]\d+)?                  # SGLang's time,
        (?P<sglang>(?:\ [A-Z]+\d+)*)\]\ ?                         # and its ranks
    | (?:\d+\.\d\d\.\d{3}\.\d{3}\ (?P<llama>[A-Z])\            # llama.cpp's uptime, level
        |(?P<short>[DIWE])\ (?=(?:srv|cmn|slot|que|spec)\ |\w+_\w+:))
        (?:[a-z]{3,4}\ +)?
    | \[(?P<glog>[IWEF])\d{4}\ [\d:.]+\ [^\]]+\]\       # torch's C++ part
    | \[Rank\ \d+\]\ ?                                  # NCCL's rank
    """,
    re.VERBOSE,
)
_LEVELS: Final = (
    *("vllm", "level", "bracket", "llama", "short", "glog", "loguru"),
    *("named", "structlog", "logfmt", "basic"),
)
_QUIET: Final = frozenset({"DEBUG", "INFO", "WARNING", "D", "I", "W", "WARN", "TRACE", "SUCCESS"})
_LOUD: Final = frozenset({"ERROR", "CRITICAL", "E", "F"})
_TROUBLED: Final = re.compile(
    r"[\w.]*(?:Error|Exception|Exit|Interrupt)\b"
    r"|.*?(?:\bERROR\b|\bCRITICAL\b|\bFATAL\b|[Ee]rror:|[Ff]atal|[Ff]ailed to|[Aa]ssertion"
    r"|_ASSERT|Segmentation fault|terminate called|core dumped)"
)
_OPENED: Final = re.compile(
    r"(?:prompt|text|content|message|input|example_format)\w*['\"]?\s*[:=]\s*(['\"])"
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffd]")
_SECRET: Final = re.compile(
    r"(?i)(?P<name>(?:api[_-]?keys?|token|password|secret|authorization)['\"]?\s*[:=]\s*"
    r"|--(?:admin-)?api-key\s+)"
    r"(?:bearer\s+)?(?!None\b|null\b|True\b|False\b)(?P<quote>['\"\[(]*)[^\s'\",)\]]{4,}"
    r"|\bhf_\w{8,}|\bsk-[\w-]{8,}"
)


@dataclass(slots=True)
class LogLine:
    """One line, taken apart."""

    text: str
    message: str  # without prefixes, with its indentation
    prefixed: bool
    speaker: str
    level: str

    @property
    def quiet(self) -> bool:
        """Whether it was logged as a warning or less."""
        return self.level in _QUIET

    @property
    def is_code(self) -> bool:
        """Whether it is a source line of a traceback."""
        return self.message.startswith("    ")

    @property
    def troubled(self) -> bool:
        """Whether it looks like an error, by its level or by its words."""
        if self.quiet or self.message.startswith("  "):
            return False
        return self.level in _LOUD or _TROUBLED.match(self.message, 0, SHOWN) is not None


def plain_lines(block: bytes) -> bytes:
    """Return whole lines of a log without colours, and with every state of a progress bar."""
    if b'"MESSAGE' in block:
        block = _AS_NUMBERS.sub(_as_text, block)
    if b"\x1b" in block:
        block = _ESCAPE.sub(b"", block)
    return block.replace(b"\r", b"\n") if b"\r" in block else block


def unwrapped(log: bytes) -> bytes:
    """Return a log without the line breaks of the terminal that it was copied from.

    It was wrapped if no line is longer than some width, several different lines have exactly that
    width, and what follows them begins like no line of a log.
    """
    lines = log.splitlines()
    width = max(map(len, lines), default=0)
    full = [number for number, line in enumerate(lines) if len(line) == width]
    following = [lines[number + 1] for number in full if number + 1 < len(lines)]
    if (
        width < _NARROWEST
        or len({lines[number] for number in full}) < max(_WRAPPED, len(full), len(lines) / 20)
        or any(_PREFIX.match(line.decode(errors="replace")) for line in following)
    ):
        return log
    return b"".join(line if len(line) == width else line + b"\n" for line in lines)


def _as_text(message: re.Match[bytes]) -> bytes:
    numbers = (int(number) for number in message[1].split(b",") if number.strip())
    text = bytes(number & 0xFF for number in numbers).decode(errors="replace")
    return b'"MESSAGE":' + json.dumps(text).encode()


def take_apart(text: str) -> LogLine:
    """Return `text` without what stands before its message."""
    if '"' in text[:4096] and (inside := _IN_JSON.match(text)):
        with contextlib.suppress(ValueError):  # not JSON after all
            text = json.loads(inside[1] or inside[2] or inside[3]).rstrip("\n")
        text = _ESCAPE.sub(b"", text.encode(errors="replace")).decode(errors="replace")
        rest = take_apart(text)
        rest.prefixed = True
        return rest
    position = 0
    speaker = ""
    level = ""
    while match := _PREFIX.match(text, position):
        position = match.end()
        named = match.groupdict()
        speaker = named["process"] or named["torch"] or (named["sglang"] or "").strip() or speaker
        level = next((named[name].upper() for name in _LEVELS if named[name]), level)
    return LogLine(text, text[position:], position > 0, speaker, level)


def shown(text: str) -> str:
    """Return a line as a person may see it: no control characters, no secrets, not too long."""
    clean = _CONTROL.sub(" ", text[: 4 * SHOWN])
    clean = _SECRET.sub(lambda found: f"{found['name'] or ''}***", clean).rstrip()
    return clean if len(clean) <= SHOWN else f"{clean[: SHOWN - 4]} ..."


def ends_inside_quotation(above: str) -> bool:
    """Whether a quotation is open at the end of `above`, the text before a line without prefix."""
    between: list[str] = []
    for text in above.splitlines()[: -_LOOK_BACK - 1 : -1]:
        if opened := _last(_OPENED, text):
            closing = re.compile(rf"{opened[1]}\s*(?:[,)\]}}].*)?$")
            return not any(map(closing.search, [text[opened.end() :], *between]))
        if _PREFIX.match(text):
            return False
        if not text.startswith("  "):  # in a traceback that is quoted too
            between.append(text)
    return False


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(reversed(list(pattern.finditer(text))), None)
