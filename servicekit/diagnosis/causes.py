"""The closed list of causes: why a run ended, or why a service that answers is not as it should be.

Each cause knows its sentence for a person (`title`), whether a restart helps (`retry`), what to do
(`remedies`, in order; `{profile}` stands for the profile's name) and the `message_id` under which
the journal explains it. All texts are ASCII, since they also end up in `STATUS=`, which is sent as
one ASCII line.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from servicekit.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMESPACE = "6d2f4a53-0a3c-5d0e-9a53-2c2f0f3f7b11"
"""Namespace of the message ids. A change would cut journal entries off from their explanation."""


class Retry(StrEnum):
    """Whether a new run may do better. Decides the exit code that the manager sees."""

    ALWAYS = "always"
    """A new run helps, or may help."""
    ONCE = "once"
    """One new run is worth it; the same cause twice in a row means stop."""
    NEVER_CONFIG = "never-config"
    """The configuration must change first."""
    NEVER_HOST = "never-host"
    """The host or an operator must act first."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of a run that ended so (`ONCE`: of the first one)."""
        if self is Retry.NEVER_CONFIG:
            return ExitCode.CONFIG
        return ExitCode.UNAVAILABLE if self is Retry.NEVER_HOST else ExitCode.TEMPFAIL


class Group(StrEnum):
    """Headings under which the handbook lists the causes."""

    ASKED = "Stopped or killed from outside"
    ENGINE = "The engine failed"
    CONFIGURATION = "The configuration cannot work"
    MODEL = "The model"
    MEMORY = "Memory"
    HOST = "The host, the driver and the GPU"
    DEGRADED = "It answers, but not as it should"
    UNKNOWN = "Unknown"


class Cause(StrEnum):
    """Why a run ended, or why a service is degraded. Closed: what fits none is `UNKNOWN`."""

    STOP_REQUESTED = "stop-requested"
    HOST_SHUTDOWN = "host-shutdown"
    SESSION_END = "session-end"
    OUTSIDE_KILL = "outside-kill"
    IDLE_KILL = "idle-kill"
    SUSPEND = "suspend"
    POWER_LOSS = "power-loss"
    WATCHDOG_KILLED = "watchdog-killed"
    OOM_KILL = "oom-kill"
    ENGINE_EXIT = "engine-exit"
    ENGINE_SIGNAL = "engine-signal"
    WORKER_DIED = "worker-died"
    HUNG = "hung"
    UNANSWERED = "unanswered"
    PROGRESS_WITHOUT_COMPLETION = "progress-without-completion"
    START_STALLED = "start-stalled"
    START_LIMIT = "start-limit"
    GPU_FAULT = "gpu-fault"
    NCCL = "nccl"
    JIT_FAILED = "jit-failed"
    ILLEGAL_INSTRUCTION = "illegal-instruction"
    BAD_FLAGS = "bad-flags"
    PORT_BUSY = "port-busy"
    EXECUTABLE_MISSING = "executable-missing"
    SECRET_MISSING = "secret-missing"  # noqa: S105 - the name of a cause
    PERMISSION_DENIED = "permission-denied"
    MISSING_PACKAGE = "missing-package"
    SANDBOX_BLOCKED = "sandbox-blocked"
    ARCH_UNSUPPORTED = "arch-unsupported"
    LM_HEAD_MISMATCH = "lm-head-mismatch"
    GAMMA_MISMATCH = "gamma-mismatch"
    LAZY_WITH_SPECULATION = "lazy-with-speculation"
    WRONG_MODEL = "wrong-model"
    UNAUTHORIZED = "unauthorized"
    MISSING_MODEL = "missing-model"
    TRUNCATED_MODEL = "truncated-model"
    GATED_MODEL = "gated-model"
    MODEL_OFFLINE = "model-offline"
    DOWNLOAD_FAILED = "download-failed"
    MODEL_UNSUPPORTED = "model-unsupported"
    STATE_CACHE_TOO_SMALL = "state-cache-too-small"
    KV_CACHE_TOO_SMALL = "kv-cache-too-small"
    CUDA_OOM = "cuda-oom"
    GRAPH_OOM = "graph-oom"
    HOST_OOM = "host-oom"
    SHM_FULL = "shm-full"
    VRAM_BUSY = "vram-busy"
    VRAM_ORPHAN = "vram-orphan"
    NOT_OUR_SOCKET = "not-our-socket"
    STRANGER_ON_GPU = "stranger-on-gpu"
    GPU_LOST = "gpu-lost"
    DRIVER = "driver"
    DISK_FULL = "disk-full"
    TOO_MANY_FILES = "too-many-files"
    UNKILLABLE = "unkillable"
    BUDGET_SPENT = "budget-spent"
    CONTEXT_TOO_SMALL = "context-too-small"
    CONTEXT_BELOW_REQUESTED = "context-below-requested"
    WRONG_ANSWER = "wrong-answer"
    REPEATED_ANSWER = "repeated-answer"
    CPU_FALLBACK = "cpu-fallback"
    TOO_SLOW = "too-slow"
    ACCEPTANCE_ZERO = "acceptance-zero"
    DRAFT_GRAPH_DISABLED = "draft-graph-disabled"
    INPUT_TOO_LONG = "input-too-long"
    UNKNOWN = "unknown"

    @property
    def group(self) -> Group:
        """The heading that it belongs to."""
        return ABOUT[self].group

    @property
    def retry(self) -> Retry:
        """Whether a new run may do better."""
        return ABOUT[self].retry

    @property
    def title(self) -> str:  # type: ignore[override, explicit-override] # no title case
        """One short sentence for a person, without a full stop."""
        return ABOUT[self].title

    @property
    def remedies(self) -> tuple[str, ...]:
        """What helps, most useful first, where no signature knows better."""
        return ABOUT[self].remedies

    def first_remedy(self, *, gpu: bool) -> str:
        """What helps most; for a service without a GPU, nothing that asks for a GPU's faults."""
        return next(text for text in self.remedies if gpu or "grep Xid" not in text)

    @property
    def message_id(self) -> str:
        """Id of this cause's journal messages: 32 hexadecimal digits, the same in every release."""
        from uuid import UUID, uuid5

        return uuid5(UUID(_NAMESPACE), f"servicekit.cause.{self.value}").hex


class About(NamedTuple):
    """What belongs to a cause."""

    group: Group
    retry: Retry
    title: str
    remedies: tuple[str, ...]


ABOUT: Final[Mapping[Cause, About]] = {
    Cause.STOP_REQUESTED: About(
        Group.ASKED,
        Retry.ALWAYS,
        "stopped on request",
        ("nothing is wrong: `servicekit start {profile}` starts it again",),
    ),
    Cause.HOST_SHUTDOWN: About(
        Group.ASKED,
        Retry.ALWAYS,
        "stopped because the host shuts down",
        ("nothing is wrong: an enabled service comes back with the next boot",),
    ),
    Cause.SESSION_END: About(
        Group.ASKED,
        Retry.ALWAYS,
        "stopped because the login session that it belonged to ended",
        (
            "install it as a system service: `servicekit install {profile}` as root",
            "or let the user's services outlive the session: `loginctl enable-linger`",
        ),
    ),
    Cause.OUTSIDE_KILL: About(
        Group.ASKED,
        Retry.ALWAYS,
        "killed by somebody else: neither the manager nor the watchdog sent the signal",
        (
            "see who sent it, where the kernel told it: `servicekit history {profile}`",
            "stop the service with `servicekit stop {profile}` instead of with kill",
        ),
    ),
    Cause.IDLE_KILL: About(
        Group.ASKED,
        Retry.ALWAYS,
        "the virtual machine was stopped under it, as WSL does with an idle distribution",
        (
            "in .wslconfig set `[general] instanceIdleTimeout=-1`, then run `wsl --shutdown` once",
            "`servicekit doctor` lists what else ends a WSL distribution",
        ),
    ),
    Cause.SUSPEND: About(
        Group.ASKED,
        Retry.ALWAYS,
        "the host was suspended or its virtual machine paused, and the GPU did not survive it",
        (
            "forbid sleep on a host that serves: `systemctl mask sleep.target suspend.target`",
            "or have the driver keep its memory: `NVreg_PreserveVideoMemoryAllocations=1`",
        ),
    ),
    Cause.POWER_LOSS: About(
        Group.ASKED,
        Retry.ALWAYS,
        "the host went down without a shutdown: power, reset or a crash of the kernel",
        ("look at the end of the previous boot: `journalctl -b -1 -e`",),
    ),
    Cause.WATCHDOG_KILLED: About(
        Group.ASKED,
        Retry.ALWAYS,
        "the watchdog itself was killed; its run has no ending in the history",
        (
            "see what the manager did at that time: `journalctl -u servicekit-{profile}`",
            "look for the kernel's OOM killer: `journalctl -k | grep -i 'killed process'`",
        ),
    ),
    Cause.OOM_KILL: About(
        Group.MEMORY,
        Retry.ONCE,
        "the kernel's OOM killer killed it: the host or the control group ran out of memory",
        (
            "see who used the memory: `journalctl -k | grep -A30 'invoked oom-killer'`",
            "give the host, the control group or WSL (`memory=` in .wslconfig) more memory",
            "keep less in host memory: no CPU offload, a smaller prompt cache",
        ),
    ),
    Cause.ENGINE_EXIT: About(
        Group.ENGINE,
        Retry.ALWAYS,
        "the engine exited although nobody asked it to",
        ("read its last lines: `servicekit logs {profile}`",),
    ),
    Cause.ENGINE_SIGNAL: About(
        Group.ENGINE,
        Retry.ALWAYS,
        "the engine died by a signal",
        (
            "read its last lines: `servicekit logs {profile}`",
            "look at the kernel's messages of that moment: `journalctl -k -e`",
        ),
    ),
    Cause.WORKER_DIED: About(
        Group.ENGINE,
        Retry.ALWAYS,
        "one of the engine's processes died and took the engine with it",
        (
            "look for the OOM killer or an Xid at that moment: `journalctl -k -e`",
            "read what the process wrote before it died: `servicekit logs {profile}`",
        ),
    ),
    Cause.HUNG: About(
        Group.ENGINE,
        Retry.ALWAYS,
        "the engine stopped making progress while a request waited",
        (
            "look for an Xid at that moment: `journalctl -k | grep Xid`",
            "if long prompts are cut short by this, allow more time: `watch.stall` in the profile",
        ),
    ),
    Cause.UNANSWERED: About(
        Group.DEGRADED,
        Retry.ALWAYS,
        "the engine does not answer the bounded completion",
        ("see whether it is busy or stuck: `servicekit probe {profile} --deep`",),
    ),
    Cause.PROGRESS_WITHOUT_COMPLETION: About(
        Group.DEGRADED,
        Retry.ALWAYS,
        "the engine works, but for a minute no request has been finished",
        (
            "see what is queued: `servicekit probe {profile} --deep`",
            "lower `--max-running-requests` or the prompts' length when this is ordinary load",
        ),
    ),
    Cause.START_STALLED: About(
        Group.ENGINE,
        Retry.ALWAYS,
        "the start made no progress for longer than the profile allows",
        (
            "read where it stopped: `servicekit logs {profile}`",
            "if a quiet step of it is ordinary here, allow more time: `start.stall` in the profile",
        ),
    ),
    Cause.START_LIMIT: About(
        Group.ENGINE,
        Retry.ONCE,
        "the start took longer than the profile's overall limit",
        (
            "see which phase was slow: `servicekit history {profile}`",
            "raise `start.limit` in the profile if the model simply takes this long",
        ),
    ),
    Cause.GPU_FAULT: About(
        Group.ENGINE,
        Retry.ALWAYS,
        "a GPU kernel of the engine failed, as a bug in it or a bad tensor makes it",
        (
            "if it comes back, try another attention backend, or the GPU graphs off",
            "update the engine: faults of this kind are mended there",
            "look for an Xid at that moment: `journalctl -k | grep Xid`",
        ),
    ),
    Cause.NCCL: About(
        Group.ENGINE,
        Retry.ONCE,
        "the GPUs could not talk to each other (NCCL)",
        (
            "run once with `NCCL_DEBUG=INFO` in the environment and read the first warning",
            "see that every GPU of the profile is there: `nvidia-smi`",
        ),
    ),
    Cause.JIT_FAILED: About(
        Group.ENGINE,
        Retry.ONCE,
        "the engine could not compile a GPU kernel that it needs",
        (
            "install the CUDA toolkit that matches the engine, and give the profile `CUDA_HOME`",
            "remove the half-built kernels from the cache directory, then start again",
            "or choose kernels that need no compiler: another `--attention-backend`",
        ),
    ),
    Cause.ILLEGAL_INSTRUCTION: About(
        Group.ENGINE,
        Retry.NEVER_CONFIG,
        "the engine's program was built for another CPU (illegal instruction)",
        (
            "install a build for this CPU, or build it here",
            "compare what the CPU has: `lscpu | grep -i flags`",
        ),
    ),
    Cause.BAD_FLAGS: About(
        Group.CONFIGURATION,
        Retry.NEVER_CONFIG,
        "the engine does not accept its command line",
        (
            "see which option and what it should be: `servicekit check {profile}`",
            "change it in the profile's `[options]`",
        ),
    ),
    Cause.PORT_BUSY: About(
        Group.HOST,
        Retry.NEVER_HOST,
        "another process holds the port",
        (
            "see who: `ss -ltnp` shows the process behind each port",
            "stop it, or give the profile another `port`",
        ),
    ),
    Cause.EXECUTABLE_MISSING: About(
        Group.CONFIGURATION,
        Retry.NEVER_CONFIG,
        "the engine's program is not there or cannot be executed",
        (
            'install the engine, or name its program in the profile: `executable = "/path/to/it"`',
            "then write the files anew: `servicekit install {profile}`",
        ),
    ),
    Cause.SECRET_MISSING: About(
        Group.CONFIGURATION,
        Retry.NEVER_CONFIG,
        "a secret that the service needs cannot be read",
        ("create the file that the unit's LoadCredential= names, readable by root only",),
    ),
    Cause.PERMISSION_DENIED: About(
        Group.CONFIGURATION,
        Retry.NEVER_CONFIG,
        "the service may not read or write a file that it needs",
        ("give the service's user access to the path, or move it below the cache directory",),
    ),
    Cause.MISSING_PACKAGE: About(
        Group.CONFIGURATION,
        Retry.NEVER_CONFIG,
        "a package or library that the engine needs is not installed",
        ("install it into the engine's own environment, not into the system's",),
    ),
    Cause.SANDBOX_BLOCKED: About(
        Group.CONFIGURATION,
        Retry.NEVER_CONFIG,
        "the unit's sandbox forbids something that the engine needs",
        (
            "write the unit anew, ours allows what is needed: `servicekit install {profile}`",
            "drop-ins must keep AF_NETLINK, the GPU devices and writable caches",
        ),
    ),
    Cause.ARCH_UNSUPPORTED: About(
        Group.CONFIGURATION,
        Retry.NEVER_CONFIG,
        "the engine's GPU code was not built for this GPU",
        (
            "install torch and the engine for this GPU (an RTX 5090 needs CUDA 12.8 or newer)",
            "or choose kernels that exist for it: another `--attention-backend`",
        ),
    ),
    Cause.LM_HEAD_MISMATCH: About(
        Group.CONFIGURATION,
        Retry.NEVER_CONFIG,
        "the drafter's path and the checkpoint's output head have different shapes",
        (
            "use a newer engine that knows this head, or a checkpoint with a BF16 head",
            "or serve without this drafter",
        ),
    ),
    Cause.GAMMA_MISMATCH: About(
        Group.CONFIGURATION,
        Retry.NEVER_CONFIG,
        "the number of draft tokens does not fit the drafter's gamma",
        ("remove `--speculative-num-draft-tokens`: it follows from the drafter",),
    ),
    Cause.LAZY_WITH_SPECULATION: About(
        Group.CONFIGURATION,
        Retry.NEVER_CONFIG,
        "this engine version cannot combine `extra_buffer_lazy` with speculation",
        (
            "use the default `--mamba-radix-cache-strategy extra_buffer`",
            "or `--disable-radix-cache`",
            "or SGLang 0.5.23, which allows the combination",
        ),
    ),
    Cause.WRONG_MODEL: About(
        Group.CONFIGURATION,
        Retry.NEVER_CONFIG,
        "the engine serves another model than the profile says",
        ("compare `served_name` and `model` of the profile with what `/v1/models` lists",),
    ),
    Cause.UNAUTHORIZED: About(
        Group.CONFIGURATION,
        Retry.NEVER_CONFIG,
        "the engine refuses the watchdog's key (401): it is up, but guarded by another key",
        ("give the profile the key that the engine was started with",),
    ),
    Cause.MISSING_MODEL: About(
        Group.MODEL,
        Retry.NEVER_CONFIG,
        "the model is not where the profile says",
        (
            "correct `model` in the profile: a path that exists, or a Hugging Face name",
            "download it: `servicekit fetch {profile}`",
        ),
    ),
    Cause.TRUNCATED_MODEL: About(
        Group.MODEL,
        Retry.NEVER_CONFIG,
        "a file of the model is cut short or damaged",
        (
            "have every file checked, and what is damaged replaced: `servicekit fetch {profile}`",
            "see that the disk is not full: `df -h`",
        ),
    ),
    Cause.GATED_MODEL: About(
        Group.MODEL,
        Retry.NEVER_CONFIG,
        "Hugging Face refuses the model without a token that may see it",
        (
            "accept the model's terms, then download it with a token: `servicekit fetch {profile}`",
            "see that the name is right: a misspelt repository gives the same answer",
        ),
    ),
    Cause.MODEL_OFFLINE: About(
        Group.MODEL,
        Retry.NEVER_CONFIG,
        "the model is not on this machine, and the service does not download",
        (
            "download it beforehand: `servicekit fetch {profile}`",
            'or let the engine do so: service.network = "internet", `servicekit install {profile}`',
        ),
    ),
    Cause.DOWNLOAD_FAILED: About(
        Group.MODEL,
        Retry.ALWAYS,
        "the model could not be downloaded",
        (
            "download it beforehand: `servicekit fetch {profile}`",
            "see that the host reaches huggingface.co, and that the unit's network rules allow it",
        ),
    ),
    Cause.MODEL_UNSUPPORTED: About(
        Group.MODEL,
        Retry.NEVER_CONFIG,
        "this version of the engine does not know the model's architecture",
        (
            "use a newer engine",
            "see that `architectures` in the model's config.json is the name that the engine knows",
        ),
    ),
    Cause.STATE_CACHE_TOO_SMALL: About(
        Group.MEMORY,
        Retry.NEVER_CONFIG,
        "the pool of recurrent states has fewer slots than one request needs",
        (
            "add `--mamba-ssm-dtype bfloat16`: it halves a slot",
            "raise `--mem-fraction-static`",
            "lower the slots per request: `--mamba-radix-cache-strategy extra_buffer_lazy`",
            "or `--disable-radix-cache`, which gives up prefix caching",
            "lower `--max-running-requests`",
            "`servicekit plan {profile}` shows what fits before a start",
        ),
    ),
    Cause.KV_CACHE_TOO_SMALL: About(
        Group.MEMORY,
        Retry.ONCE,
        "after the weights there is too little GPU memory for the KV cache",
        (
            "give the engine more of the card, or ask for less context",
            "`servicekit plan {profile}` shows what fits before a start",
        ),
    ),
    Cause.CUDA_OOM: About(
        Group.MEMORY,
        Retry.ONCE,
        "the GPU ran out of memory",
        (
            "leave more of the card free: smaller pools, less context, fewer requests at a time",
            "see who else uses it: `nvidia-smi`",
            "`servicekit plan {profile}` shows what fits before a start",
        ),
    ),
    Cause.GRAPH_OOM: About(
        Group.MEMORY,
        Retry.ONCE,
        "the GPU ran out of memory while CUDA graphs were captured",
        (
            "leave more of the card free for the capture, which comes on top of the pools",
            "capture fewer graphs, or none",
            "`servicekit plan {profile}` shows what fits before a start",
        ),
    ),
    Cause.HOST_OOM: About(
        Group.MEMORY,
        Retry.ONCE,
        "the host had no memory left for the engine",
        (
            "see what uses it: `free -h`",
            "give the host, the control group or WSL more memory, or load with less parallelism",
        ),
    ),
    Cause.SHM_FULL: About(
        Group.MEMORY,
        Retry.NEVER_HOST,
        "shared memory (/dev/shm) is full or too small",
        (
            "see what fills it: `ls -l /dev/shm`; files of dead processes may go",
            "give a container more: `--shm-size 16g`",
        ),
    ),
    Cause.VRAM_BUSY: About(
        Group.MEMORY,
        Retry.NEVER_HOST,
        "another process holds the GPU memory that the engine needs",
        (
            "see who: `servicekit status {profile}` and `nvidia-smi` name the holder",
            "stop it, or let the profile take less of the card",
        ),
    ),
    Cause.VRAM_ORPHAN: About(
        Group.MEMORY,
        Retry.ALWAYS,
        "GPU memory is held by a process of an earlier run, or by nobody",
        (
            "the next start sweeps what is ours, and so does `servicekit stop {profile}`",
            "a process of another tool is yours to end: `nvidia-smi`, then `kill PID`",
            "memory that no process holds comes back with a reboot",
        ),
    ),
    Cause.NOT_OUR_SOCKET: About(
        Group.HOST,
        Retry.NEVER_HOST,
        "the port answers, but the process behind it is not of this run",
        (
            "see who: `ss -ltnp` shows the process behind each port",
            "stop it, or give the profile another `port`",
        ),
    ),
    Cause.STRANGER_ON_GPU: About(
        Group.DEGRADED,
        Retry.ALWAYS,
        "a process that is not of this service uses the GPU",
        (
            "see who: `servicekit status {profile}` and `nvidia-smi` name it",
            "stop it if it should not be there: servicekit never touches a stranger",
        ),
    ),
    Cause.GPU_LOST: About(
        Group.HOST,
        Retry.NEVER_HOST,
        "the GPU is lost or must be reset",
        (
            "reboot the host, or try `nvidia-smi --gpu-reset` where nothing else uses the GPU",
            "if it comes back: power supply, riser, temperature, then the card itself",
            "in a container the devices may only have been taken away: start the container anew",
        ),
    ),
    Cause.DRIVER: About(
        Group.HOST,
        Retry.NEVER_HOST,
        "the NVIDIA driver is missing, too old, or another version than its libraries",
        (
            "see what it says itself: `nvidia-smi`",
            "after an update of the driver reboot the host",
            "install a driver that is new enough for the engine's CUDA version",
        ),
    ),
    Cause.DISK_FULL: About(
        Group.HOST,
        Retry.NEVER_HOST,
        "the disk is full",
        (
            "see which one: `df -h`",
            "free space, or move HF_HOME and the caches to a larger disk",
        ),
    ),
    Cause.TOO_MANY_FILES: About(
        Group.HOST,
        Retry.NEVER_CONFIG,
        "the engine ran into its limit of open files",
        ("raise it: `LimitNOFILE=65536` in the unit, or `ulimit -n 65536` in the wrapper's shell",),
    ),
    Cause.UNKILLABLE: About(
        Group.HOST,
        Retry.NEVER_HOST,
        "a process of the engine cannot be killed: it is stuck inside the kernel or the driver",
        ("reboot the host: nothing else ends such a process",),
    ),
    Cause.BUDGET_SPENT: About(
        Group.HOST,
        Retry.NEVER_HOST,
        "too many faults in too short a time: restarting is given up",
        (
            "see what happened each time: `servicekit history {profile}`",
            "mend that, then `servicekit start {profile}` begins anew",
        ),
    ),
    Cause.CONTEXT_TOO_SMALL: About(
        Group.MEMORY,
        Retry.NEVER_CONFIG,
        "the context that the engine can really hold is below the profile's minimum",
        (
            "move memory to the KV cache; `servicekit plan {profile}` shows which lever",
            "lower `context.minimum` in the profile if less will do",
        ),
    ),
    Cause.CONTEXT_BELOW_REQUESTED: About(
        Group.DEGRADED,
        Retry.ALWAYS,
        "the context that the engine can really hold is below what the profile asks for",
        (
            "move memory to the KV cache; `servicekit plan {profile}` shows which lever",
            "or ask for what there is: `context.requested` in the profile",
        ),
    ),
    Cause.WRONG_ANSWER: About(
        Group.DEGRADED,
        Retry.ONCE,
        "the answer to the bounded completion is not what the profile expects",
        (
            "look at it: `servicekit probe {profile} --deep`",
            "compare with another attention backend and with the GPU graphs off",
        ),
    ),
    Cause.REPEATED_ANSWER: About(
        Group.DEGRADED,
        Retry.ONCE,
        "the answer is one character over and over: the computation is broken",
        (
            "compare with another attention backend and with the GPU graphs off",
            "with speculation, try without: broken draft verification looks like this",
        ),
    ),
    Cause.CPU_FALLBACK: About(
        Group.DEGRADED,
        Retry.ALWAYS,
        "the engine runs on the CPU although the profile wants the GPU",
        (
            "see that the driver works: `nvidia-smi`; if it only came late, a restart is enough",
            "see that the program was built with CUDA and that the unit may use the GPU",
        ),
    ),
    Cause.TOO_SLOW: About(
        Group.DEGRADED,
        Retry.ALWAYS,
        "decoding is slower than the profile's floor",
        (
            "the first requests after a start are slow: measure after a warm-up request",
            "on WSL GPU memory may spill into host memory: leave more of the card free",
            "with speculation see that the draft graph is on and that drafts are accepted",
        ),
    ),
    Cause.ACCEPTANCE_ZERO: About(
        Group.DEGRADED,
        Retry.ALWAYS,
        "the target accepts none of the drafter's tokens",
        (
            "see that the drafter belongs to this very checkpoint",
            "with vLLM try `--enforce-eager`: MTP with full CUDA graphs has broken on an RTX 5090",
            "or serve without speculation",
        ),
    ),
    Cause.DRAFT_GRAPH_DISABLED: About(
        Group.DEGRADED,
        Retry.ALWAYS,
        "the drafter runs without its CUDA graph, and decoding falls to a fraction",
        (
            "leave 1 GiB free after the target's graphs: `--chunked-prefill-size 2048`",
            "or fewer state slots, or a smaller KV pool",
        ),
    ),
    Cause.INPUT_TOO_LONG: About(
        Group.DEGRADED,
        Retry.ALWAYS,
        "a request was longer than the engine can hold; it was refused, and nothing else happened",
        ("send less, or give the KV cache more: `servicekit plan {profile}` shows which lever",),
    ),
    Cause.UNKNOWN: About(
        Group.UNKNOWN,
        Retry.ALWAYS,
        "the cause is not known",
        ("read the engine's last lines: `servicekit logs {profile}`",),
    ),
}
