"""Reading a log as it arrives: findings, boot phases, figures. Pure; time comes with the bytes.

A log may be a hundred megabytes of ordinary lines with one that matters. So bytes are looked at in
bulk: ordinary lines are cut out, the rest is searched for a few short anchors, and only lines that
have one are taken apart. Memory is bounded whatever arrives: lines of any length (the first 16 KiB
of each are read), any bytes, any number of findings (one per signature).

What is taken apart first loses its prefixes: syslog and container times, ranks, levels, llama.cpp's
uptime. A signature then matches only the *beginning* of the message, so a prompt that quotes an
error text is no failure, and neither is the source line in a traceback.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from servicekit.diagnosis.causes import Cause
from servicekit.diagnosis.lines import ESCAPE, SHOWN, ends_inside_quotation, shown, take_apart
from servicekit.diagnosis.reading import BootFacts, DecodeFigures, LogFinding, PhaseSeen, Reading
from servicekit.diagnosis.signatures import BootPhase, Mark, Role, captures, knowledge

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from servicekit.diagnosis.lines import LogLine
    from servicekit.diagnosis.signatures import Search, Signature

_SLICE: Final = 1 << 18
"""Bytes that are looked at in one go: large enough to be fast, small enough for the cache."""
_LINE: Final = 1 << 14
"""Bytes of one line that are read; what an engine has to say stands at its beginning."""
_TAIL: Final = 1 << 13
"""Bytes of the end of the log that are kept, for a person and to see what a line follows on."""
_MESSAGE: Final = 4
"""Lines after a finding that may still belong to its message, when that spans lines."""
_TRACEBACK: Final = 2000
"""Lines of a traceback that are followed to its last one."""
_OUTLIVED_BYTES: Final = 1 << 14
_OUTLIVED_SECONDS: Final = 30.0
"""An engine that works on for so long after a finding has not died of it. Other ranks still say a
few lines after the first one failed, hence not at once."""

_FURTHER_RANK: Final = re.compile(r"(?:TP|PP|DP|EP|rank|-)[1-9]")
_TROUBLED: Final = re.compile(
    r"[\w.]*(?:Error|Exception|Exit|Interrupt)\b"
    r"|.*?(?:\bERROR\b|\bCRITICAL\b|\bFATAL\b|[Ee]rror:|[Ff]atal|[Ff]ailed to|assertion failed"
    r"|Segmentation fault|terminate called|core dumped)"
)
_TRACEBACK_BEGINS: Final = "Traceback (most recent call last):"
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
        self._cursor = self._begun = 0
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
        self._last: deque[str] = deque(maxlen=5)
        self._frames: deque[str] = deque(maxlen=2)
        self._traced = 0
        self._tracer = ""
        self._unfinished: list[_Unfinished] = []

    @property
    def engine(self) -> str:
        """The engine that wrote the log, `any` while it is not known."""
        return self._engine

    @property
    def phase(self) -> BootPhase | None:
        """The step of the boot that was reached last."""
        return next(reversed(self._phases), None)

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
        trouble = [*self._first, *(line for line in self._last if line not in self._first)]
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
        if b"\x1b" in block:
            block = ESCAPE.sub(b"", block)
        if b"\r" in block:
            block = block.replace(b"\r", b"\n")  # every state of a progress bar is a line
        original = block = b"\n" + block
        self._cursor = self._begun = 0
        if plain := self._knowledge.plain:
            block = plain.sub(b"", block)
        self._walk(block, original)
        self._read_figures(original)
        self._note_work(original, len(original))
        self._offset += len(original)
        self._tail = (self._tail + original[-_TAIL:])[-_TAIL:]

    def _walk(self, block: bytes, original: bytes) -> None:
        """Take apart the lines of `block` that have an anchor or follow on one that had."""
        starts = self._starts(block, 0)
        position = 1
        while position < len(block):
            if not (self._unfinished or self._traced):
                position = next((start for start in starts if start >= position), len(block))
                if position == len(block):
                    return
            end = block.find(b"\n", position)
            end = len(block) if end < 0 else end
            search = self._search
            self._read(block, position, end, original)
            position = end + 1
            if self._search is not search:  # it serves now, or begins anew: other lines matter
                starts = self._starts(block, position)

    def _starts(self, block: bytes, since: int) -> Iterator[int]:
        """Say where lines begin that have an anchor, in order."""
        starts: set[int] = set()
        for anchor in self._search.anchors:
            at = block.find(anchor, since)
            while at >= 0:
                starts.add(block.rfind(b"\n", 0, at) + 1)
                end = block.find(b"\n", at)
                at = block.find(anchor, end) if end >= 0 else -1
        return iter(sorted(starts))

    @property
    def _search(self) -> Search:
        known = self._knowledge
        return known.steady if BootPhase.SERVING in self._phases else known.boot

    # ---- lines ----

    def _read(self, block: bytes, start: int, end: int, original: bytes) -> None:
        raw = block[start : min(end, start + _LINE)]
        line = take_apart(raw.decode(errors="replace"))
        message = line.message.lstrip()
        self._continue(line)
        if self._trace(line):
            return
        if marks := self._marks(line, message):
            if any(mark.begins for mark in marks):
                self._begun = self._locate(raw, original)
                self._forget()
            for mark in marks:
                self._note_mark(mark, line, message)
            return
        signature = self._recognise(line, message)
        if signature is None:
            if not line.quiet and _TROUBLED.match(message, 0, SHOWN):
                self._note_trouble(line)
        elif signature.role is not Role.ECHO and not self._is_quoted(line, block, start):
            position = self._locate(raw, original)
            self._note_work(original, position)
            if signature.begins:
                self._begun = position
                self._forget()
            self._find(signature, line, message, self._offset + position)

    def _locate(self, raw: bytes, original: bytes) -> int:
        """Say where a line stood before ordinary lines were cut out of the block."""
        position = original.find(b"\n" + raw, self._cursor)
        self._cursor = position + 1
        return position

    def _continue(self, line: LogLine) -> None:
        """Let messages that began in the lines above go on in this one."""
        for unfinished in self._unfinished:
            unfinished.left -= 1
            if line.prefixed and (line.quiet or line.speaker != unfinished.speaker):
                continue
            if line.prefixed and isinstance(unfinished.source, Mark):
                continue
            unfinished.text = f"{unfinished.text} {line.message.strip()}"
            found = _captured(unfinished.source, unfinished.text)
            fresh = {name: text for name, text in found.items() if name not in unfinished.known}
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

    def _trace(self, line: LogLine) -> bool:
        """Follow tracebacks to their last line; true for the lines between first and last."""
        if line.message.rstrip().endswith(_TRACEBACK_BEGINS):
            self._traced, self._tracer = _TRACEBACK, line.speaker
            self._frames.clear()
            return False
        if not self._traced or (line.prefixed and line.speaker != self._tracer):
            return False
        line.speaker = self._tracer  # only the first line of a traceback may have a prefix
        self._traced -= 1
        if line.message.startswith(" "):
            if line.message.strip(" ^~"):
                self._frames.append(line.message)
            return True
        self._traced = 0
        return False

    def _recognise(self, line: LogLine, message: str) -> Signature | None:
        text = line.text
        for literal, signature in self._search.literals:
            if literal not in text:
                continue
            if signature.phases and self._step not in signature.phases:
                continue
            if line.quiet and not signature.any_level and signature.role is not Role.NOTICE:
                continue
            if signature.match(message):
                return signature
        return None

    def _is_quoted(self, line: LogLine, block: bytes, start: int) -> bool:
        if line.prefixed:
            return False
        above = (self._tail + block[max(0, start - _TAIL) : start])[-_TAIL:]
        return ends_inside_quotation(above.decode(errors="replace"))

    def _find(self, signature: Signature, line: LogLine, message: str, offset: int) -> None:
        known = self._findings.get(signature.id)
        if known is not None and not known.outlived:
            return
        found = _captured(signature, message)
        finding = LogFinding(
            signature=signature,
            captures=found,
            lines=(shown(line.text),),
            at=self._at,
            phase=self.phase,
            speaker=line.speaker,
        )
        self._findings.pop(signature.id, None)
        self._findings[signature.id] = finding
        self._offsets[signature.id] = offset
        self._new.append(finding)
        self._unfinished.append(_Unfinished(signature, message, line.speaker, found))
        if signature.cause is Cause.DRAFT_GRAPH_DISABLED:
            self._facts = replace(self._facts, draft_graph_disabled=True)

    def _note_trouble(self, line: LogLine) -> None:
        if not self._first:
            self._first = (*self._frames, line.text)
        elif line.text not in self._last:
            self._last.append(line.text)
        self._frames.clear()

    # ---- the boot ----

    def _marks(self, line: LogLine, message: str) -> list[Mark]:
        marks = self._search.marks
        return [mark for mark in marks if mark.literal in line.text and mark.match(message)]

    def _note_mark(self, mark: Mark, line: LogLine, message: str) -> None:
        found = _captured(mark, message)
        if self._engine == "any" and mark.engine and (mark.begins or found):
            self._engine = mark.engine  # this line only that engine writes
            self._knowledge = knowledge(mark.engine)
        self._step = None if mark.ends else mark.phase or self._step
        if mark.phase:
            self._enter(mark.phase, line)
        self._note_facts(mark, found, line)
        self._unfinished.append(_Unfinished(mark, message, line.speaker, found))

    def _enter(self, phase: BootPhase, line: LogLine) -> None:
        if phase in self._phases:
            return
        self._phases[phase] = PhaseSeen(phase, self._at, shown(line.text))
        for finding in tuple(self._findings.values()):
            if phase is BootPhase.SERVING or finding.speaker in {"", line.speaker}:
                self._outlive(finding)

    def _note_facts(self, mark: Mark, found: Mapping[str, str], line: LogLine) -> None:
        if _FURTHER_RANK.search(line.speaker):
            return
        for name, text in found.items():
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
            match = kind.match(take_apart(raw.decode(errors="replace")).message.lstrip())
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
