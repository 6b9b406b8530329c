#!/usr/bin/env python3
"""A liar: an OpenAI-compatible server that commits, on command, what no real engine will.

It needs nothing but the standard library and takes the command line of the engine it plays:
`sglang serve --model-path M ...`, `vllm serve M ...`, `llama-server -m M ...`; options that it does
not know are ignored, so it can be a profile's `executable`. What it shall play comes as one JSON
object: the value of `--script`, or of the environment variable `FAKE_ENGINE`; either may be
`@FILE`. While it runs, `POST /_fault` with such an object changes it, and so does SIGUSR1, which
reads the `@FILE` again, or only `told` in it, which means nothing at start (the only way in while it
loads, or from afar); both merge into what is there.
`GET /_fault` tells `{"pid", "ready_at", "workers", "orphans", "asked", "terms", "personality"}`;
`ready_at` is wall-clock time, `terms` the SIGTERMs so far, and `asked` counts completions by the
asker's program: `begun`, `open`, `most` open at once.

As in the real engines, a request whose client has hung up is dropped, in the queue too, and what a
dialect counts is counted when the real one does: a prompt when it is through (vLLM), both when the
request has finished (SGLang, llama.cpp), beside what moves with the work itself.

**What it is** (keys hold until they are changed)

| key | default | meaning |
|---|---|---|
| `dialect` | by the command line | `sglang` `vllm` `llamacpp` `openai`: end points, metric names, boot log |
| `name` | by the command line | the served name in `/v1/models`: another one is the wrong model |
| `reply_name` | `name` | the model's name in the reply to a completion |
| `context` | by the command line, 32768 | the declared context, in tokens |
| `pool` | `context` | the physical pool, in tokens: a smaller one than declared |
| `load` | 0.2 | seconds of loading, over which the boot log is spread |
| `spin` | 0 | part of a core that loading takes |
| `boot` | the dialect's | the lines of the boot log |
| `stall` | none | the boot log stops for ever before this line (0 = before the first) |
| `fatal` | none | a last line, after which loading ends with `fatal_code` (1) |
| `key` | by the command line | the API key that `/v1` wants: 401 without |
| `shares` | false | other processes may listen on the port, too (SO_REUSEPORT) |
| `draft_graph` | true | false: the boot log says that the draft graph was disabled |
| `impostor` | false | the port is served by a process that is not this one's child and has no environment of it |
| `workers` | 0 | child processes; when one dies, sglang kills itself, vllm answers 500 and exits 0; sglang's die with it, the others' survive it |
| `recycles` | false | a worker that dies is replaced |

**How it behaves** (likewise)

| key | default | meaning |
|---|---|---|
| `answers` | `"all"` | `"nothing"`: connections are accepted and never answered; `"html"`: every answer is a web page; `"nested"`: JSON that is too deep to be read; `"odd"`: JSON of other types than promised |
| `status` | 0 | this HTTP status instead of an answer: 401 on `/v1`, any other everywhere |
| `status_for` | 0 | seconds until `status` is over; 0 = it stays |
| `completion` | `"text"` | `"hang"`: never answered, while the rest is well; `"trickle"`: a byte now and then, for ever; `"thinking"`: `content` empty, finish reason `length`; `"repeat"`: one character over and over; `"empty"`: no token; `"drop"`: the connection is cut; `"busy"`: 429 |
| `text` | "Hello there." | what a completion says |
| `speed` | 200 | generated tokens a second |
| `first_stall` | 0 | seconds for which the first completion holds up every other, counters standing still (a shape is compiled) |
| `slots` | 4 | requests served at a time; others queue |
| `counters` | `"real"` | `"moving"`: others' work moves them, and none of it finishes; `"frozen"`; `"nan"`: no figure is a number; `"hang"`: `/metrics` is never answered; `"absent"`: 404 |
| `acceptance` | none | the draft acceptance rate in the metrics, 0 to 1; none = no speculation |
| `late` | false | a counter of drafts is not in the metrics while it is 0, as labelled ones are not |
| `terms` | 1 | SIGTERMs until it exits 0; 0 = ignored for ever |
| `drains` | -1 | seconds from the first SIGTERM until it exits 0, its workers dead at once and itself idle, as vLLM's API server; -1 = at once |

**What it does** (once, each time it is told; at start, when it is loaded; `after` = seconds later)

| key | meaning |
|---|---|
| `say` | prints these log lines |
| `flood` | prints for these seconds as much as it can, lines with and without an end |
| `exit` | exits with this code |
| `kill` | kills itself with this signal, by name or number |
| `freeze` | stops itself with SIGSTOP: every thread stands still, the port listens on |
| `orphan` | leaves a process behind: double-forked, in a session of its own, deaf to SIGTERM; `"bare"`: without this one's environment |
| `close` | listens no more, and lives on |
| `prefill` | is busy for these seconds with one long prompt in every slot: only what moves within a request does |
| `users` | serves others, who are `at_once`, for `seconds`: each asks for `tokens` tokens, over and over |
| `compile` | the next step of the model takes these seconds, counters standing still |
| `eat` | takes these MiB of memory, a little at a time |
| `shm` | has this file in `/dev/shm` open, and never removes it |
| `stuck` | a thread looks at this path, which may never return (see `machines/dstate.py`) |
"""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TICK = 0.01
"""Seconds between two looks of the main loop."""
PROMPT = 8
"""Tokens of every prompt."""
COMPILER = "import time\nwhile True: sum(range(100_000)); time.sleep(0.01)"
"""A child process that uses a part of a core, as `nvcc` does."""
HEALTH_LIMIT = 20.0
"""Seconds that SGLang's `/health_generate` waits for any token before it answers 503."""

OPTIONS = {
    "--port": "port",
    "--host": "host",
    "--served-model-name": "name",
    "--alias": "name",
    "-a": "name",
    "--model-path": "path",
    "--model": "path",
    "-m": "path",
    "--context-length": "context",
    "--max-model-len": "context",
    "--ctx-size": "context",
    "-c": "context",
    "--api-key": "key",
    "--script": "script",
}

BOOT = {
    "sglang": (
        "[2026-01-01 00:00:00] Load weight begin. avail mem=30.71 GB",
        "[2026-01-01 00:00:00] Load weight end. elapsed=1.00 s, type=Fake, avail mem=10.57 GB, mem usage=20.14 GB.",
        "[2026-01-01 00:00:00] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: {pool}, K size: 0.59 GB, V size: 0.59 GB",
        "[2026-01-01 00:00:00] Memory pool end. avail mem=4.47 GB",
        "[2026-01-01 00:00:00] Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[1], avail mem=3.96 GB",
        "[2026-01-01 00:00:00] Capture target decode CUDA graph end. elapsed=1.00 s, mem usage=0.10 GB, avail mem=3.86 GB.",
        "[2026-01-01 00:00:00] max_total_num_tokens={pool}, chunked_prefill_size=2048, max_prefill_tokens=16384, max_running_requests=4, context_len={context}, available_gpu_mem=2.87 GB",
        "[2026-01-01 00:00:00] The server is fired up and ready to roll!",
    ),
    "vllm": (
        "(EngineCore pid=1) INFO 01-01 00:00:00 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: model='{path}'",
        "(EngineCore pid=1) INFO 01-01 00:00:00 [model.py:1] Model loading took 19.75 GiB memory and 6.356814 seconds",
        "(EngineCore pid=1) INFO 01-01 00:00:00 [worker.py:1] Available KV cache memory: 5.98 GiB",
        "(EngineCore pid=1) INFO 01-01 00:00:00 [kv.py:1] GPU KV cache size: {pool:,} tokens, Maximum concurrency for {context:,} tokens per request: 1.00x",
        "(EngineCore pid=1) INFO 01-01 00:00:00 [run.py:1] Graph capturing finished in 5 secs, took 0.46 GiB",
        "(EngineCore pid=1) INFO 01-01 00:00:00 [core.py:1] init engine (profile, create kv cache, warmup model) took 3.90 s",
        "(APIServer pid=1) INFO 01-01 00:00:00 [api.py:1] Starting vLLM server on http://127.0.0.1:{port}",
        "INFO:     Application startup complete.",
    ),
    "llamacpp": (
        "0.00.042.637 I srv          init: initializing ...",
        "0.00.064.888 I srv    load_model: loading model '{path}'",
        "0.00.972.739 I srv    load_model: initializing, n_slots = 1, n_ctx_slot = {pool}, kv_unified = 'false'",
        "0.00.976.994 I srv          init: model loaded",
        "0.00.977.009 I srv          init: listening on http://127.0.0.1:{port}",
    ),
    "openai": ("loading {path}", "serving on port {port}"),
}
"""The boot log of each engine, in its own words."""

DRAFT_GRAPH_OFF = (
    "[2026-01-01 00:00:00] Disable DSpark draft cuda graph because only 0.83 GB GPU memory is "
    "available after target backend initialization."
)

BIND_REFUSED = {
    "sglang": "[Errno 98] error while attempting to bind on address ('127.0.0.1', {port}): address already in use",
    "vllm": "OSError: [Errno 98] Address already in use",
    "llamacpp": "0.00.025.355 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: {port}",
    "openai": "address already in use: {port}",
}

SLEEPER = (
    "import signal, time; signal.signal(signal.SIGTERM, {disposition})\nwhile True: time.sleep(60)"
)

DIE_WITH_PARENT = "import ctypes; ctypes.CDLL(None).prctl(1, 9)"
"""PR_SET_PDEATHSIG with SIGKILL, as SGLang's children do and vLLM's do not."""

LEAVE_BEHIND = """
import subprocess, sys
print(subprocess.Popen(
    sys.argv[1:], start_new_session=True, stdin=subprocess.DEVNULL, stdout=2, env={env}
).pid)
"""
"""The first of two forks: it names the second and is gone."""

NESTED = b"[" * 200_000
ODD = json.dumps(
    {
        "object": {},
        "data": [None, {"id": 7}, {"id": "row", "root": ["a"], "meta": 3, "max_model_len": "many"}],
        "model": "row",
        "choices": [{"message": {"content": {"a": 1}}, "finish_reason": {}}],
        "usage": {"completion_tokens": "two"},
    }
).encode()
PAGE = b"<!doctype html><title>Welcome</title><h1>It works!</h1>"


@dataclass
class Personality:
    """What the engine plays now; the keys of the module's first two tables."""

    dialect: str = "openai"
    name: str = "model"
    reply_name: str = ""
    path: str = "model"
    context: int = 32768
    pool: int = 0
    load: float = 0.2
    spin: float = 0
    boot: tuple[str, ...] = ()
    stall: int | None = None
    fatal: str = ""
    fatal_code: int = 1
    key: str = ""
    draft_graph: bool = True
    impostor: bool = False
    workers: int = 0
    answers: str = "all"
    status: int = 0
    status_for: float = 0
    completion: str = "text"
    text: str = "Hello there."
    speed: float = 200
    first_stall: float = 0
    slots: int = 4
    counters: str = "real"
    acceptance: float | None = None
    terms: int = 1
    drains: float = -1
    recycles: bool = False
    shares: bool = False
    late: bool = False


STATE = {field.name for field in fields(Personality)}


@dataclass
class Counters:
    """What the engine counts, and what it is doing."""

    prompt: int = 0
    """Tokens of prompts, as they are read."""
    generated: int = 0
    """Tokens of answers, as they are made."""
    decodes: int = 0
    first_tokens: int = 0
    decode_seconds: float = 0.0
    finished: int = 0
    finished_prompt: int = 0
    """Tokens of prompts whose request has finished."""
    finished_generated: int = 0
    aborted: int = 0
    running: int = 0
    waiting: int = 0
    usage: float = 0.0


@dataclass
class Asked:
    """How often one program has asked for a completion."""

    begun: int = 0
    open: int = 0
    most: int = 0


class GoneError(Exception):
    """The client has hung up."""


def log(line: str) -> None:
    """Print a line as an engine does."""
    print(line, file=sys.stderr, flush=True)


class Engine:
    """The engine behind the HTTP server."""

    def __init__(self, argv: list[str]) -> None:
        found = self._options(argv)
        self.port = int(found.pop("port", 8000))
        self.host = found.pop("host", "127.0.0.1")
        self._script = found.pop("script", os.environ.get("FAKE_ENGINE", "{}"))
        self.me = Personality()
        self.counters = Counters()
        self.seat = threading.Condition()
        self.step = threading.Lock()
        """Held for one step of the model: what is held up in one is held up for all."""
        self.asked: dict[str, Asked] = {}
        self.ready = False
        self.ready_at = 0.0
        self.first = True
        self.workers: list[subprocess.Popen[bytes]] = []
        self.orphans: list[int] = []
        self.terms = 0
        self._servers: list[Server] = []
        self._status_over = float("inf")
        self._due: list[tuple[float, str, Any]] = []
        self._changed = threading.Event()
        self.adopt({"dialect": self._dialect(argv)} | found)
        script = self._read_script()
        script.pop("told", None)
        self._deferred = self.adopt(script)

    @staticmethod
    def _options(argv: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if argv[:1] == ["serve"] and len(argv) > 1 and not argv[1].startswith("-"):
            found["path"] = argv[1]
        words = [
            part for word in argv for part in (word.split("=", 1) if word[:2] == "--" else [word])
        ]
        for option, value in itertools.pairwise(words):
            if option in OPTIONS:
                found[OPTIONS[option]] = value
        found.setdefault("name", found.get("path", "model"))
        if "context" in found:
            found["context"] = int(found["context"])
        return found

    @staticmethod
    def _dialect(argv: list[str]) -> str:
        if argv[:1] == ["serve"]:
            return "sglang" if "--model-path" in argv else "vllm"
        return "llamacpp" if {"--alias", "-a", "--ctx-size", "-c"} & set(argv) else "openai"

    def _read_script(self) -> dict[str, Any]:
        text = self._script
        if text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
        script: dict[str, Any] = json.loads(text)
        return script

    def adopt(self, script: dict[str, Any]) -> dict[str, Any]:
        """Take over what holds, give back what is to be done; `ValueError` on an unknown key."""
        for key in STATE & script.keys():
            setattr(self.me, key, script[key])
        if "status" in script or "status_for" in script:
            over = time.monotonic() + self.me.status_for
            self._status_over = over if self.me.status_for else float("inf")
        acts = {key: value for key, value in script.items() if key not in STATE}
        for key in acts.keys() - {"after"}:
            if not hasattr(self, f"do_{key}"):
                message = f"no such key: {key}"
                raise ValueError(message)
        return acts

    def change(self, script: dict[str, Any]) -> None:
        """Become what `script` says, and do what it says."""
        self.plan(self.adopt(script))

    def plan(self, acts: dict[str, Any]) -> None:
        """Do these `after` seconds from now."""
        due = time.monotonic() + float(acts.pop("after", 0))
        self._due.extend((due, key, value) for key, value in acts.items())

    @property
    def pool(self) -> int:
        """The physical pool, in tokens."""
        return self.me.pool or self.me.context

    @property
    def status(self) -> int:
        """The HTTP status that stands in for an answer now, or 0."""
        return self.me.status if time.monotonic() < self._status_over else 0

    # ---- one life ----

    def run(self) -> NoReturn:
        """Load, serve, and do what is due, until told to end."""
        signal.signal(signal.SIGTERM, lambda *_: self._terminate())
        signal.signal(signal.SIGUSR1, lambda *_: self._changed.set())
        server = self._listen() if self.me.dialect == "llamacpp" else None
        self._load()
        if server is None and not self.me.impostor:
            self._listen()
        self.ready = True
        self.ready_at = time.clock_gettime(time.CLOCK_REALTIME)
        if self.me.impostor:
            script = json.dumps(asdict(self.me) | {"impostor": False, "load": 0, "workers": 0})
            self._leave_behind([__file__, *sys.argv[1:], "--script", script], bare=True)
        self.plan(self._deferred)
        while True:
            self._tick()
            time.sleep(TICK)

    def _listen(self) -> Server:
        Server.allow_reuse_port = self.me.shares
        try:
            server = Server((self.host, self.port), Handler)
        except OSError:
            log(BIND_REFUSED[self.me.dialect].format(port=self.port))
            sys.exit(1)
        server.engine = self
        self._servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def _load(self) -> None:
        code = SLEEPER.format(disposition="signal.SIG_DFL")
        if self.me.dialect == "sglang":
            code = f"{DIE_WITH_PARENT}; {code}"
        worker = [sys.executable, "-c", code, "fake-worker", f"of={os.getpid()}"]
        self.workers = [subprocess.Popen(worker) for _ in range(self.me.workers)]
        lines = self.me.boot or BOOT[self.me.dialect]
        if not self.me.draft_graph:
            lines = (*lines[:-1], DRAFT_GRAPH_OFF, lines[-1])
        begun = time.monotonic()
        for number, line in enumerate(lines):
            while number == self.me.stall or (
                time.monotonic() < begun + self.me.load * number / len(lines)
            ):
                self._tick()
                self._work()
            log(
                line.format(
                    pool=self.pool, context=self.me.context, path=self.me.path, port=self.port
                )
            )
        while time.monotonic() < begun + self.me.load:
            self._tick()
            self._work()
        if self.me.fatal:
            log(self.me.fatal)
            os._exit(self.me.fatal_code)

    def _work(self) -> None:
        """Let a moment of loading pass."""
        busy = time.monotonic() + TICK * self.me.spin
        while time.monotonic() < busy:
            pass
        time.sleep(TICK * (1 - self.me.spin))

    def _tick(self) -> None:
        if self._changed.is_set():
            self._changed.clear()
            script = self._read_script()
            self.change(script.get("told", script))
        now = time.monotonic()
        for entry in [entry for entry in self._due if entry[0] <= now]:
            self._due.remove(entry)
            getattr(self, f"do_{entry[1]}")(entry[2])
        if self.me.counters == "moving":
            self.count(prompt=3)
            self.count(generated=1)
        if any(worker.poll() is not None for worker in self.workers):
            self._lost_worker()

    def _lost_worker(self) -> None:
        if self.me.recycles:
            self.workers = [each for each in self.workers if each.poll() is None]
            return
        if self.me.dialect == "sglang":
            time.sleep(0.3)
            log("SIGQUIT received. signum=3, frame=None. It usually means one child failed.")
            os.kill(os.getpid(), signal.SIGKILL)
        log("EngineCore encountered an issue. See stack trace (above) for the root cause.")
        self.workers = []
        self.change({"status": 500, "status_for": 0, "exit": 0, "after": 0.2})

    def _terminate(self) -> None:
        self.terms += 1
        if self.terms == self.me.terms:
            for worker in self.workers:
                worker.kill()
            if self.me.drains >= 0:
                time.sleep(self.me.drains)
            os._exit(0)

    def _leave_behind(self, program: list[str], *, bare: bool) -> None:
        env = "{}" if bare else "None"
        first = [sys.executable, "-c", LEAVE_BEHIND.format(env=env), sys.executable, *program]
        first.append(f"of={os.getpid()}")
        said = subprocess.run(first, stdout=subprocess.PIPE, check=True).stdout
        self.orphans.append(int(said))

    # ---- acts ----

    def do_say(self, lines: list[str]) -> None:
        """Print lines."""
        for line in lines:
            log(line)

    def do_flood(self, seconds: float) -> None:
        """Print without a pause."""
        over = time.monotonic() + seconds

        def flood() -> None:
            while time.monotonic() < over:
                os.write(2, b"INFO: \xff a line as any other, \0 and then some more of it\n" * 900)
                os.write(2, b"no end in sight " * 4000)

        threading.Thread(target=flood, daemon=True).start()

    def do_exit(self, code: int) -> NoReturn:
        """Exit at once."""
        os._exit(code)

    def do_kill(self, name: str | int) -> None:
        """Die by a signal; SIGTERM would only ask."""
        number = signal.Signals[name] if isinstance(name, str) else signal.Signals(name)
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def do_freeze(self, _: object) -> None:
        """Stand still until SIGCONT."""
        os.kill(os.getpid(), signal.SIGSTOP)

    def do_orphan(self, how: object) -> None:
        """Leave a process behind that must be found to be ended."""
        sleeper = SLEEPER.format(disposition="signal.SIG_IGN")
        self._leave_behind(["-c", sleeper, "fake-orphan"], bare=how == "bare")

    def do_shm(self, name: str) -> None:
        """Use a file in shared memory, as engines do between their processes."""
        self.shared = os.open(f"/dev/shm/{name}", os.O_RDWR | os.O_CREAT)  # noqa: S108 # the fault
        os.write(self.shared, bytes(1 << 16))

    def do_stuck(self, path: str) -> None:
        """Have a thread look at a path that may never answer."""
        threading.Thread(target=os.stat, args=(path,), daemon=True).start()

    def do_close(self, _: object) -> None:
        """Listen no more."""
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def do_prefill(self, seconds: float) -> None:
        """Be busy with long prompts."""
        for _ in range(self.me.slots):
            threading.Thread(target=self._prefill, args=(seconds,), daemon=True).start()

    def _prefill(self, seconds: float) -> None:
        with self.take_seat():
            begun = time.monotonic()
            while (passed := time.monotonic() - begun) < seconds:
                with self.seat:
                    self.counters.usage = 0.1 + 0.8 * passed / seconds
                    self.counters.decodes += 1
                    # Counted at once by SGLang, and by vLLM only when the prompt is through.
                    self.counters.prompt += 1 if self.me.dialect == "sglang" else 0
                time.sleep(TICK)
        self.counters.usage = 0.0

    def do_users(self, users: dict[str, float]) -> None:
        """Have others served beside whoever asks by HTTP."""
        over = time.monotonic() + users["seconds"]

        def ask() -> None:
            while time.monotonic() < over:
                with self.take_seat():
                    self.generate(int(users["tokens"]), lambda: False, text="word " * 10000)

        for _ in range(int(users["at_once"])):
            threading.Thread(target=ask, daemon=True).start()

    def do_compile(self, seconds: float) -> None:
        """Meet a shape for the first time."""
        self.me.first_stall = seconds
        self.first = True

    def do_eat(self, mebibytes: int) -> None:
        """Take memory, and keep it."""
        eaten: list[bytes] = []
        for _ in range(mebibytes):
            eaten.append(os.urandom(1 << 10) * (1 << 10))
            time.sleep(TICK / 10)
        self._eaten = eaten

    # ---- serving ----

    def take_seat(self, gone: Callable[[], bool] = lambda: False) -> Seat:
        """Give the right to run one request, when it is its turn."""
        return Seat(self, gone)

    @contextmanager
    def note(self, asker: str) -> Iterator[None]:
        """Count a completion that `asker` waits for."""
        with self.seat:
            asked = self.asked.setdefault(asker, Asked())
            asked.begun += 1
            asked.open += 1
            asked.most = max(asked.most, asked.open)
        try:
            yield
        finally:
            with self.seat:
                asked.open -= 1

    def count(self, *, prompt: int = 0, generated: int = 0, first: bool = False) -> None:
        """Count one step of the model, unless the counters are frozen."""
        if self.me.counters == "frozen":
            return
        with self.seat:
            counters = self.counters
            counters.prompt += prompt
            counters.generated += generated
            counters.decodes += 1
            if first:
                counters.first_tokens += 1
            elif generated:
                counters.decode_seconds += generated / self.me.speed

    def finish(self, prompt: int, generated: int) -> None:
        """Count a request that has been answered, unless the counters are frozen."""
        if self.me.counters == "frozen":
            return
        with self.seat:
            self.counters.finished += 1
            self.counters.finished_prompt += prompt
            self.counters.finished_generated += generated

    def generate(
        self, wanted: int, gone: Callable[[], bool], text: str = ""
    ) -> tuple[str, int, str]:
        """Take the time of a completion; give its text, number of tokens and finish reason."""
        self._step(gone)
        while self.me.completion == "hang":
            self._step(gone)
            time.sleep(TICK)
        if self.me.completion == "empty":
            return "", 0, "stop"
        text = "!" * wanted if self.me.completion == "repeat" else text or self.me.text
        whole = max(1, len(text.split())) if self.me.completion == "text" else wanted
        tokens = min(wanted, whole)
        self.count(prompt=PROMPT)
        for number in range(tokens):
            time.sleep(1 / self.me.speed)
            self._step(gone)
            self.count(generated=1, first=number == 0)
        self.finish(PROMPT, tokens)
        if self.me.completion == "thinking":
            return "", tokens, "length"
        return text, tokens, "stop" if tokens == whole else "length"

    def _step(self, gone: Callable[[], bool]) -> None:
        """Wait for the model; the first step of all may take long."""
        with self.step:
            if self.first:
                self.first = False
                compiler = subprocess.Popen([sys.executable, "-c", COMPILER])
                time.sleep(self.me.first_stall)
                compiler.kill()
                compiler.wait()
        if gone():
            raise GoneError

    # ---- what it tells of itself ----

    def models(self) -> dict[str, Any]:
        """Answer `/v1/models`."""
        me = self.me
        model: dict[str, Any] = {
            "id": me.name,
            "object": "model",
            "created": 1,
            "owned_by": me.dialect,
        }
        if me.dialect == "sglang":
            model |= {"root": me.name, "parent": None, "max_model_len": me.context}
        elif me.dialect == "vllm":
            model |= {
                "root": me.path,
                "parent": None,
                "max_model_len": me.context,
                "permission": [],
            }
        elif me.dialect == "llamacpp":
            model |= {"aliases": [me.name], "meta": {"n_ctx": self.pool, "n_ctx_train": 1 << 18}}
        return {"object": "list", "data": [model]}

    def documents(self) -> dict[str, Any]:
        """Give the other end points of the dialect, by path."""
        me, counters = self.me, self.counters
        if me.dialect == "sglang":
            memory: dict[str, Any] = {"weight": 20.14, "kvcache": 1.18, "token_capacity": self.pool}
            info: dict[str, Any] = {"max_total_num_tokens": self.pool, "api_key": me.key or None}
            info |= {"max_req_input_len": min(me.context, self.pool) - 6}
            info |= {"internal_states": [{"memory_usage": memory, "last_gen_throughput": me.speed}]}
            return {"/server_info": info, "/model_info": {"model_path": me.path}}
        if me.dialect == "llamacpp":
            slot = {"n_ctx": self.pool, "speculative": me.acceptance is not None}
            slots = [
                {"id": number, "is_processing": number < counters.running} | slot
                for number in range(me.slots)
            ]
            settings = {"n_ctx": self.pool}
            props = {"default_generation_settings": settings, "total_slots": me.slots}
            props |= {"model_path": me.path, "model_alias": me.name}
            return {"/props": props, "/slots": slots}
        return {}

    def metrics(self) -> str:
        """Answer `/metrics` in the names of the dialect."""
        me, now = self.me, self.counters
        labels = "" if me.dialect == "llamacpp" else f'{{model_name="{me.name}"}}'
        figures = {"sglang": self._sglang, "vllm": self._vllm, "llamacpp": self._llamacpp}
        lines = [
            f"{me.dialect}:{name}{labels} {'NaN' if me.counters == 'nan' else value}"
            for name, value in figures[me.dialect]().items()
        ]
        if me.dialect == "vllm":
            size = f'kv_cache_size_tokens="{self.pool}",block_size="16"'
            size += f',num_gpu_blocks="{self.pool // 16}"'
            lines.append(f"vllm:cache_config_info{{{size}}} 1.0")
            for reason, count in (("stop", now.finished), ("abort", now.aborted)):
                lines.append(f'vllm:request_success_total{{finished_reason="{reason}"}} {count}')
        return "\n".join(lines) + "\n"

    def _sglang(self) -> dict[str, float]:
        me, now = self.me, self.counters
        values = {
            "num_running_reqs": now.running,
            "num_queue_reqs": now.waiting,
            "token_usage": now.usage,
            "kv_used_tokens": int(now.usage * self.pool),
            "realtime_tokens_total": now.prompt + now.generated,
            "prompt_tokens_total": now.finished_prompt,
            "generation_tokens_total": now.finished_generated,
            "num_requests_total": now.finished + now.aborted,
            "num_aborted_requests_total": now.aborted,
            "inter_token_latency_seconds_count": now.generated - now.first_tokens,
            "inter_token_latency_seconds_sum": now.decode_seconds,
            "max_total_num_tokens": self.pool,
            "context_len": me.context,
            "gen_throughput": me.speed if now.running else 0.0,
        }
        if me.acceptance is not None:
            length = 1 + 3 * me.acceptance
            decoded = now.finished_generated - now.finished
            values |= {"spec_accept_rate": me.acceptance, "spec_accept_length": length}
            values |= {"spec_verify_calls_total": int(decoded / length)}
        return values

    def _vllm(self) -> dict[str, float]:
        now = self.counters
        return {
            "num_requests_running": now.running,
            "num_requests_waiting": now.waiting,
            "kv_cache_usage_perc": now.usage,
            "prompt_tokens_total": now.prompt,
            "generation_tokens_total": now.generated,
            "time_to_first_token_seconds_count": now.first_tokens,
            "inter_token_latency_seconds_sum": now.decode_seconds,
            **self._drafts(),
        }

    def _llamacpp(self) -> dict[str, float]:
        me, now = self.me, self.counters
        return {
            "prompt_tokens_total": now.finished_prompt,
            "tokens_predicted_total": now.finished_generated,
            "tokens_predicted_seconds_total": now.finished_generated / me.speed,
            "requests_processing": now.running,
            "requests_deferred": now.waiting,
            "n_decode_total": now.decodes,
            "predicted_tokens_seconds": me.speed,
            **self._drafts(),
        }

    def _drafts(self) -> dict[str, float]:
        me, now = self.me, self.counters
        if me.acceptance is None:
            return {}
        drafts = {
            "spec_decode_num_drafts_total": now.generated,
            "spec_decode_num_draft_tokens_total": 4 * now.generated,
            "spec_decode_num_accepted_tokens_total": int(me.acceptance * 4 * now.generated),
        }
        return {name: count for name, count in drafts.items() if count or not me.late}


class Seat:
    """The right to run one request: a context, entered when a slot is free."""

    def __init__(self, engine: Engine, gone: Callable[[], bool]) -> None:
        self._engine = engine
        self._gone = gone

    def __enter__(self) -> None:
        engine = self._engine
        with engine.seat:
            engine.counters.waiting += 1
            try:
                while engine.counters.running >= engine.me.slots:
                    engine.seat.wait(5 * TICK)
                    if self._gone():
                        raise GoneError
            finally:
                engine.counters.waiting -= 1
            engine.counters.running += 1

    def __exit__(self, *_: object) -> None:
        with self._engine.seat:
            self._engine.counters.running -= 1
            self._engine.seat.notify_all()


class Server(ThreadingHTTPServer):
    """The HTTP server, which knows its engine."""

    request_queue_size = 128
    engine: Engine


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    # As in the real servers; else each answer, header and body, takes 40 ms on a kept connection.
    disable_nagle_algorithm = True

    @property
    def engine(self) -> Engine:
        """The engine that is asked."""
        assert isinstance(self.server, Server)
        return self.server.engine

    def log_message(self, *_: object) -> None:  # type: ignore[explicit-override] # not in 3.11
        """Keep the log to what an engine prints."""

    def do_GET(self) -> None:
        """Answer a question."""
        if self._lied():
            return
        path, engine = self.path.partition("?")[0], self.engine
        counters = engine.me.counters
        if path == "/_fault":
            told = {"pid": os.getpid(), "orphans": engine.orphans, "personality": asdict(engine.me)}
            told |= {"ready_at": engine.ready_at, "terms": engine.terms}
            told |= {"asked": {asker: asdict(asked) for asker, asked in engine.asked.items()}}
            self._json(told | {"workers": [worker.pid for worker in engine.workers]})
        elif path == "/health":
            self._json({"status": "ok"}) if engine.me.dialect == "llamacpp" else self._send(
                200, b""
            )
        elif path == "/health_generate" and engine.me.dialect == "sglang":
            self._send(200 if self._generates() else 503, b"")
        elif path == "/v1/models":
            self._json(engine.models())
        elif path == "/metrics" and engine.me.dialect != "openai" and counters != "absent":
            if counters == "hang":
                self._never()
            self._send(200, engine.metrics().encode(), "text/plain; version=0.0.4")
        elif path in (documents := engine.documents()):
            self._json(documents[path])
        else:
            self._refuse(404, "Not Found")

    def do_POST(self) -> None:
        """Change the engine, or complete."""
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length) or b"{}")
        if self.path == "/_fault":
            try:
                acts = self.engine.adopt(body)
            except ValueError as error:
                self._refuse(400, str(error))
            else:
                self._json({})  # first: what is to be done may be the end
                self.engine.plan(acts)
        elif not self._lied():
            if self.path in {"/v1/chat/completions", "/v1/completions"}:
                asker = self.headers.get("User-Agent", "").partition("/")[0]
                try:
                    with self.engine.note(asker):
                        self._complete(body)
                except (GoneError, ConnectionError):
                    self.close_connection = True
                    with self.engine.seat:
                        self.engine.counters.aborted += 1
            else:
                self._refuse(404, "Not Found")

    def _generates(self) -> bool:
        """Ask for one token, and tell whether any comes: this one or one of somebody else's."""
        engine, before = self.engine, self.engine.counters.generated
        over = time.monotonic() + HEALTH_LIMIT

        def enough() -> bool:
            return engine.counters.generated > before or time.monotonic() > over or self._gone()

        try:
            with engine.take_seat(enough):
                engine.generate(1, enough)
        except GoneError:
            return engine.counters.generated > before
        return True

    def _gone(self) -> bool:
        """Tell whether the client has hung up."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def _lied(self) -> bool:
        """Tell whether the request was dealt with by a lie that any request meets."""
        engine, me = self.engine, self.engine.me
        if self.path == "/_fault":
            return False
        if me.answers == "nothing":
            self._never()
        if not engine.ready:
            self._refuse(503, "Loading model", "unavailable_error")
        elif me.answers == "html":
            self._send(200, PAGE, "text/html")
        elif me.answers in {"nested", "odd"}:
            self._send(200, NESTED if me.answers == "nested" else ODD)
        elif (status := engine.status) and (status != 401 or self.path.startswith("/v1")):
            self._refuse(status, "as told")
        elif (
            me.key
            and self.path.startswith("/v1")
            and self.headers.get("Authorization") != f"Bearer {me.key}"
        ):
            self._refuse(401, "Unauthorized", "AuthenticationError")
        else:
            return False
        return True

    def _never(self) -> NoReturn:
        while True:
            time.sleep(60)

    def _complete(self, body: dict[str, Any]) -> None:
        engine, me = self.engine, self.engine.me
        if me.dialect == "vllm" and body.get("model", me.name) != me.name:
            self._refuse(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
            return
        if me.completion == "busy":
            self._refuse(429, "Too many requests")
            return
        if me.completion == "drop":
            self.close_connection = True
            return
        if me.completion == "trickle":
            self._trickle()
        with engine.take_seat(self._gone):
            text, tokens, reason = engine.generate(int(body.get("max_tokens") or 16), self._gone)
        chat = self.path == "/v1/chat/completions"
        head = {"id": "cmpl-1", "created": 1, "model": me.reply_name or me.name}
        usage = {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": 8 + tokens}
        if body.get("stream"):
            self._stream(head, text, reason, usage, body)
            return
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if me.completion == "thinking":
            message["reasoning" if me.dialect == "vllm" else "reasoning_content"] = "Let me think"
        choice = {"index": 0, "finish_reason": reason}
        choice |= {"message": message} if chat else {"text": text}
        kind = "chat.completion" if chat else "text_completion"
        self._json(head | {"object": kind, "choices": [choice], "usage": usage})

    def _stream(
        self,
        head: dict[str, Any],
        text: str,
        reason: str,
        usage: dict[str, int],
        body: dict[str, Any],
    ) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        empty = None if self.engine.me.dialect == "llamacpp" else ""
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": empty}]
        deltas += [{"content": f"{word} "} for word in text.split()]
        for delta in deltas:
            self._event(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        self._event(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            self._event(head | {"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, value: object) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())

    def _trickle(self) -> NoReturn:
        """Send a legal start of a JSON text, a byte at a time, for ever."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        while True:
            self.wfile.write(b" ")
            time.sleep(0.1)

    def _json(self, value: object, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode())

    def _refuse(self, status: int, message: str, kind: str = "Error") -> None:
        self._json({"error": {"message": message, "type": kind, "code": status}}, status)

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    Engine(sys.argv[1:]).run()
