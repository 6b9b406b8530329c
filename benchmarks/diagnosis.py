"""How fast a log is read, and with how much memory.

Each row is a generated log, read in pieces of 64 KiB by a process of its own, so that its peak
memory is its own too. The naive way beside it tries every signature's pattern on every line, on the
first 200 KB; `grep -cF` counts the lines with any of the same literals, in the same file. Times are
CPU time, since other work on the machine is not the reader's.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.table import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.machinery import Machinery

PIECE = 1 << 16
NAIVE_BYTES = 200_000
SIZE = 100_000_000
"""Bytes of each log."""
AIM = 200.0
"""MB/s of plain lines on one core."""
AIM_OF_FAILURES = 60.0
"""MB/s of nothing but lines that look like errors."""


def sglang(rng: random.Random) -> str:
    """Write one line of a busy SGLang, of two ranks."""
    stamp = f"[2026-12-03 11:{rng.randrange(60):02d}:{rng.randrange(60):02d} TP{rng.randrange(2)}]"
    match rng.randrange(3):
        case 0:
            return access(rng)
        case 1:
            return (
                f"{stamp} Prefill batch, #new-seq: 1, #new-token: {rng.randrange(2048)}, "
                f"#cached-token: {rng.randrange(9000)}, token usage: 0.{rng.randrange(99):02d}, "
                "#running-req: 2, #queue-req: 0"
            )
        case _:
            return (
                f"{stamp} Decode batch, #running-req: 2, #full token: {rng.randrange(200_000)}, "
                f"full token usage: 0.{rng.randrange(99):02d}, mamba num: 5, mamba usage: 0.15, "
                "accept len: 3.20, accept rate: 0.55, cuda graph: True, "
                f"gen throughput (token/s): {rng.random() * 200:.2f}, #queue-req: 0"
            )


def access(rng: random.Random) -> str:
    """Write one line of uvicorn's access log."""
    port = rng.randrange(1 << 16)
    return f'INFO:     127.0.0.1:{port} - "POST /v1/chat/completions HTTP/1.1" 200 OK'


def vllm(rng: random.Random) -> str:
    """Write one line of a busy vLLM."""
    if rng.randrange(2):
        return access(rng)
    return (
        f"(APIServer pid=8030) INFO 12-03 07:31:{rng.randrange(60):02d} [loggers.py:335] "
        f"Engine 000: Avg prompt throughput: {rng.random() * 9000:.1f} tokens/s, "
        f"Avg generation throughput: {rng.random() * 200:.1f} tokens/s, Running: 2 reqs, "
        "Waiting: 0 reqs, GPU KV cache usage: 12.4%, Prefix cache hit rate: 61.0%"
    )


def llamacpp(rng: random.Random) -> str:
    """Write one line of a busy llama-server."""
    uptime = f"{rng.randrange(9)}.{rng.randrange(60):02d}.{rng.randrange(1000):03d}.204"
    kind, tokens = rng.choice([("prompt eval", 1024), ("       eval", 120)])
    spent = rng.random() * 1000
    return (
        f"{uptime} I slot print_timing: id  {rng.randrange(4)} | task {rng.randrange(9999)} | "
        f"{kind} time = {spent:10.2f} ms / {tokens:5d} tokens ({spent / tokens:8.2f} ms per token, "
        f"{1000 * tokens / spent:8.2f} tokens per second)"
    )


def unknown(rng: random.Random) -> str:
    """Write one line that no signature file knows, as a proxy in front might."""
    return (
        f"2026-12-03T07:31:{rng.randrange(60):02d}.{rng.randrange(1000):03d}Z level=info "
        f"module=router upstream=127.0.0.1:18000 path=/v1/chat/completions "
        f"took={rng.random():.4f} bytes={rng.randrange(99999)}"
    )


def mixed(rng: random.Random) -> str:
    """Write one line in a thousand that looks like an error, among ordinary ones of SGLang."""
    return sglang(rng) if rng.randrange(1000) else failing(rng)


def endless(rng: random.Random) -> str:
    """Write a part of one line that never ends, as a dump of a prompt might be."""
    return f"{rng.randrange(1 << 30):x}" * 16


def failing(rng: random.Random) -> str:
    """Write nothing but lines that look like errors: the worst case."""
    number = rng.randrange(99999)
    return f"[2026-12-03 11:00:00 TP0] ValueError: request {number}: temperature must be >= 0"


def crashing(rng: random.Random) -> str:
    """Write one start of SGLang that fails, in one of several ways, as a loop of crashes would."""
    time = f"2026-12-03 11:{rng.randrange(60):02d}:{rng.randrange(60):02d}"
    free = rng.random() * 30
    frames = "".join(
        f'  File "/opt/engine/lib/python3.12/site-packages/sglang/srt/part_{number}.py", line '
        f"{rng.randrange(3000)}, in step_{number}\n    self.step_{number + 1}(request, batch)\n"
        for number in range(rng.randrange(6, 20))
    )
    error = rng.choice(ERRORS).format(free=free)
    return (
        f"[{time}] server_args=ServerArgs(model_path='owner/name', port=30000)\n"
        f"[{time} TP0] Init torch distributed begin.\n"
        f"[{time} TP0] Load weight begin. avail mem={free:.2f} GB\n"
        f"[{time} TP0] Load weight end. type=Qwen3, dtype=torch.bfloat16, avail mem={free:.2f} GB\n"
        f"[{time} TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        f"{frames}{error}\n\n"
        f"[{time}] Received sigquit from a child process. It usually means the child failed."
    )


ERRORS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {free:.2f} GiB.",
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    "ModuleNotFoundError: No module named 'flashinfer'",
    "OSError: [Errno 28] No space left on device",
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "ValueError: temperature must be >= {free:.1f}",
    "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
    "PermissionError: [Errno 13] Permission denied: '/srv/models/config.json'",
)
LOGS: dict[str, tuple[Callable[[random.Random], str], str, bool]] = {
    "SGLang, plain": (sglang, "sglang", True),
    "vLLM, plain": (vllm, "vllm", True),
    "llama.cpp, plain": (llamacpp, "llamacpp", True),
    "SGLang, engine not named": (sglang, "any", True),
    "unknown lines": (unknown, "sglang", False),
    "one error in a thousand": (mixed, "sglang", False),
    "one line that never ends": (endless, "sglang", False),
    "errors only": (failing, "sglang", False),
    "failed starts": (crashing, "sglang", False),
}
BOOTED = {
    "sglang": "[2026-12-03 11:00:00] The server is fired up and ready to roll!",
    "vllm": "INFO:     Application startup complete.",
    "llamacpp": "0.00.021.187 I srv  llama_server: model loaded",
    "any": "[2026-12-03 11:00:00] The server is fired up and ready to roll!",
}


def pieces(path: Path) -> Iterator[bytes]:
    """Read a file as a pipe would deliver it."""
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece


def read(path: Path, engine: str) -> None:
    """Read `path` as a child process: print CPU seconds, and peak MiB of all and of the reading."""
    from servicekit.diagnosis.reader import LogReader

    reader = LogReader(engine)
    reader.feed_line(BOOTED[engine])
    before = peak_mib()
    began = time.process_time()
    for piece in pieces(path):
        reader.feed(piece)
    reader.close()
    seconds = time.process_time() - began
    print(seconds, peak_mib(), peak_mib() - before)


def peak_mib() -> float:
    """Return the most memory that this process ever had; `getrusage` would count its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def naive(path: Path, engine: str) -> float:
    """Return the CPU seconds of trying every signature on every line of the first 200 KB."""
    from servicekit.diagnosis.signatures import knowledge

    signatures = knowledge(engine).signatures
    with path.open("rb") as file:
        content = file.read(NAIVE_BYTES)
    began = time.process_time()
    for line in content.decode().splitlines():
        for signature in signatures:
            signature.match(line)
    return time.process_time() - began


def grep(path: Path, engine: str) -> float:
    """Return the CPU seconds of `grep -cF` with the literals that are searched in this log."""
    from servicekit.diagnosis.signatures import knowledge

    signatures = knowledge(engine).steady.signatures
    literals = {literal for one in signatures for literal in one.literals}
    patterns = path.with_suffix(".literals")
    patterns.write_text("\n".join(sorted(literals)))
    before = os.times()
    subprocess.run(
        [shutil.which("grep") or "/usr/bin/grep", "-cF", "-f", patterns, path],
        env={"LC_ALL": "C"},
        stdout=subprocess.DEVNULL,
        check=False,  # 1 where no line has any
    )
    after = os.times()
    return (
        after.children_user - before.children_user + after.children_system - before.children_system
    )


def write(path: Path, line: Callable[[random.Random], str], size: int) -> int:
    """Write a log of about `size` bytes and return how many there are."""
    rng = random.Random(1)  # noqa: S311 - the same log every time
    end = "" if line is endless else "\n"
    block = "".join(f"{line(rng)}{end}" for _ in range(20_000)).encode()
    with path.open("wb") as file:
        for _ in range(max(1, size // len(block))):
            file.write(block)
    return path.stat().st_size


def measure(_: Machinery) -> Iterator[Row]:
    """Read each log in a process of its own, and beside it the naive way."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "engine.log"
        for name, (line, engine, plain) in LOGS.items():
            written = write(path, line, SIZE)
            answer = subprocess.run(
                [sys.executable, "-m", __name__, str(path), engine],
                cwd=Path(__file__).parents[1],
                capture_output=True,
                text=True,
                check=True,
            )
            seconds, peak, grown = map(float, answer.stdout.split())
            rate = written / 1e6 / seconds
            slower = rate / (min(NAIVE_BYTES, written) / 1e6 / naive(path, engine))
            yield Row(
                "log read by the watchdog",
                name,
                rate,
                "MB/s",
                aim=AIM if plain else AIM_OF_FAILURES if line is failing else None,
                more_is_better=True,
                how=f"{written / 1e6:.0f} MB; {slower:.0f} times as fast as every pattern on every "
                f"line; peak {peak:.1f} MiB, {grown:.1f} of it for this",
            )
            if plain or line is failing:
                theirs = written / 1e6 / grep(path, engine)
                yield Row(
                    "log read by the watchdog",
                    f"{name}: grep -cF",
                    theirs,
                    "MB/s",
                    more_is_better=True,
                    times=theirs / rate,
                    how="the same file and literals, in the same run",
                )


if __name__ == "__main__":
    read(Path(sys.argv[1]), sys.argv[2])
