"""The closed list of causes: why a run ended, or why a running service is degraded.

`data/causes.toml` holds what belongs to each. It is read on first use: the watchdog needs the names
before the launch, and the texts only after it.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from servicekit.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping

# Namespace of the message ids. A change would separate journal entries from their explanation.
_NAMESPACE: Final = "6d2f4a53-0a3c-5d0e-9a53-2c2f0f3f7b11"


class Retry(StrEnum):
    """Whether a restart helps. Decides the exit code that the manager sees."""

    ALWAYS = "always"
    ONCE = "once"  # the same cause twice in a row means stop
    NEVER_CONFIG = "never-config"  # the configuration must change first
    NEVER_HOST = "never-host"  # the host or an operator must act first

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of a run that ended so; for `ONCE`, of the first such run."""
        if self is Retry.NEVER_CONFIG:
            return ExitCode.CONFIG
        return ExitCode.UNAVAILABLE if self is Retry.NEVER_HOST else ExitCode.TEMPFAIL


class Group(StrEnum):
    """Headings of `docs/causes.md`, in its order."""

    ASKED = "Stopped or killed from outside"
    ENGINE = "The engine failed"
    CONFIGURATION = "The configuration cannot work"
    MODEL = "The model"
    MEMORY = "Memory"
    HOST = "The host, the driver and the GPU"
    DEGRADED = "Running, but degraded"
    UNKNOWN = "Unknown"


class Cause(StrEnum):
    """Why a run ended, or why a service is degraded. Anything else is `UNKNOWN`."""

    STOP_REQUESTED = "stop-requested"
    HOST_SHUTDOWN = "host-shutdown"
    SESSION_END = "session-end"
    OUTSIDE_KILL = "outside-kill"
    IDLE_KILL = "idle-kill"
    SUSPEND = "suspend"
    POWER_LOSS = "power-loss"
    HOST_DIES_UNDER_LOAD = "host-dies-under-load"
    WATCHDOG_KILLED = "watchdog-killed"
    OOM_KILL = "oom-kill"
    ENGINE_EXIT = "engine-exit"
    ENGINE_SIGNAL = "engine-signal"
    WORKER_DIED = "worker-died"
    HUNG = "hung"
    NOT_LISTENING = "not-listening"
    UNANSWERED = "unanswered"
    PROGRESS_WITHOUT_COMPLETION = "progress-without-completion"
    START_STALLED = "start-stalled"
    START_LIMIT = "start-limit"
    GPU_FAULT = "gpu-fault"
    NCCL = "nccl"
    JIT_FAILED = "jit-failed"
    ILLEGAL_INSTRUCTION = "illegal-instruction"
    ENGINE_ASSERTION = "engine-assertion"
    START_REFUSED = "start-refused"
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
    DRAFTER_MISMATCH = "drafter-mismatch"
    CHAT_TEMPLATE = "chat-template"
    VERSION_CONFLICT = "version-conflict"
    INTERPRETER = "interpreter"
    NOEXEC = "noexec"
    BIND_REFUSED = "bind-refused"
    EMBEDDINGS_ONLY = "embeddings-only"
    WRONG_MODEL = "wrong-model"
    UNAUTHORIZED = "unauthorized"
    MISSING_MODEL = "missing-model"
    TRUNCATED_MODEL = "truncated-model"
    GATED_MODEL = "gated-model"
    MODEL_OFFLINE = "model-offline"
    DOWNLOAD_FAILED = "download-failed"
    MODEL_UNSUPPORTED = "model-unsupported"
    TOKENIZER_UNUSABLE = "tokenizer-unusable"
    CHECKPOINT_MISMATCH = "checkpoint-mismatch"
    PROJECTOR = "projector"
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
    THREADS_EXHAUSTED = "threads-exhausted"
    UNKILLABLE = "unkillable"
    BUDGET_SPENT = "budget-spent"
    CONTEXT_TOO_SMALL = "context-too-small"
    CONTEXT_BELOW_REQUESTED = "context-below-requested"
    WRONG_ANSWER = "wrong-answer"
    REPEATED_ANSWER = "repeated-answer"
    CPU_FALLBACK = "cpu-fallback"
    TOO_SLOW = "too-slow"
    GPU_SLOWED_DOWN = "gpu-slowed-down"
    ACCEPTANCE_ZERO = "acceptance-zero"
    DRAFT_GRAPH_DISABLED = "draft-graph-disabled"
    INPUT_TOO_LONG = "input-too-long"
    UNKNOWN = "unknown"

    @property
    def group(self) -> Group:
        """The heading under which `docs/causes.md` lists it."""
        return _table()[self].group

    @property
    def retry(self) -> Retry:
        """Whether a restart helps."""
        return _table()[self].retry

    @property
    def title(self) -> str:  # type: ignore[override, explicit-override] # not str.title
        """One short sentence without a full stop."""
        return _table()[self].title

    @property
    def remedies(self) -> tuple[str, ...]:
        """What helps, most useful first, where no signature has remedies of its own."""
        return _table()[self].remedies

    def first_remedy(self, *, gpu: bool) -> str:
        """The most useful remedy; without a GPU, one that needs none."""
        about = _table()[self]
        return next(text for text in about.remedies if gpu or text not in about.gpu_only)

    @property
    def message_id(self) -> str:
        """Id of this cause's journal messages: 32 hexadecimal digits, the same in every release."""
        from uuid import UUID, uuid5

        return uuid5(UUID(_NAMESPACE), f"servicekit.cause.{self.value}").hex


class About(NamedTuple):
    """What `data/causes.toml` says about a cause."""

    group: Group
    retry: Retry
    title: str
    remedies: tuple[str, ...]
    gpu_only: frozenset[str]


def shared_text(text: str) -> str:
    """Return what a reference such as `@plan` stands for, and any other text as it is."""
    return _document()[1].get(text, text)


@cache
def _document() -> tuple[dict[str, Any], dict[str, str], frozenset[str]]:
    """Read the causes, the shared texts by reference, and those that need a GPU."""
    import tomllib

    from servicekit import data

    document = tomllib.loads(data.read("causes"))
    shared, gpu = document.pop("shared"), document.pop("gpu")
    texts = {f"@{name}": text for name, text in (shared | gpu).items()}
    return document, texts, frozenset(gpu.values())


@cache
def _table() -> Mapping[Cause, About]:
    document, texts, gpu_only = _document()
    return {
        Cause(name): About(
            Group[entry["group"].upper()],
            Retry(entry["retry"]),
            entry["title"],
            tuple(texts.get(text, text) for text in entry["remedies"]),
            gpu_only,
        )
        for name, entry in document.items()
    }
