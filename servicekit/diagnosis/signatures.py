"""What engines write: signatures of failures, marks of the boot, ordinary lines. Data, read once.

The data are `signatures/*.toml`: one file per engine, `any.toml` for what every engine may write,
`host.toml` for the kernel and systemd. They hold four kinds of tables.

`[[signature]]` recognises one line that explains something:

- `id`, and `source`: where its text was read, in our words;
- `role`: `cause` (default), `symptom` (explains only where no cause was found), `notice` (nothing
  ended, but something is not as it should be) or `echo` (a wrapper, never the cause);
- `cause`: a word of `causes.Cause`; an `echo` has none;
- `literals`: plain texts of which the line has at least one, looked for before the pattern;
- `anchors`: short texts of which every such line has one. The whole log is searched for them, so
  the fewer there are in all, the faster that goes, and CPython finds five letters twice as fast as
  seven. By default each literal is its own; none (an `echo`) means that the line is only seen where
  another anchor leads to it;
- `pattern`: a regular expression for the *beginning* of the message, behind timestamps, ranks,
  levels and exception classes: what a prompt quotes in the middle of a line cannot match. Named
  groups are captures; underscores at a name's end are dropped, so that alternatives can fill the
  same capture. A name ends in its unit (`_gib`, `_mib`, `_kib`, `_mb`) where it has one;
- `phases`: only while the boot is in one of these steps;
- `boot`: only until the engine serves;
- `begins`: what stands above belongs to an earlier start;
- `any_level`: also where the engine logged it as INFO or WARNING;
- `derive`: captures made of others, `fits = "free_gib / total_gib"`, rounded down to 1/100;
- `sentence`: for a person, with captures in braces; the cause's title where one is missing;
- `remedies`: in order, or the name of a list in `[remedies]`; without them the cause's own.
  A remedy is a text, or a table of `text` and conditions: `engine`, `when` (all hold), `unless`
  (none holds). A condition is about an option of the profile: true (is set), false (is not), a text
  or number (is that), a list (is one of them), or `"< 0.95"` and the like. `{opt[NAME]}` in a text
  is the option's value. A remedy with something missing is left out;
- `samples` and `near`: lines that must match, and lines that must not. The tests read them.

`[[mark]]` recognises a line of the boot: `literal`, `anchor`, `pattern`, the `phase` that it shows,
`begins`, `ends` (the step is over with it), and captures that are figures of `reader.BootFacts`, of
which the `first`, the `last` or the `sum` is kept (`keep`).

`[[figures]]` recognises a line about decoding; its captures are those of `reader.DecodeFigures`.

`[[plain]]` recognises, by its beginning, an ordinary line that can never explain anything: its
`pattern` is for bytes. Such lines are cut out before anything is searched for, which makes a busy
log cheap to read.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from servicekit import data
from servicekit.diagnosis.causes import Cause

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES: Final = {
    "sglang": ("sglang", "any", "host"),
    "vllm": ("vllm", "any", "host"),
    "llamacpp": ("llamacpp", "any", "host"),
    "openai": ("any", "host"),
    "kernel": ("host",),
    "any": ("sglang", "vllm", "llamacpp", "any", "host"),
}
"""Files to read a log of each origin with, most specific first. `any` is an unknown engine."""

COMMON_ANCHORS: Final = ("rror", "ailed", "imeou", "raceb")
"""Texts that most lines about failures share: one search finds them all."""

# What may stand between the prefixes of a line and the message: exception classes, and the names of
# functions and modules that report.
_HEAD: Final = (
    r"(?:(?:"
    r"[\w.]{0,80}?(?:Error|Exception|Warning|Exit|OfflineMode)\w{0,40}"
    r"|Internal server error|Capture cuda graph failed|Scheduler hit an exception"
    r"|error loading model(?: architecture| hyperparameters| vocabulary)?"
    r"|failed to initialize the context|\[enforce fail at [^\]]{0,200}\][^.:]{0,80}"
    r"|error|Error|ERROR|[Ff]atal(?: error)?|FATAL"
    r"|[a-z][a-z0-9]{0,40}_[\w()]{0,80}|operator\(\)|what\(\)"
    r"|(?:(?:srv|cmn|slot|que|spec)\s+)?(?:main|init|load|start)|kernel"
    r"|\S{1,200}?\.py:\d+"
    r")[:.]\s{1,20}|Value error,\s{1,20}){0,6}"  # bounded: two readings of each would be 2^n of all
)
_MESSAGE: Final = 2048
"""Letters of a message that are matched: patterns stay cheap on whatever a log may hold."""


class Role(StrEnum):
    """How much a signature explains."""

    CAUSE = "cause"
    SYMPTOM = "symptom"
    NOTICE = "notice"
    ECHO = "echo"


class BootPhase(StrEnum):
    """Steps of a boot, in their usual order."""

    DOWNLOADING = "downloading"
    LOADING_WEIGHTS = "loading-weights"
    ALLOCATING = "allocating"
    CAPTURING_GRAPHS = "capturing-graphs"
    WARMING_UP = "warming-up"
    SERVING = "serving"


@dataclass(frozen=True, slots=True)
class Remedy:
    """One thing that helps, and when."""

    text: str
    engine: str = ""
    when: Mapping[str, object] = field(default_factory=dict)
    unless: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Signature:
    """One line that explains something. The fields are those of the file format above."""

    id: str
    file: str
    """Where it is written down: an engine's name, `any` or `host`."""
    role: Role
    cause: Cause | None
    source: str
    literals: tuple[str, ...]
    anchors: tuple[str, ...]
    pattern: str
    phases: frozenset[BootPhase] = frozenset()
    boot: bool = False
    begins: bool = False
    any_level: bool = False
    derive: Mapping[str, str] = field(default_factory=dict)
    sentence: str = ""
    remedies: tuple[Remedy, ...] = ()

    def match(self, message: str) -> re.Match[str] | None:
        """Match the beginning of `message`, a line without its prefixes."""
        return compiled(self.pattern).match(message, 0, _MESSAGE)


@dataclass(frozen=True, slots=True)
class Mark:
    """One line of the boot."""

    literal: str
    anchor: str
    pattern: str
    engine: str = ""
    """The one that writes it, empty where several do."""
    phase: BootPhase | None = None
    begins: bool = False
    ends: bool = False
    keep: str = "first"

    def match(self, message: str) -> re.Match[str] | None:
        """Match the beginning of `message`, a line without its prefixes."""
        return compiled(self.pattern).match(message, 0, _MESSAGE)


@dataclass(frozen=True, slots=True)
class Figures:
    """One line about decoding."""

    literal: str
    pattern: str

    def match(self, message: str) -> re.Match[str] | None:
        """Match the beginning of `message`, a line without its prefixes."""
        return compiled(self.pattern).match(message, 0, _MESSAGE)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Everything that is known about the logs of one engine, and what to search for."""

    signatures: tuple[Signature, ...]
    marks: tuple[Mark, ...]
    figures: tuple[Figures, ...]
    plain: re.Pattern[bytes] | None
    """Runs of ordinary lines, each with the line break before it."""
    boot: Search
    """What to look for until the engine serves."""
    steady: Search
    """What still matters afterwards."""


@dataclass(frozen=True, slots=True)
class Search:
    """What a log is searched for."""

    anchors: tuple[bytes, ...]
    """Every line that matters has one of them."""
    literals: tuple[tuple[str, Signature], ...]
    """Each literal with its signature, in the order in which they are tried."""
    marks: tuple[Mark, ...]


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern, with what may stand before a message; on first use, since few are used."""
    return re.compile(f"{_HEAD}(?:{pattern})")


def captures(match: re.Match[str]) -> dict[str, str]:
    """Return the named groups that took part, with the underscores at their names' ends dropped."""
    return {name.rstrip("_"): text for name, text in match.groupdict().items() if text is not None}


@cache
def knowledge(engine: str) -> Knowledge:
    """Return what is known about the logs of `engine`; an unknown name is read as `any`."""
    tables = {name: document(name) for name in FILES.get(engine, FILES["any"])}
    signatures = tuple(
        _signature(entry, name, table.get("remedies", {}))
        for name, table in tables.items()
        for entry in table.get("signature", ())
    )
    marks = tuple(
        _mark(entry, name) for name, table in tables.items() for entry in table.get("mark", ())
    )
    figures = tuple(
        Figures(entry["literal"], entry["pattern"])
        for table in tables.values()
        for entry in table.get("figures", ())
    )
    plain = [entry["pattern"] for table in tables.values() for entry in table.get("plain", ())]
    return Knowledge(
        signatures=signatures,
        marks=marks,
        figures=figures,
        plain=_plain(plain),
        boot=_search(signatures, marks),
        steady=_search(
            tuple(one for one in signatures if not one.boot or one.begins),
            tuple(mark for mark in marks if mark.begins),
        ),
    )


@cache
def document(name: str) -> dict[str, Any]:
    """Return one file as parsed, with the samples that only tests want."""
    return tomllib.loads(data.read("signatures", name))


def _signature(entry: Mapping[str, Any], file: str, shared: Mapping[str, Any]) -> Signature:
    remedies = entry.get("remedies", ())
    literals = tuple(entry["literals"])
    default = () if entry.get("role") == Role.ECHO else map(_shortened, literals)
    return Signature(
        id=entry["id"],
        file=file,
        role=Role(entry.get("role", "cause")),
        cause=Cause(entry["cause"]) if "cause" in entry else None,
        source=entry["source"],
        literals=literals,
        anchors=tuple(entry.get("anchors", default)),
        pattern=entry["pattern"],
        phases=frozenset(map(BootPhase, entry.get("phases", ()))),
        boot=entry.get("boot", False),
        begins=entry.get("begins", False),
        any_level=entry.get("any_level", False),
        derive=entry.get("derive", {}),
        sentence=entry.get("sentence", ""),
        remedies=tuple(
            Remedy(one) if isinstance(one, str) else Remedy(**one)
            for one in (shared[remedies] if isinstance(remedies, str) else remedies)
        ),
    )


def _mark(entry: Mapping[str, Any], file: str) -> Mark:
    phase = entry.get("phase")
    return Mark(
        literal=entry["literal"],
        anchor=entry.get("anchor", _shortened(entry["literal"])),
        pattern=entry["pattern"],
        engine="" if file in {"any", "host"} else file,
        phase=BootPhase(phase) if phase else None,
        begins=entry.get("begins", False),
        ends=entry.get("ends", False),
        keep=entry.get("keep", "first"),
    )


def _shortened(literal: str) -> str:
    return next((common for common in COMMON_ANCHORS if common in literal), literal)


def _plain(patterns: list[str]) -> re.Pattern[bytes] | None:
    if not patterns:
        return None
    line = f"\\n(?:{'|'.join(patterns)})[^\\n]*"
    # It begins with a literal line break, which makes the search for the next candidate fast.
    # Greedy, not possessive: before Python 3.11.5 a possessive group matched what it should not.
    return re.compile(f"{line}(?:{line})*".encode())


def _search(signatures: tuple[Signature, ...], marks: tuple[Mark, ...]) -> Search:
    wanted = set(COMMON_ANCHORS)
    wanted |= {anchor for signature in signatures for anchor in signature.anchors}
    wanted |= {mark.anchor for mark in marks}
    # A text that contains another one is found with it.
    least = {one for one in wanted if not any(other != one and other in one for other in wanted)}
    return Search(
        anchors=tuple(sorted(one.encode() for one in least)),
        literals=tuple((literal, one) for one in signatures for literal in one.literals),
        marks=marks,
    )
