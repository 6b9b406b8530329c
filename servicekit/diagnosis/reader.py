"""Reading a log as it arrives: findings, boot phases, figures. Pure; time comes with the bytes.

A log may be a hundred megabytes of ordinary lines with one that matters. One automaton over all
literals finds the lines that may matter; only those are taken apart. Memory is bounded whatever
arrives: lines of any length (the first 16 KiB of each are read), any bytes, any number of findings
(one per signature), and only the last lines that look like errors.

A line first loses its prefixes: syslog and container times, ranks, levels, llama.cpp's uptime. A
signature then matches only the *beginning* of the message, so a prompt that quotes an error text is
not a failure, and neither is the source line in a traceback.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from servicekit.diagnosis.causes import Cause
from servicekit.diagnosis.lines import (
    ERROR_WORDS,
    TRACEBACK,
    ends_inside_quotation,
    plain_lines,
    shown,
    take_apart,
)
from servicekit.diagnosis.reading import BootFacts, DecodeFigures, LogFinding, PhaseSeen, Reading
from servicekit.diagnosis.signatures import BootPhase, Mark, Role, captures, knowledge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from servicekit.diagnosis.lines import LogLine
    from servicekit.diagnosis.signatures import Search, Signature

    Hit = tuple[int, int, int]  # number of a pattern, begin, end

_SLICE: Final = 1 << 18  # bytes searched at a time: large enough to be fast, fits the cache
_LINE: Final = 1 << 14  # bytes of one line that are read; a message begins its line
_TAIL: Final = 1 << 13  # bytes of the end of the log that are kept
_MESSAGE: Final = 4  # lines after a finding that may still belong to its message
_SUSPECTS: Final = 64  # last lines with the word of an error that are kept
_TROUBLE: Final = 5  # of those, lines that are shown
_OUTLIVED_BYTES: Final = 1 << 14
# An engine that goes on working for this long did not die of a finding. Other ranks still write a
# few lines after the first one failed, hence not at once.
_OUTLIVED_SECONDS: Final = 30.0

_FURTHER_RANK: Final = re.compile(r"(?:TP|PP|DP|EP|rank|-)[1-9]")
_WORKED: Final = (b'completions HTTP/1.1" 200', b"Decode batch", b"print_timing: ")
_MIB_PER_GIB: Final = 1024
_PERCENT: Final = 100


@dataclass(slots=True)
class _Unfinished:
    """A message that may go on in the next lines."""

    source: Signature | Mark
    text: str
    speaker: str
    known: Mapping[str, str]
    left: int = _MESSAGE


class LogReader:
    """Reads one log. Feed bytes as they come, ask for `reading()` at any time.

    `engine` is the name of an engine, `kernel` for what the kernel and the manager write, or `any`:
    then the engine is recognised by its boot log. `at` is the time of the bytes in seconds on any
    monotonic clock; leave it out for a log whose times do not matter.
    """

    def __init__(self, engine: str = "any") -> None:
        self._engine = engine
        self._knowledge = knowledge(engine)
        self._partial = b""
        self._tail = b""
        self._offset = 0
        self._begun = 0
        self._at = 0.0
        self._new: list[LogFinding] = []
        self._forget()

    def _forget(self) -> None:
        """Begin a new start: nothing of an earlier one explains how this one ends."""
        self._findings: dict[str, LogFinding] = {}
        self._offsets: dict[str, int] = {}
        self._phases: dict[BootPhase, PhaseSeen] = {}
        self._step: BootPhase | None = None
        self._facts = BootFacts()
        self._decode: DecodeFigures | None = None
        self._first: tuple[str, ...] = ()
        self._suspects: deque[bytes] = deque(maxlen=_SUSPECTS)
        self._unfinished: list[_Unfinished] = []

    @property
    def engine(self) -> str:
        """The engine that wrote the log, `any` while it is not known."""
        return self._engine

    @property
    def phase(self) -> BootPhase | None:
        """The step of the boot that was reached last."""
        return next(reversed(self._phases), None)

    @property
    def facts(self) -> BootFacts:
        """What the boot log has said so far about memory and limits."""
        return self._facts

    def feed(self, data: bytes, at: float = 0.0) -> tuple[LogFinding, ...]:
        """Read `data`, which may begin and end anywhere, and return what it newly showed."""
        self._at = at
        for start in range(0, len(data), _SLICE):
            self._take(data[start : start + _SLICE])
        return self._collected()

    def feed_line(self, line: str, at: float = 0.0) -> tuple[LogFinding, ...]:
        """Read one line of text without its line break."""
        return self.feed(line.encode(errors="surrogateescape") + b"\n", at)

    def close(self) -> tuple[LogFinding, ...]:
        """Read a last line that has no line break. More may still be fed."""
        block, self._partial = self._partial, b""
        if block:
            self._scan(block)
        return self._collected()

    def reading(self) -> Reading:
        """Return what the log has said so far."""
        last = [line.text for line in map(_parsed, self._suspects) if line.troubled]
        last = [text for text in dict.fromkeys(last) if text not in self._first]
        trouble = [*self._first, *last[-_TROUBLE:]]
        return Reading(
            engine=self._engine,
            findings=tuple(self._findings.values()),
            phases=tuple(self._phases.values()),
            facts=self._facts,
            decode=self._decode,
            trouble=tuple(map(shown, trouble)),
            end=self._tail,
        )

    # ---- bytes ----

    def _collected(self) -> tuple[LogFinding, ...]:
        new, self._new = tuple(self._new), []
        return new

    def _take(self, piece: bytes) -> None:
        breaks = [at for at in (piece.find(b"\n"), piece.find(b"\r")) if at >= 0]
        if not breaks:
            self._keep(piece)
            return
        first, last = min(breaks), max(piece.rfind(b"\n"), piece.rfind(b"\r"))
        self._keep(piece[:first])
        block, self._partial = self._partial + piece[first:last], b""
        self._keep(piece[last + 1 :])
        self._scan(block)

    def _keep(self, rest: bytes) -> None:
        """Hold on to the beginning of a line that has not ended yet."""
        room = _LINE - len(self._partial)
        self._partial += rest[:room]
        self._offset += max(0, len(rest) - room)

    def _scan(self, block: bytes) -> None:
        """Read whole lines."""
        block = b"\n" + plain_lines(block)
        self._begun = 0
        hits = self._search.automaton.find_matches_as_indexes(block)
        explained = self._walk(block, hits)
        self._note_suspects(block, hits, explained)
        self._read_figures(block)
        self._note_work(block, len(block))
        self._offset += len(block)
        self._tail = (self._tail + block[-_TAIL:])[-_TAIL:]

    def _walk(self, block: bytes, hits: list[Hit]) -> set[int]:
        """Read the lines that may matter, and those that may continue one; return the explained."""
        explained: set[int] = set()
        starts = self._starts(block, hits, 0)
        position = 1
        while position < len(block):
            if not self._unfinished:
                position = next((start for start in starts if start >= position), len(block))
                if position == len(block):
                    break
            end = block.find(b"\n", position)
            end = len(block) if end < 0 else end
            search = self._search
            if self._read(block, position, end):
                explained.add(position)
            position = end + 1
            if self._search is not search:  # it serves now, or begins again: other lines matter
                rest = self._search.automaton.find_matches_as_indexes(block[position:])
                starts = self._starts(block, rest, position)
        return explained

    def _starts(self, block: bytes, hits: list[Hit], since: int) -> Iterator[int]:
        """Yield where lines begin that have a literal of a signature not yet found, in order."""
        leads, read = self._search.leads, -1
        for pattern, start, _ in hits:
            signatures = leads[pattern]
            if signatures is not None and all(map(self._is_settled, signatures)):
                continue
            if start + since <= read:
                continue
            yield block.rfind(b"\n", 0, start + since) + 1
            read = block.find(b"\n", start + since)
            if read < 0:
                return

    def _is_settled(self, signature: str) -> bool:
        finding = self._findings.get(signature)
        return finding is not None and not finding.outlived

    def _note_suspects(self, block: bytes, hits: list[Hit], explained: set[int]) -> None:
        """Keep the lines that look like errors: the first one, and the last of the log."""
        places = [at for _, at, _ in hits if at >= self._begun]
        if not self._first:
            for start, raw in self._suspicious(block, places):
                line = _parsed(raw)
                if start not in explained and line.troubled:
                    self._first = (*self._frames(line, block, start), line.text)
                    break
        last = list(islice(self._suspicious(block, reversed(places)), _SUSPECTS))
        self._suspects.extend(raw for start, raw in reversed(last) if start not in explained)

    @staticmethod
    def _suspicious(block: bytes, places: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """Yield each line at `places` that has the word of an error, with where it begins."""
        start = end = -1
        for at in places:
            if start <= at < end:
                continue
            start, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
            end = len(block) if end < 0 else end
            raw = block[start : min(end, start + _LINE)]
            if any(word in raw for word in ERROR_WORDS):
                yield start, raw

    def _frames(self, line: LogLine, block: bytes, start: int) -> tuple[str, ...]:
        """Return the last two lines of the traceback that ends with `line` at `start`."""
        frames: list[str] = []
        for text in reversed(self._above(block, start).splitlines()):
            above = take_apart(text)
            if above.message.rstrip().endswith(TRACEBACK):
                return tuple(reversed(frames[:2]))
            if above.prefixed and above.speaker != line.speaker:
                continue  # another rank
            if not above.message.startswith("  "):
                break
            if above.message.strip(" ^~"):
                frames.append(above.message)
        return ()

    def _above(self, block: bytes, start: int) -> str:
        above = self._tail + block[max(0, start - _TAIL) : start]
        return above[-_TAIL:].decode(errors="replace")

    @property
    def _search(self) -> Search:
        known = self._knowledge
        return known.steady if BootPhase.SERVING in self._phases else known.boot

    # ---- lines ----

    def _read(self, block: bytes, start: int, end: int) -> bool:
        """Read one line; true where it is a mark, or a signature recognises it."""
        line = _parsed(block[start : min(end, start + _LINE)])
        self._continue(line)
        if line.is_code:
            return True
        message = line.message.lstrip()
        if marks := self._marks(line, message):
            if any(mark.begins for mark in marks):
                self._begun = start
                self._forget()
            for mark in marks:
                self._note_mark(mark, line, message)
            return True
        signature = self._recognise(line, message)
        if signature is None:
            return False
        if signature.role is not Role.ECHO and not self._is_quoted(line, block, start):
            self._note_work(block, start)
            if signature.begins:
                self._begun = start
                self._forget()
            self._attribute(line, block, start)
            self._find(signature, line, message, self._offset + start)
        return not signature.generic

    def _attribute(self, line: LogLine, block: bytes, start: int) -> None:
        """Give the last line of a traceback the speaker of its first, which alone has a prefix."""
        if line.prefixed or line.speaker:
            return
        for text in reversed(self._above(block, start).splitlines()):
            above = take_apart(text)
            if above.message.rstrip().endswith(TRACEBACK):
                line.speaker = above.speaker
            elif not above.prefixed and above.message.startswith(" "):
                continue
            return

    def _continue(self, line: LogLine) -> None:
        """Let messages that began in the lines above go on in this one."""
        for unfinished in self._unfinished:
            unfinished.left -= 1
            if line.prefixed and (line.quiet or line.speaker != unfinished.speaker):
                continue
            if line.prefixed and isinstance(unfinished.source, Mark):
                continue
            unfinished.text = f"{unfinished.text} {line.message.strip()}"
            captures = _captured(unfinished.source, unfinished.text)
            fresh = {name: text for name, text in captures.items() if name not in unfinished.known}
            if not fresh:
                continue
            unfinished.known = {**unfinished.known, **fresh}
            if isinstance(unfinished.source, Mark):
                self._note_facts(unfinished.source, fresh, line)
            else:
                finding = self._findings[unfinished.source.id]
                self._findings[unfinished.source.id] = replace(
                    finding, captures=unfinished.known, lines=(*finding.lines, shown(line.text))
                )
        self._unfinished = [one for one in self._unfinished if one.left > 0]

    def _recognise(self, line: LogLine, message: str) -> Signature | None:
        for signature in self._search.candidates(line.text.encode(errors="replace")):
            if signature.phases and self._step not in signature.phases:
                continue
            if line.quiet and not signature.any_level and signature.role is not Role.NOTICE:
                continue
            if signature.match(message):
                return signature
        return None

    def _is_quoted(self, line: LogLine, block: bytes, start: int) -> bool:
        return not line.prefixed and ends_inside_quotation(self._above(block, start))

    def _find(self, signature: Signature, line: LogLine, message: str, offset: int) -> None:
        known = self._findings.get(signature.id)
        if known is not None and not known.outlived:
            return
        captures = _captured(signature, message)
        finding = LogFinding(
            signature=signature,
            captures=captures,
            lines=(shown(line.text),),
            at=self._at,
            phase=self.phase,
            speaker=line.speaker,
        )
        self._findings.pop(signature.id, None)
        self._findings[signature.id] = finding
        self._offsets[signature.id] = offset
        self._new.append(finding)
        self._unfinished.append(_Unfinished(signature, message, line.speaker, captures))
        if signature.cause is Cause.DRAFT_GRAPH_DISABLED:
            self._facts = replace(self._facts, draft_graph_disabled=True)

    # ---- the boot ----

    def _marks(self, line: LogLine, message: str) -> list[Mark]:
        marks = self._search.marks
        return [mark for mark in marks if mark.literal in line.text and mark.match(message)]

    def _note_mark(self, mark: Mark, line: LogLine, message: str) -> None:
        captures = _captured(mark, message)
        if self._engine == "any" and mark.engine and (mark.begins or captures):
            self._engine = mark.engine  # this line only that engine writes
            self._knowledge = knowledge(mark.engine)
        self._step = None if mark.ends else mark.phase or self._step
        if mark.phase:
            self._enter(mark.phase, line)
        self._note_facts(mark, captures, line)
        for cleared in mark.clears:
            self._findings.pop(cleared, None)
        if mark.has_captures:
            self._unfinished.append(_Unfinished(mark, message, line.speaker, captures))

    def _enter(self, phase: BootPhase, line: LogLine) -> None:
        if phase in self._phases:
            return
        self._phases[phase] = PhaseSeen(phase, self._at, shown(line.text))
        for finding in tuple(self._findings.values()):
            if phase is BootPhase.SERVING or finding.speaker in {"", line.speaker}:
                self._outlive(finding)

    def _note_facts(self, mark: Mark, captures: Mapping[str, str], line: LogLine) -> None:
        if _FURTHER_RANK.search(line.speaker):
            return
        for name, text in captures.items():
            number = float(text.replace(",", ""))
            if name == "slot_tokens":
                self._facts = replace(
                    self._facts, kv_tokens=int(number), declared_context=int(number)
                )
                continue
            figure = name
            if name.endswith("_mib"):
                figure, number = f"{name.removesuffix('_mib')}_gib", number / _MIB_PER_GIB
            known = getattr(self._facts, figure)
            if known is not None and mark.keep == "first":
                continue
            if mark.keep == "sum":
                number += known or 0
            value: Any = round(number, 3) if figure.endswith("_gib") else int(number)
            self._facts = replace(self._facts, **{figure: value})

    # ---- afterwards ----

    def _read_figures(self, block: bytes) -> None:
        """Read the last line of each kind about decoding: of thousands only that one matters."""
        for kind in self._knowledge.figures:
            at = block.rfind(kind.literal.encode(), self._begun)
            if at < 0:
                continue
            start, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
            raw = block[start : min(len(block) if end < 0 else end, start + _LINE)]
            match = kind.match(_parsed(raw).message.lstrip())
            if match:
                decode = self._decode or DecodeFigures()
                figures: dict[str, Any] = dict(map(_figure, match.groupdict().items()))
                self._decode = replace(decode, at=self._at, **figures)

    def _note_work(self, block: bytes, end: int) -> None:
        """Mark what the engine has outlived before `end`: it went on answering long afterwards."""
        alive = [
            finding
            for finding in self._findings.values()
            if not finding.outlived and finding.signature.role is not Role.NOTICE
        ]
        if not alive:
            return
        worked = max(block.rfind(sign, 0, end) for sign in _WORKED)
        for finding in alive if worked >= 0 else ():
            distance = self._offset + worked - self._offsets[finding.signature.id]
            if distance > _OUTLIVED_BYTES or (
                distance > 0 and self._at - finding.at > _OUTLIVED_SECONDS
            ):
                self._outlive(finding)

    def _outlive(self, finding: LogFinding) -> None:
        if finding.signature.role is not Role.NOTICE:
            self._findings[finding.signature.id] = replace(finding, outlived=True)


def _parsed(raw: bytes) -> LogLine:
    return take_apart(raw.decode(errors="replace"))


def _captured(source: Signature | Mark, message: str) -> dict[str, str]:
    match = source.match(message)
    return {name: shown(text) for name, text in captures(match).items()} if match else {}


def _figure(group: tuple[str, str | None]) -> tuple[str, float | int | bool | None]:
    """Return a group of a line about decoding as the field that it fills."""
    name, text = group
    field_name = name.removesuffix("_percent")
    if text is None:
        return field_name, None
    if name == "cuda_graph":
        return name, text == "True"
    if name in {"running", "queued"}:
        return name, int(text)
    part = float(text) / _PERCENT if name.endswith("_percent") else float(text)
    return field_name, round(part, 4)
