"""Signature files: every sample is recognised, no near miss is, and every reference holds."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from servicekit.diagnosis.causes import Cause
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


@pytest.mark.parametrize("part", HOSTILE)
def test_no_line_is_expensive(part: str) -> None:
    """Whatever a log repeats for 16 KiB, no pattern looks at it for more than 0.2 s of CPU time."""
    line = (part * (1 << 14))[: 1 << 14]
    known = knowledge("any")
    matches = [one.match for one in known.signatures]
    matches += [one.match for one in known.marks] + [one.match for one in known.figures]
    for match in matches:
        began = time.process_time()
        match(line)
        assert time.process_time() - began < 0.2, match
    reader = LogReader()
    began = time.process_time()
    reader.feed(f"Error {line}\n{line} Error: failed\n".encode())
    reader.reading()
    assert time.process_time() - began < 0.5
