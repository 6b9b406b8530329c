"""How one engine is: by the readiness probe, its counters, its log, and how it ended.

Loaded after the launch, with an HTTP client and the signatures of logs: after a crash the next
engine must not wait for them.
"""

from __future__ import annotations

import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from servicekit.diagnosis.causes import Cause
from servicekit.diagnosis.fault import Fault
from servicekit.diagnosis.reader import LogReader
from servicekit.diagnosis.signatures import BootPhase
from servicekit.diagnosis.verdict import diagnose
from servicekit.profiles.vocabulary import EngineName, Reason
from servicekit.watchdog import health
from servicekit.watchdog.events import Observed, ProbeFailed, ProbePassed, Progressed, Sign
from servicekit.watchdog.history import FIRST_ANSWER
from servicekit.watchdog.probe import NotReady, Owner, Ownership, Prober

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager

    from servicekit.diagnosis.reading import BootFacts
    from servicekit.diagnosis.verdict import Diagnosis
    from servicekit.engines.base import Contexts, Counters
    from servicekit.host.child import ExitStatus
    from servicekit.host.facts import Process
    from servicekit.profiles.model import Profile
    from servicekit.watchdog.events import Event
    from servicekit.watchdog.evidence import OomProof
    from servicekit.watchdog.ports import PortHolder

# The published state is `starting` until an answer came, whatever the engine's log says.
BOOT_WORDS: Final = {BootPhase.SERVING: FIRST_ANSWER}
LOG_SIGN: Final = 1.0  # seconds within which many lines of the log are one sign of progress
OUTSIDE_SIGNALS: Final = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT}
)
"""Signals that no program gets by a mistake of its own."""
ENDS_ITSELF: Final = frozenset({Cause.HUNG, Cause.START_STALLED, Cause.WORKER_DIED})
"""Causes after which engines kill their own process tree."""


def _unfenced(_: str) -> AbstractContextManager[None]:
    return nullcontext()


class EngineMonitor:
    """Monitors the engine of one run, and posts what it observes."""

    def __init__(
        self,
        profile: Profile,
        post: Callable[[Event], None],
        *,
        api_key: str | None,
        port_holder: Callable[[], PortHolder | None],
        holds_vram: Callable[[], Awaitable[bool | None]],
        fenced: Callable[[str], AbstractContextManager[None]] = _unfenced,
    ) -> None:
        self._profile = profile
        self._post = post
        self._port_holder = port_holder
        self._fenced = fenced
        self._prober = Prober(profile, api_key=api_key, owner=self._owner, holds_vram=holds_vram)
        self._window = health.Window()
        self._reader = LogReader(profile.engine)
        self._logged_at = 0.0
        self._boot: BootPhase | None = None
        self._graph_reported = False

    async def _owner(self) -> Ownership:
        holder = self._port_holder()
        if holder is None:
            return Ownership(Owner.NONE)
        if holder.ours is None:
            return Ownership(Owner.UNKNOWN)
        return Ownership(Owner.OURS if holder.ours else Owner.FOREIGN, holder.who)

    async def readiness(self) -> ProbePassed | ProbeFailed:
        """Run the readiness probe within its deadline."""
        result = await self._prober.readiness()
        now = time.monotonic()
        if isinstance(result, NotReady):
            return ProbeFailed(
                now, result.failure, result.sentence, result.identified, result.remedy
            )
        return ProbePassed(now, self._with_log(result.contexts))

    def _with_log(self, contexts: Contexts) -> Contexts:
        """Add from the log what the engine's API does not report about its context."""
        if contexts.physical is not None:
            return contexts
        return replace(contexts, physical=self._reader.facts.kv_tokens)

    async def counters(self) -> Counters | None:
        """Read the engine's counters within a limit, and post the conditions that follow."""
        counters = await self._prober.counters()
        if counters is not None:
            with self._fenced("the engine's figures"):
                self._judge(counters)
        return counters

    def _judge(self, counters: Counters) -> None:
        floor = self._profile.watch.decode_floor
        self._window, seen = health.look(self._window, counters, time.monotonic(), floor=floor)
        for observed in seen:
            self._post(observed)

    @property
    def facts(self) -> BootFacts:
        """What the boot log has said so far about memory and limits."""
        return self._reader.facts

    def read(self, data: bytes) -> None:
        """Take what the engine has printed, and post its progress."""
        now = time.monotonic()
        self._reader.feed(data, now)
        boot = self._reader.phase
        if boot is not None and boot is not self._boot:
            self._boot = boot
            words = BOOT_WORDS.get(boot, boot.replace("-", " "))
            self._post(Progressed(now, Sign.PHASE, words))
        elif now - self._logged_at >= LOG_SIGN:
            self._logged_at = now
            self._post(Progressed(now, Sign.LOG))
        if self._reader.facts.draft_graph_disabled and not self._graph_reported:
            self._graph_reported = True
            sentence = "the draft model's CUDA graph is disabled: decoding is several times slower"
            reason = Reason.DRAFT_GRAPH_DISABLED
            self._post(Observed(now, reason, present=True, sentence=sentence))

    def why_lost(self, process: Process, oom: OomProof | None) -> Fault:
        """Conclude why a process of the engine, which still runs, has died."""
        diagnosis = self._diagnose(exit_status=1)
        if not diagnosis.weak:
            remedy = diagnosis.remedies[0] if diagnosis.remedies else ""
            return Fault(diagnosis.cause, f"{process.named} died: {diagnosis.sentence}", remedy)
        cause, why = Cause.WORKER_DIED, ""
        if oom is not None:
            cause, why = Cause.OOM_KILL, f": {oom.sentence}"
        return Fault(cause, f"{process.named} died{why}", cause.remedies[0])

    def _diagnose(self, exit_status: int | None = None, signal: int | None = None) -> Diagnosis:
        return diagnose(
            self._reader.reading(),
            options=self._profile.options,
            exit_status=exit_status,
            signal=signal,
            profile=self._profile.name,
        )

    def why(self, status: ExitStatus, oom: OomProof | None) -> Fault:
        """Conclude why the engine ended; `oom` is what proves that the kernel killed for memory.

        A clear line in the log decides. Otherwise the kernel's counters and the possible sender of
        a signal are better evidence.
        """
        self._reader.close()
        diagnosis = self._diagnose(status.code, status.signal)
        remedy = diagnosis.remedies[0] if diagnosis.remedies else ""
        fault = Fault(diagnosis.cause, diagnosis.sentence, remedy)
        if not diagnosis.weak:
            return fault
        killed = status.signal == signal.SIGKILL or diagnosis.cause is Cause.WORKER_DIED
        if oom is not None and (oom.own or killed):
            log = f"; its log: {diagnosis.sentence}" if diagnosis.signature else ""
            sentence = oom.sentence + log
            return Fault(Cause.OOM_KILL, sentence, Cause.OOM_KILL.remedies[0])
        # SGLang ends itself with SIGKILL when one of its processes has failed, and says so before.
        itself = diagnosis.cause in ENDS_ITSELF or (
            self._profile.engine is EngineName.SGLANG
            and any("sigquit" in line.lower() for line in self._reader.reading().tail)
        )
        if status.signal in OUTSIDE_SIGNALS and not itself:
            sentence = f"the engine was ended by {status.named} from outside"
            return Fault(Cause.OUTSIDE_KILL, sentence, Cause.OUTSIDE_KILL.remedies[0])
        return fault

    async def close(self) -> None:
        """Close all connections to the engine."""
        await self._prober.close()
