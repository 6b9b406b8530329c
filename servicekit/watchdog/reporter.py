"""What publishes, records and announces a run, fenced off from what keeps the engine alive.

A bug in here, or in what reads an engine's log and figures, is caught, logged once and counted; it
never ends a service.
"""

from __future__ import annotations

import codecs
import os
import re
import time
import traceback
from collections import Counter
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from servicekit import __version__
from servicekit.diagnosis.fault import Fault
from servicekit.host import procfs
from servicekit.log import ROUTINE, Output, Priority, Redactor
from servicekit.places import spelt
from servicekit.service.installed import pool_drift
from servicekit.text import plain, printable
from servicekit.watchdog import clock, ledger
from servicekit.watchdog.events import STEADY, RunPhase
from servicekit.watchdog.ledger import Kind
from servicekit.watchdog.publish import State, write_state
from servicekit.watchdog.view import Published, view

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from servicekit.diagnosis.reading import BootFacts
    from servicekit.engines.base import Contexts
    from servicekit.log import Events
    from servicekit.service.installed import InstalledPlan
    from servicekit.watchdog.ledger import Ledger
    from servicekit.watchdog.memory import Memory
    from servicekit.watchdog.publish import Notifier
    from servicekit.watchdog.view import View

FLUSH: Final = 2.0
"""Seconds that a slow reader of our lines is waited for at the end."""
STATUS_EVERY: Final = 1.0
"""Seconds between status lines of a start."""
LINE_LENGTH: Final = 16 * 1024
"""Bytes after which a line of output is broken."""
STDERR: Final = 2
ASKED_LINGERS: Final = 0.5  # seconds after an answer in which its lines arrive
FRAMES: Final = 3
"""Frames of a traceback that are logged."""
FIGURES: Final = re.compile(r"\d+")
UP: Final = frozenset({RunPhase.SERVING, RunPhase.DEGRADED})


class LineSplitter:
    """Cuts an engine's output into lines; progress bars, which return instead, make lines too.

    With `redact`, no secret is in a line, also where a line without an end is cut, or where one
    write returns in the middle of a secret.
    """

    def __init__(self, redact: Redactor | None = None) -> None:
        self._redact = redact or Redactor(())
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes; return the lines that they complete, without their ends."""
        *whole, rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n")
        lines = [line for text in whole for line in self._split(text)]
        *returned, self._rest = self._split(rest)
        lines += returned
        if len(self._rest) > LINE_LENGTH + self._redact.longest:
            self._rest = self._hide(self._rest)
        while len(self._rest) > LINE_LENGTH + self._redact.longest:
            # Between two words where there are any.
            cut = self._rest.rfind(b" ", LINE_LENGTH // 2, LINE_LENGTH) + 1 or LINE_LENGTH
            lines.append(self._rest[:cut])
            self._rest = self._rest[cut:]
        return [line.decode(errors="replace") for line in lines if line]

    def _split(self, text: bytes) -> list[bytes]:
        """Split at each return, but for one inside a secret."""
        parts = text.split(b"\r")
        joined = b"".join(parts)
        count = self._redact.count
        if len(parts) > 1 and count(joined) > sum(map(count, parts)):
            return [joined]
        return parts

    def _hide(self, text: bytes) -> bytes:
        """Take out the secrets that are whole; the start of one is in what `longest` keeps back."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoded = decoder.decode(text)
        return self._redact(decoded).encode() + decoder.getstate()[0]

    def end(self) -> list[str]:
        """Return what is left as the last line."""
        return self.feed(b"\n")


class Reporter:
    """Writes the changes of one run to the ledger, `state.json`, the manager and the log."""

    def __init__(
        self,
        plan: InstalledPlan,
        secrets: Collection[str],
        *,
        run: str,
        book: Ledger,
        events: Events,
        notifier: Notifier,
        write: Callable[[Path, State], None] = write_state,
        steady: float = STEADY,
    ) -> None:
        self._plan = plan
        self._run = run
        self._book = book
        self._events = events
        self._notifier = notifier
        self._write = write
        self._redact = Redactor(secrets)
        self._lines = LineSplitter(self._redact)
        self._launched_at = 0.0
        self._launched_boottime: float | None = None
        self._engine_pid: int | None = None
        self.facts: BootFacts | None = None
        """What the engine's boot log has said about memory and limits."""
        self._ready_seconds: float | None = None
        self._steady = sorted({steady, plan.profile.restart.healthy})
        """Seconds after it became ready at which it is recorded that it still is up."""
        self._since, self._since_boottime = ledger.now(), clock.boottime()
        self._asks_until = 0.0
        self._fault: tuple[object, ...] = ()  # the fault that was logged
        self._stale = False
        """What is published last could not be written."""
        self._restarts = 0
        self._eta: float | None = None
        self.bugs: Counter[str] = Counter()
        """Bugs that were caught, by what they kept from happening."""
        self._bug = ""
        """The first of them."""

    # Facts that it is given.

    def begun(self, *, restarts: int, eta: float | None) -> None:
        """Take what the ledger says about the runs before; `eta` is in seconds."""
        self._restarts, self._eta = restarts, eta

    def launched(self, engine_pid: int, baseline: Mapping[str, int] | None, memory: Memory) -> None:
        """Record and publish that the engine's process exists."""
        self._launched_at, self._engine_pid = time.monotonic(), engine_pid
        self._launched_boottime = clock.boottime()
        self.note(Kind.LAUNCHED, engine_pid=engine_pid, baseline=baseline)
        self._publish(memory, view(memory))

    def changed(self, before: Memory, now: Memory, seen: View) -> None:
        """Report a change: ledger first, then state file and manager, then the log."""
        if now.phase in UP and before.phase is RunPhase.LOADING:
            self._ready_seconds = round(time.monotonic() - self._launched_at, 3)
        was = view(before)
        state_changed = was.state is not seen.state or not before.began
        if state_changed:
            self._since, self._since_boottime = ledger.now(), clock.boottime()
        with self.fenced("the ledger"):
            self._record(before, now, seen)
        if before.phase in UP and now.phase not in UP:
            with self.fenced("the manager's state"):
                self._notifier.stopping()
        self._publish(now, seen)
        # Figures in the words change all the time: what is news is another reason, or other words.
        news = was.reasons != seen.reasons
        if not seen.reasons:
            news = FIGURES.sub("", was.why) != FIGURES.sub("", seen.why)
        if now.end.fault is not None:  # one line for a fault, not one for each phase of the end
            cause, sentence = now.end.fault.cause, FIGURES.sub("", now.end.fault.sentence)
            fault = (cause, sentence, seen.state is Published.STOPPED)
            state_changed, news, self._fault = False, fault != self._fault, fault
        if state_changed or news:
            with self.fenced("the log"):
                self._announce(now, seen)

    def ready(self, memory: Memory) -> None:
        """Send READY=1 to the manager; a `NotifyError` is no bug of ours and ends the run."""
        status = Published.READY.value
        with self.fenced("the status line"):
            status = self._status(view(memory))
        self._notifier.ready(status)

    def extend(self, seconds: float) -> None:
        """Ask the manager to wait for at least so many seconds."""
        with self.fenced("the manager's timeout"):
            self._notifier.extend(seconds)

    def tick(self, memory: Memory, quiet: float) -> float:
        """Report to the manager that the loop turns; return the seconds until it must turn again.

        While starting, the status line shows the time that passes.
        """
        with self.fenced("the manager's watchdog"):
            self._notifier.keep_alive()
        with self.fenced("the log"):
            self._events.flush()
        self._note_steady(memory)
        seen = view(memory)
        if self._stale:
            self._publish(memory, seen)
        wait = min(self._notifier.interval or quiet, quiet)
        if seen.state is not Published.STARTING:
            return wait
        with self.fenced("the status line"):
            self._notifier.status(self._status(seen))
        return min(wait, STATUS_EVERY)

    def _note_steady(self, memory: Memory) -> None:
        """Record how long it has been up: after the host went down, this shows what it stood."""
        if memory.phase in UP and self._ready_seconds is not None and self._steady:
            up = time.monotonic() - self._launched_at - self._ready_seconds
            if up >= self._steady[0]:
                self._steady.pop(0)
                self.note(Kind.STEADY, seconds=round(up, 3))

    def output(self, data: bytes) -> None:
        """Pass on what the engine prints; without `data`, its last line."""
        with self.fenced("the engine's lines"):
            for line in self._lines.feed(data) if data else self._lines.end():
                text = self._redact(plain(line))
                asked = time.monotonic() < self._asks_until
                self._events.engine(text, probe=asked and ROUTINE.match(text) is not None)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Mark the engine's routine lines meanwhile as caused by our own request, once ready."""
        self._asks_until = 0.0 if self._ready_seconds is None else inf
        try:
            yield
        finally:
            self._asks_until = time.monotonic() + ASKED_LINGERS

    def note(self, kind: Kind, **fields: Any) -> bool:  # noqa: ANN401 - JSON
        """Write to the ledger; return whether it could be written."""
        written = False
        with self.fenced("the ledger"):
            if "sentence" in fields:
                fields["sentence"] = self._clean(fields["sentence"])
            try:
                self._book.write(kind, **fields)
            except OSError as error:
                self.say(f"cannot write the ledger: {error}", Priority.ERROR)
            else:
                written = True
        return written

    def say(
        self, message: str, priority: Priority, fault: Fault | None = None, **fields: str
    ) -> None:
        """Log an event."""
        with self.fenced("the log"):
            cause = fault.cause if fault else None
            self._events.event(
                self._clean(message),
                priority,
                message_id=cause.message_id if cause else "",
                cause=cause or "",
                **fields,
            )

    def close(self) -> None:
        """Wait for a slow reader, and let go of everything."""
        for what, close in (
            ("the ledger", self._book.close),
            ("the log", lambda: self._events.close(FLUSH)),
            ("the manager", self._notifier.close),
        ):
            with self.fenced(what):
                close()

    # The fence.

    @contextmanager
    def fenced(self, what: str) -> Iterator[None]:
        """Catch a bug in what follows, which `what` needs: log it the first time, and count it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a bug in reporting must not end a service
            self.bugs[what] += 1
            self._stale = True  # publish the count
            if self.bugs[what] == 1:
                self._complain(what, error)

    def _complain(self, what: str, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
        path = ", ".join(f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in frames)
        kind = f"a bug in servicekit concerns {what}: {type(error).__name__}"
        try:
            line = self._clean(f"{kind}: {error} ({path})")
            self._bug = self._bug or line
            self._events.event(line, Priority.ERROR)
        except Exception:  # noqa: BLE001 - what logs or redacts is what is broken
            with suppress(Exception):
                Output(STDERR).write(f"{kind} ({path})")

    # What is said.

    def _record(self, before: Memory, now: Memory, seen: View) -> None:
        if now.load.boot != before.load.boot:
            self.note(Kind.PHASE, boot=now.load.boot)
        if now.phase in UP and before.phase is RunPhase.LOADING:
            context = context_fields(now.contexts)
            self.note(Kind.READY, seconds=self._ready_seconds, context=context)
        if seen.reasons and seen.reasons != view(before).reasons:
            self.note(Kind.DEGRADED, reasons=list(seen.reasons), sentence=seen.why)
        if now.phase is RunPhase.SERVING and before.phase is RunPhase.DEGRADED:
            self.note(Kind.RECOVERED)
        end, fault = now.end, now.end.fault
        if end.stop is not None and before.end.stop is None:
            self.note(Kind.STOPPING, cause=end.stop.cause, sentence=end.stop.sentence)
        if fault is not None and fault != before.end.fault and end.code is None:
            self.note(Kind.FAULT, cause=fault.cause, sentence=fault.sentence)
        if end.code is not None:
            cause = fault.cause if fault else None
            self.note(Kind.GONE, code=int(end.code), cause=cause, unsettled=end.unsettled)

    def _publish(self, now: Memory, seen: View) -> None:
        stale, self._stale = self._stale, False
        with self.fenced("the state file"):
            file = Path(self._plan.places.state_file(self._plan.profile.name))
            try:
                self._write(file, self._state(now, seen))
            except OSError as error:
                self._stale = True
                if not stale:
                    self.say(f"cannot write {file}: {error}", Priority.ERROR)
        if seen.state is not Published.READY or self._ready_seconds is not None:
            with self.fenced("the status line"):
                self._notifier.status(self._status(seen))

    def _state(self, now: Memory, seen: View) -> State:
        profile, stat, end = self._plan.profile, procfs.stat(os.getpid()), now.end
        return State(
            profile=profile.name,
            state=seen.state,
            phase=seen.phase,
            since=self._since.isoformat(timespec="milliseconds"),
            updated=ledger.now().isoformat(timespec="milliseconds"),
            run=self._run,
            pid=os.getpid(),
            pid_started=stat.started if stat else 0,
            engine_pid=self._engine_pid if now.alive else None,
            cause=seen.cause,
            reason=seen.reasons[0] if seen.reasons else None,
            reasons=tuple(seen.reasons),
            why=self._clean(seen.why),
            remedy=self._remedy(seen),
            context=context_fields(now.contexts),
            figures=self.facts.figures() if self.facts else None,
            ready_seconds=self._ready_seconds,
            launched_boottime=self._launched_boottime,
            eta=self._eta,
            restarts=self._restarts,
            code=None if end.code is None else int(end.code),
            engine=profile.engine,
            model=profile.model,
            served_name=profile.served_name,
            host=profile.host,
            port=profile.port,
            boot_id=clock.boot_id(),
            boottime=clock.boottime(),
            since_boottime=self._since_boottime,
            pid_namespace=clock.pid_namespace(),
            servicekit=__version__,
            bugs=self.bugs.total(),
            bug=self._bug,
        )

    def _status(self, seen: View) -> str:
        line = f"{seen.state}: {self._clean(seen.why)}"
        if seen.state is Published.STARTING and self._launched_at:
            passed = time.monotonic() - self._launched_at
            line += f" ({passed:.0f} s" + (f" of about {self._eta:.0f} s)" if self._eta else ")")
        return line

    def _announce(self, now: Memory, seen: View) -> None:
        priority = Priority.INFO
        if seen.state is Published.FAILED:
            priority = Priority.ERROR
        elif seen.reasons:
            priority = Priority.WARNING
        fault = now.end.fault
        message = f"{seen.state}: {fault.sentence if fault is not None else seen.why}"
        if seen.state is Published.READY:
            with self.fenced("the figures of a start"):
                message += f" ({self._figures(now.contexts)})"
        if seen.remedy:
            message += f"; {self._remedy(seen)}"
        fault = Fault(seen.cause, seen.why) if seen.cause else None
        self.say(message, priority, fault, state=seen.state, phase=seen.phase)

    def _figures(self, contexts: Contexts | None) -> str:
        figures = f"ready after {self._ready_seconds or 0:.1f} s"
        if contexts is None:
            return figures
        named = ("requested", "declared", "physical", "effective")
        tokens = ", ".join(f"{name} {getattr(contexts, name) or 'unknown'}" for name in named)
        drift = pool_drift(self._plan.kv_tokens, contexts.physical)
        return f"{figures}; context in tokens: {tokens}" + (f"; {drift}" if drift else "")

    def _remedy(self, seen: View) -> str:
        remedy, profile = seen.remedy, self._plan.profile
        if seen.cause is not None and remedy == seen.cause.first_remedy(gpu=True):
            remedy = seen.cause.first_remedy(gpu=bool(profile.gpus))
        return spelt(remedy.replace("{profile}", profile.name), self._plan.places.scope)

    def _clean(self, text: str) -> str:
        """Make text that others had a part in fit to be shown: no secrets, one printable line."""
        return printable(self._redact(text))


def context_fields(contexts: Contexts | None) -> dict[str, int | None] | None:
    """Give the context figures as `state.json` and the ledger hold them."""
    if contexts is None:
        return None
    return {
        "requested": contexts.requested,
        "declared": contexts.declared,
        "physical": contexts.physical,
        "effective": contexts.effective,
    }
