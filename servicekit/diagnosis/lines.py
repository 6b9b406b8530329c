"""One line of a log: its prefixes, what may be shown of it, whether it is quoted. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

SHOWN: Final = 400
"""Characters of one line that are kept as evidence."""
_LOOK_BACK: Final = 200
"""Lines before an error text that are searched for the beginning of a quotation."""

ESCAPE: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_PREFIX: Final = re.compile(
    r"""
      <\d>                                              # a syslog priority
    | [A-Z][a-z]{2}\ [\ \d]\d\ [\d:]{8}(?:\.\d+)?\      # journalctl -o short
        \S+\ [^\s:\[]+(?:\[\d+\])?:\                    #
    | \d{4}-\d\d-\d\d[T\ ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\   # ISO, and behind it
        (?:std(?:out|err)\ [FP]\                        # a container's
          |\S+\ [^\s:\[]+(?:\[\d+\])?:\                 # or a journal's
          |-\ )?                                        # or Python's logging
    | \[\ *\d+\.\d{6}\]\                                # the kernel's uptime
    | \((?P<process>[\w.-]+)\ (?:rank=\d+\ )?pid=\d+(?:,\ ip=\S+)?\)\ ?     # vLLM's process, Ray's
    | \[(?P<torch>rank\d+)\]:\ ?                        # torch's rank
    | (?P<vllm>DEBUG|INFO|WARNING|ERROR|CRITICAL)\ \d\d-\d\d\ [\d:]{8}\ \[?[^\]\s]+:\d+\]\ ?
    | (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):?\ +(?:-\ \S+\ -\ [\w.]+:\ )?(?:-\ )?
    | \[\d{4}-\d\d-\d\d\ [\d:]{8}(?:[.,]\d+)?                  # SGLang's time,
        (?P<sglang>(?:\ [A-Z]+\d+)*)\]\ ?                         # and its ranks
    | \d+\.\d\d\.\d{3}\.\d{3}\ (?P<llama>[A-Z])\ (?:[a-z]{3,4}\ +)?     # llama.cpp's uptime, level
    | \[(?P<glog>[IWEF])\d{4}\ [\d:.]+\ [^\]]+\]\       # torch's C++ part
    | \[Rank\ \d+\]\ ?                                  # NCCL's rank
    """,
    re.VERBOSE,
)
_QUIET: Final = frozenset({"DEBUG", "INFO", "WARNING", "D", "I", "W"})
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
    message: str
    """Without prefixes, with its indentation."""
    prefixed: bool
    speaker: str
    quiet: bool
    """Logged as a warning or less."""


def take_apart(text: str) -> LogLine:
    """Return `text` without what stands before its message."""
    position = 0
    speaker = ""
    level = ""
    while match := _PREFIX.match(text, position):
        position = match.end()
        named = match.groupdict()
        speaker = named["process"] or named["torch"] or (named["sglang"] or "").strip() or speaker
        level = named["vllm"] or named["level"] or named["llama"] or named["glog"] or level
    return LogLine(text, text[position:], position > 0, speaker, level in _QUIET)


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
