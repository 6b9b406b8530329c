"""The fault matrix: every row, in the order of the table."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from faults import acts, limited
from faults.rows import BARE, MANAGERS, SUPERVISORD, SYSTEMD, Degraded, Failed, Ready, Row, Stopped
from faults.stage import REAL_MODEL

from servicekit.engines.llama_server import find_model
from servicekit.errors import UserError

# What the rows' profile makes of DESIGN's bounds, in seconds (see `faults.stage.PROFILE`).
INTERVAL: Final = 1.0
DEADLINE: Final = 1.5
STALL: Final = 3.0
STILL: Final = 2.0
SPIN: Final = 3.0
"""Seconds of a completion in which an engine may spin although nobody works on it."""
FAILURE_LIMIT: Final = 3.0
UNFINISHED: Final = 4.0
START_STALL: Final = 4.0
GPU_WAIT: Final = 3.0
AIL_LIMIT: Final = 3.0
SETTLE: Final = 4.0
PATIENCE: Final = 5.0
"""Our own, for what waiting does not mend."""
HANG: Final = INTERVAL + max(DEADLINE, STALL) + 1.0
"""What a hang must be found within."""
SURVEY: Final = 1.0
LOOK: Final = 5.0
"""What a call into the driver may take."""
AT_ONCE: Final = 0.5
LATER: Final = ()
"""Rows so near to another one that `make faults` is soon enough for them."""
LOCAL: Final = (BARE, SUPERVISORD)
"""Where a process can be held inside the kernel: a mount of ours is not seen in a machine."""
COUNTERS: Final = 5.0
"""Between two readings of an idle engine's counters."""


def dies_with(line: str, code: int = 1) -> dict[str, Any]:
    """Play an engine whose start ends with a last line."""
    return {"boot": ["starting"], "fatal": line, "fatal_code": code}


def _has_real_engine() -> bool:
    with suppress(UserError):
        return find_spec("xllamacpp") is not None and bool(find_model(REAL_MODEL))
    return False


REAL: Final = MANAGERS if _has_real_engine() else ()
"""Where a real engine can be played: wherever it is installed."""
REAL_BOUNDS: Final = {
    "context": {"requested": 2048},
    "probe": {"deadline": 3},
    "start": {"stall": 20},
    "watch": {"stall": 6},
    "options": {"threads": 1},
}
REAL_HANG: Final = INTERVAL + 6 + 1
LIMITED: Final = (sys.executable, str(Path(limited.__file__)))
OUT_OF_MEMORY: Final = dies_with(
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.42 GiB. GPU 0 has a total "
    "capacity of 31.36 GiB of which 231.38 MiB is free."
)

ROWS: Final[tuple[Row, ...]] = (
    # ---- it says that it is well ----
    Row(
        "port-silent",
        "the port listens from the start, and nothing is ever answered",
        Failed("start-stalled", 75, within=START_STALL + DEADLINE),
        script={"answers": "nothing"},
    ),
    Row(
        "health-lies",
        "`/health` and `/v1/models` are well from the start, completions hang",
        Failed("start-stalled", 75, within=START_STALL + DEADLINE),
        engine="vllm",
        script={"completion": "hang"},
    ),
    Row(
        "wrong-model",
        "another model's name in `/v1/models`",
        Failed("wrong-model", 78, within=PATIENCE + 1, says='serves "other", not "row"'),
        script={"name": "other"},
    ),
    Row(
        "wrong-model-in-reply",
        "another model's name in the reply alone",
        Failed("wrong-model", 78, within=PATIENCE + 1, says='replied as model "other"'),
        engine="sglang",
        script={"reply_name": "other"},
    ),
    *(
        Row(
            f"wrong-model-behind-the-name-{engine}",
            f"{engine}: the right name is listed, and another model is behind it",
            Failed("wrong-model", 78, within=PATIENCE + 1, says='another model than "lab/model"'),
            engine=engine,
            script={"path": path},
        )
        for engine, path in (
            ("sglang", "lab/other"),
            ("vllm", "lab/other"),
            ("llamacpp", "/cache/models--lab--other/snapshots/cafe/other.gguf"),
        )
    ),
    Row(
        "not-our-process",
        "while ours loads, a right answer on our port from a process that is not ours",
        Failed("not-our-socket", 69, within=PATIENCE + 2, says=r"served by .* \("),
        script={"load": 60},
        profile={"start": {"stall": 20}},
        loading=acts.serve_the_port,
    ),
    Row(
        "trickle-at-start",
        "the reply to a completion trickles for ever",
        Failed("start-stalled", 75, within=START_STALL + DEADLINE),
        engine="vllm",
        script={"completion": "trickle"},
        quick=LATER,
    ),
    Row(
        "thinking",
        "thinking is on: `content` is empty, finish reason `length`",
        Ready(hold=2),
        engine="sglang",
        script={"completion": "thinking"},
    ),
    Row(
        "wants-another-key",
        "401 to every question",
        Failed("unauthorized", 78, within=PATIENCE + 1, says="API key is not accepted"),
        script={"status": 401},
    ),
    Row(
        "unavailable-for-a-while",
        "503 for the first 3 s of serving",
        Ready(hold=1),
        engine="llamacpp",
        script={"status": 503, "status_for": 3},
    ),
    Row(
        "web-page",
        "somebody's web page in the place of every answer",
        Failed("wrong-answer", 75, within=PATIENCE + 1, says="not JSON", again="wrong-answer"),
        script={"answers": "html"},
    ),
    Row(
        "detached-server",
        "the port is served by a double-forked child of the engine, in a session of its own",
        Ready(hold=2),
        script={"impostor": True},
    ),
    # ---- hung or busy ----
    *(
        Row(
            f"hang-{engine}",
            f"{engine}: completions hang, `/health` 200 throughout",
            Failed("hung", 75, within=HANG, says=f"no completion for .* {still}"),
            engine=engine,
            act=acts.tell(completion="hang"),
            quick=MANAGERS if engine == "vllm" else (BARE,),
        )
        for engine, still in (
            ("sglang", "no counter moved"),
            ("vllm", "no counter moved"),
            ("llamacpp", "no counter moved"),
            ("openai", "reports no progress"),
        )
    ),
    *(
        Row(
            f"frozen-{engine}",
            f"{engine}: the whole server stands still (SIGSTOP), counters out of reach",
            Failed("hung", 75, within=HANG),
            engine=engine,
            act=acts.engine_gets("STOP"),
            quick=(BARE,) if engine == "llamacpp" else LATER,
        )
        for engine in ("sglang", "vllm", "llamacpp")
    ),
    Row(
        "stands-still",
        "the whole server stands still (SIGSTOP), with `watch.stall` far away",
        Failed("hung", 75, within=INTERVAL + SPIN + STILL + 1, says="the engine did nothing for"),
        engine="vllm",
        profile={"watch": {"stall": 60, "still": STILL}},
        act=acts.engine_gets("STOP"),
    ),
    Row(
        "burns",
        "a new shape is compiled for 10 s: CPU time, and nothing else, with `watch.still` 2 s",
        Degraded("unanswered", within=INTERVAL + DEADLINE + 1, recovers=True, hold=10),
        engine="vllm",
        profile={"watch": {"stall": 60, "still": STILL}},
        act=acts.tell(compile=10),
    ),
    *(
        Row(
            f"hang-under-traffic-{engine}",
            f"{engine}: completions hang, a user's too, long before the next probe is due",
            Failed("hung", 75, within=2 * COUNTERS + max(DEADLINE, STALL) + 1),
            engine=engine,
            profile={"watch": {"interval": 40}},
            act=acts.tell(completion="hang", users={"at_once": 1, "tokens": 9, "seconds": 60}),
            quick=(BARE,) if engine == "vllm" else LATER,
        )
        for engine in ("sglang", "vllm", "llamacpp")
    ),
    Row(
        "traced",
        "a debugger holds all threads of the engine for three times the allowance",
        Degraded("unanswered", within=INTERVAL + DEADLINE + 1, recovers=True, hold=1),
        engine="vllm",
        profile={"watch": {"still": STILL}},
        act=acts.trace_for(3 * STALL),
        managers=(BARE,),
    ),
    Row(
        "frozen-group",
        "the engine's control group is frozen for three times the allowance",
        Degraded("unanswered", within=INTERVAL + DEADLINE + 1, recovers=True, hold=1),
        engine="vllm",
        profile={"watch": {"still": STILL}},
        act=acts.freeze_the_group_for(3 * STALL),
        managers=(SYSTEMD,),
        quick=(SYSTEMD,),
    ),
    Row(
        "starved",
        "others take the engine's only core for four times the allowance",
        Degraded("unanswered", within=INTERVAL + DEADLINE + 4, recovers=True, hold=1),
        engine="vllm",
        profile={"watch": {"still": STILL}},
        act=acts.starve_for(4 * STALL),
        alone="host",
        managers=(BARE,),
        quick=LATER,
    ),
    Row(
        "hang-deaf",
        "completions hang, and SIGTERM is ignored",
        Failed("hung", 75, within=HANG),
        engine="llamacpp",
        script={"terms": 0},
        act=acts.tell(completion="hang"),
        quick=LATER,
    ),
    Row(
        "shown-while-it-ends",
        "the same, and systemd is asked before the engine has ended",
        Failed("hung", 75, within=HANG),
        engine="llamacpp",
        script={"terms": 0},
        act=acts.hang_and_ask_the_manager,
        check=acts.was_shown_as_deactivating,
        managers=(SYSTEMD,),
        quick=(SYSTEMD,),
    ),
    Row(
        "hang-without-metrics",
        "completions hang, `/metrics` is not there",
        Failed("hung", 75, within=HANG),
        engine="vllm",
        script={"counters": "absent"},
        act=acts.tell(completion="hang"),
    ),
    Row(
        "hang-with-metrics",
        "completions and `/metrics` hang, `/health` 200",
        Failed("hung", 75, within=HANG),
        engine="sglang",
        act=acts.tell(completion="hang", counters="hang"),
        quick=LATER,
    ),
    Row(
        "trickle",
        "the reply to a completion trickles for ever",
        Failed("hung", 75, within=HANG),
        engine="vllm",
        act=acts.tell(completion="trickle"),
    ),
    *(
        Row(
            f"long-prefill-{engine}",
            f"{engine}: a lone prefill, three times as long as the allowance: {moves} moves",
            Degraded("unanswered", within=INTERVAL + DEADLINE, recovers=True, hold=2),
            engine=engine,
            act=acts.tell(prefill=3 * STALL),
        )
        for engine, moves in (
            ("sglang", "only the tokens of its chunks"),
            ("vllm", "only the KV use"),
            ("llamacpp", "only the number of batches"),
        )
    ),
    Row(
        "full-queue",
        "one slot, and users' long requests in the queue before ours",
        Degraded("unanswered", within=INTERVAL + DEADLINE, recovers=True, hold=2),
        engine="llamacpp",
        script={"slots": 1},
        act=acts.tell(users={"at_once": 2, "tokens": 700, "seconds": 5}),
        check=acts.probes_piled_up,
    ),
    Row(
        "long-queue",
        "one slot, and users' requests of 6 s each in the queue before ours, for 24 s",
        Degraded("unanswered", within=INTERVAL + DEADLINE, recovers=True, hold=2),
        engine="sglang",
        script={"slots": 1},
        act=acts.tell(users={"at_once": 4, "tokens": 1200, "seconds": 1}),
        quick=LATER,
    ),
    Row(
        "first-shape",
        "a new shape is compiled for 2 s, counters standing still, within the allowance",
        Degraded("unanswered", within=INTERVAL + DEADLINE + 2, recovers=True, hold=2),
        engine="vllm",
        act=acts.tell(compile=2),
    ),
    Row(
        "first-shape-of-a-minute",
        "the same for 60 s, with the deadline of 30 s and the allowance of 180 s that are shipped",
        Degraded("unanswered", within=INTERVAL + 31, recovers=True, hold=2),
        engine="vllm",
        profile={"probe": {"deadline": 30}, "watch": {"stall": 180}},
        act=acts.tell(compile=60),
        quick=LATER,
    ),
    Row(
        "first-shape-at-start",
        "the first completion of all takes 2.5 s",
        Ready(hold=1),
        engine="sglang",
        script={"first_stall": 2.5},
        quick=LATER,
    ),
    Row(
        "work-without-answers",
        "counters move, no completion ever finishes",
        Degraded("progress-without-completion", within=INTERVAL + UNFINISHED + 1, hold=2 * STALL),
        engine="sglang",
        act=acts.tell(completion="hang", counters="moving"),
    ),
    Row(
        "work-without-answers-restarted",
        "the same, and the profile names it in `restart.on`",
        Failed(
            "progress-without-completion",
            75,
            within=INTERVAL + UNFINISHED + AIL_LIMIT + 1,
            says="no completion has finished",
        ),
        engine="vllm",
        profile={"restart": {"on": ["progress-without-completion"]}},
        act=acts.tell(completion="hang", counters="moving"),
        quick=LATER,
    ),
    Row(
        "traffic",
        "users are served all the time: their answers are as good as ours",
        Ready(hold=12),
        engine="llamacpp",
        profile={"watch": {"interval": 6}},
        act=acts.serve_users(at_once=3, tokens=40, seconds=14),
        check=acts.probed_beside_users,
    ),
    Row(
        "traffic-at-short-intervals",
        "the same with 4 s between probes, less than there usually is between two readings",
        Ready(hold=10),
        engine="vllm",
        profile={"watch": {"interval": 4}},
        act=acts.serve_users(at_once=3, tokens=40, seconds=12),
        check=acts.probed_beside_users,
    ),
    Row(
        "metrics-silent",
        "`/metrics` is never answered, completions are well",
        Ready(hold=8),
        engine="vllm",
        act=acts.tell(counters="hang"),
        quick=LATER,
    ),
    Row(
        "errors",
        "500 to every question",
        Failed("wrong-answer", 75, within=INTERVAL + FAILURE_LIMIT + 1, says=r"500.* \(for \d+ s"),
        act=acts.tell(status=500),
    ),
    Row(
        "refuses-for-a-while",
        "503 for 2 s, as an overloaded server says",
        Degraded("unanswered", within=INTERVAL + 1, says="503", recovers=True, hold=2),
        engine="sglang",
        act=acts.tell(status=503, status_for=2),
    ),
    Row(
        "cuts-connections",
        "the connection is cut instead of an answer",
        Failed("wrong-answer", 75, within=INTERVAL + FAILURE_LIMIT + 1, says=r" \(for \d+ s"),
        engine="vllm",
        act=acts.tell(completion="drop"),
        quick=LATER,
    ),
    Row(
        "becomes-a-web-page",
        "somebody's web page in the place of every answer",
        Failed("wrong-answer", 75, within=INTERVAL + FAILURE_LIMIT + 1),
        act=acts.tell(answers="html"),
        quick=LATER,
    ),
    Row(
        "becomes-another-model",
        "another model's name in `/v1/models`, until the engine is restarted",
        Failed("wrong-model", 75, within=INTERVAL + FAILURE_LIMIT + 1, says='serves "other"'),
        act=acts.tell(name="other"),
    ),
    Row(
        "stays-another-model",
        "another model's name in `/v1/models`, and the next engine's, too",
        Failed("wrong-model", 75, within=INTERVAL + FAILURE_LIMIT + 1, again="wrong-model"),
        act=acts.becomes(name="other"),
        quick=LATER,
    ),
    Row(
        "key-changed",
        "401 to every question, and from the next engine, too",
        Failed("unauthorized", 75, within=INTERVAL + FAILURE_LIMIT + 1, again="unauthorized"),
        act=acts.becomes(status=401),
    ),
    *(
        Row(
            f"{name}-for-a-while",
            f"{what} for 3 s, where 20 s are allowed",
            Degraded(reason, within=INTERVAL + 1, says=says, recovers=True, hold=2),
            engine="vllm",
            profile={"watch": {"failure_limit": 20}},
            act=acts.passes(3, **script),
            quick=(BARE,) if name in {"key-refused", "another-model"} else LATER,
        )
        for name, what, reason, says, script in (
            ("key-refused", "401", "unauthorized", "API key", {"status": 401}),
            ("another-model", "another model's name", "wrong-model", '"other"', {"name": "other"}),
            ("web-page", "somebody's web page", "wrong-answer", "not JSON", {"answers": "html"}),
            ("errors", "500", "unanswered", "500", {"status": 500}),
            ("gone-endpoint", "404", "wrong-answer", "404", {"status": 404}),
        )
    ),
    Row(
        "port-shared",
        "a foreign process listens on the engine's port, too (SO_REUSEPORT), for 3 s",
        Degraded("not-our-socket", within=INTERVAL + 2, says="served by", recovers=True, hold=2),
        engine="vllm",
        script={"shares": True},
        profile={"watch": {"failure_limit": 20}},
        act=acts.share_the_port(3),
    ),
    Row(
        "stops-listening",
        "the engine closes its port and lives on",
        Failed("not-listening", 75, within=INTERVAL + FAILURE_LIMIT + 1, says="nothing listens"),
        engine="vllm",
        profile={"watch": {"stall": 1.5}},
        act=acts.tell(close=True),
    ),
    Row(
        "overloaded",
        "429 to every completion, three times as long as the allowance, while others are served",
        Degraded("unanswered", within=INTERVAL + 1, says="429", hold=3 * STALL),
        engine="sglang",
        act=acts.tell(completion="busy", counters="moving"),
    ),
    Row(
        "overloaded-and-still",
        "429 to every completion, and no counter moves",
        Failed("wrong-answer", 75, within=INTERVAL + STALL + 1, says="429.*only errors"),
        engine="sglang",
        act=acts.tell(completion="busy"),
        quick=LATER,
    ),
    Row(
        "everything-paused",
        "the whole machine stands still for 8 s: watchdog and engine stopped",
        Ready(hold=6),
        engine="vllm",
        act=acts.stand_still(8),
    ),
    Row(
        "pause-not-survived",
        "the watchdog stands still for 8 s, as with the whole machine, and the engine hangs since",
        Failed(
            "suspend",
            75,
            within=HANG + 1,
            says=r"suspended or paused for \d+ s, and since then: no ",
        ),
        engine="vllm",
        act=acts.sleep_badly(8),
    ),
    Row(
        "thawed",
        "the whole server stands still (SIGSTOP) for 3 s, within the allowance of 6",
        Degraded("unanswered", within=INTERVAL + DEADLINE, recovers=True, hold=2),
        engine="llamacpp",
        profile={"watch": {"stall": 6}},
        act=acts.freeze_for(3),
    ),
    # ---- ends ----
    Row(
        "exits-0",
        "the engine exits 0 by itself",
        Failed("engine-exit", 75, within=AT_ONCE, says="exited unexpectedly"),
        act=acts.tell(exit=0),
    ),
    Row(
        "engine-killed",
        "SIGKILL to the engine, from somebody else",
        Failed("outside-kill", 75, within=AT_ONCE, says="SIGKILL"),
        engine="llamacpp",
        act=acts.engine_gets("KILL"),
        quick=MANAGERS,
    ),
    Row(
        "engine-crashes",
        "SIGSEGV in the engine",
        Failed("engine-signal", 75, within=AT_ONCE, says="SIGSEGV"),
        engine="llamacpp",
        act=acts.tell(kill="SIGSEGV"),
        quick=LATER,
    ),
    Row(
        "exits-137",
        "the engine exits 137, as a shell says of SIGKILL: by itself no proof of anything",
        Failed("engine-signal", 75, within=AT_ONCE, says="only the kernel's log shows"),
        act=acts.tell(exit=137),
        quick=LATER,
    ),
    Row(
        "sglang-scheduler-dies",
        "SGLang's scheduler is killed, and SGLang kills itself",
        Failed("worker-died", 75, within=AT_ONCE, says=r"pid \d+ .* died; .*also sends to itself"),
        engine="sglang",
        script={"workers": 2},
        act=acts.kill_worker,
    ),
    Row(
        "vllm-core-dies",
        "vLLM's core is killed: it answers 500 and exits 0",
        Failed(
            "worker-died",
            75,
            within=AT_ONCE + 0.2,
            says=r"pid \d+ .* died; .*as vLLM does after its core process died",
        ),
        engine="vllm",
        script={"workers": 2},
        act=acts.kill_worker,
        quick=LATER,
    ),
    Row(
        "worker-dies-unnoticed",
        "one of the engine's processes is killed; it does not notice, and answers nothing",
        Failed("worker-died", 75, within=DEADLINE + 1, says=r"pid \d+ .* died; since then: no ans"),
        engine="vllm",
        script={"workers": 2, "recycles": True},
        act=acts.hang_without_worker,
    ),
    Row(
        "worker-recycled",
        "one of the engine's processes ends, and it goes on answering",
        Degraded("worker-died", within=AT_ONCE, says=r"pid \d+ .* died", recovers=True, hold=2),
        script={"workers": 2, "recycles": True},
        act=acts.kill_worker,
    ),
    Row(
        "vllm-workers-survive",
        "SIGKILL to vLLM's main process, whose workers live on",
        Failed("outside-kill", 75, within=AT_ONCE),
        engine="vllm",
        script={"workers": 2},
        act=acts.engine_gets("KILL"),
        quick=(BARE, SYSTEMD),
    ),
    Row(
        "child-left-behind",
        "the engine exits and leaves a double-forked child, deaf to SIGTERM",
        Failed("engine-exit", 75, within=AT_ONCE),
        script={"orphan": True},
        act=acts.tell(exit=1),
        quick=(BARE, SUPERVISORD),
    ),
    Row(
        "bare-child-left-behind",
        "the same, and the child has nothing of the engine's environment",
        Failed("engine-exit", 75, within=AT_ONCE),
        script={"orphan": "bare"},
        act=acts.tell(exit=1),
        quick=LATER,
    ),
    Row(
        "shared-memory-left-behind",
        "the engine is killed and leaves a file in `/dev/shm`",
        Failed("outside-kill", 75, within=AT_ONCE),
        act=acts.die_with_shared_memory,
    ),
    Row(
        "watchdog-stopped-from-outside",
        "SIGTERM to the watchdog from a process other than the manager",
        Failed("outside-kill", 75, within=AT_ONCE, says=r"SIGTERM from pid \d+ \("),
        act=acts.watchdog_gets("TERM"),
        quick=MANAGERS,
    ),
    Row(
        "watchdog-hung-up-on",
        "SIGHUP to the watchdog, from somebody else",
        Failed("outside-kill", 75, within=AT_ONCE, says=r"SIGHUP from pid \d+ \("),
        act=acts.watchdog_gets("HUP"),
        quick=LATER,
    ),
    Row(
        "watchdog-killed",
        "SIGKILL to the watchdog",
        Failed("watchdog-killed", None, within=30, says="the watchdog was killed"),
        engine="vllm",
        script={"workers": 1},
        act=acts.watchdog_gets("KILL"),
        quick=MANAGERS,
    ),
    Row(
        "watchdog-killed-beside-a-bare-child",
        "the same, when the engine has a double-forked child, deaf to SIGTERM, that has nothing of "
        "its environment",
        Failed("watchdog-killed", None, within=30, says="the watchdog was killed"),
        script={"orphan": "bare"},
        act=acts.kill_watchdog_that_looked,
        quick=(BARE, SUPERVISORD),
    ),
    Row(
        "watchdog-killed-again-and-again",
        "SIGKILL to the watchdog, and to the next one; the budget is two faults",
        Failed("watchdog-killed", None, within=30, again="budget-spent"),
        profile={"restart": {"budget": 2}},
        act=acts.kill_two_watchdogs,
        check=acts.begins_anew,
    ),
    Row(
        "terminal-ends",
        "the terminal that it runs in is closed",
        Failed("session-end", 75, within=AT_ONCE, says="SIGHUP from the terminal"),
        managers=(BARE,),
        launcher=(sys.executable, str(Path(__file__).with_name("terminal.py"))),
        act=acts.hang_up,
    ),
    Row(
        "stopped",
        "the manager stops it",
        Stopped(within=2),
        engine="vllm",
        script={"workers": 2},
        act=acts.stop,
        quick=(BARE, SYSTEMD),
    ),
    Row(
        "stopped-deaf",
        "the manager stops it, the engine ignores SIGTERM, and so does its detached child",
        Stopped(within=2 + 1),
        script={"terms": 0, "orphan": True},
        act=acts.stop,
        quick=MANAGERS,
    ),
    Row(
        "stopped-at-the-second-sigterm",
        "the manager stops it, and the engine obeys only the second SIGTERM",
        Stopped(within=2),
        engine="llamacpp",
        script={"terms": 2},
        act=acts.stop,
        quick=LATER,
    ),
    Row(
        "stopped-while-loading",
        "the manager stops it while it loads, with workers already there",
        Stopped(within=2),
        engine="vllm",
        script={"load": 60, "workers": 2},
        profile={"start": {"stall": 20}},
        loading=acts.stop,
        quick=(BARE, SYSTEMD),
    ),
    Row(
        "stopped-while-it-waits-for-nothing",
        "the manager stops it; its workers are dead, and it waits for a connection to close",
        Stopped(within=2.5),
        engine="vllm",
        script={"workers": 2, "drains": 60},
        profile={"stop": {"grace": 15}},
        act=acts.stop,
    ),
    Row(
        "stopped-while-it-drains",
        "the manager stops it, and its only process, which is idle, takes 2 s to end",
        Stopped(within=3),
        engine="llamacpp",
        script={"drains": 2},
        profile={"stop": {"grace": 15}},
        act=acts.stop,
        check=acts.took(2),
    ),
    # ---- starts ----
    Row(
        "start-never-ends",
        "the boot log stops for ever",
        Failed("start-stalled", 75, within=START_STALL + 1, says="no progress for 4 s while"),
        engine="sglang",
        script={"stall": 3},
    ),
    Row(
        "slow-start",
        "a start of 12 s, three times the allowance, with a line now and then",
        Ready(hold=1),
        engine="sglang",
        script={"load": 12},
        quick=(BARE, SYSTEMD),
    ),
    Row(
        "start-beyond-its-timeout",
        "a start of 16 s that gets on all the time, where an operator has systemd wait for 8 s",
        Ready(hold=1),
        engine="sglang",
        script={"load": 16},
        managers=(SYSTEMD,),
        quick=LATER,
        alone="a-machine",
        before=acts.have_systemd_wait_for(8),
    ),
    Row(
        "reloaded-while-loading",
        "a start of 24 s that gets on all the time, and systemd's files are read again after 20 s",
        Ready(hold=1),
        engine="sglang",
        script={"load": 24},
        managers=(SYSTEMD,),
        quick=LATER,
        loading=acts.reload_after(20),
    ),
    Row(
        "busy-for-ever",
        "a boot log without end",
        Failed("start-limit", 75, within=6.5, says="not ready 6 s after the launch"),
        script={"load": 1000, "boot": ["compiling"] * 2000},
        profile={"start": {"limit": 6}},
    ),
    Row(
        "bad-flags",
        "an option that the engine does not know",
        Failed("bad-flags", 78, within=AT_ONCE + 0.5, says="--warp"),
        engine="vllm",
        script=dies_with("vllm: error: unrecognized arguments: --warp", 2),
        quick=MANAGERS,
    ),
    Row(
        "missing-model",
        "the model is not there",
        Failed("missing-model", 78, within=AT_ONCE + 0.5),
        engine="vllm",
        script=dies_with(
            "OSError: lab/model is not a local folder and is not a valid model identifier listed "
            "on 'https://huggingface.co/models'"
        ),
    ),
    Row(
        "truncated-model",
        "a weight file is cut short",
        Failed("truncated-model", 78, within=AT_ONCE + 0.5),
        engine="sglang",
        script=dies_with(
            "safetensors_rust.SafetensorError: Error while deserializing header: "
            "MetadataIncompleteBuffer"
        ),
    ),
    Row(
        "gated-model",
        "the hub guards the model",
        Failed("gated-model", 78, within=AT_ONCE + 0.5),
        engine="vllm",
        script=dies_with("OSError: You are trying to access a gated repo."),
    ),
    Row(
        "model-offline",
        "the model is not on this disk, and the service does not download",
        Failed("model-offline", 78, within=AT_ONCE + 0.5),
        engine="sglang",
        script=dies_with(
            "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach "
            "https://huggingface.co/api/models/lab/model: offline mode is enabled. To disable it, "
            "please unset the `HF_HUB_OFFLINE` environment variable."
        ),
    ),
    Row(
        "no-program",
        "the engine's program is gone",
        Failed("executable-missing", 78, within=AT_ONCE + 0.5),
        profile={"executable": "/opt/nowhere/engine"},
    ),
    Row(
        "out-of-memory-twice",
        "CUDA out of memory at every start",
        Failed("cuda-oom", 75, within=AT_ONCE + 0.5, again="cuda-oom"),
        engine="sglang",
        script=OUT_OF_MEMORY,
        quick=(BARE, SYSTEMD),
    ),
    Row(
        "budget-spent",
        "the engine dies at every start, and the budget is two faults; then an operator starts it",
        Failed("engine-exit", 75, within=AT_ONCE + 0.5, again="budget-spent"),
        script=dies_with("bye", 3),
        profile={"restart": {"budget": 2}},
        check=acts.begins_anew,
        quick=(BARE, SUPERVISORD),
    ),
    Row(
        "port-busy",
        "a foreign process holds the port",
        Failed("port-busy", 69, within=GPU_WAIT + 1, says=r"held by .* \(root"),
        before=acts.hold_port,
        check=acts.stranger_lives,
        quick=(BARE, SUPERVISORD),
    ),
    Row(
        "orphan-swept",
        "an engine of an earlier run of this service still holds the port",
        Ready(hold=1),
        before=acts.leave_engine_behind,
        check=acts.orphan_is_gone,
        quick=(BARE, SUPERVISORD),
    ),
    Row(
        "orphan-while-serving",
        "a process of an earlier run of this service is found while it serves",
        Degraded(
            "vram-orphan", within=SURVEY + 1, says="orphan of an earlier run", recovers=True, hold=1
        ),
        act=acts.leave_engine_beside,
        check=acts.orphan_is_gone,
    ),
    Row(
        "namesake-spared",
        "an engine of another installation's profile of the same name",
        Ready(hold=2),
        before=acts.run_namesake,
        check=acts.stranger_lives,
    ),
    # ---- silent badness ----
    Row(
        "draft-graph-disabled",
        "the boot log says that the draft graph is disabled",
        Degraded("draft-graph-disabled", within=3, hold=2),
        engine="sglang",
        script={"draft_graph": False},
        quick=(BARE, SYSTEMD),
    ),
    Row(
        "draft-graph-disabled-restarted",
        "the same, and the profile names it in `restart.on`",
        Failed("draft-graph-disabled", 75, within=AIL_LIMIT + 3),
        engine="sglang",
        script={"draft_graph": False},
        profile={"restart": {"on": ["draft-graph-disabled"]}},
        quick=LATER,
    ),
    *(
        Row(
            f"too-slow-{engine}",
            f"{engine}: decodes at 20 tokens/s, and the floor is 50",
            Degraded("too-slow", within=COUNTERS + 3, says="below watch.decode_floor", hold=2),
            engine=engine,
            profile={"watch": {"decode_floor": 50}},
            act=acts.tell(speed=20, users={"at_once": 1, "tokens": 40, "seconds": 8}),
            quick=(BARE,) if engine == "sglang" else LATER,
        )
        for engine in ("sglang", "vllm", "llamacpp")
    ),
    *(
        Row(
            f"acceptance-zero-{engine}",
            f"{engine}: not one draft token is accepted",
            Degraded("acceptance-zero", within=COUNTERS + 3, says="none accepted", hold=2),
            engine=engine,
            script={"acceptance": 0.0, "speed": 400},
            act=acts.tell(users={"at_once": 2, "tokens": 300, "seconds": 3}),
            quick=(BARE,) if engine == "vllm" else LATER,
        )
        for engine in ("sglang", "vllm", "llamacpp")
    ),
    *(
        Row(
            f"acceptance-zero-appears-late-{engine}",
            f"{engine}: the same, and a counter of drafts is reported only once it counts",
            Degraded("acceptance-zero", within=COUNTERS + 3, says="none accepted", hold=1),
            engine=engine,
            script={"acceptance": 0.0, "speed": 400, "late": True},
            act=acts.tell(users={"at_once": 2, "tokens": 300, "seconds": 3}),
            quick=LATER,
        )
        for engine in ("vllm", "llamacpp")
    ),
    Row(
        "context-below-requested",
        "the pool holds 3000 tokens, 4096 are requested",
        Degraded("context-below-requested", within=3, says="3000 tokens, 4096", hold=2),
        engine="sglang",
        script={"pool": 3000},
    ),
    Row(
        "context-below-minimum",
        "the pool holds 1000 tokens, and the profile's minimum is 2048",
        Failed("context-too-small", 78, within=PATIENCE + 1, says="1000 tokens"),
        engine="vllm",
        script={"pool": 1000},
    ),
    Row(
        "repeats-from-the-start",
        "the answer is one character over and over, from the start",
        Failed("repeated-answer", 75, within=PATIENCE + 1, again="repeated-answer"),
        engine="vllm",
        script={"completion": "repeat"},
    ),
    Row(
        "repeats",
        "the answer becomes one character over and over",
        Degraded("repeated-answer", within=INTERVAL + 1, says='"!!!', hold=4),
        engine="sglang",
        act=acts.tell(completion="repeat"),
    ),
    Row(
        "repeats-restarted",
        "the same, and the profile names it in `restart.on`",
        Failed("repeated-answer", 75, within=INTERVAL + AIL_LIMIT + 1),
        engine="vllm",
        profile={"restart": {"on": ["repeated-answer"]}},
        act=acts.tell(completion="repeat"),
        quick=LATER,
    ),
    Row(
        "empty-answers",
        "answers without a single token",
        Degraded("wrong-answer", within=INTERVAL + 1, says="no tokens", hold=4),
        act=acts.tell(completion="empty"),
    ),
    Row(
        "unexpected-answers",
        "the answer is not what the profile expects",
        Degraded("wrong-answer", within=INTERVAL + 1, says="does not match", hold=2),
        profile={"probe": {"expect": "Hello"}},
        act=acts.tell(text="Goodbye."),
        quick=LATER,
    ),
    # ---- nonsense ----
    Row(
        "nested-answers",
        "JSON that is too deep to be read, in the place of every answer",
        Failed("wrong-answer", 75, within=INTERVAL + FAILURE_LIMIT + 1),
        engine="vllm",
        act=acts.tell(answers="nested"),
    ),
    Row(
        "odd-answers",
        "JSON of other types than promised, in the place of every answer",
        Degraded("wrong-answer", within=INTERVAL + 1, says="no tokens", hold=4),
        engine="sglang",
        act=acts.tell(answers="odd"),
    ),
    *(
        Row(
            f"no-numbers-{engine}",
            f"{engine}: completions hang, and every figure in `/metrics` is NaN",
            Failed("hung", 75, within=HANG),
            engine=engine,
            act=acts.tell(completion="hang", counters="nan"),
            quick=(BARE,) if engine == "vllm" else LATER,
        )
        for engine in ("sglang", "vllm", "llamacpp")
    ),
    Row(
        "flood",
        "the engine prints for 4 s as much as it can, lines with and without an end",
        Ready(hold=6),
        engine="vllm",
        profile={"probe": {"deadline": 6}, "watch": {"stall": 8}},
        act=acts.tell(flood=4),
    ),
    Row(
        "silent-work",
        "a start of 8 s without a line, in which the engine computes",
        Ready(hold=1),
        script={"load": 8, "spin": 0.3, "boot": ["loading"]},
        quick=LATER,
    ),
    Row(
        "download",
        "a start of 8 s without a line, in which a file is downloaded",
        Ready(hold=1),
        script={"stall": 1},
        loading=acts.download_for(7),
    ),
    Row(
        "vram-filled",
        "a start of 8 s without a line, in which the engine takes more and more VRAM",
        Ready(hold=1),
        gpu=True,
        script={"stall": 1},
        loading=acts.take_vram_for(8),
    ),
    Row(
        "port-free-late",
        "a foreign process holds the port, and leaves it after 2 s",
        Ready(hold=1),
        before=acts.hold_port_for(2),
    ),
    Row(
        "escape-sequences-in-a-name",
        "a foreign process holds the port, with escape sequences in its command line",
        Failed("port-busy", 69, within=GPU_WAIT + 1, says=r"\\x1b\[2J"),
        before=acts.hold_port_in_colours,
        check=acts.says_it_plainly,
    ),
    Row(
        "logs-that-lead-a-terminal",
        "the engine's last words have escape sequences in them",
        Failed("bad-flags", 78, within=AT_ONCE + 0.5, says="--warp"),
        engine="vllm",
        script=dies_with("\x1b[31mvllm: error: unrecognized arguments: --warp\x1b[2J\x9b1m", 2),
        check=acts.says_it_plainly,
        quick=(BARE, SUPERVISORD),
    ),
    Row(
        "second-watchdog",
        "somebody runs a second watchdog for the same profile",
        Ready(hold=2),
        act=acts.watch_twice,
        check=acts.second_was_refused,
    ),
    Row(
        "stopped-while-holding-off",
        "the manager stops it while it waits 5 s after its second fault",
        Stopped(within=1),
        script=dies_with("bye", 3),
        loading=acts.stop_while_holding_off,
    ),
    # ---- the GPU and its driver ----
    Row(
        "foreign-on-gpu-before",
        "a foreign process holds 20000 MiB of VRAM",
        Failed("vram-busy", 69, within=GPU_WAIT + 1, says=r"20000 MiB .* held by pid \d+ \("),
        gpu=True,
        before=acts.hold_vram,
        check=acts.stranger_lives,
    ),
    Row(
        "stranger-on-gpu",
        "a foreign process takes 20000 MiB of VRAM beside ours",
        Degraded("stranger-on-gpu", within=SURVEY + 1, says=r"held by pid \d+ \(", hold=3),
        gpu=True,
        act=acts.hold_vram,
        check=acts.stranger_lives,
    ),
    Row(
        "gpu-of-another-profile",
        "another profile's watchdog holds the GPU",
        Failed("vram-busy", 69, within=GPU_WAIT + 1, says='profile "another" uses the same GPU'),
        gpu=True,
        before=acts.hold_gpu_lock,
        quick=LATER,
    ),
    Row(
        "cpu-fallback",
        "the engine answers, and holds no VRAM",
        Failed("cpu-fallback", 75, within=PATIENCE + 1, again="budget-spent"),
        gpu=True,
        vram=0,
        profile={"restart": {"budget": 2}},
    ),
    Row(
        "vram-left-behind",
        "the engine dies, and a detached child of it keeps its VRAM",
        Failed("engine-exit", 75, within=AT_ONCE),
        gpu=True,
        script={"orphan": True},
        act=acts.tell(exit=1),
        quick=(BARE, SUPERVISORD),
    ),
    Row(
        "vram-back-late",
        "the engine exits, and its VRAM is free only 2 s later",
        Failed("engine-exit", 75, within=AT_ONCE),
        gpu=True,
        act=acts.vram_comes_back_late,
        check=acts.was_waited_for,
    ),
    Row(
        "vram-lost",
        "20000 MiB of VRAM in use that no process holds, while it serves",
        Failed("vram-orphan", 75, within=SURVEY + AIL_LIMIT + 1, says="no visible process"),
        gpu=True,
        act=acts.vram_is_lost,
    ),
    Row(
        "vram-lost-before",
        "20000 MiB of VRAM in use that no process holds, before a start",
        Failed("vram-orphan", 75, within=GPU_WAIT + 1, says="no visible process"),
        gpu=True,
        act=acts.start_while_vram_is_lost,
        quick=LATER,
    ),
    Row(
        "vram-given-up",
        "the engine answers, and holds no VRAM any more",
        Failed("cpu-fallback", 75, within=INTERVAL + AIL_LIMIT + 1),
        gpu=True,
        act=acts.vram_is_given_up,
    ),
    Row(
        "gpu-slowed-down",
        "the GPU runs below its clocks because it is hot",
        Degraded("gpu-slowed-down", within=2 * SURVEY + 1, says="temperature .at 93 C.", hold=1),
        gpu=True,
        act=lambda stage: stage.drive(clocks=0x40, celsius=93),
    ),
    Row(
        "drivers-child-killed",
        "SIGKILL to the process that asks the driver",
        Ready(hold=6),
        gpu=True,
        act=acts.kill_drivers_child,
        quick=LATER,
    ),
    Row(
        "gpu-lost",
        "the driver says that the GPU is lost, while it serves",
        Failed("gpu-lost", 69, within=SURVEY + 1),
        gpu=True,
        act=acts.driver_says("GpuIsLost"),
        quick=(BARE, SYSTEMD),
    ),
    Row(
        "xid-79",
        "the driver reports Xid 79",
        Failed("gpu-lost", 69, within=AT_ONCE, says="Xid 79"),
        gpu=True,
        # Where the kernel's log may be read, Xids are taken from there.
        launcher=("setpriv", "--bounding-set=-syslog"),
        managers=(BARE, SYSTEMD),
        act=lambda stage: stage.drive(xids=[[79, 0]]),
    ),
    Row(
        "no-driver",
        "the driver is not loaded",
        Failed("driver", 69, within=GPU_WAIT + 1, says="DriverNotLoaded"),
        gpu=True,
        before=acts.driver_says("DriverNotLoaded"),
    ),
    Row(
        "driver-of-another-version",
        "the driver in the kernel and its library are of different versions",
        Failed("driver", 69, within=GPU_WAIT + 1, says="LibRmVersionMismatch"),
        gpu=True,
        before=acts.driver_says("LibRmVersionMismatch"),
        quick=LATER,
    ),
    Row(
        "driver-late",
        "the driver is up only 2 s after the start",
        Ready(hold=1),
        gpu=True,
        before=acts.driver_comes_late,
        quick=LATER,
    ),
    Row(
        "driver-hangs-at-start",
        "a call into the driver never returns (uninterruptible sleep)",
        Failed("driver", 69, within=GPU_WAIT + LOOK + 1, says="has not returned for"),
        gpu=True,
        before=acts.driver_hangs,
        managers=LOCAL,
    ),
    Row(
        "driver-hangs",
        "a call into the driver never returns, while the engine answers",
        Ready(hold=12),
        gpu=True,
        act=acts.driver_hangs,
        managers=LOCAL,
    ),
    # ---- the host ----
    Row(
        "unkillable",
        "the engine is killed while a thread of it is stuck inside the kernel",
        Failed("hung", 69, within=HANG),
        act=acts.die_unkillably,
        check=acts.last_cause_is("unkillable"),
        managers=LOCAL,
    ),
    Row(
        "out-of-memory",
        "the engine takes more memory than its control group has, and the kernel kills it",
        Failed("oom-kill", 75, within=10, says="in this service's control group"),
        launcher=(*LIMITED, f"fault-{os.getpid()}", "160"),
        alone="host",  # in a root group, only the host's counter of such kills can be read
        managers=(BARE,) if limited.found() else (),
        quick=(BARE,) if limited.found() else (),
        act=acts.run_out_of_memory,
    ),
    Row(
        "disk-full",
        "neither ledger nor state can be written while it becomes degraded; then there is room",
        Ready(hold=1),
        act=acts.fill_the_disk,
        check=acts.said_that_it_cannot_write,
    ),
    Row(
        "disk-full-at-start",
        "no file can be written from the start; it is ready all the same, and then the engine dies",
        Failed("outside-kill", 69, within=AT_ONCE),
        unwritten=True,
        launcher=("prlimit", "--fsize=0:"),
        managers=(BARE,),
        act=acts.free_the_disk_and_die,
        check=acts.last_cause_is("budget-spent"),
    ),
    Row(
        "host-shut-down",
        "the machine is shut down",
        Stopped(within=10, cause="host-shutdown"),
        managers=(SYSTEMD,),
        quick=(SYSTEMD,),
        alone="a-machine",
        act=acts.shut_down,
    ),
    Row(
        "power-cut",
        "everything ends at once with the machine; after the next boot an operator starts it",
        Failed("power-loss", None, within=30, says="the host went down without a shutdown"),
        managers=(SYSTEMD,),
        quick=(SYSTEMD,),
        alone="a-machine",
        act=acts.cut_the_power,
    ),
    Row(
        "host-dies-under-load",
        "the power is cut three times while it loads, and systemd starts it at each boot",
        Failed("power-loss", None, within=30, again="host-dies-under-load"),
        script={"load": 60},
        profile={"start": {"stall": 30, "limit": 90}},
        managers=(SYSTEMD,),
        quick=(SYSTEMD,),
        alone="a-machine",
        loading=acts.die_with_the_host(3),
        check=acts.begins_anew,
    ),
    Row(
        "wsl-idle",
        "WSL ends the distribution; it is started again within the same virtual machine",
        Failed("idle-kill", None, within=30, says="WSL stopped"),
        managers=(SYSTEMD,),
        quick=(SYSTEMD,),
        alone="wsl",
        act=acts.stop_the_distribution,
    ),
    Row(
        "wsl-out-of-memory",
        "CUDA out of memory on WSL, where repeating it takes the machine down",
        Failed("cuda-oom", 69, within=AT_ONCE + 0.5),
        engine="sglang",
        script=OUT_OF_MEMORY,
        managers=(SYSTEMD,),
        quick=(SYSTEMD,),
        alone="wsl",
    ),
    Row(
        "supervisord-killed",
        "supervisord is killed, and started anew",
        Stopped(within=1, says=r"SIGTERM from pid \d+ \(.*supervisord"),
        alone="supervisord",
        managers=(SUPERVISORD,),
        quick=(SUPERVISORD,),
        act=acts.kill_supervisord,
    ),
    Row(
        "watchdog-stands-still",
        "the watchdog is stopped (SIGSTOP), and systemd hears nothing of it for 30 s",
        Failed("watchdog-killed", None, within=120),
        managers=(SYSTEMD,),
        quick=(),
        act=acts.watchdog_gets("STOP"),
    ),
    # ---- a real engine: llama.cpp's own server ----
    Row(
        "real-frozen",
        "a real llama.cpp server stands still (SIGSTOP)",
        Failed("hung", 75, within=REAL_HANG),
        engine="llamacpp",
        profile=REAL_BOUNDS,
        real=True,
        act=acts.engine_gets("STOP"),
        managers=REAL,
        quick=REAL[:1],
    ),
    Row(
        "real-killed",
        "SIGKILL to a real llama.cpp server in the middle of an answer",
        Failed("outside-kill", 75, within=AT_ONCE),
        engine="llamacpp",
        profile=REAL_BOUNDS,
        real=True,
        act=acts.ask_and_then(acts.engine_gets("KILL")),
        managers=REAL,
        quick=REAL[:1],
    ),
    Row(
        "real-terminated",
        "SIGTERM to a real llama.cpp server in the middle of an answer, from somebody else",
        Failed("engine-exit", 75, within=REAL_HANG),
        engine="llamacpp",
        profile=REAL_BOUNDS,
        real=True,
        act=acts.ask_and_then(acts.engine_gets("TERM")),
        managers=REAL,
        quick=REAL[:1],
    ),
    Row(
        "real-stopped",
        "the manager stops a real llama.cpp server in the middle of an answer",
        Stopped(within=2 + 1),
        engine="llamacpp",
        profile=REAL_BOUNDS,
        real=True,
        act=acts.ask_and_then(acts.stop),
        managers=REAL,
        quick=LATER,
    ),
    Row(
        "real-slow-client",
        "a user of a real llama.cpp server with two slots asks for much and reads nothing",
        Ready(hold=8),
        engine="llamacpp",
        profile=REAL_BOUNDS | {"context": {"requested": 2048, "parallel": 2}},
        real=True,
        act=acts.ask(800, reads="nothing"),
        managers=REAL,
        quick=LATER,
    ),
    Row(
        "real-full-slot",
        "the one slot of a real llama.cpp server is taken for longer than the deadline",
        Degraded("unanswered", within=INTERVAL + 3, recovers=True, hold=2),
        engine="llamacpp",
        profile=REAL_BOUNDS | {"context": {"requested": 2048, "parallel": 1}},
        real=True,
        act=acts.ask(500),
        managers=REAL,
        quick=LATER,
    ),
)
