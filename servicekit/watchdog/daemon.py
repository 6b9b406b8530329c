"""`servicekit watch`: one run of one profile, from what the ledger says to the exit code.

The watchdog is assembled here: everything that acts on the host is behind the loop's `World`. It
decides nothing that `state` could decide, and reports through `reporter`, which cannot end it.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from servicekit import __version__
from servicekit.diagnosis.causes import Cause
from servicekit.errors import ExitCode, UserError, reason
from servicekit.host import bounded, cgroups, procfs
from servicekit.host.facts import Activity
from servicekit.host.shared_memory import SharedMemory
from servicekit.log import Priority, open_events
from servicekit.managers.supervised import lost_stop
from servicekit.places import Scope
from servicekit.profiles import credentials
from servicekit.watchdog import clock, evidence, history, ledger
from servicekit.watchdog.adopted import AdoptedProcesses
from servicekit.watchdog.census import Census, Marker, sweep
from servicekit.watchdog.dead_mans_switch import DeadMansSwitch
from servicekit.watchdog.ending import fault_of
from servicekit.watchdog.engine import EngineProcess, become_subreaper, reap_adopted, stop_with
from servicekit.watchdog.events import (
    ActivityRead,
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
    WorkerExited,
)
from servicekit.watchdog.heartbeat import beat
from servicekit.watchdog.ledger import Kind, Ledger
from servicekit.watchdog.loop import Loop
from servicekit.watchdog.operator_orders import ordered_reset, stopped_by
from servicekit.watchdog.ports import port_holder
from servicekit.watchdog.preload import preload
from servicekit.watchdog.progress import download_bytes, signs
from servicekit.watchdog.publish import Notifier
from servicekit.watchdog.reporter import Reporter
from servicekit.watchdog.state import UP
from servicekit.watchdog.survey import Surveyor
from servicekit.watchdog.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from servicekit.engines.base import Counters
    from servicekit.host.facts import Process
    from servicekit.service.installed import InstalledPlan
    from servicekit.watchdog.events import SurveyResult
    from servicekit.watchdog.evidence import Received
    from servicekit.watchdog.ledger import Record
    from servicekit.watchdog.memory import Memory
    from servicekit.watchdog.monitor import EngineMonitor
    from servicekit.watchdog.view import View

# Seconds between looks at an engine: while it loads, while a completion waits, while it ends.
LOADING_LOOK: Final = 2.0
WAITING_LOOK: Final = 1.0
ENDING_LOOK: Final = 0.2
ASK_AFTER: Final = 1.0  # seconds until supervisord is asked, which takes longer than a launch
VRAM_STEP: Final = 64  # MiB that a loading engine must take of its GPU for it to be progress
READ_SIZE: Final = 1 << 16
LAST_READS: Final = 64  # reads of a dead engine's output: more than its pipe holds
QUIET: Final = 10.0  # seconds after which the idle loop turns, and notices a clock jump


def watch(plan: InstalledPlan) -> ExitCode:
    """Watch one run of `plan`; raise `UserError` when it cannot even begin."""
    name = plan.profile.name
    wrapper = Path(plan.places.wrapper(name))
    if not os.access(wrapper, os.X_OK):
        message = f'profile "{name}" is not installed: {wrapper} does not exist'
        raise UserError(message, hint=f"run `servicekit install {name}`", code=ExitCode.CONFIG)
    secrets = credentials.read(plan.profile, plan.places, os.environ)
    return asyncio.run(Watchdog(plan, secrets).run())


class Watchdog:
    """One run: the loop's `World`, and what posts events to the loop."""

    def __init__(
        self,
        plan: InstalledPlan,
        secrets: Mapping[str, str],
        *,
        reporter: Callable[..., Reporter] = Reporter,
    ) -> None:
        profile, places = plan.profile, plan.places
        self._profile, self._places, self._secrets = profile, places, secrets
        self._id = os.environ.get("INVOCATION_ID") or os.urandom(16).hex()
        self._boot_id = clock.boot_id()
        fields = {"profile": profile.name, "run": self._id}
        self._ledger = path = Path(places.ledger(profile.name))
        book = Ledger(path, boot_id=self._boot_id, run=self._id)
        self.reporter = reporter(
            plan,
            secrets.values(),
            run=self._id,
            book=book,
            events=open_events(fields, os.environ, log_format=plan.log_format),
            notifier=Notifier(),
        )
        become_subreaper()
        self._delegated = cgroups.delegated()
        self._census = Census()
        self._marker = Marker(profile.name, self._id, str(places.state / profile.name))
        self._shared = SharedMemory(self._census.memory)
        self._engine: EngineProcess | None = None
        self._closing = AsyncExitStack()
        # Counted two surveys ago, and at the last: what is older explains no end of now.
        self._ooms = [evidence.oom_kills(cgroups.own())] * 2
        self._ooms_at = time.monotonic()
        self._policy = Policy.of(profile, on_wsl=evidence.on_wsl())
        adopted = None
        if self._delegated is None:
            adopted = AdoptedProcesses(
                path.with_name("adopted.json"),
                boot_id=self._boot_id,
                pid1_started=evidence.pid1_started(),
            )
        self._surveyor = Surveyor(
            profile, self._marker, self._census, self._delegated, adopted=adopted
        )
        self._loop = Loop(self._policy, self)
        self._switch: DeadMansSwitch | None = None
        self._parent, self._began = os.getppid(), clock.boottime()
        if "SUPERVISOR_ENABLED" in os.environ:
            # Its next supervisord would start a second watchdog, again and again, beside this one.
            stop_with(self._parent)
        self._stops: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None
        self._workers = Workers(self._census.memory, self._worker_exited)
        self._swept: set[tuple[int, int]] = set()  # orphans that were logged, by pid and start time

    async def run(self) -> ExitCode:
        """Run to a proven end; a bug of ours still leaves nothing alive behind."""
        aio = asyncio.get_running_loop()
        if "SUPERVISOR_ENABLED" in os.environ:
            self._switch = DeadMansSwitch()
        watcher = evidence.SignalWatch(
            lambda received: aio.call_soon_threadsafe(self._signalled, received)
        )
        watching = [
            aio.create_task(watch)
            for watch in (
                self._watch_loading(),
                self._watch_vram(),
                self._watch_gpu(),
                self._watch_waiting(),
                self._ask_supervisord(),
                beat(self._profile.watch, self._loop.is_ready, self.reporter.say),
            )
        ]
        try:
            return await self._loop.run(self._started())
        except Exception:
            self.kill()
            self.reporter.note(Kind.FAULT, cause=Cause.UNKNOWN, sentence="a bug in servicekit")
            raise
        finally:
            for task in (*watching, *([self._ending] if self._ending else [])):
                task.cancel()
            await self._surveyor.close()
            watcher.close()
            self._workers.close()
            await self._closing.aclose()
            if self._engine is not None:
                self._engine.close()
            self.reporter.close()
            if self._switch is not None:
                self._switch.disarm()

    def _started(self) -> Started:
        """Conclude from the ledger how this run begins, and write what the last one could not."""
        report, records = self.reporter, ledger.read(self._ledger)
        pid1_started = evidence.pid1_started()
        cut_off = history.unfinished(
            records,
            boot_id=self._boot_id,
            pid1_started=pid1_started,
            on_wsl=self._policy.on_wsl,
        )
        if cut_off is not None:
            run, fault = cut_off
            report.note(Kind.FAULT, run=run, cause=fault.cause, sentence=fault.sentence)
            records = ledger.read(self._ledger)
            message = f"the previous run was cut off: {fault.sentence}"
            report.say(message, Priority.WARNING, fault)
        records = self._obey_reset(records)
        limits = self._profile.restart
        held = history.holdoff(records, clock.now(), limits)
        eta = None
        with report.fenced("the expected time of a start"):
            eta = history.eta(records)
        report.begun(restarts=held.restarts, eta=eta)
        self._surveyor.remember(history.baselines(records, self._boot_id))
        counted = report.note(
            Kind.STARTED,
            pid=os.getpid(),
            pid1_started=pid1_started,
            ppid=self._parent,
            format=ledger.FORMAT,
            servicekit=__version__,
        )
        budget = f"{limits.budget} faults in {limits.window / 60:g} min"
        now = time.monotonic()
        return Started(
            now,
            hold_until=now + held.delay_seconds,
            last_cause=held.last_cause,
            last_sentence=held.last_sentence,
            faults_left=held.faults_left if counted else 1,
            host_deaths=held.host_deaths,
            budget=budget if counted else "none, while the ledger cannot be written",
        )

    def _obey_reset(self, records: tuple[Record, ...]) -> tuple[Record, ...]:
        """Note an operator's order to forget earlier faults, unless an earlier run has."""
        token = ordered_reset(Path(self._places.reset(self._profile.name)))
        obeyed = any(one.kind is Kind.RESET and one.fields.get("order") == token for one in records)
        if token and not obeyed and self.reporter.note(Kind.RESET, order=token):
            return ledger.read(self._ledger)
        return records

    # Orders of the loop: see `World`.

    def launch(self) -> int:
        wrapper = str(self._places.wrapper(self._profile.name))
        self._shared.begin()
        try:
            engine = EngineProcess.launch(
                [wrapper], os.environ, self._marker, census=self._census, delegated=self._delegated
            )
        except OSError as error:
            sentence = f"{wrapper} cannot be started: {reason(error)}"
            raise LaunchFailedError(fault_of(Cause.EXECUTABLE_MISSING, sentence)) from None
        self._engine = engine
        aio = asyncio.get_running_loop()
        aio.add_reader(engine.output, self._read_output)
        aio.add_reader(engine.pidfd, self._exited)
        self.reporter.launched(engine.pid, self._surveyor.baseline or None, self._loop.memory)
        preload(os.environ)
        return engine.pid

    def terminate(self) -> None:
        if self._engine is not None:
            self._engine.terminate()
            if self._ending is None:
                self._ending = asyncio.get_running_loop().create_task(self._watch_ending())

    def kill(self) -> None:
        if self._engine is not None:
            self._engine.kill()

    def sweep(self, processes: tuple[Process, ...]) -> None:
        new = [one for one in processes if (one.pid, one.started) not in self._swept]
        if new:  # what cannot be killed is tried again and again, and logged once
            names = ", ".join(process.named for process in new)
            message = f"killing orphans of an engine of this profile: {names}"
            self.reporter.say(message, Priority.WARNING)
            self._swept |= {(one.pid, one.started) for one in new}
        sweep(processes)
        reap_adopted(self._census, self._engine)

    async def survey(self) -> SurveyResult:
        engine = self._alive()
        result = await self._surveyor.look(engine)
        reap_adopted(self._census, self._engine, self._surveyor.processes)
        left = (process.pid for process in result.orphans)
        self._shared.look(left if engine is None else self._surveyor.members)
        if engine is None and not result.orphans and (files := self._shared.clear()):
            message = f"removed shared memory of a dead engine: {', '.join(files)}"
            self.reporter.say(message, Priority.WARNING)
        return result

    async def probe(self) -> ProbePassed | ProbeFailed:
        with self.reporter.asking():
            result = await self._monitor.readiness()
        engine = self._alive()
        first = self._loop.memory.phase is RunPhase.LOADING and isinstance(result, ProbePassed)
        if first and engine is not None:  # before it is published
            members = self._surveyor.look_at_members(engine)
            self._workers.watch(one for one in members if one.pid != engine.pid)
        return result

    async def read_counters(self) -> Counters | None:
        with self.reporter.asking():
            return await self._monitor.counters()

    def report_ready(self) -> None:
        self.reporter.ready(self._loop.memory)

    def extend_timeout(self, seconds: float) -> None:
        self.reporter.extend(seconds)

    def keep_alive(self) -> float:
        if self._switch is not None:
            self._switch.rearm()
        if time.monotonic() - self._ooms_at > QUIET:
            self._ooms = [self._ooms[1], evidence.oom_kills(cgroups.own())]
            self._ooms_at = time.monotonic()
        return self.reporter.tick(self._loop.memory, QUIET)

    def changed(self, before: Memory, now: Memory, seen: View) -> None:
        self.reporter.changed(before, now, seen)

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
        self.reporter.output(data)
        if not data:
            asyncio.get_running_loop().remove_reader(engine.output)
            return
        with self.reporter.fenced("the reading of the engine's log"):
            self._monitor.read(data)
            self.reporter.facts = self._monitor.facts

    def _exited(self) -> None:
        """Take the engine's end: its last lines first, then why."""
        engine = self._engine
        status = engine.poll() if engine is not None else None
        if engine is None or status is None:
            return
        asyncio.get_running_loop().remove_reader(engine.pidfd)
        self._workers.close()
        for _ in range(LAST_READS):
            self._read_output()
        oom = self._oom()
        fault = fault_of(Cause.ENGINE_EXIT, f"the engine ended with {status.named}")
        with self.reporter.fenced("the cause of the engine's end"):
            fault = self._monitor.why(status, oom)
        self._loop.post(EngineExited(time.monotonic(), fault))

    def _oom(self) -> evidence.OomProof | None:
        return evidence.oom_evidence(self._ooms[0], evidence.oom_kills(cgroups.own()))

    def _worker_exited(self, process: Process) -> None:
        """Take the end of one of the engine's processes; when the leader ends, all of them do."""
        if self._alive() is None or self._loop.memory.phase not in UP:
            return
        self._read_output()
        fault = fault_of(Cause.WORKER_DIED, f"{process.named} died")
        with self.reporter.fenced("the cause of a process's end"):
            fault = self._monitor.why_lost(process, self._oom())
        self._loop.post(WorkerExited(time.monotonic(), fault))

    def _signalled(self, received: Received) -> None:
        managers = {1, self._parent, os.getppid()}
        cause = evidence.cause_of(received, managers)
        self.reporter.note(Kind.SIGNAL, sentence=received.named)
        if cause is Cause.STOP_REQUESTED:
            task = asyncio.get_running_loop().create_task(self._stop(received))
            self._stops.add(task)
            task.add_done_callback(self._stops.discard)
        else:
            fault = fault_of(cause, received.named)
            self._loop.post(FaultSeen(time.monotonic(), fault))

    async def _stop(self, received: Received) -> None:
        """Ask systemd whether the whole host is going down, and stop in any case."""
        down = await evidence.going_down(user_manager=self._places.scope is Scope.USER)
        cause = down or Cause.STOP_REQUESTED
        by = stopped_by(Path(self._places.stop_note(self._profile.name)), self._began)
        sentence = f"requested by {by or evidence.requester(received, os.environ)}"
        self._loop.post(StopRequested(time.monotonic(), cause, sentence))

    async def _ask_supervisord(self) -> None:
        """Stop if supervisord sent a SIGTERM before it executed us, which loses it.

        It would kill us in the end, and leave the engine. The launch need not wait for the answer.
        """
        await asyncio.sleep(ASK_AFTER)
        if "SUPERVISOR_ENABLED" in os.environ and await bounded.call(
            partial(lost_stop, self._places, os.environ)
        ):
            sentence = "requested by supervisord before the watchdog began"
            self._loop.post(StopRequested(time.monotonic(), Cause.STOP_REQUESTED, sentence))

    async def _watch_loading(self) -> None:
        """Look every two seconds for signs of progress in a loading engine."""
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

    async def _watch_waiting(self) -> None:
        """Look every second at what the engine does while a completion waits."""
        while True:
            await asyncio.sleep(WAITING_LOOK)
            memory, engine, now = self._loop.memory, self._alive(), time.monotonic()
            since = memory.waits_since
            ready = memory.phase in {RunPhase.SERVING, RunPhase.DEGRADED}
            if engine is None or not ready or since is None or now < since + WAITING_LOOK:
                continue
            members = self._surveyor.look_at_members(engine)
            states = frozenset().union(*(procfs.thread_states(one.pid) for one in members))
            self._loop.post(
                ActivityRead(
                    now,
                    engine.activity(members),
                    blocked="D" in states,
                    runnable="R" in states,
                    hindered=engine.hindrance(members),
                )
            )

    async def _watch_ending(self) -> None:
        """Look often at what an ending engine still does."""
        while self._loop.memory.phase is RunPhase.STOPPING and (engine := self._alive()):
            members = self._surveyor.look_at_members(engine)
            alone, now = self._workers.left_alone(engine.pid, members), time.monotonic()
            self._loop.post(ActivityRead(now, engine.activity(members), alone=alone))
            await asyncio.sleep(ENDING_LOOK)

    async def _watch_gpu(self) -> None:
        """End the run when the kernel or the driver says that a GPU of ours has failed."""
        async for fault in self._surveyor.gpu_faults():
            self._loop.post(FaultSeen(time.monotonic(), fault))

    @cached_property
    def _monitor(self) -> EngineMonitor:
        """Made when there is an engine; its module says why not before."""
        from servicekit.watchdog.monitor import EngineMonitor

        profile = self._profile
        monitor = EngineMonitor(
            profile,
            self._loop.post,
            api_key=self._secrets.get(profile.api_key or ""),
            port_holder=lambda: port_holder(
                profile.host, profile.port, self._alive(), self._census
            ),
            holds_vram=self._holds_vram,
            fenced=self.reporter.fenced,
        )
        self._closing.push_async_callback(monitor.close)
        return monitor

    async def _holds_vram(self) -> bool | None:
        """Return whether the engine holds VRAM; a CPU profile holds none."""
        if not self._profile.gpus:
            return None
        held = (await self.survey()).engine_mib
        return None if held is None else held >= self._profile.watch.vram_minimum
