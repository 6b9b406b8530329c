"""What engines write: signatures of failures, marks of the boot, ordinary lines. Data, read once.

The data are `signatures/*.toml`: one file per engine, `any.toml` for what every engine may write,
`host.toml` for the kernel and systemd. They hold four kinds of tables.

`[[signature]]` recognises one line that explains something:

- `id`, and `source`: where its text was read, in our words;
- `role`: `cause` (default), `symptom` (explains only where no cause was found), `notice` (nothing
  ended, but something is not as it should be) or `echo` (a wrapper, never the cause);
- `cause`: a word of `causes.Cause`; an `echo` has none;
- `literals`: plain texts, at least one of them in the line: one automaton looks for all of them,
  so more of them cost nothing, but each should be rare in ordinary lines;
- `pattern`: a regular expression for the *beginning* of the message, behind timestamps, ranks,
  levels and exception classes: what a prompt quotes in the middle of a line cannot match. Named
  groups are captures; underscores at a name's end are dropped, so that alternatives can fill the
  same capture. A name ends in its unit (`_gib`, `_mib`, `_kib`, `_mb`) where it has one;
- `phases`: only while the boot is in one of these steps;
- `boot`: only until the engine serves;
- `begins`: what stands above belongs to an earlier start;
- `any_level`: also where the engine logged it as INFO or WARNING;
- `retried`: the engine may try again with less, so where it ended, the line alone decides nothing:
  another finding must follow;
- `generic`: only the kind of line is known, so the lines that look like errors are shown with it;
- `derive`: captures made of others, `fits = "free_gib / total_gib"`, rounded down to 1/100;
- `sentence`: for a person, with captures in braces; the cause's title where one is missing;
- `remedies`: in order, or the name of a list in `[remedies]`; without them the cause's own.
  A remedy is a text, a reference to one that causes share (`@plan`), or a table of `text` and
  conditions: `engine`, `when` (all hold), `unless` (none holds). A condition is about an option of
  the profile: true (is set), false (is not), a text or number (is that), a list (is one of them),
  or `"< 0.95"` and the like. `{opt[NAME]}` in a text is the option's value. A remedy with something
  missing is left out;
- `samples` and `near`: lines that must match, and lines that must not. The tests read them.

`[[mark]]` recognises a line of the boot: `literal`, `pattern`, the `phase` that it shows, `begins`,
`ends` (the step is over with it), `clears` (ids of signatures that it takes back), and captures
that are figures of `reading.BootFacts`: the `first`, the `last` or the `sum` is kept (`keep`).

`[[figures]]` recognises a line about decoding; its captures are those of `reader.DecodeFigures`.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from servicekit import data
from servicekit.diagnosis.causes import Cause, shared_text
from servicekit.diagnosis.lines import ERROR_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FILES: Final = {
    "sglang": ("sglang", "any", "host", "kinds"),
    "vllm": ("vllm", "any", "host", "kinds"),
    "llamacpp": ("llamacpp", "any", "host", "kinds"),
    "openai": ("any", "host", "kinds"),
    "kernel": ("host",),
    "any": ("sglang", "vllm", "llamacpp", "any", "host", "kinds"),
}
"""Files to read a log of each origin with, most specific first. `any` is an unknown engine."""

# What may stand between the prefixes of a line and the message: exception classes, and the names of
# functions and modules that report.
_HEAD: Final = (
    r"(?:(?:"
    r"[\w.]{0,80}?(?:Error|Exception|Warning|Exit|OfflineMode|Timeout|OutOfResources)\w{0,40}"
    r"|Internal server error|Capture cuda graph failed|Scheduler hit an exception"
    r"|error loading model(?: architecture| hyperparameters| vocabulary)?"
    r"|failed to initialize the context|\[enforce fail at [^\]]{0,200}\][^.:]{0,80}"
    r"|error|Error|ERROR|[Ff]atal(?: error)?|FATAL"
    r"|(?:(?:srv|cmn|slot|que|spec)\s+)?(?:[a-z][a-z0-9]{0,40}_[\w()]{0,80}|main|init|load|start)"
    r"|operator\(\)|what\(\)|kernel"
    r"|\S{1,200}?\.py:\d+"
    r")[:.]\s{1,20}|Value error,\s{1,20}){0,6}"  # bounded: two readings of each would be 2^n of all
)
_OVERLAP: Final = 3  # letters of a literal's end that may begin another one
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
    file: str  # where it is written down: an engine's name, `any`, `kinds` or `host`
    role: Role
    cause: Cause | None
    source: str
    literals: tuple[str, ...]
    pattern: str
    phases: frozenset[BootPhase] = frozenset()
    boot: bool = False
    begins: bool = False
    any_level: bool = False
    generic: bool = False
    retried: bool = False
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
    pattern: str
    engine: str = ""  # the one that writes it, empty where several do
    phase: BootPhase | None = None
    begins: bool = False
    ends: bool = False
    clears: tuple[str, ...] = ()
    keep: str = "first"

    @property
    def has_captures(self) -> bool:
        """Whether the line has figures, which may continue in the next lines."""
        return compiled(self.pattern).groups > 0

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
    boot: Search  # what to look for until the engine serves
    steady: Search  # what still matters afterwards


@dataclass(frozen=True, slots=True)
class Search:
    """What a log is searched for."""

    automaton: BytesAhoCorasick  # finds every line that may matter
    leads: tuple[frozenset[str] | None, ...]
    """By number of the automaton's pattern, the ids of the signatures that a line with it may have:
    `None` for a mark, which is always read, and empty for a mere word of errors."""
    words: BytesAhoCorasick  # finds the literals of one line, overlapping ones, too
    tried: tuple[tuple[int, ...], ...]
    """By number of a literal of `words`, the places in `signatures` that it leads to."""
    signatures: tuple[Signature, ...]
    """In the order in which they are tried."""
    marks: tuple[Mark, ...]

    def candidates(self, line: bytes) -> Iterator[Signature]:
        """Yield the signatures that have a literal in `line`, in the order in which to try them."""
        found = {at for at, _, _ in self.words.find_matches_as_indexes(line, overlapping=True)}
        for place in sorted({place for at in found for place in self.tried[at]}):
            yield self.signatures[place]


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
    return Knowledge(
        signatures=signatures,
        marks=marks,
        figures=figures,
        boot=_search(signatures, marks, Implementation.ContiguousNFA),
        steady=_search(
            tuple(one for one in signatures if not one.boot or one.begins),
            tuple(mark for mark in marks if mark.begins),
            Implementation.DFA,  # twice as fast, and 2 MiB larger
        ),
    )


@cache
def document(name: str) -> dict[str, Any]:
    """Return one file as parsed, with the samples that only tests want."""
    return tomllib.loads(data.read("signatures", name))


def _signature(entry: Mapping[str, Any], file: str, shared: Mapping[str, Any]) -> Signature:
    remedies = entry.get("remedies", ())
    literals = tuple(entry["literals"])
    return Signature(
        id=entry["id"],
        file=file,
        role=Role(entry.get("role", "cause")),
        cause=Cause(entry["cause"]) if "cause" in entry else None,
        source=entry["source"],
        literals=literals,
        pattern=entry["pattern"],
        phases=frozenset(map(BootPhase, entry.get("phases", ()))),
        boot=entry.get("boot", False),
        begins=entry.get("begins", False),
        any_level=entry.get("any_level", False),
        generic=entry.get("generic", False),
        retried=entry.get("retried", False),
        derive=entry.get("derive", {}),
        sentence=entry.get("sentence", ""),
        remedies=tuple(
            Remedy(shared_text(one)) if isinstance(one, str) else Remedy(**one)
            for one in (shared[remedies] if isinstance(remedies, str) else remedies)
        ),
    )


def _mark(entry: Mapping[str, Any], file: str) -> Mark:
    phase = entry.get("phase")
    return Mark(
        literal=entry["literal"],
        pattern=entry["pattern"],
        engine="" if file in {"any", "kinds", "host"} else file,
        phase=BootPhase(phase) if phase else None,
        begins=entry.get("begins", False),
        ends=entry.get("ends", False),
        clears=tuple(entry.get("clears", ())),
        keep=entry.get("keep", "first"),
    )


def _search(
    signatures: tuple[Signature, ...], marks: tuple[Mark, ...], kind: Implementation
) -> Search:
    own: dict[bytes, set[str] | None] = {}
    places: dict[bytes, list[int]] = {}
    for place, signature in enumerate(signatures):
        for literal in map(str.encode, signature.literals):
            places.setdefault(literal, []).append(place)
            ids = own.setdefault(literal, set())
            if ids is not None:
                ids.add(signature.id)
    own |= {mark.literal.encode(): None for mark in marks}
    words = {word: set[str]() for word in ERROR_WORDS if word not in own}
    leads = _with_hidden({**own, **words})
    return Search(
        automaton=BytesAhoCorasick(leads, MatchKind.LeftmostLongest, kind),
        leads=tuple(leads.values()),
        words=BytesAhoCorasick(tuple(places)),
        tried=tuple(map(tuple, places.values())),
        signatures=signatures,
        marks=marks,
    )


def _with_hidden(own: Mapping[bytes, set[str] | None]) -> dict[bytes, frozenset[str] | None]:
    """Add to what each literal leads to what it may hide: literals in it, or begun at its end."""
    texts = tuple(own)
    inside = BytesAhoCorasick(texts)
    begun: dict[bytes, set[bytes]] = {}
    for text in texts:
        for length in range(_OVERLAP, len(text)):
            begun.setdefault(text[:length], set()).add(text)
    leads: dict[bytes, frozenset[str] | None] = {}
    for text in texts:
        hidden = {texts[n] for n, _, _ in inside.find_matches_as_indexes(text, overlapping=True)}
        for start in range(1, len(text) - _OVERLAP + 1):
            hidden |= begun.get(text[start:], set())
        ids = [own[one] for one in (text, *hidden)]
        leads[text] = None if None in ids else frozenset().union(*filter(None, ids))
    return leads
