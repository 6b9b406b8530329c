"""Reading a log as it arrives: prefixes, pieces, bounds, steps of the boot, figures, recovery."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicekit.diagnosis.causes import Cause
from servicekit.diagnosis.lines import shown
from servicekit.diagnosis.reader import LogReader
from servicekit.diagnosis.reading import BootFacts, Reading
from servicekit.diagnosis.signatures import BootPhase, knowledge

if TYPE_CHECKING:
    from collections.abc import Iterable

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 784.00 MiB."
SERVING = "[2026-11-30 08:00:00] The server is fired up and ready to roll!"
DECODE = (
    "[2026-11-30 08:00:01 TP0] Decode batch, #running-req: 1, #full token: 512, full token usage: "
    "0.07, mamba num: 5, mamba usage: 0.15, accept len: 3.20, accept rate: 0.55, cuda graph: True, "
    "gen throughput (token/s): 52.30, #queue-req: 3"
)


def _read(lines: Iterable[str], engine: str = "sglang") -> Reading:
    reader = LogReader(engine)
    for line in lines:
        reader.feed_line(line)
    return reader.reading()


def _causes(reading: Reading) -> list[Cause | None]:
    return [finding.signature.cause for finding in reading.findings]


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "<3>",
        "[2026-11-30 08:00:00] ",
        "[2026-11-30 08:00:00 TP3] ",
        "[2026-11-30 08:00:00 DP1 TP0] ",
        "[2026-11-30 08:00:00.123 TP0 EP0] ",
        "ERROR 06-12 08:00:00 llm_engine.py:161] ",
        "(EngineCore pid=1) (RayWorkerWrapper pid=22, ip=127.0.0.1) ERROR 11-30 07:30:43 [w.py:1] ",
        "[rank1]: ",
        "(EngineCore pid=8485) ERROR 11-30 07:30:43 [core.py:1510] ",
        "(Worker_TP1_EP1 pid=99) ERROR 11-30 07:30:43 [multiproc_executor.py:953] ",
        "(EngineCore_DP0 pid=284) 2026-05-30 07:47:00,209 - ERROR - autotuner.py:634 - flash.jit: ",
        "Nov 30 07:31:32 box servicekit-mtp[4711]: ",
        "Nov  3 07:31:32 box servicekit-mtp[1]: (EngineCore pid=1) ERROR 11-30 07:30:43 [c.py:1] ",
        "2026-11-30T07:31:32.123456+01:00 box servicekit[1]: ",
        "2026-11-30T07:31:32.123456789Z stderr F ",
        "0.00.021.223 E srv  ",
        "ERROR:    ",
        "\x1b[31m",
        "\x1b[0;36m(EngineCore pid=8485)\x1b[0;0m \x1b[1;31mERROR\x1b[0m 11-30 07:30:43 [c.py:1] ",
        "\x1b]0;title\x07",
    ],
)
def test_prefixes_are_taken_off(prefix: str) -> None:
    """Times, ranks, levels and colours in front of a message do not hide it."""
    assert _causes(_read([prefix + OOM])) == [Cause.CUDA_OOM]


@pytest.mark.parametrize(
    "line",
    [
        f"(APIServer pid=1) INFO 11-30 07:31:06 [logger.py:39] Received request x: prompt: '{OOM}'",
        f"[2026-11-30 08:00:00] Receive: obj=GenerateReqInput(text='{OOM}')",
        f'INFO:     127.0.0.1:1 - "GET /?q={OOM} HTTP/1.1" 200 OK',
        f'    raise RuntimeError("{OOM}")',
        f"(APIServer pid=1) INFO 11-30 07:31:06 [a.py:1] {OOM}",
        f"0.12.401.002 D slot launch: {OOM}",
        f"(APIServer pid=1) WARNING 11-30 07:31:06 [a.py:1] This can cause errors like `{OOM}`",
    ],
)
def test_what_only_quotes_an_error_is_none(line: str) -> None:
    """A prompt, a query, a source line or an informative message is no failure."""
    assert _causes(_read([line])) == []


@pytest.mark.parametrize("opening", ["prompt: '", 'text="', "example_format: '", '"content": "'])
def test_an_error_inside_a_quoted_text_of_several_lines_is_none(opening: str) -> None:
    """A prompt that is printed over several lines may contain whole error messages."""
    quote = opening[-1]
    lines = [f"0.12.401.002 D slot x: {opening}<user>", "Traceback (most recent call last):"]
    lines += ['  File "a.py", line 1, in f', OOM, f"What is that?{quote}", ""]
    assert _causes(_read(lines, "llamacpp")) == []


def test_an_error_after_a_quoted_text_is_one() -> None:
    """A quotation ends where its quote is closed, and what follows counts again."""
    lines = ["0.12.401.002 D slot x: prompt: '<user>", "hello", "'", OOM]
    assert _causes(_read(lines, "llamacpp")) == [Cause.CUDA_OOM]
    closed = ["(APIServer pid=1) INFO 11-30 07:31:06 [l.py:1] prompt: 'hello', params: None", OOM]
    assert _causes(_read(closed, "vllm")) == [Cause.CUDA_OOM]


def test_the_first_cause_comes_first() -> None:
    """Causes are told in the order of the log, each once however often it is echoed."""
    reading = _read([OOM, "OSError: [Errno 98] Address already in use", OOM, OOM])
    assert _causes(reading) == [Cause.CUDA_OOM, Cause.PORT_BUSY]


def test_wrappers_are_no_trouble() -> None:
    """What only wraps a cause is neither found nor shown."""
    reading = _read(["[2026-11-30 08:00:00] Received sigquit from a child process. It failed."])
    assert (reading.findings, reading.trouble) == ((), ())


def test_feed_tells_what_is_new_once() -> None:
    """Each call returns what its bytes showed, and nothing twice."""
    reader = LogReader("sglang")
    assert reader.feed(OOM.encode()) == ()
    (found,) = reader.feed(b"\n", at=7.0)
    assert (found.at, found.lines) == (7.0, (OOM,))
    assert reader.feed_line(OOM) == ()
    assert reader.close() == ()


def test_a_last_line_without_a_break_is_read_at_the_end() -> None:
    """An engine may die in the middle of a line; closing reads it, and does so once."""
    reader = LogReader("sglang")
    reader.feed(OOM.encode())
    assert [one.signature.cause for one in reader.close()] == [Cause.CUDA_OOM]
    assert reader.close() == ()


def test_progress_bars_are_lines() -> None:
    """What carriage returns overwrite is read like any line."""
    bars = b"Loading safetensors checkpoint shards:   0%|\rLoading safetensors\r" + OOM.encode()
    reader = LogReader("vllm")
    reader.feed(bars + b"\r\n")
    assert reader.phase is BootPhase.LOADING_WEIGHTS
    assert _causes(reader.reading()) == [Cause.CUDA_OOM]


def test_a_message_over_several_lines_is_read_to_its_end() -> None:
    """Captures may come from the lines that follow, of the same rank."""
    reader = LogReader("sglang")
    reader.feed_line(
        "[2026-11-30 08:00:00 TP0] ValueError: DSpark speculative_num_draft_tokens must "
        "equal gamma + 1 (= 8 for"
    )
    reader.feed_line("[2026-11-30 08:00:00 TP1] something else entirely")
    reader.feed_line("gamma=7), but got speculative_num_draft_tokens=4.")
    (finding,) = reader.reading().findings
    assert finding.captures == {"drafter": "DSpark", "wanted": "8", "gamma": "7", "got": "4"}
    assert len(finding.lines) == 2


def test_lines_of_any_length_are_bounded() -> None:
    """Of a line of many megabytes only the beginning is kept, and the next line is read."""
    reader = LogReader("sglang")
    for _ in range(300):
        reader.feed(b"x" * (1 << 16))
    assert len(reader._partial) <= 1 << 14
    reader.feed(b" " + OOM.encode() + b"\n" + OOM.encode() + b"\n")
    reading = reader.reading()
    assert _causes(reading) == [Cause.CUDA_OOM]
    assert len(reading.end) <= 1 << 13
    assert all(len(line) <= 400 for line in reading.tail)


def test_a_long_line_is_read_at_its_beginning() -> None:
    """An error at the beginning of a line of a megabyte is found; one at its end is not."""
    reader = LogReader("sglang")
    reader.feed(OOM.encode() + b" " * (1 << 20) + b"\n")
    assert _causes(reader.reading()) == [Cause.CUDA_OOM]
    assert _causes(_read(["x" * (1 << 20) + OOM])) == []


@given(st.lists(st.binary(max_size=200), max_size=30), st.sampled_from(["any", "vllm", "kernel"]))
def test_any_bytes_can_be_read(pieces: list[bytes], engine: str) -> None:
    """No bytes make the reader fail, and how they are cut changes nothing."""
    reader, whole = LogReader(engine), LogReader(engine)
    for piece in pieces:
        reader.feed(piece)
    whole.feed(b"".join(pieces))
    reader.close()
    whole.close()
    assert reader.reading() == whole.reading()


@given(st.data())
def test_real_lines_cut_anywhere_say_the_same(data: st.DataObject) -> None:
    """A log of known and strange lines says the same whole, in pieces, and byte by byte."""
    samples = [one.literals[0] for one in knowledge("any").signatures]
    samples += [one.literal for one in knowledge("any").marks] + [OOM, SERVING, DECODE]
    prefixes = [
        "",
        "[2026-11-30 08:00:00 TP1] ",
        "\x1b[31m",
        "RuntimeError: ",
        "prompt: '",
        "  File ",
    ]
    line = st.builds("{}{}".format, st.sampled_from(prefixes), st.sampled_from(samples))
    log = "\n".join(data.draw(st.lists(line, max_size=40))).encode()
    cuts = data.draw(st.lists(st.integers(0, len(log)), max_size=8).map(sorted))
    whole, pieces = LogReader("sglang"), LogReader("sglang")
    whole.feed(log)
    for start, end in zip([0, *cuts], [*cuts, len(log)], strict=True):
        pieces.feed(log[start:end])
    whole.close()
    pieces.close()
    assert pieces.reading() == whole.reading()


# ---- the boot ----

BOOT = """\
[2026-11-30 08:00:00] server_args=ServerArgs(model_path='x')
Fetching 22 files:   5%|5         | 1/22
[2026-11-30 08:00:10 TP0] Load weight begin. avail mem=30.71 GB
[2026-11-30 08:00:40 TP0] Load weight end. elapsed=30 s, type=Q, quant=modelopt_mixed, avail mem=10.57 GB, mem usage=20.14 GB.
[2026-11-30 08:00:41 TP0] Mamba Cache is allocated. max_mamba_cache_size: 33, conv_state size: 0.09GB, ssm_state size: 4.78GB
[2026-11-30 08:00:41 TP0] KV Cache VA upper bound. dtype: torch.float8_e4m3fn, #tokens: 400000
[2026-11-30 08:00:41 TP0] Memory pool end. avail mem=4.47 GB
[2026-11-30 08:00:42 TP0] Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[1], avail mem=3.96 GB
[2026-11-30 08:00:44 TP0] Capture target decode CUDA graph end. elapsed=2 s, mem usage=0.10 GB, avail mem=3.86 GB.
[2026-11-30 08:00:45 TP0] Post-capture KV sizing: KV cache allocated. dtype: torch.float8_e4m3fn, #tokens: 38688, KV size: 1.18 GB, avail mem=2.68 GB
[2026-11-30 08:00:46 TP0] Load weight begin. avail mem=2.68 GB
[2026-11-30 08:00:47 TP0] Load weight end. elapsed=1 s, type=Qwen3DSparkModel, quant=None, avail mem=1.40 GB, mem usage=1.28 GB.
[2026-11-30 08:00:47 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 777, KV size: 0.01 GB
[2026-11-30 08:00:48 TP0] Capture draft decode CUDA graph begin. bs=[1], avail mem=1.39 GB
[2026-11-30 08:00:49 TP0] Capture draft decode CUDA graph end. elapsed=1 s, mem usage=0.05 GB, avail mem=1.34 GB.
[2026-11-30 08:00:50 TP0] max_total_num_tokens=38688, chunked_prefill_size=2048, max_prefill_tokens=16384, max_running_requests=6, context_len=262144, available_gpu_mem=1.34 GB
[2026-11-30 08:00:55] The server is fired up and ready to roll!
"""  # noqa: E501 - lines of a log


def test_a_boot_is_told_step_by_step_with_its_times() -> None:
    """Each step is told once, in the order and with the time in which it was first seen."""
    reader = LogReader("any")
    for second, line in enumerate(BOOT.splitlines()):
        reader.feed_line(line, at=float(second))
    reading = reader.reading()
    assert [(seen.phase, seen.at) for seen in reading.phases] == [
        (BootPhase.DOWNLOADING, 1.0),
        (BootPhase.LOADING_WEIGHTS, 2.0),
        (BootPhase.ALLOCATING, 3.0),
        (BootPhase.CAPTURING_GRAPHS, 7.0),
        (BootPhase.WARMING_UP, 15.0),
        (BootPhase.SERVING, 16.0),
    ]
    assert reading.phase is reader.phase is BootPhase.SERVING
    assert reading.engine == reader.engine == "sglang"


def test_the_figures_are_the_targets() -> None:
    """With a drafter the target's lines count, and a reserved address range is no pool."""
    assert _read(BOOT.splitlines()).facts == BootFacts(
        weights_gib=20.14,
        kv_tokens=38688,
        kv_gib=1.18,
        declared_context=262144,
        state_slots=33,
        state_gib=4.78,
        graph_gib=0.15,
        free_gib=1.34,
        requests=6,
    )


def test_only_the_first_rank_counts() -> None:
    """Ranks say the same figures; sums over them would be wrong."""
    ranks = [line.replace("TP0", f"TP{rank}") for line in BOOT.splitlines() for rank in (0, 1)]
    assert _read(ranks).facts.graph_gib == 0.15
    assert _read([line.replace("TP0", "TP1") for line in BOOT.splitlines()]).facts.kv_tokens is None


def test_the_draft_graph_is_a_fact_too() -> None:
    """The disabled draft graph is told as a notice and as a fact."""
    reading = _read(
        ["Disable DFLASH draft cuda graph because only 0.41 GB GPU memory is available"]
    )
    assert reading.facts.draft_graph_disabled
    assert _causes(reading) == [Cause.DRAFT_GRAPH_DISABLED]


def test_llama_sums_its_devices() -> None:
    """Buffers of several GPUs are one sum in GiB; what lies in host memory is none of it."""
    facts = _read(
        [
            "0.00.033.067 I load_tensors:   CPU_Mapped model buffer size =   962.38 MiB",
            "0.00.033.068 I load_tensors:        CUDA0 model buffer size =  8192.00 MiB",
            "0.00.033.069 I load_tensors:        CUDA1 model buffer size =  4096.00 MiB",
            "0.00.034.203 I llama_kv_cache:      CUDA0 KV buffer size =  1024.00 MiB",
            "0.00.034.204 I llama_memory_recurrent:  CUDA0 RS buffer size =   149.60 MiB",
            "0.00.258.517 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 512, kv_u",
        ],
        "any",
    ).facts
    assert (facts.weights_gib, facts.kv_gib, facts.state_gib) == (12.0, 1.0, 0.146)
    assert (facts.kv_tokens, facts.declared_context, facts.requests) == (512, 512, 2)


VLLM_BOOT = """\
(EngineCore pid=1) INFO 11-30 07:30:43 [m.py:1] Model loading took 19.75 GiB memory and 6 seconds
(EngineCore pid=1) INFO 11-30 07:30:43 [m.py:1] Using max model len 65536
(EngineCore pid=1) INFO 11-30 07:30:43 [k.py:1] Auto-fit max_model_len: reduced from 65536 to 32768 to fit in available KV cache memory (5.98 GiB)
(EngineCore pid=1) INFO 11-30 07:30:43 [k.py:1] Available KV cache memory: 5.98 GiB
(EngineCore pid=1) INFO 11-30 07:30:43 [k.py:1] GPU KV cache size: 91,022 tokens, Maximum concurrency for 32,768 tokens per request: 2.78x
Capturing CUDA graphs (decode, FULL):   0%|          | 0/35
(EngineCore pid=1) INFO 11-30 07:30:43 [g.py:1] Graph capturing finished in 5 secs, took 0.46 GiB
"""  # noqa: E501 - lines of a log


def test_vllm_figures() -> None:
    """vLLM's figures have commas, and the declared context is the one after fitting."""
    reading = _read(VLLM_BOOT.splitlines(), "any")
    assert reading.facts == BootFacts(
        weights_gib=19.75, kv_tokens=91022, kv_gib=5.98, declared_context=32768, graph_gib=0.46
    )
    assert reading.phase is BootPhase.CAPTURING_GRAPHS
    assert reading.engine == "vllm"


def test_memory_that_runs_out_during_the_capture_is_its_own_cause() -> None:
    """Between begin and end of a capture it is the graphs; after its end it is not."""
    begin, end = [line for line in BOOT.splitlines() if "Capture target" in line]
    assert _causes(_read([begin, OOM])) == [Cause.GRAPH_OOM]
    assert _causes(_read([begin, end, OOM])) == [Cause.CUDA_OOM]
    assert _read([begin, end, OOM]).findings[0].signature.id == "out-of-gpu-memory"


def test_a_new_start_begins_anew() -> None:
    """A file with several starts tells about the last one, also within one piece of bytes."""
    log = "\n".join([*BOOT.splitlines(), DECODE, OOM, *BOOT.splitlines()[:4]]) + "\n"
    reader = LogReader("sglang")
    reader.feed(log.encode())
    reading = reader.reading()
    assert reading.findings == ()
    assert reading.phase is BootPhase.ALLOCATING
    assert reading.decode is None


def test_a_refused_command_line_is_a_new_start() -> None:
    """An engine that refuses its options says nothing before; what stands above is older."""
    reading = _read([*BOOT.splitlines(), OOM, "sglang serve: error: unrecognized arguments: --x"])
    assert _causes(reading) == [Cause.BAD_FLAGS]
    assert reading.phases == ()


# ---- while it serves ----


def test_decoding_is_told_as_the_engine_last_said() -> None:
    """Of many lines about decoding the last one counts, even inside one piece of bytes."""
    reader = LogReader("sglang")
    reader.feed("\n".join([DECODE.replace("52.30", "9.10"), DECODE, "x"]).encode() + b"\n", at=5.0)
    figures = reader.reading().decode
    assert figures is not None
    assert (figures.throughput, figures.running, figures.queued, figures.at) == (52.3, 1, 3, 5.0)
    assert (figures.accept_length, figures.accept_rate, figures.cuda_graph) == (3.2, 0.55, True)
    assert figures.kv_usage == 0.07


VLLM_DECODE = """\
(APIServer pid=1) INFO 11-30 20:51:08 [loggers.py:310] Engine 000: Avg prompt throughput: 93.9 tokens/s, Avg generation throughput: 13.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 12.5%, Prefix cache hit rate: 0.0%
(APIServer pid=1) INFO 11-30 20:51:08 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 3.49, Accepted: 92 tokens, Drafted: 259 tokens, Avg Draft acceptance rate: 35.5%
"""  # noqa: E501 - lines of a log


def test_a_line_that_only_looks_like_decoding_says_nothing() -> None:
    """A text that names the batch but has no figures leaves them unknown."""
    assert _read(["[2026-11-30 08:00:00] Decode batch sizes are chosen by hand"]).decode is None


def test_vllm_tells_decoding_in_two_lines() -> None:
    """Throughput and acceptance come in lines of their own; percentages become parts."""
    figures = _read(VLLM_DECODE.splitlines(), "vllm").decode
    assert figures is not None
    assert (figures.throughput, figures.kv_usage) == (13.0, 0.125)
    assert (figures.accept_length, figures.accept_rate) == (3.49, 0.355)


def test_what_the_engine_outlives_is_marked() -> None:
    """A failure after which much more was answered did not end the engine, but a new one may."""
    lines = [SERVING, OOM, *[DECODE] * 100]
    (finding,) = _read(lines).findings
    assert finding.outlived
    (again,) = _read([*lines, OOM]).findings
    assert not again.outlived


def test_a_failure_that_comes_back_in_the_same_words_is_the_cause() -> None:
    """Even where all of it arrives in one piece: once outlived, and once fatal."""
    reader = LogReader("sglang")
    reader.feed("\n".join([SERVING, OOM, *[DECODE] * 100, OOM, "the end"]).encode() + b"\n")
    (finding,) = reader.reading().findings
    assert not finding.outlived


def test_a_few_more_lines_outlive_nothing() -> None:
    """Other ranks go on for a moment after the first one failed."""
    (finding,) = _read([SERVING, OOM, DECODE, DECODE]).findings
    assert not finding.outlived


def test_time_outlives_too() -> None:
    """Where times are known, work half a minute later shows that the engine lives."""
    reader = LogReader("sglang")
    reader.feed_line(OOM, at=100.0)
    reader.feed_line(DECODE, at=110.0)
    assert not reader.reading().findings[0].outlived
    reader.feed_line(DECODE, at=131.0)
    assert reader.reading().findings[0].outlived


def test_a_boot_that_goes_on_outlives_what_its_own_rank_said() -> None:
    """A failed look-up that the same process survives is no cause; another rank's is one."""
    offline = (
        "Rank: OSError: We couldn't connect to 'https://huggingface.co' to load the files, and"
    )
    offline = offline.removeprefix("Rank: ") + " couldn't find them in the cached files."
    load = "[2026-11-30 08:00:10 TP0] Load weight begin. avail mem=30.71 GB"
    (survived,) = _read([f"[2026-11-30 08:00:00 TP0] {offline}", load]).findings
    assert survived.outlived
    (other,) = _read([f"[2026-11-30 08:00:00 TP1] {offline}", load]).findings
    assert not other.outlived
    (served,) = _read([f"[2026-11-30 08:00:00 TP1] {offline}", SERVING]).findings
    assert served.outlived


def test_a_traceback_belongs_to_the_rank_that_began_it() -> None:
    """Only its first line has the rank; what another rank does later outlives nothing."""
    lines = [
        "[2026-11-30 08:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "a.py", line 1, in run',
        OOM,
        "[2026-11-30 08:00:10 TP0] Load weight end. elapsed=1 s, mem usage=20.14 GB.",
    ]
    (finding,) = _read(lines).findings
    assert (finding.speaker, finding.outlived) == ("TP1", False)


def test_a_failed_import_that_the_boot_survives_is_no_cause() -> None:
    """What nobody's rank said is outlived by anybody's progress."""
    optional = "ImportError: libcudnn.so.9: cannot open shared object file: No such file"
    (finding,) = _read([optional, *BOOT.splitlines()[2:4]]).findings
    assert finding.outlived


def test_a_units_journal_tells_about_its_last_run() -> None:
    """The manager's own line begins a run, whatever the engine says afterwards."""
    journal = [
        f"Dec 01 07:31:32 box servicekit-mtp[1]: {OOM}",
        "Dec 01 07:31:40 box systemd[1]: Starting servicekit-mtp.service - vLLM, mtp...",
        "Dec 01 07:31:41 box servicekit-mtp[2]: OSError: [Errno 30] Read-only file system: '/x'",
    ]
    assert _causes(_read(journal, "vllm")) == [Cause.PERMISSION_DENIED]


def test_notices_stay() -> None:
    """What is not as it should be stays so, however long the engine works on."""
    notice = "Disable DSpark draft cuda graph because only 0.83 GB GPU memory is available"
    (finding,) = _read([notice, SERVING, *[DECODE] * 100]).findings
    assert not finding.outlived


# ---- what a person looks at ----


def test_an_unknown_failure_shows_where_it_happened() -> None:
    """The first traceback's last frame and message come first, then the last errors."""
    trouble = _read(
        [
            "[2026-11-30 08:00:00] Scheduler hit an exception: Traceback (most recent call last):",
            '  File "scheduler.py", line 1, in run',
            "    self.step()",
            "    ^^^^^^^^^^^",
            '  File "tree.py", line 733, in evict',
            "    assert node.lock_ref == 0",
            "AssertionError: 4711",
            *[f"ValueError: follow-up {number}" for number in range(9)],
            "ValueError: follow-up 8",
            "[2026-11-30 08:00:01] an ordinary line",
        ]
    ).trouble
    assert trouble == (
        '  File "tree.py", line 733, in evict',
        "    assert node.lock_ref == 0",
        "AssertionError: 4711",
        *[f"ValueError: follow-up {number}" for number in range(4, 9)],
    )


def test_a_traceback_among_other_ranks_is_followed() -> None:
    """Lines of another rank in the middle of a traceback do not end it."""
    trouble = _read(
        [
            "[2026-11-30 08:00:00 TP0] Traceback (most recent call last):",
            '[2026-11-30 08:00:00 TP0]   File "a.py", line 1, in run',
            "[2026-11-30 08:00:00 TP1] an ordinary line",
            "[2026-11-30 08:00:00 TP0]     go()",
            "[2026-11-30 08:00:00 TP0] KeyError: 'x'",
        ]
    ).trouble
    assert trouble[-1].endswith("KeyError: 'x'")
    assert len(trouble) == 3


def test_shown_lines_have_no_secrets_and_no_control_characters() -> None:
    """Keys, tokens and control characters are blotted out, and ordinary words are not."""
    assert shown("api_key='abcd1234', port=1") == "api_key=***', port=1"
    assert shown('"HF_TOKEN": "hf_abcdefghijkl"') == '"HF_TOKEN": ***"'
    assert shown("unrecognized arguments: --api-key hunter22") == (
        "unrecognized arguments: --api-key ***"
    )
    assert shown("Authorization: Bearer abcd.efgh") == "Authorization: ***"
    assert shown("api_key=None, token usage: 0.98") == "api_key=None, token usage: 0.98"
    assert shown("a\x00b\x1bc\td") == "a b c d"
    assert shown("x" * 500) == "x" * 396 + " ..."


RETRIED = """\
1.00.000.001 E ggml_backend_cuda_alloc: allocating 9.0 MiB on device 0: cudaMalloc failed: out of memory
1.00.000.002 W sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism
"""  # noqa: E501 - lines of a log
SKIPPED = """\
E common_download: required file is not available in cache (offline mode): /var/cache/x/m.gguf
I common_params_handle_remote_preset: no remote preset found, skipping
"""


@pytest.mark.parametrize("log", [RETRIED, SKIPPED])
def test_a_later_line_takes_a_finding_back(log: str) -> None:
    """A failed attempt that the engine repeats with less, or goes on without, is no finding."""
    first, second = log.splitlines()
    assert len(_read([first], "llamacpp").findings) == 1
    assert _read([first, second], "llamacpp").findings == ()
