"""The verdict: findings against the way the process ended, remedies against the profile."""

from __future__ import annotations

import json
import signal as signals
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from servicekit.diagnosis.causes import Cause, Retry
from servicekit.diagnosis.reader import LogReader
from servicekit.diagnosis.reading import Reading
from servicekit.diagnosis.signatures import BootPhase
from servicekit.diagnosis.verdict import Diagnosis, as_json, diagnose, render_text

if TYPE_CHECKING:
    from collections.abc import Mapping

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 784.00 MiB."
DIED = "Subprocess sglang::scheduler (pid=4711) crashed with exit code -9. Triggering SIGQUIT"
NOTICE = "Disable DSpark draft cuda graph because only 0.83 GB GPU memory is available after target"
SERVING = "[2026-11-30 08:00:00] The server is fired up and ready to roll!"
DECODE = "[2026-11-30 08:00:01] Decode batch, #running-req: 1, gen throughput (token/s): 52.30"


def _log(*lines: str, engine: str = "sglang") -> LogReader:
    reader = LogReader(engine)
    for line in lines:
        reader.feed_line(line)
    return reader


# ---- which finding ----


def test_the_first_cause_wins() -> None:
    """What follows on the first cause are its echoes."""
    later = "OSError: [Errno 98] Address already in use"
    assert diagnose(_log(OOM, later)).cause is Cause.CUDA_OOM
    assert diagnose(_log(later, OOM)).cause is Cause.PORT_BUSY


def test_a_cause_wins_over_an_earlier_symptom() -> None:
    """That a process died explains less than why."""
    assert diagnose(_log(DIED, OOM)).cause is Cause.CUDA_OOM


def test_a_symptom_explains_where_there_is_no_cause() -> None:
    """Without a cause the death of a part is the best there is, until better evidence comes."""
    diagnosis = diagnose(_log(DIED), signal=9)
    assert (diagnosis.cause, diagnosis.weak) == (Cause.WORKER_DIED, True)
    assert diagnosis.captures == {"process": "sglang::scheduler", "pid": 4711, "code": -9}


def test_a_notice_explains_no_ending() -> None:
    """A service without its draft graph is slow, but that ends nothing."""
    assert diagnose(_log(NOTICE)).cause is Cause.DRAFT_GRAPH_DISABLED
    assert diagnose(_log(NOTICE), exit_status=1).cause is Cause.ENGINE_EXIT


def test_what_was_outlived_explains_nothing() -> None:
    """A failed request of an engine that went on serving is not why it ended."""
    log = [SERVING, OOM, *[DECODE] * 300]
    assert diagnose(_log(*log), exit_status=1).cause is Cause.ENGINE_EXIT
    assert diagnose(_log(*log, OOM), exit_status=1).cause is Cause.CUDA_OOM


def test_what_another_rank_outlived_explains_a_boot_that_never_served() -> None:
    """Ranks load side by side: the failed one is the cause, however far the other one came."""
    log = _log(OOM, "Load weight end. elapsed=1 s, mem usage=20.14 GB.")
    assert log.reading().findings[0].outlived
    assert diagnose(log, signal=9).cause is Cause.CUDA_OOM


def test_a_reader_is_closed_and_a_reading_will_do() -> None:
    """The last line counts though it never ended, and the reader itself is not needed."""
    reader = LogReader("sglang")
    reader.feed(OOM.encode())
    assert diagnose(reader).cause is Cause.CUDA_OOM
    assert diagnose(reader.reading()).cause is Cause.CUDA_OOM


# ---- how it ended ----


@pytest.mark.parametrize(
    ("exit_status", "signal", "cause", "words"),
    [
        (0, None, Cause.ENGINE_EXIT, "unexpectedly with status 0"),
        (1, None, Cause.ENGINE_EXIT, "status 1"),
        (126, None, Cause.EXECUTABLE_MISSING, "could not run"),
        (127, None, Cause.EXECUTABLE_MISSING, "could not run"),
        (243, None, Cause.SECRET_MISSING, "secret"),
        (200, None, Cause.ENGINE_EXIT, "status 200"),
        (132, None, Cause.ILLEGAL_INSTRUCTION, "another CPU"),
        (-4, None, Cause.ILLEGAL_INSTRUCTION, "another CPU"),
        (None, 4, Cause.ILLEGAL_INSTRUCTION, "another CPU"),
        (137, None, Cause.ENGINE_SIGNAL, "says nothing about memory"),
        (-9, None, Cause.ENGINE_SIGNAL, "says nothing about memory"),
        (None, 9, Cause.ENGINE_SIGNAL, "says nothing about memory"),
        (None, 11, Cause.ENGINE_SIGNAL, "SIGSEGV"),
        (139, None, Cause.ENGINE_SIGNAL, "SIGSEGV"),
        (143, None, Cause.ENGINE_SIGNAL, "terminated the engine with SIGTERM"),
        (None, 99, Cause.ENGINE_SIGNAL, "signal 99"),
    ],
)
def test_the_ending_says_what_it_can(
    exit_status: int | None, signal: int | None, cause: Cause, words: str
) -> None:
    """A silent log leaves the exit status, which never claims more than it knows."""
    log = _log("[2026-11-30 08:00:00] an ordinary line")
    diagnosis = diagnose(log, exit_status=exit_status, signal=signal)
    assert diagnosis.cause is cause
    assert words in diagnosis.sentence
    assert diagnosis.signature == ""
    assert diagnosis.evidence_lines == ("[2026-11-30 08:00:00] an ordinary line",)


def test_the_evidence_of_a_failed_build_names_what_the_compiler_missed() -> None:
    """The lines of a failed build are shown together: its caller's and its compiler's."""
    ninja = "RuntimeError: Ninja build failed. Ninja output:"
    compiler = "/opt/flashinfer/utils.cuh:18:10: fatal error: cuda_runtime.h: No such file"
    lines = (ninja, "ninja: Entering directory", "c++ -MMD", "FAILED: x.o", "c++ -c", compiler)
    diagnosis = diagnose(_log("\n".join(lines)), exit_status=1)
    assert diagnosis.cause is Cause.JIT_FAILED
    assert diagnosis.evidence_lines == (ninja, compiler)


@pytest.mark.parametrize("engine", ["vllm", "llamacpp", "openai"])
def test_sigkill_alone_is_no_evidence_of_the_oom_killer(engine: str) -> None:
    """It says where the evidence would be, and leaves the verdict open."""
    diagnosis = diagnose(_log(engine=engine), signal=signals.SIGKILL)
    assert diagnosis.cause is Cause.ENGINE_SIGNAL
    assert diagnosis.weak
    assert "journalctl -k" in diagnosis.sentence


def test_the_kernels_own_line_is_evidence() -> None:
    """A killed process that the kernel names is a case for the memory."""
    line = "Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:1kB, anon-rss:2kB, file"
    diagnosis = diagnose(_log(line, engine="kernel"))
    assert (diagnosis.cause, diagnosis.captures["pid"]) == (Cause.OOM_KILL, 4711)


def test_an_illegal_instruction_outweighs_the_log() -> None:
    """No engine raises it by intention; what the log says is an echo of something else."""
    assert diagnose(_log(OOM), signal=4).cause is Cause.ILLEGAL_INSTRUCTION


def test_a_refused_command_line_of_an_unknown_form_is_seen() -> None:
    """Status 2 with an argparse message is a matter of the options, whatever the message says."""
    log = _log("usage: sglang serve [-h]", "sglang serve: error: one of the arguments is needed")
    diagnosis = diagnose(log, exit_status=2)
    assert diagnosis.cause is Cause.BAD_FLAGS
    assert "one of the arguments is needed" in diagnosis.sentence
    assert diagnose(_log("no reason"), exit_status=2).cause is Cause.ENGINE_EXIT


def test_a_failure_of_a_known_kind_shows_the_lines_to_read() -> None:
    """Where only the kind is known, the traceback's end and the last lines come with it."""
    diagnosis = diagnose(
        _log(
            "Traceback (most recent call last):",
            '  File "tree.py", line 733, in evict',
            "    assert node.lock_ref == 0",
            "AssertionError: 4711",
            "the end",
        )
    )
    assert diagnosis.cause is Cause.ENGINE_ASSERTION
    assert diagnosis.evidence_lines == (
        '  File "tree.py", line 733, in evict',
        "    assert node.lock_ref == 0",
        "AssertionError: 4711",
        "the end",
    )


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "this log shows no known failure"),
        ([SERVING], "this log shows no failure: the engine started and served"),
        (["fatal: x"], "this log shows no known failure; the lines below look like errors"),
    ],
)
def test_a_log_without_failure_is_said_to_have_none(lines: list[str], sentence: str) -> None:
    """Nothing found is said in so many words."""
    diagnosis = diagnose(_log(*lines))
    assert (diagnosis.cause, diagnosis.sentence) == (Cause.UNKNOWN, sentence)


# ---- remedies ----


def _remedies(line: str, options: Mapping[str, object], engine: str = "sglang") -> tuple[str, ...]:
    return diagnose(_log(line, engine=engine), options=options).remedies


MINIMUM = (
    "RuntimeError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static="
    "0.85. Raise --mem-fraction-static above 0.93 (minimum viable = 1 - available/pre = 0.928)."
)


def test_a_remedy_carries_the_logs_own_number() -> None:
    """What the engine computed is better than any rule."""
    first, *_ = _remedies(MINIMUM, {"mem-fraction-static": 0.85})
    assert first == "raise `--mem-fraction-static` above 0.93: the log's own minimum"


def test_remedies_follow_the_profiles_options() -> None:
    """What is set already is not proposed, and what does not apply is left out."""
    drafter = "serve without the drafter, or with a smaller one: its weights count too"
    assert drafter not in _remedies(MINIMUM, {})
    assert drafter in _remedies(MINIMUM, {"speculative-algorithm": "DSPARK"})
    assert drafter not in _remedies(MINIMUM, {"speculative-algorithm": False})


@pytest.mark.parametrize("name", ["kv-cache-dtype", "--kv-cache-dtype", "kv_cache_dtype"])
def test_options_may_be_spelt_in_any_way(name: str) -> None:
    """Dashes in front and underscores make no difference."""
    line = (
        "ValueError: To serve at least one request with the model's max seq len (65536), (4.76 GiB "
        "KV cache is needed, which is larger than the available KV cache memory (1.56 GiB)."
    )
    proposed = "store the KV cache in FP8: `--kv-cache-dtype fp8`"
    assert proposed in _remedies(line, {}, "vllm")
    assert proposed not in _remedies(line, {name: "fp8"}, "vllm")


def test_a_remedy_with_a_missing_number_is_left_out() -> None:
    """Where the log gives no estimate none is made up."""
    line = (
        "ValueError: To serve at least one request with the model's max seq len (65536), (4.76 GiB "
        "KV cache is needed, which is larger than the available KV cache memory (1.56 GiB)."
    )
    assert not any("estimate" in text for text in _remedies(line, {}, "vllm"))


@pytest.mark.parametrize(
    ("fraction", "proposed"),
    [(0.8, True), ("0.8", True), (0.95, False), (0.97, False), ("auto", True), (None, True)],
)
def test_a_bound_is_compared_as_a_number(fraction: object, *, proposed: bool) -> None:
    """Numbers and their texts are compared alike; what is no number bounds nothing."""
    line = (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
        "Current value: mem_fraction_static=0.8"
    )
    remedies = _remedies(line, {"mem-fraction-static": fraction})
    assert any(text.startswith("raise `--mem-fraction-static`") for text in remedies) is proposed


def test_remedies_are_those_of_the_engine() -> None:
    """A text that every engine may write has remedies for the one that wrote it."""
    sglang = " ".join(_remedies(OOM, {}, "sglang"))
    assert "--gpu-memory-utilization" not in sglang
    reader = _log("INFO:     Application startup complete.", OOM, engine="vllm")
    assert "lower `--max-num-batched-tokens` and `--max-num-seqs`" in diagnose(reader).remedies


def test_without_remedies_of_its_own_the_causes_are_given() -> None:
    """Every diagnosis says something that helps, with the profile's name in it."""
    diagnosis = diagnose(
        _log("RuntimeError: CUDA error: device-side assert triggered"), profile="x"
    )
    assert diagnosis.remedies == Cause.GPU_FAULT.remedies
    named = diagnose(_log(), exit_status=1, profile="mtp")
    assert named.remedies == ("read the engine's last lines: `servicekit logs mtp`",)


def test_derived_numbers_are_rounded_down() -> None:
    """A bound that is computed must hold: 8.88 of 121.69 GiB is 0.07."""
    line = (
        "ValueError: Free memory on device cuda:0 (8.88/121.69 GiB) on startup is less than "
        "desired GPU memory utilization (0.85, 103.44 GiB)."
    )
    diagnosis = diagnose(_log(line, engine="vllm"))
    assert diagnosis.captures["fits"] == 0.07
    assert diagnosis.remedies[-1].endswith("`--gpu-memory-utilization` below 0.07")


def test_nothing_is_divided_by_zero() -> None:
    """A card that reports no memory at all derives nothing."""
    line = (
        "ValueError: Free memory on device cuda:0 (0.0/0.0 GiB) on startup is less than "
        "desired GPU memory utilization (0.85, 103.44 GiB)."
    )
    assert "fits" not in diagnose(_log(line, engine="vllm")).captures


# ---- as text and as JSON ----


def test_the_text_says_it_all_in_order() -> None:
    """Cause, sentence, numbered remedies, lines, restart and source, for a terminal."""
    text = render_text(diagnose(_log(MINIMUM)))
    assert text.splitlines() == [
        "cause: kv-cache-too-small",
        "with `--mem-fraction-static 0.85` the weights leave no GPU memory for the KV cache",
        "",
        "what helps, in this order:",
        "  1. raise `--mem-fraction-static` above 0.93: the log's own minimum",
        "  2. use a smaller quantisation of the model, or a larger card",
        "  3. see what fits before a start: `servicekit plan PROFILE`",
        "",
        "evidence:",
        f"  | {MINIMUM}",
        "",
        "restart: one restart is worth it; the same cause again means stop",
        "source: SGLang 0.5.16 and 0.5.23, kv_cache_configurator",
    ]
    assert MINIMUM not in render_text(diagnose(_log(MINIMUM)), evidence=False)


def test_the_text_promises_no_restart_where_nothing_ended() -> None:
    """A degraded service is not about to be restarted by its diagnosis."""
    assert "restart:" not in render_text(diagnose(_log(NOTICE)))
    assert "lines to read:" in render_text(diagnose(_log("fatal: x")))


def test_a_log_without_failure_gets_no_cause_and_no_remedy() -> None:
    """For an engine that serves, the text says only that, with the figures of its log."""
    text = render_text(diagnose(_log(SERVING)))
    assert text == "this log shows no failure: the engine started and served"


def test_the_text_leaves_empty_parts_out() -> None:
    """Without remedies and lines there are no headings for them."""
    bare = Diagnosis(Cause.UNKNOWN, {}, "s", (), "the log's end", (), Retry.ALWAYS)
    assert render_text(bare).splitlines() == [
        "cause: unknown",
        "s",
        "",
        "restart: a restart may help",
        "source: the log's end",
    ]


def test_json_has_everything() -> None:
    """What scripts read survives a round trip through JSON."""
    value = json.loads(json.dumps(as_json(diagnose(_log(MINIMUM)))))
    assert value["cause"] == "kv-cache-too-small"
    assert value["captures"] == {"fraction": 0.85, "minimum": 0.93}
    assert value["retry"] == "once"
    assert value["evidence"] == [MINIMUM]
    assert value["signature"] == "sglang-weights-fill-the-card"
    assert value["message_id"] == Cause.KV_CACHE_TOO_SMALL.message_id
    assert as_json(diagnose(_log()))["signature"] is None


def test_the_plans_figures_are_beside_the_logs() -> None:
    """A figure that the memory plan has, too, is shown with it, and JSON holds both."""
    line = "[2026-11-30 08:33:27 TP0] KV Cache is allocated. dtype: x, #tokens: 9, KV size: 6.08 GB"
    reader = LogReader("sglang")
    reader.feed_line(line)
    diagnosis = replace(diagnose(reader, exit_status=1), planned={"kv_gib": 6.1})
    assert "kv 6.08 GiB (planned 6.1)" in render_text(diagnosis)
    assert as_json(diagnosis)["planned"] == {"kv_gib": 6.1}


def test_captures_are_numbers_where_they_can_be() -> None:
    """Whole numbers, fractions and texts keep their kind."""
    line = f"{OOM} GPU 0 has a total capacity of 31.36 GiB of which 12.00 MiB is free."
    assert diagnose(_log(line)).captures == {
        "wanted": "784.00 MiB",
        "gpu": 0,
        "total_gib": 31.36,
        "free": "12.00 MiB",
    }


def test_an_empty_reading_has_no_phase() -> None:
    """A log that has said nothing has reached nothing."""
    assert Reading("any").phase is None
    assert _log(SERVING).reading().phase is BootPhase.SERVING
