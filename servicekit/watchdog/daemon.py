"""`servicekit watch`: one run of one profile, from the ledger's say to the exit code.

The place where the watchdog is put together: everything that touches the world is made here, behind
the loop's `World`. It decides nothing that `state` could decide.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from contextlib import AsyncExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from servicekit.diagnosis.causes import Cause
from servicekit.diagnosis.fault import Fault
from servicekit.errors import ExitCode, UserError
from servicekit.host import cgroups, procfs
from servicekit.host.shared_memory import SharedMemory
from servicekit.log import Priority, Redactor, open_events
from servicekit.places import Scope, spelt
from servicekit.profiles import credentials
from servicekit.service.installed import pool_drift
from servicekit.text import printable
from servicekit.watchdog import evidence, history, ledger
from servicekit.watchdog.adopted import AdoptedProcesses
from servicekit.watchdog.engine import (
    Activity,
    Census,
    EngineProcess,
    LineSplitter,
    Marker,
    become_subreaper,
    delegated_cgroup,
    download_bytes,
    port_holder,
    reap_adopted,
    signs,
    stop_with,
    sweep,
)
from servicekit.watchdog.events import (
    EngineExited,
    FaultSeen,
    LaunchFailedError,
    Policy,
    ProbeFailed,
    ProbePassed,
    Progressed,
    RunPhase,
    Sign,
    Started,
    StopRequested,
)
from servicekit.watchdog.ledger import Kind, Ledger
from servicekit.watchdog.loop import Loop
from servicekit.watchdog.publish import Notifier, State, write_state
from servicekit.watchdog.survey import Surveyor
from servicekit.watchdog.view import Published, view

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.engines.base import Contexts, Counters
    from servicekit.host.facts import Process
    from servicekit.service.installed import InstalledPlan
    from servicekit.watchdog.engine import PortHolder
    from servicekit.watchdog.events import SurveyResult
    from servicekit.watchdog.evidence import Received
    from servicekit.watchdog.memory import Memory
    from servicekit.watchdog.monitor import EngineMonitor
    from servicekit.watchdog.view import View

LOADING_LOOK: Final = 2.0
"""Seconds between looks at what a loading engine does."""
VRAM_STEP: Final = 64
"""MiB that a loading engine must take of its GPU for it to be progress."""
READ_SIZE: Final = 1 << 16
LAST_READS: Final = 64
"""Reads of a dead engine's output: more than its pipe holds."""
FLUSH: Final = 2.0
"""Seconds that a slow reader of our lines is waited for at the end."""
STATUS_EVERY: Final = 1.0
"""Seconds between status lines of a start."""
QUIET: Final = 10.0
"""Seconds after which the loop turns without anything to do: a clock jump is noticed then."""
FIGURES: Final = re.compile(r"\d+")
UP: Final = frozenset({RunPhase.SERVING, RunPhase.DEGRADED})


def watch(plan: InstalledPlan) -> ExitCode:
    """Watch one run of `plan`; raise `UserError` when it cannot even begin."""
    name = plan.profile.name
    wrapper = Path(plan.places.wrapper(name))
    if not os.access(wrapper, os.X_OK):
        message = f'profile "{name}" is not installed: {wrapper} does not exist'
        hint = f"run `servicekit install {name}`"
        raise UserError(message, hint=hint, code=ExitCode.CONFIG)
    secrets = credentials.read(plan.profile, plan.places, os.environ)
    return asyncio.run(Watchdog(plan, secrets).run())


class Watchdog:
    """One run: the loop's `World`, and what posts events to the loop."""

    def __init__(self, plan: InstalledPlan, secrets: Mapping[str, str]) -> None:
        profile, places = plan.profile, plan.places
        self._profile, self._places, self._secrets = profile, places, secrets
        self._kv_tokens = plan.kv_tokens
        self._id = os.environ.get("INVOCATION_ID") or uuid4().hex
        self._notifier = Notifier()
        self._redact = Redactor(secrets.values())
        fields = {"profile": profile.name, "run": self._id}
        self._events = open_events(fields, os.environ)
        self._boot_id = evidence.boot_id()
        self._ledger = Ledger(
            Path(places.ledger(profile.name)), boot_id=self._boot_id, run=self._id
        )
        become_subreaper()
        self._delegated = delegated_cgroup()
        self._census = Census()
        self._marker = Marker(profile.name, self._id, str(places.state / profile.name))
        self._shared = SharedMemory(self._census.memory)
        self._engine: EngineProcess | None = None
        self._lines = LineSplitter()
        self._closing = AsyncExitStack()
        self._ooms = [evidence.oom_kills(cgroups.own())] * 2
        """Counted two looks ago, and at the last: what is older explains no end of now."""
        self._ooms_at = time.monotonic()
        self._policy = Policy.of(profile, on_wsl=evidence.on_wsl())
        kin = None
        if self._delegated is None:
            path = self._ledger.path.with_name("kin.json")
            kin = AdoptedProcesses(
                path, boot_id=self._boot_id, pid1_started=evidence.pid1_started()
            )
        self._surveyor = Surveyor(profile, self._marker, self._census, self._delegated, kin=kin)
        self._loop = Loop(self._policy, self)
        self._launched_at = 0.0
        self._ready_seconds: float | None = None
        self._since = ledger.now()
        self._stale = False
        """What is published last could not be written."""
        self._restarts = 0
        self._eta: float | None = None
        self._parent = os.getppid()
        if "SUPERVISOR_ENABLED" in os.environ:
            # Its next supervisord would start a second watchdog, again and again, beside this one.
            stop_with(self._parent)
        self._stops: set[asyncio.Task[None]] = set()
        self._swept: set[tuple[int, int]] = set()
        """What was left behind and has been told of, by pid and start time."""

    async def run(self) -> ExitCode:
        """Run to a proven end; a bug of ours still leaves nothing alive behind."""
        aio = asyncio.get_running_loop()
        watcher = evidence.SignalWatch(
            lambda received: aio.call_soon_threadsafe(self._signalled, received)
        )
        watching = [
            aio.create_task(watch)
            for watch in (self._watch_loading(), self._watch_vram(), self._watch_gpu())
        ]
        try:
            return await self._loop.run(self._started())
        except Exception:
            self.kill()
            self._note(Kind.FAULT, cause=Cause.UNKNOWN, sentence="a bug in servicekit")
            raise
        finally:
            for task in watching:
                task.cancel()
            await self._surveyor.close()
            watcher.close()
            await self._closing.aclose()
            if self._engine is not None:
                self._engine.close()
            self._ledger.close()
            self._events.close(FLUSH)
            self._notifier.close()

    def _started(self) -> Started:
        """Conclude from the ledger how this run begins, and write what the last one could not."""
        records = ledger.read(self._ledger.path)
        cut_off = history.unfinished(
            records,
            boot_id=self._boot_id,
            pid1_started=evidence.pid1_started(),
            on_wsl=self._policy.on_wsl,
        )
        if cut_off is not None:
            run, fault = cut_off
            self._note(Kind.FAULT, run=run, cause=fault.cause, sentence=fault.sentence)
            records = ledger.read(self._ledger.path)
            self._say(f"the run before has no ending: {fault.sentence}", Priority.WARNING, fault)
        limits = self._profile.restart
        held = history.holdoff(records, ledger.now(), limits)
        self._restarts, self._eta = held.restarts, history.eta(records)
        self._surveyor.remember(history.baselines(records, self._boot_id))
        counted = self._note(
            Kind.STARTED, pid=os.getpid(), pid1_started=evidence.pid1_started(), ppid=self._parent
        )
        budget = f"{limits.budget} faults in {limits.window / 60:g} min"
        now = time.monotonic()
        return Started(
            now,
            hold_until=now + held.delay_seconds,
            last_cause=held.last_cause,
            last_sentence=held.last_sentence,
            faults_left=held.faults_left if counted else 1,
            budget=budget if counted else "none, while the ledger cannot be written",
        )

    # Orders of the loop.

    def launch(self) -> int:
        """See `World.launch`."""
        wrapper = str(self._places.wrapper(self._profile.name))
        self._shared.begin()
        try:
            engine = EngineProcess.launch(
                [wrapper], os.environ, self._marker, census=self._census, delegated=self._delegated
            )
        except OSError as error:
            sentence = f"{wrapper} cannot be started: {error.strerror or error}"
            fault = Fault(Cause.EXECUTABLE_MISSING, sentence, Cause.EXECUTABLE_MISSING.remedies[0])
            raise LaunchFailedError(fault) from None
        self._engine = engine
        self._launched_at = time.monotonic()
        aio = asyncio.get_running_loop()
        aio.add_reader(engine.output, self._read_output)
        aio.add_reader(engine.pidfd, self._exited)
        baseline = self._surveyor.baseline or None
        self._note(Kind.LAUNCHED, engine_pid=engine.pid, baseline=baseline)
        return engine.pid

    def terminate(self) -> None:
        """See `World.terminate`."""
        if self._engine is not None:
            self._engine.terminate()

    def kill(self) -> None:
        """See `World.kill`."""
        if self._engine is not None:
            self._engine.kill()

    def sweep(self, processes: tuple[Process, ...]) -> None:
        """See `World.sweep`."""
        new = [one for one in processes if (one.pid, one.started) not in self._swept]
        if new:  # what cannot be killed is tried again and again, and told of once
            names = ", ".join(process.named for process in new)
            said = f"killing what an engine of this profile left behind: {names}"
            self._say(said, Priority.WARNING)
            self._swept |= {(one.pid, one.started) for one in new}
        sweep(processes)
        reap_adopted(self._census, self._engine)

    async def survey(self) -> SurveyResult:
        """See `World.survey`."""
        engine = self._alive()
        found = await self._surveyor.look(engine)
        reap_adopted(self._census, self._engine, self._surveyor.processes)
        left = (process.pid for process in found.orphans)
        self._shared.look(left if engine is None else self._surveyor.members)
        if engine is None and not found.orphans and (files := self._shared.clear()):
            self._say(f"removed what the engine left behind: {', '.join(files)}", Priority.WARNING)
        return found

    async def probe(self) -> ProbePassed | ProbeFailed:
        """See `World.probe`."""
        return await self._monitor.gate()

    async def read_counters(self) -> Counters | None:
        """See `World.read_counters`."""
        return await self._monitor.counters()

    def report_ready(self) -> None:
        """See `World.report_ready`."""
        self._notifier.ready(self._status(view(self._loop.memory)))

    def extend_timeout(self, seconds: float) -> None:
        """See `World.extend_timeout`."""
        self._notifier.extend(seconds)

    def keep_alive(self) -> float:
        """See `World.keep_alive`. While starting, the status line shows the time that passes."""
        self._notifier.keep_alive()
        self._events.flush()
        if time.monotonic() - self._ooms_at > QUIET:
            self._ooms = [self._ooms[1], evidence.oom_kills(cgroups.own())]
            self._ooms_at = time.monotonic()
        seen = view(self._loop.memory)
        if self._stale:
            self._publish(self._loop.memory, seen)
        wait = min(self._notifier.interval or QUIET, QUIET)
        if seen.state is Published.STARTING:
            self._notifier.status(self._status(seen))
            return min(wait, STATUS_EVERY)
        return wait

    def changed(self, before: Memory, now: Memory, seen: View) -> None:
        """See `World.changed`: ledger first, then state file and manager, then the log."""
        if now.phase in UP and before.phase is RunPhase.LOADING:
            self._ready_seconds = round(time.monotonic() - self._launched_at, 3)
        self._record(before, now, seen)
        state_changed = view(before).state is not seen.state or not before.began
        if state_changed:
            self._since = ledger.now()
        self._publish(now, seen)
        was = view(before)
        # Figures in the words change all the time: what is news is another reason, or other words.
        news = was.reasons != seen.reasons
        if not seen.reasons:
            news = FIGURES.sub("", was.why) != FIGURES.sub("", seen.why)
        if state_changed or news:
            self._announce(now, seen)

    # Telling.

    def _note(self, kind: Kind, **fields: Any) -> bool:  # noqa: ANN401 - JSON
        """Write to the ledger; a full disk is told of and never ends a healthy service."""
        if "sentence" in fields:
            fields["sentence"] = self._clean(fields["sentence"])
        try:
            self._ledger.write(kind, **fields)
        except OSError as error:
            self._say(f"the ledger cannot be written: {error}", Priority.ERROR)
            return False
        return True

    def _record(self, before: Memory, now: Memory, seen: View) -> None:
        write = self._note
        if now.load.boot != before.load.boot:
            write(Kind.PHASE, boot=now.load.boot)
        if now.phase in UP and before.phase is RunPhase.LOADING:
            context = context_fields(now.contexts)
            write(Kind.READY, seconds=self._ready_seconds, context=context)
        if seen.reasons and seen.reasons != view(before).reasons:
            write(Kind.DEGRADED, reasons=list(seen.reasons), sentence=seen.why)
        if now.phase is RunPhase.SERVING and before.phase is RunPhase.DEGRADED:
            write(Kind.RECOVERED)
        end, fault = now.end, now.end.fault
        if end.stop is not None and before.end.stop is None:
            write(Kind.STOPPING, cause=end.stop.cause, sentence=end.stop.sentence)
        if fault is not None and fault != before.end.fault and end.code is None:
            write(Kind.FAULT, cause=fault.cause, sentence=fault.sentence)
        if end.code is not None:
            cause = fault.cause if fault else None
            write(Kind.GONE, code=int(end.code), cause=cause, unsettled=end.unsettled)

    def _publish(self, now: Memory, seen: View) -> None:
        profile, stat = self._profile, procfs.stat(os.getpid())
        state = State(
            profile=profile.name,
            state=seen.state,
            phase=seen.phase,
            since=self._since.isoformat(timespec="milliseconds"),
            updated=ledger.now().isoformat(timespec="milliseconds"),
            run=self._id,
            pid=os.getpid(),
            pid_started=stat.started if stat else 0,
            engine_pid=self._engine.pid if self._engine and now.alive else None,
            cause=seen.cause,
            reason=seen.reasons[0] if seen.reasons else None,
            reasons=tuple(seen.reasons),
            why=self._clean(seen.why),
            remedy=self._remedy(seen),
            context=context_fields(now.contexts),
            ready_seconds=self._ready_seconds,
            restarts=self._restarts,
            code=None if now.end.code is None else int(now.end.code),
            engine=profile.engine,
            model=profile.model,
            served_name=profile.served_name,
            host=profile.host,
            port=profile.port,
        )
        try:
            write_state(Path(self._places.state_file(profile.name)), state)
        except OSError as error:
            if not self._stale:
                self._say(f"state.json cannot be written: {error}", Priority.ERROR)
            self._stale = True
        else:
            self._stale = False
        if seen.state is not Published.READY or self._ready_seconds is not None:
            self._notifier.status(self._status(seen))

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
        said = f"{seen.state}: {seen.why}"
        if seen.state is Published.READY:
            said += f" ({self._figures(now)})"
        if seen.remedy:
            said += f"; {self._remedy(seen)}"
        fault = Fault(seen.cause, seen.why) if seen.cause else None
        self._say(said, priority, fault, state=seen.state, phase=seen.phase)

    def _figures(self, now: Memory) -> str:
        contexts = now.contexts
        figures = f"ready after {self._ready_seconds or 0:.1f} s"
        if contexts is None:
            return figures
        named = ("requested", "declared", "physical", "effective")
        told = ", ".join(f"{name} {getattr(contexts, name) or 'unknown'}" for name in named)
        drift = pool_drift(self._kv_tokens, contexts.physical)
        return f"{figures}; context in tokens: {told}" + (f"; {drift}" if drift else "")

    def _remedy(self, seen: View) -> str:
        remedy = seen.remedy
        if seen.cause is not None and remedy == seen.cause.first_remedy(gpu=True):
            remedy = seen.cause.first_remedy(gpu=bool(self._profile.gpus))
        return spelt(remedy.replace("{profile}", self._profile.name), self._places.scope)

    def _clean(self, text: str) -> str:
        """Make text that others had a part in fit to be shown: no secrets, one printable line."""
        return printable(self._redact(text))

    def _say(
        self, message: str, priority: Priority, fault: Fault | None = None, **fields: str
    ) -> None:
        cause = fault.cause if fault else None
        self._events.event(
            self._clean(message),
            priority,
            message_id=cause.message_id if cause else "",
            cause=cause or "",
            **fields,
        )

    # Happenings.

    def _alive(self) -> EngineProcess | None:
        engine = self._engine
        return engine if engine is not None and engine.poll() is None else None

    def _read_output(self) -> None:
        """Pass the engine's lines on, and read from them how far it is."""
        engine = self._engine
        if engine is None or engine.output < 0:
            return
        try:
            data = os.read(engine.output, READ_SIZE)
        except BlockingIOError:
            return
        lines = self._lines.feed(data) if data else self._lines.end()
        for line in lines:
            self._events.engine(self._redact(line))
        if not data:
            asyncio.get_running_loop().remove_reader(engine.output)
            return
        self._monitor.read(data)

    def _exited(self) -> None:
        """Take the engine's end: its last lines first, then why."""
        engine = self._engine
        status = engine.poll() if engine is not None else None
        if engine is None or status is None:
            return
        asyncio.get_running_loop().remove_reader(engine.pidfd)
        for _ in range(LAST_READS):
            self._read_output()
        oom = evidence.oom_evidence(self._ooms[0], evidence.oom_kills(cgroups.own()))
        self._loop.post(EngineExited(time.monotonic(), self._monitor.why(status, oom)))

    def _signalled(self, received: Received) -> None:
        managers = {1, self._parent, os.getppid()}
        cause = evidence.cause_of(received, managers)
        self._note(Kind.SIGNAL, sentence=received.named)
        if cause is Cause.STOP_REQUESTED:
            task = asyncio.get_running_loop().create_task(self._stop(received))
            self._stops.add(task)
            task.add_done_callback(self._stops.discard)
        else:
            fault = Fault(cause, received.named, cause.remedies[0])
            self._loop.post(FaultSeen(time.monotonic(), fault))

    async def _stop(self, received: Received) -> None:
        """Ask systemd whether the whole host is going down, and stop in any case."""
        down = await evidence.going_down(user_manager=self._places.scope is Scope.USER)
        cause = down or Cause.STOP_REQUESTED
        self._loop.post(StopRequested(time.monotonic(), cause, f"asked by {received.named}"))

    async def _watch_loading(self) -> None:
        """Look now and then for signs that a loading engine gets on."""
        before, downloads, at = Activity(), 0, time.monotonic()
        cache = Path(self._places.cache) / "huggingface"
        while self._loop.memory.phase in {RunPhase.HOLDING, RunPhase.LOADING}:
            await asyncio.sleep(LOADING_LOOK)
            engine, now = self._alive(), time.monotonic()
            if engine is None:
                continue
            activity = engine.activity(self._surveyor.look_at_members(engine))
            loaded = download_bytes(cache)
            for sign in signs(before, activity, now - at):
                self._loop.post(Progressed(now, sign))
            if loaded != downloads:
                self._loop.post(Progressed(now, Sign.DOWNLOAD, "downloading"))
            before, downloads, at = activity, loaded, now

    async def _watch_vram(self) -> None:
        """Look now and then whether a loading engine takes more of its GPU.

        Apart from the other looks, which must not wait for a slow driver.
        """
        most = 0
        while self._profile.gpus and self._loop.memory.phase in {
            RunPhase.HOLDING,
            RunPhase.LOADING,
        }:
            await asyncio.sleep(LOADING_LOOK)
            if self._alive() is None:
                continue
            held = (await self.survey()).engine_mib or 0
            if held >= most + VRAM_STEP:
                most = held
                self._loop.post(Progressed(time.monotonic(), Sign.VRAM))

    async def _watch_gpu(self) -> None:
        """End the run when the kernel or the driver says that a GPU of ours has failed."""
        async for fault in self._surveyor.gpu_faults():
            self._loop.post(FaultSeen(time.monotonic(), fault))

    @cached_property
    def _monitor(self) -> EngineMonitor:
        """Examines the engine. Made when there is one: its module says why not before."""
        from servicekit.watchdog.monitor import EngineMonitor

        examiner = EngineMonitor(
            self._profile,
            self._loop.post,
            api_key=self._secrets.get(self._profile.api_key or ""),
            port_holder=self._port_holder,
            holds_vram=self._holds_vram,
        )
        self._closing.push_async_callback(examiner.close)
        return examiner

    def _port_holder(self) -> PortHolder | None:
        profile = self._profile
        return port_holder(profile.host, profile.port, self._alive(), self._census)

    async def _holds_vram(self) -> bool | None:
        """Tell whether the engine holds VRAM; a CPU profile has nothing to hold."""
        if not self._profile.gpus:
            return None
        held = (await self.survey()).engine_mib
        return None if held is None else held >= self._profile.watch.vram_minimum


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
