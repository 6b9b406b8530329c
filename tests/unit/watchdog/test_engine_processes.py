"""Engines of real processes: nothing of ours escapes, nothing foreign is touched."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines.waiting import wait_until

from servicekit.host import cgroups, procfs
from servicekit.host.child import Child, ExitStatus, inherited
from servicekit.host.facts import Activity, Process
from servicekit.host.sockets import listeners
from servicekit.watchdog.adopted import AdoptedProcesses
from servicekit.watchdog.census import Census, Marker, sweep
from servicekit.watchdog.engine import EngineProcess, become_subreaper, orphans, reap_adopted
from servicekit.watchdog.events import Sign
from servicekit.watchdog.ports import port_holder
from servicekit.watchdog.progress import download_bytes, signs, starved
from servicekit.watchdog.reporter import LINE_LENGTH, LineSplitter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from machines.dstate import Stuck

HOME = f"/var/lib/servicekit-{os.getpid()}/demo"
"""Where nobody else's services are: tests that run beside this one have the same names."""
MARKER = Marker("demo", "run-1", HOME)
LATER = Marker("demo", "run-2", HOME)
LIMIT = 10.0
"""Seconds for anything that a process does at once on an idle machine."""

SLEEP = "import time; time.sleep(600)"
STAYS = "import os, time; print('up', flush=True); time.sleep(600)"
# Each line is printed at once, for the other process prints, too.
DETACHES = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(f"detached {os.getpid()}\\n", end="", flush=True)
        time.sleep(600)
    os._exit(0)
os.wait()
print("leader\\n", end="", flush=True)
time.sleep(600)
"""
IGNORES_TERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""


class Launcher:
    """Launches engines of short Python programs, and leaves none behind."""

    def __init__(self) -> None:
        self.census = Census()
        self.engines: list[EngineProcess] = []

    def __call__(self, program: str, marker: Marker = MARKER, **environment: str) -> EngineProcess:
        engine = EngineProcess.launch(
            [sys.executable, "-c", program],
            {**os.environ, **environment},
            marker,
            census=self.census,
        )
        self.engines.append(engine)
        return engine

    def end(self) -> None:
        for engine in self.engines:
            engine.kill()
            wait_until(engine.poll, LIMIT, "the leader is dead")
            engine.close()
        wait_until(self._all_reaped, LIMIT, "everything that was left to us is dead")

    def _all_reaped(self) -> bool:
        reap_adopted(self.census, None)
        return not self.census.adopted(self.census.look())


@pytest.fixture
def launch() -> Iterator[Launcher]:
    """Launch engines below a subreaper, as the watchdog is one."""
    launcher = Launcher()
    become_subreaper()
    try:
        yield launcher
    finally:
        launcher.end()
        ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


def said(engine: EngineProcess, *words: str) -> str:
    """Wait until an engine has printed `words`; return all that it has printed."""
    heard = b""

    def hear() -> str:
        nonlocal heard
        with suppress(BlockingIOError):
            heard += os.read(engine.output, 1 << 16)
        text = heard.decode()
        return text if text.endswith("\n") and all(word in text for word in words) else ""

    return wait_until(hear, LIMIT, f"the engine prints {words!r}")


def dead(pid: int) -> Callable[[], bool]:
    """Tell whether a process is over, be it unreaped."""

    def over() -> bool:
        stat = procfs.stat(pid)
        return stat is None or not stat.alive

    return over


def detached_of(engine: EngineProcess) -> int:
    """Wait for an engine that runs `DETACHES`; return the pid of what it detached."""
    words = said(engine, "leader", "detached").split()
    return int(words[words.index("detached") + 1])


def pids(processes: tuple[Process, ...]) -> set[int]:
    """Name processes by pid."""
    return {process.pid for process in processes}


@contextmanager
def foreign(*argv: str, **environment: str) -> Iterator[int]:
    """Run a process that no engine started, outside any session of ours."""
    process = subprocess.Popen(
        argv or (sys.executable, "-c", SLEEP),
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        yield process.pid
        assert process.poll() in {None, -signal.SIGINT}, "a foreign process was touched"
    finally:
        process.kill()
        process.wait()


# Launch.


def test_an_engine_has_a_session_a_marker_and_nothing_that_is_the_watchdogs(
    launch: Launcher,
) -> None:
    """The engine leads a session, carries the marker, and cannot speak to our manager."""
    program = """
import os, signal, sys
print(os.getsid(0) == os.getpid(), sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
print(sorted(n for n in os.environ if n.startswith(("NOTIFY", "WATCHDOG", "LISTEN"))))
print(os.environ["SERVICEKIT_RUN"], os.environ["KEPT"], signal.getsignal(signal.SIGHUP).name)
print(sorted(os.listdir("/proc/self/fd"))[:-1], os.readlink("/proc/self/fd/0"))
print("end", flush=True)
"""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        engine = launch(
            program, NOTIFY_SOCKET="/x", WATCHDOG_USEC="1", LISTEN_FDS="1", KEPT="as it was"
        )
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert said(engine, "end").splitlines() == [
        "True []",
        "[]",
        f"demo:run-1:{HOME} as it was SIG_DFL",
        "['0', '1', '2'] /dev/null",
        "end",
    ]


def test_an_engine_that_is_not_there_is_an_error_at_once(launch: Launcher) -> None:
    """A missing program raises; it does not become an engine that dies."""
    with pytest.raises(FileNotFoundError):
        EngineProcess.launch(["/nonexistent/engine"], {}, MARKER, census=launch.census)


def test_the_end_of_the_leader_is_told_by_its_pidfd(launch: Launcher) -> None:
    """The pidfd becomes readable with the leader's end, and the status is kept."""
    import select

    engine = launch("raise SystemExit(7)")
    assert select.select([engine.pidfd], [], [], LIMIT)[0]
    assert engine.poll() == ExitStatus(code=7)
    assert engine.poll() == ExitStatus(code=7)


@pytest.mark.parametrize(
    ("status", "named"),
    [
        (ExitStatus(code=1), "exit code 1"),
        (ExitStatus(signal=9), "SIGKILL"),
        (ExitStatus(signal=6, dumped=True), "SIGABRT (core dumped)"),
        (ExitStatus(signal=63), "signal 63"),
        (ExitStatus(), "an exit code that is lost"),
    ],
)
def test_an_exit_status_has_a_name(status: ExitStatus, named: str) -> None:
    """How a process ended is said in words that people know."""
    assert status.named == named


def test_a_child_that_somebody_else_reaped_is_dead_all_the_same() -> None:
    """A status that was taken by another reaper is lost, and nothing waits for it."""
    child = Child.spawn(["/bin/true"], {})
    os.waitpid(child.pid, 0)
    assert child.poll() == ExitStatus()
    child.close()


# Whose it is.


def test_what_detaches_itself_still_belongs_to_the_engine(launch: Launcher) -> None:
    """A double fork with a session of its own is found, and dies with the engine."""
    engine = launch(DETACHES)
    detached = detached_of(engine)
    assert pids(engine.tree()) == {engine.pid, detached}
    engine.kill()
    wait_until(dead(detached), LIMIT, "the detached process is dead")
    wait_until(lambda: not engine.members(), LIMIT, "nothing is left")


def test_what_outlives_the_leader_is_an_orphan(launch: Launcher) -> None:
    """After the leader's death its orphans are named, swept and reaped."""
    engine = launch(DETACHES)
    detached = detached_of(engine)
    assert orphans(MARKER, census=launch.census, live=engine) == ()
    os.kill(engine.pid, signal.SIGKILL)
    wait_until(engine.poll, LIMIT, "the leader is dead")
    left = orphans(MARKER, census=launch.census)
    assert pids(left) == {detached}
    assert left[0].user == procfs.account(os.getuid())
    sweep(left)
    wait_until(dead(detached), LIMIT, "the orphan is dead")
    assert detached in reap_adopted(launch.census, engine)


def test_orphans_of_earlier_runs_are_known_by_their_marker() -> None:
    """A run finds what earlier runs of its service left, and what those started without marker."""
    program = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], env={{}})
try:
    time.sleep(600)
finally:
    child.kill()
"""
    with foreign(sys.executable, "-c", program, SERVICEKIT_RUN=MARKER.value) as old:
        launcher = Launcher()
        new = launcher(STAYS, LATER)
        said(new, "up")
        left = wait_until(
            lambda: (
                found
                if len(found := pids(orphans(LATER, census=launcher.census, live=new))) > 1
                else set()
            ),
            LIMIT,
            "the orphan and its child are found",
        )
        assert old in left
        assert new.pid not in left
        launcher.end()
        os.kill(old, signal.SIGINT)
        wait_until(dead(old), LIMIT, "it has ended its child")


@pytest.mark.parametrize(
    "marker",
    [
        Marker("other", "run-1", MARKER.home),
        Marker("demo", "run-1", "/home/alice/demo"),
    ],
    ids=["another profile", "another installation"],
)
def test_what_carries_anothers_marker_is_never_ours(marker: Marker, launch: Launcher) -> None:
    """The engine of another profile, or of the same name elsewhere, is no orphan of ours."""
    with foreign(SERVICEKIT_RUN=marker.value) as pid:
        assert pid not in pids(orphans(LATER, census=Census()))
        assert pid not in pids(orphans(LATER, census=launch.census))


def test_a_foreign_process_is_never_ours(launch: Launcher) -> None:
    """A foreign process, or a child from before any engine, is neither in a tree nor an orphan."""
    with foreign() as pid:
        launcher = Launcher()
        engine = launcher(STAYS)
        said(engine, "up")
        assert pid not in engine.members()
        assert pid not in pids(orphans(LATER, census=launcher.census))
        launcher.end()
    del launch


def adopted(path: Path, *, boot_id: str = "boot", pid1_started: int = 7) -> AdoptedProcesses:
    """What the runs of a service have written down, as read on some machine."""
    return AdoptedProcesses(path, boot_id=boot_id, pid1_started=pid1_started)


def test_what_an_earlier_run_wrote_down_is_left_over(tmp_path: Path) -> None:
    """A process that nothing about itself tells is found by pid and start time, no other one is."""
    path = tmp_path / "adopted.json"
    with foreign() as pid:
        stat = procfs.stat(pid)
        assert stat is not None
        assert orphans(LATER, census=Census(), adopted=adopted(path)) == ()
        adopted(path).remember([stat])
        assert pids(orphans(LATER, census=Census(), adopted=adopted(path))) == {pid}
        # A pid that was given away anew, another boot, another container of the same host.
        adopted(path).remember([stat._replace(started=stat.started - 1)])
        assert orphans(LATER, census=Census(), adopted=adopted(path)) == ()
        adopted(path).remember([stat])
        assert orphans(LATER, census=Census(), adopted=adopted(path, boot_id="other")) == ()
        assert orphans(LATER, census=Census(), adopted=adopted(path, pid1_started=8)) == ()


def test_what_carries_anothers_marker_is_not_ours_though_it_was_written_down(
    tmp_path: Path,
) -> None:
    """What a process itself tells is believed rather than what was written down of it."""
    path = tmp_path / "adopted.json"
    with foreign(SERVICEKIT_RUN=Marker("other", "run-1", MARKER.home).value) as pid:
        stat = procfs.stat(pid)
        assert stat is not None
        adopted(path).remember([stat])
        assert orphans(LATER, census=Census(), adopted=adopted(path)) == ()


def test_the_file_of_kin_is_there_only_while_it_is_needed(tmp_path: Path) -> None:
    """It is replaced when the set changes, and removed when nobody is left in it."""
    path = tmp_path / "adopted.json"
    own = procfs.stat(os.getpid())
    assert own is not None
    ours = adopted(path)
    ours.remember([])
    assert not path.exists()
    ours.remember([own])
    before = path.stat().st_ino
    ours.remember([own])
    assert path.stat().st_ino == before
    assert adopted(path).known == {(own.pid, own.started)}
    ours.remember([])
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"boot_id": "boot", "pid1_started": 7}', "[" * 100000, "\0\xff"]
)
def test_a_file_of_kin_that_is_none_names_nobody(tmp_path: Path, text: str) -> None:
    """Whatever is in the file, a run begins."""
    path = tmp_path / "adopted.json"
    path.write_text(text, encoding="latin-1")
    assert adopted(path).known == frozenset()


def test_a_pid_that_was_reused_is_not_killed() -> None:
    """A process is meant by pid and start time: another start time is another process."""
    with foreign() as pid:
        stat = procfs.stat(pid)
        assert stat is not None
        sweep([Process(pid, stat.started - 1, "", ""), Process(2**22 - 1, 1, "", "")])


def test_a_process_title_does_not_wipe_the_marker_out(launch: Launcher) -> None:
    """Engines that give their processes titles are asked to leave the environment alone."""
    engine = launch("import os; print(os.environ['SPT_NOENV'], flush=True)")
    assert said(engine, "\n") == "1\n"


@given(st.text(), st.text(), st.text())
def test_a_marker_reads_back(profile: str, run: str, home: str) -> None:
    """Whatever the home is called, the marker names the same service when it is read back."""
    marker = Marker(profile.replace(":", ""), run.replace(":", ""), home)
    assert Marker.parse(marker.value) == marker


def test_foreign_words_are_no_marker() -> None:
    """A value of another shape is no marker of ours."""
    assert Marker.parse("demo:run-1") is None


# The end.


def test_the_leader_is_asked_first_and_its_group_when_asked_again(launch: Launcher) -> None:
    """A first SIGTERM leaves the workers to the leader; a second one goes to all of the group."""
    program = f"""
import os, signal
worker = os.fork()
if worker == 0:
    signal.signal(signal.SIGTERM, lambda *_: (print("worker", flush=True), os._exit(0)))
    print("ready", flush=True)
    {SLEEP}
signal.signal(signal.SIGTERM, lambda *_: print("leader", flush=True))
while True:
    signal.pause()
"""
    engine = launch(program)
    said(engine, "ready")
    engine.terminate()
    assert "worker" not in said(engine, "leader")
    engine.terminate()
    said(engine, "worker")


def test_a_stopped_engine_can_be_asked_to_end(launch: Launcher) -> None:
    """SIGTERM reaches an engine that SIGSTOP froze."""
    engine = launch(STAYS)
    said(engine, "up")
    os.kill(engine.pid, signal.SIGSTOP)
    engine.terminate()
    status = wait_until(engine.poll, LIMIT, "the engine ended")
    assert status == ExitStatus(signal=signal.SIGTERM)


def test_what_ignores_sigterm_is_killed(launch: Launcher) -> None:
    """SIGKILL ends what ignored SIGTERM."""
    engine = launch(IGNORES_TERM)
    said(engine, "up")
    engine.terminate()
    engine.kill()
    assert wait_until(engine.poll, LIMIT, "the engine ended") == ExitStatus(signal=9)


def test_signals_to_a_dead_engine_go_nowhere(launch: Launcher) -> None:
    """Once the leader is reaped, its pid may be anybody's: nothing is sent to it."""
    engine = launch("pass")
    wait_until(engine.poll, LIMIT, "the engine ended")
    engine.terminate()
    engine.kill()
    assert engine.tree() == ()


def test_an_unkillable_process_is_known_by_its_threads(launch: Launcher, stuck: Stuck) -> None:
    """A zombie leader whose thread is stuck in the kernel is still a stuck process of the run."""
    program = f"""
import os, threading, time
threading.Thread(target=lambda: os.stat({str(stuck.path)!r}), daemon=True).start()
print("up", flush=True)
{SLEEP}
"""
    engine = launch(program)
    said(engine, "up")
    stuck.wait()
    engine.kill()
    wait_until(
        lambda: (stat := procfs.stat(engine.pid)) is not None and stat.state == "Z",
        LIMIT,
        "the leader is a zombie",
    )
    assert engine.poll() is None
    (process,) = engine.tree()
    assert (process.pid, process.stuck) == (engine.pid, True)
    # A later run, which never saw it alive, knows it by the environment of the stuck thread.
    (left,) = orphans(LATER, census=Census())
    assert (left.pid, left.stuck) == (engine.pid, True)
    assert list(procfs.links(engine.pid)), "its open files are found below its thread"
    stuck.release()


# Control groups.


@pytest.fixture
def delegated() -> Iterator[Path]:
    """Give an empty cgroup v2 directory, as a delegated one would be."""
    own = cgroups.own()
    if own is None or os.geteuid() != 0:
        pytest.skip("making a control group needs root and cgroup v2")
    group = own / f"test-{os.getpid()}"
    group.mkdir()
    try:
        yield group
    finally:
        wait_until(lambda: not cgroups.members(group), LIMIT, "it is empty")
        cgroups.remove(group)


def test_an_engine_joins_its_control_group_before_it_runs(
    launch: Launcher, delegated: Path
) -> None:
    """In a delegated group an engine, and all that it starts, is in a group of its own."""
    engine = EngineProcess.launch(
        [sys.executable, "-c", DETACHES],
        os.environ,
        MARKER,
        census=launch.census,
        delegated=delegated,
    )
    launch.engines.append(engine)
    detached = detached_of(engine)
    assert engine.group == delegated / "engine-run-1"
    assert cgroups.members(delegated) == {engine.pid, detached}
    assert pids(orphans(LATER, census=Census(), delegated=delegated)) == {engine.pid, detached}
    engine.kill()
    wait_until(lambda: not cgroups.members(delegated), LIMIT, "the group is empty")
    wait_until(engine.poll, LIMIT, "the leader is reaped")
    reap_adopted(launch.census, engine)
    engine.close()
    assert not engine.group.exists()
    launch.engines.clear()


def test_a_missing_engine_is_an_error_in_a_control_group_too(
    launch: Launcher, delegated: Path
) -> None:
    """The shell that joins the group does not hide that the engine cannot be executed."""
    for program, error in (("/nonexistent", FileNotFoundError), ("/etc/passwd", PermissionError)):
        with pytest.raises(error, match=program):
            EngineProcess.launch([program], {}, MARKER, census=launch.census, delegated=delegated)


def test_a_group_that_is_not_ours_is_not_divided() -> None:
    """Without systemd's word that we are a service's main process, no group is taken over."""
    assert "SYSTEMD_EXEC_PID" not in os.environ or cgroups.delegated() is None
    assert cgroups.delegated() is None


# Sockets.


def test_the_listener_is_known_to_be_ours(launch: Launcher, free_port: int) -> None:
    """A port is free, then the engine's, also when a detached child listens."""
    assert port_holder("127.0.0.1", free_port, None, launch.census) is None
    program = f"""
import os, socket
if os.fork() == 0:
    os.setsid()
    server = socket.create_server(("127.0.0.1", {free_port}))
    print("listening", flush=True)
{SLEEP}
"""
    engine = launch(program)
    said(engine, "listening")
    holder = port_holder("127.0.0.1", free_port, engine, launch.census)
    assert holder is not None
    assert (holder.ours, holder.who) == (True, "")


@pytest.mark.parametrize(
    ("family", "address"),
    [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")],
)
def test_a_foreign_listener_is_named(
    family: int, address: str, launch: Launcher, free_port: int
) -> None:
    """Whoever would answer on the port is found and named, whatever address it listens on."""
    engine = launch(STAYS)
    both = family == socket.AF_INET6
    with socket.create_server((address, free_port), family=family, dualstack_ipv6=both):
        holder = port_holder("127.0.0.1", free_port, engine, launch.census)
    assert holder is not None
    assert holder.ours is False
    assert holder.process is not None
    assert holder.process.pid == os.getpid()
    assert f"pid {os.getpid()} (" in holder.who


def test_a_second_listener_beside_the_engine_is_seen(launch: Launcher, free_port: int) -> None:
    """Where two share the port, half of the answers would be the stranger's."""
    options = "server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)"
    program = f"""
import socket
server = socket.socket()
{options}
server.bind(("127.0.0.1", {free_port}))
server.listen()
print("listening", flush=True)
{SLEEP}
"""
    engine = launch(program)
    said(engine, "listening")
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", free_port))
        server.listen()
        holder = port_holder("127.0.0.1", free_port, engine, launch.census)
    assert holder is not None
    assert holder.ours is False


def test_the_most_exact_address_answers(launch: Launcher, free_port: int) -> None:
    """A stranger on all addresses gets nothing of what is asked on the engine's own."""
    engine = launch(
        f"import socket; s = socket.create_server(('127.0.0.1', {free_port})); "
        f"print('listening', flush=True); {SLEEP}"
    )
    said(engine, "listening")
    with socket.create_server(("::", free_port), family=socket.AF_INET6):
        holder = port_holder("127.0.0.1", free_port, engine, launch.census)
    assert holder is not None
    assert holder.ours is True


def test_another_address_and_a_mere_connection_are_no_listener(free_port: int) -> None:
    """Only what a client of the profile's host would reach counts."""
    with socket.create_server(("127.0.0.2", free_port)):
        assert listeners("127.0.0.1", free_port) == ()
        (found,) = listeners("127.0.0.2", free_port)
        assert (found.address, found.uid) == ("127.0.0.2", os.getuid())
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        assert listeners("127.0.0.1", client.getsockname()[1]) == ()
        client.close()


# Progress.


def test_activity_grows_with_work_and_never_falls(launch: Launcher) -> None:
    """CPU time and I/O of workers count, and stay counted when the workers are gone."""
    program = f"""
import os, time
if os.fork() == 0:
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    with open("/dev/zero", "rb") as zero:
        zero.read(1 << 22)
    print("worked", flush=True)
    time.sleep(0.5)
    os._exit(0)
{SLEEP}
"""
    engine = launch(program)
    said(engine, "worked")
    first = engine.activity(engine.members().values())
    assert first.cpu_seconds >= 0.25
    assert first.io_bytes >= 1 << 22
    wait_until(lambda: len(engine.members()) == 1, LIMIT, "the worker is gone")
    second = engine.activity(engine.members().values())
    assert second.cpu_seconds >= first.cpu_seconds
    assert second.io_bytes >= first.io_bytes


def test_what_keeps_an_engine_from_running_is_named(launch: Launcher, tmp_path: Path) -> None:
    """A debugger that stopped one of its processes is named, and so is a frozen control group."""
    engine = launch(SLEEP)
    members = list(engine.members().values())
    assert engine.hindrance(members) == ""
    traced = members[0]._replace(state="t", name="python")
    assert engine.hindrance([traced]) == f"pid {engine.pid} (python) is stopped by a debugger"
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    engine.group, group = tmp_path, engine.group
    assert engine.hindrance(members) == "the engine's control group is frozen"
    engine.group = group


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (Activity(0.1, 0, 0.1), False),
        (Activity(0.1, 0, 1.8), True),
        (Activity(1.9, 0, 1.9), False),
    ],
    ids=["idle", "starved", "spins-beside-its-own-threads"],
)
def test_an_engine_is_starved_when_it_waits_for_a_cpu_and_gets_none(
    now: Activity, *, expected: bool
) -> None:
    """Threads that wait for each other's cores still use whole cores together."""
    assert starved(Activity(), now, 2.0) is expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (Activity(0.0, 0), ()),
        (Activity(0.1, 1000), ()),
        (Activity(2.0, 1000), (Sign.CPU,)),
        (Activity(0.1, 1 << 30), (Sign.IO,)),
        (Activity(9.0, 1 << 30), (Sign.CPU, Sign.IO)),
    ],
)
def test_a_heartbeat_is_no_progress(now: Activity, expected: tuple[Sign, ...]) -> None:
    """Only work shows that a start gets on: a tenth of a core, or a MiB per second."""
    assert signs(Activity(), now, 2.0) == expected


def test_a_download_is_seen_by_its_unfinished_files(tmp_path: Path) -> None:
    """What Hugging Face's client has on disk so far is counted, what is complete is not."""
    blobs = tmp_path / "hub/models--a--b/blobs"
    blobs.mkdir(parents=True)
    assert download_bytes(tmp_path) == 0
    (blobs / "one.incomplete").write_bytes(b"x" * 8192)
    (blobs / "two").write_bytes(b"x" * 8192)
    assert download_bytes(tmp_path) == 8192


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_lines_do_not_depend_on_how_they_arrive(pieces: list[bytes]) -> None:
    """However output is cut into reads, the same lines come out."""
    whole, cut = LineSplitter(), LineSplitter()
    expected = whole.feed(b"".join(pieces)) + whole.end()
    assert [line for piece in pieces for line in cut.feed(piece)] + cut.end() == expected


def test_progress_bars_and_endless_lines_become_lines() -> None:
    """A carriage return ends a line, too, and no line grows without bound."""
    lines = LineSplitter()
    assert lines.feed(b" 10%\r 20%\r\nnext") == [" 10%", " 20%"]
    assert lines.end() == ["next"]
    assert [len(line) for line in lines.feed(b"x" * (2 * LINE_LENGTH + 1))] == [LINE_LENGTH] * 2


# Reading other processes.


def test_a_reader_that_does_not_come_back_costs_half_a_second_once(tmp_path: Path) -> None:
    """What blocks a read is given up, named never again, and the rest is read all the same."""
    fifo, plain = tmp_path / "fifo", tmp_path / "plain"
    os.mkfifo(fifo)
    plain.write_bytes(b"read")
    memory = procfs.ProcessReader()
    assert memory.read([str(fifo), str(plain)]) == {str(plain): b"read"}
    assert memory.read([str(fifo)]) == {}
    fifo.open("wb", buffering=0).close()  # lets the reader that was left behind go


def test_secrets_on_command_lines_are_not_shown() -> None:
    """A stranger is named without what its command line should not have held."""
    program = (sys.executable, "-c", SLEEP, "--api-key", "hunter22", "TOKEN=hunter22", "x" * 200)
    with foreign(*program) as pid:
        memory = procfs.ProcessReader()
        stat = procfs.stat(pid)
        assert stat is not None
        command = wait_until(
            lambda: line if "api" in (line := memory.command(stat)) else "", LIMIT, "it executed"
        )
    assert "hunter22" not in command
    assert len(command) == procfs.COMMAND_LENGTH


def test_a_command_line_cannot_lead_a_terminal() -> None:
    """A process may call itself whatever it likes: control characters in it are spelt out."""
    with foreign(sys.executable, "-c", SLEEP, "\x1b[2J\x9b1m") as pid:
        stat = procfs.stat(pid)
        assert stat is not None
        memory = procfs.ProcessReader()
        command = wait_until(
            lambda: line if "[2J" in (line := memory.command(stat)) else "", LIMIT, "it executed"
        )
    assert command.endswith("\\x1b[2J\\x9b1m")


def test_a_kernel_thread_and_a_vanished_process_have_names_too() -> None:
    """Where there is no command line the kernel's name stands, and nobody is a question mark."""
    memory = procfs.ProcessReader()
    child = Child.spawn(["/bin/true"], {})
    wait_until(dead(child.pid), LIMIT, "it is a zombie")
    stat = procfs.stat(child.pid)
    assert stat is not None
    assert memory.command(stat) == "[true]"
    child.poll()
    child.close()
    assert procfs.user(child.pid) == "?"
    assert procfs.account(4_000_000) == "uid 4000000"
    assert list(procfs.links(child.pid)) == []
    assert procfs.io_bytes(child.pid) == 0


def test_what_speaks_to_the_main_process_is_not_inherited() -> None:
    """Variables of the notify and the socket protocol are for the watchdog alone."""
    environment = {"NOTIFY_SOCKET": "/x", "WATCHDOG_PID": "1", "LISTEN_FDNAMES": "a", "HOME": "/"}
    assert inherited(environment) == {"HOME": "/"}
