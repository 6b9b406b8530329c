"""Signature files: every sample is recognised, no near miss is, and every reference holds."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from servicekit.diagnosis.causes import Cause
from servicekit.diagnosis.lines import take_apart
from servicekit.diagnosis.reader import LogReader
from servicekit.diagnosis.reading import BootFacts, DecodeFigures
from servicekit.diagnosis.signatures import (
    FILES,
    BootPhase,
    Role,
    compiled,
    document,
    knowledge,
)

if TYPE_CHECKING:
    from types import FrameType

    from servicekit.diagnosis.signatures import Signature

ENTRIES = [(name, entry) for name in FILES["any"] for entry in document(name)["signature"]]
SAMPLES = [(name, entry, line) for name, entry in ENTRIES for line in entry["samples"]]
NEAR = [(name, entry, line) for name, entry in ENTRIES for line in entry["near"]]
READ_BY = {"any": "openai", "kinds": "openai", "host": "kernel"}
"""Who reads the lines of a file that belongs to no engine."""
BOOTS = {
    BootPhase.CAPTURING_GRAPHS: "Capture target decode CUDA graph begin. backend=full, bs=[1]",
    BootPhase.WARMING_UP: "max_total_num_tokens=38688, max_running_requests=6, context_len=262144",
}
"""Lines of SGLang that bring a boot into a step."""


def _reader(name: str, entry: dict[str, Any]) -> LogReader:
    if "phases" not in entry:
        return LogReader(READ_BY.get(name, name))
    reader = LogReader("sglang")
    reader.feed_line(BOOTS[BootPhase(entry["phases"][0])])
    for _ in range(4):
        reader.feed_line("")
    return reader


def known_signatures() -> tuple[Signature, ...]:
    """Return the signatures of all files."""
    return knowledge("any").signatures


def entries_by_id() -> dict[str, dict[str, Any]]:
    """Return the signatures of all files as they are written."""
    return {entry["id"]: entry for _, entry in ENTRIES}


def _ids(parameter: object) -> str:
    return parameter["id"] if isinstance(parameter, dict) else ""


@pytest.mark.parametrize(("name", "entry", "line"), SAMPLES, ids=_ids)
def test_every_sample_is_recognised(name: str, entry: dict[str, Any], line: str) -> None:
    """A sample, fed through the whole reader, is found under its own signature and no other."""
    reader = _reader(name, entry)
    found = [finding.signature.id for finding in reader.feed_line(line)]
    if entry.get("role") == Role.ECHO:
        assert found == []
        assert reader.reading().trouble == ()
    else:
        assert found == [entry["id"]]


@pytest.mark.parametrize(("name", "entry", "line"), NEAR, ids=_ids)
def test_no_near_miss_is_recognised(name: str, entry: dict[str, Any], line: str) -> None:
    """A near miss is not found under the signature that it resembles."""
    found = [finding.signature.id for finding in _reader(name, entry).feed_line(line)]
    assert entry["id"] not in found


@pytest.mark.parametrize(("name", "entry"), ENTRIES, ids=_ids)
def test_no_signature_asks_for_captures_that_it_cannot_have(
    name: str, entry: dict[str, Any]
) -> None:
    """Every brace in a sentence or remedy is a capture of the pattern, derived, or an option."""
    known = {group.rstrip("_") for group in compiled(entry["pattern"]).groupindex}
    known |= {*entry.get("derive", {}), "profile"}
    remedies = entry.get("remedies", [])
    if isinstance(remedies, str):
        remedies = document(name)["remedies"][remedies]
    texts = [entry.get("sentence", "")]
    texts += [one if isinstance(one, str) else one["text"] for one in remedies]
    wanted = {brace for text in texts for brace in re.findall(r"\{(\w+)\}", text)}
    assert wanted <= known


@pytest.mark.parametrize(("name", "entry"), ENTRIES, ids=_ids)
def test_options_in_remedies_are_real(name: str, entry: dict[str, Any]) -> None:
    """A remedy that shows an option's value holds only where that option is set."""
    remedies = entry.get("remedies", [])
    if isinstance(remedies, str):
        remedies = document(name)["remedies"][remedies]
    for remedy in remedies:
        text = remedy if isinstance(remedy, str) else remedy["text"]
        when = {} if isinstance(remedy, str) else remedy.get("when", {})
        for option in re.findall(r"\{opt\[([^]]+)\]\}", text):
            assert when.get(option, False) is not False


def test_ids_are_unique() -> None:
    """No two signatures of all files share an id."""
    ids = [entry["id"] for _, entry in ENTRIES]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("engine", FILES)
def test_marks_take_back_only_what_exists(engine: str) -> None:
    """A line that takes findings back names signatures of the same files."""
    known = knowledge(engine)
    ids = {signature.id for signature in known.signatures}
    for mark in known.marks:
        assert set(mark.clears) <= ids, mark.literal


def test_captures_of_the_boot_and_of_decoding_are_fields() -> None:
    """Every capture of a mark or of figures names a field, apart from its unit."""
    facts = {*BootFacts.__dataclass_fields__, "slot_tokens"}
    figures = set(DecodeFigures.__dataclass_fields__)
    known = knowledge("any")
    for mark in known.marks:
        for group in compiled(mark.pattern).groupindex:
            assert group.rstrip("_").replace("_mib", "_gib") in facts
    for kind in known.figures:
        for group in compiled(kind.pattern).groupindex:
            assert group.rstrip("_").removesuffix("_percent") in figures


def test_an_echo_has_no_cause_and_everything_else_has_one() -> None:
    """Wrappers are never a cause; whatever explains has one of the closed list."""
    for signature in knowledge("any").signatures:
        assert (signature.cause is None) == (signature.role is Role.ECHO)
        assert isinstance(signature.cause, Cause | None)
        assert signature.source


def test_an_unknown_engine_is_read_as_any() -> None:
    """A name that no file belongs to is no error: everything is tried."""
    assert knowledge("tgi").signatures == knowledge("any").signatures


HOSTILE = [
    "ErrorError: ",
    "Error",
    "a_",
    "_",
    "srv  init: ",
    "x.py:1: ",
    "Value error, ",
    "error loading model: ",
    "1.",
    "a b: ",
    " ",
]
"""Parts of lines that patterns with nested repetitions would take for ever on."""


class _Steps:
    """Counts the calls into regular expressions and automata while it profiles."""

    def __init__(self) -> None:
        self.taken = 0

    def __call__(self, _frame: FrameType, event: str, called: object) -> None:
        if event == "c_call" and getattr(called, "__name__", "") in STEPS:
            self.taken += 1


STEPS = {"match", "search", "finditer", "sub", "find_matches_as_indexes"}
LINE = 1 << 14
"""Bytes of one line that are read."""


def _steps_for(lines: list[str]) -> int:
    log = "\n".join([*lines, ""]).encode()
    assert len(log) > 1_000_000
    reader, steps = LogReader(), _Steps()
    sys.setprofile(steps)
    try:
        reader.feed(log)
        reader.reading()
    finally:
        sys.setprofile(None)
    return steps.taken


@pytest.mark.parametrize("part", HOSTILE)
def test_a_mebibyte_of_the_worst_lines_takes_few_steps(part: str) -> None:
    """Whatever a log repeats, each line is searched once and tried against few short patterns."""
    lines = ["RuntimeError: " + (part * LINE)[: LINE - 20], (part * LINE)[: LINE - 2]] * 32
    assert _steps_for(lines) < 200 * len(lines)


def test_a_line_for_every_signature_takes_few_steps() -> None:
    """A log of nothing but the literals of all signatures is read in few steps a line."""
    lines = [("Error: " + one.literals[0] * LINE)[: LINE - 2] for one in known_signatures()]
    assert _steps_for(lines) < 200 * len(lines)


def test_patterns_see_a_bounded_part_of_a_line() -> None:
    """No pattern looks past the first 2048 letters, so no repetition in it can take long."""
    for signature in known_signatures():
        text = entries_by_id()[signature.id]["samples"][0]
        message = take_apart(text).message.lstrip()
        if signature.match(message):
            assert signature.match(" " * 2048 + message) is None


def test_no_line_hides_a_literal_of_another_signature() -> None:
    """A line whose first literal is settled is still read where a longer or later one is new."""
    reader = LogReader("vllm")
    reader.feed_line("ValueError: 4711")
    reader.feed_line("SafetensorError: Error while deserializing header: incomplete metadata")
    assert [one.signature.id for one in reader.reading().findings] == [
        "start-refused",
        "truncated-checkpoint",
    ]
