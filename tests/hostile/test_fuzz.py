"""Every reader of what another account wrote, given anything; `make fuzz` does so for longer."""

from __future__ import annotations

import io
import json
import os
import struct
import tempfile
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bench_results import case, result, sample
from hostile.records import LINE, NOW, STATE
from hypothesis import given, settings
from hypothesis import strategies as st

from servicekit.errors import UserError
from servicekit.lab.bench.result import BenchResult, ResultError
from servicekit.lab.verify import record
from servicekit.lab.verify.gate import GateOutcome, GateResult
from servicekit.models.hub import _file
from servicekit.models.memory.description import geometry_from_config
from servicekit.models.memory.gguf import read_header
from servicekit.models.memory.window import window_of_config
from servicekit.profiles.model import Restart
from servicekit.watchdog import history, ledger
from servicekit.watchdog.adopted import AdoptedProcesses
from servicekit.watchdog.clock import Moment
from servicekit.watchdog.ledger import Record
from servicekit.watchdog.publish import State

if TYPE_CHECKING:
    from collections.abc import Mapping

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "300"))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def _documents(like: Mapping[str, object], more: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Make objects like `like`, some of their values exchanged for anything."""
    changed = st.dictionaries(st.sampled_from([*like, *more]), JSON, max_size=3)
    return (
        changed.map(lambda other: json.dumps({**like, **other})) | st.text() | JSON.map(json.dumps)
    )


LINES = _documents(
    LINE, ("cause", "code", "sentence", "baseline", "boot", "seconds", "reasons", "pid1_started")
)
STATES = _documents(STATE, ("why", "context", "port", "host", "code", "ready_seconds", "reasons"))


@settings(max_examples=EXAMPLES)
@given(st.lists(LINES, max_size=4))
def test_no_history_breaks_what_reads_it(lines: list[str]) -> None:
    """From any history, every conclusion is drawn without an error."""
    records = ledger.parse("\n".join(lines))
    history.holdoff(records, Moment(NOW, "b", 1.0), Restart())
    history.unfinished(records, boot_id="b", pid1_started=1, on_wsl=False)
    history.eta(records)
    history.phase_times(records)
    history.baselines(records, "b")
    for each in records:
        assert Record.parse(each.line()) == each
        assert each.sentence.isprintable()
    for run in history.runs(records):
        assert run.began.astimezone().isoformat()
        assert run.code is None or f"{run.code:d}"


@settings(max_examples=EXAMPLES)
@given(STATES)
def test_no_state_breaks_what_reads_it(text: str) -> None:
    """A text is a state that can be shown, or it is refused."""
    try:
        state = State.parse(text)
    except ValueError:
        return
    assert (NOW - datetime.fromisoformat(state.since)).total_seconds() is not None
    assert all(isinstance(one, str) for one in state.reasons)
    assert state.why.isprintable()
    assert json.dumps(state.context, allow_nan=False)


@settings(max_examples=EXAMPLES)
@given(
    _documents({"boot_id": "b", "pid1_started": 1, "processes": [[1, 2]]}, ()),
    st.binary(max_size=9),
)
def test_no_list_of_adopted_processes_breaks_its_reader(text: str, tail: bytes) -> None:
    """Whatever the file holds, the processes known from it are pairs of numbers."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kin.json")
        path.write_bytes(text.encode(errors="replace") + tail)
        known = AdoptedProcesses(path, boot_id="b", pid1_started=1).known
    assert all(pid >= 0 and started >= 0 for pid, started in known)


VERIFICATION = record.Verification(
    profile="x",
    at="2026-11-30T100000Z",
    fingerprint=record.Fingerprint("p", "1", "e", "m", "d", "g"),
    about="a/b",
    below_fp8=None,
    gates=("kv-precision",),
    findings=(GateResult("kv-precision", GateOutcome.PASS, "good", {"longest_measured": 1}, 1.0),),
)
FINDINGS = _documents(asdict(VERIFICATION.findings[0]), ("answers", "sentences"))
FINGERPRINTS = _documents(asdict(VERIFICATION.fingerprint), ())


@settings(max_examples=EXAMPLES)
@given(
    text=_documents(VERIFICATION.as_json(), ()),
    finding=FINDINGS,
    fingerprint=FINGERPRINTS,
    inner=st.booleans(),
)
def test_no_verification_breaks_what_reads_it(
    text: str, finding: str, fingerprint: str, *, inner: bool
) -> None:
    """A text is a verification whose status can be shown, or it is none."""
    if inner:
        text = (
            json.dumps(VERIFICATION.as_json() | {"findings": ["F"], "fingerprint": "P"})
            .replace('"F"', finding)
            .replace('"P"', fingerprint)
        )
    parsed = record.Verification.parse(text)
    if parsed is None:
        return
    status = record.verification_status(parsed, VERIFICATION.fingerprint, VERIFICATION.gates)
    assert status.text.isprintable()
    assert all(each.reason.isprintable() for each in parsed.findings)
    assert record.twin_of({"x": (parsed,)}, "a/b") is None or parsed.gates
    record.last_of((parsed,), VERIFICATION.gates)


RESULT = result(cases=(case(samples=(sample(),)),))


@settings(max_examples=EXAMPLES)
@given(_documents(json.loads(RESULT.as_text()), ("host",)), st.text(max_size=8))
def test_no_result_of_a_benchmark_breaks_what_reads_it(text: str, tail: str) -> None:
    """A text is a result that can be written again, or it is refused."""
    for each in (text, text + tail):
        try:
            read = BenchResult.parse(each, where="x")
        except ResultError:
            continue
        assert BenchResult.parse(read.as_text(), where="x") == read


@settings(max_examples=EXAMPLES)
@given(JSON, JSON | st.integers(), JSON | st.from_regex("[0-9a-f]{40}", fullmatch=True))
def test_no_listing_of_the_hub_names_an_unsafe_file(
    name: object, size: object, digest: object
) -> None:
    """A listed file has a printable name below its directory, or it is refused."""
    file = _file(name, size, digest)
    assert file is None or (file.name.isprintable() and ".." not in file.name.split("/"))
    assert file is None or not file.name.startswith("/")


MODEL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
    "vocab_size": 100,
    "sliding_window": 128,
    "layer_types": ["full_attention", "linear_attention"],
    "num_experts": 0,
    "text_config": None,
    "vision_config": {},
    "quantization_config": {},
    "rope_scaling": {"factor": 2.0, "rope_type": "yarn"},
}


@settings(max_examples=EXAMPLES)
@given(
    st.dictionaries(st.sampled_from([*MODEL]), JSON | st.integers(0, 1 << 99), max_size=4),
    st.dictionaries(st.sampled_from(["factor", "rope_type", "type"]), JSON, max_size=3),
)
def test_no_configuration_of_a_model_breaks_what_reads_it(
    other: dict[str, object], rope: dict[str, object]
) -> None:
    """A configuration gives a geometry, or is refused in one sentence."""
    config = {name: value for name, value in MODEL.items() if value is not None} | other
    for each in (config, config | {"rope_scaling": rope}):
        try:
            geometry = geometry_from_config(each, checkpoint="x")
        except UserError:
            continue
        assert geometry.weights >= 0
        assert window_of_config(each, 2048) >= 2048


KEYS = st.sampled_from(["general.architecture", "llama.block_count", "llama.context_length"])


@settings(max_examples=EXAMPLES)
@given(KEYS, st.integers(0, 14), st.integers(0, 14), st.integers(0, 2**64 - 1), st.binary())
def test_no_header_of_gguf_breaks_its_reader(
    key: str, kind: int, items: int, count: int, tail: bytes
) -> None:
    """A header is read, or refused in one sentence, whatever it says of its own length."""
    name = struct.pack("<Q", len(key)) + key.encode()
    value = struct.pack("<III", kind, items, 0) + struct.pack("<Q", count)
    for tensors, entries in ((1, 1), (count, count)):
        data = struct.pack("<4sIQQ", b"GGUF", 3, tensors, entries) + name + value + tail
        with suppress(UserError):
            read_header(io.BytesIO(data), len(data), "x")
