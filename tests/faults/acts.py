"""What rows do to a service, and what some of them look at in the end."""

from __future__ import annotations

import os
import re
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from faults import limited
from faults.inside import Inside
from faults.stage import OWN_LIMIT, READY_LIMIT
from faults.supervised import Supervised
from machines.dstate import Stuck

from servicekit.watchdog.census import VARIABLE, Marker
from servicekit.watchdog.ledger import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from faults.stage import Stage
    from machines.systemd import Machine

    Act = Callable[[Stage], None]

HOLDS_LOCK: Final = """
import socket, sys, time
held = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in "12"]
held[0].bind(f"\\0servicekit/gpu/{sys.argv[1]}")
held[1].bind(f"\\0servicekit/gpu/{sys.argv[1]}/another")
time.sleep(1000)
"""
ASKS: Final = """
import json, sys, time, urllib.request
port, tokens, reads = sys.argv[1:]
body = {"max_tokens": int(tokens), "ignore_eos": True, "stream": True}
body["messages"] = [{"role": "user", "content": "Count."}]
url = f"http://127.0.0.1:{port}/v1/chat/completions"
kind = {"Content-Type": "application/json"}
request = urllib.request.Request(url, json.dumps(body).encode(), kind)
with urllib.request.urlopen(request) as answer:
    answer.read() if reads == "all" else time.sleep(1000)
"""
TRACES: Final = """
import ctypes, os, sys, time
libc, pid, seconds = ctypes.CDLL(None, use_errno=True), sys.argv[1], float(sys.argv[2])
for thread in map(int, os.listdir(f"/proc/{pid}/task")):
    if libc.ptrace(0x4206, thread, None, None) or libc.ptrace(0x4207, thread, None, None):
        sys.exit(os.strerror(ctypes.get_errno()))
time.sleep(seconds)
"""
"""Seizes and interrupts every thread of a process, and lets go of them when it ends."""
OURS: Final = "servicekit"
"""Who asks for completions, when the watchdog does."""


def tell(**script: object) -> Act:
    """Have the engine play something else."""
    return lambda stage: stage.tell(**script)


def becomes(**script: object) -> Act:
    """Have the engine play something else, and every later engine of the service, too."""

    def act(stage: Stage) -> None:
        stage.play(**stage.row.script, **script)
        stage.now()
        stage.send(stage.engine_pid, "USR1")

    return act


def passes(seconds: float, **script: object) -> Act:
    """Have the engine play something else for a while, and then be as it was."""

    def act(stage: Stage) -> None:
        before = stage.fetch("/_fault")["personality"]
        stage.tell(**script)
        stage.happens(stage.is_over, seconds)
        stage.play(**stage.row.script, told={key: before[key] for key in script})
        stage.send(stage.engine_pid, "USR1")

    return act


def share_the_port(seconds: float) -> Act:
    """Have another process of the engine's account listen on its port for a while, too."""

    def act(stage: Stage) -> None:
        argv = ("--port", str(stage.port), "--served-model-name", "row")
        stage.now()
        stage.run(stage.fake_engine, *argv, "--script", '{"shares": true}', own=True)
        stage.wait(lambda: stage.records(Kind.DEGRADED), OWN_LIMIT, "it is noticed")
        stage.happens(stage.is_over, seconds)
        stage.dismiss()

    return act


def engine_gets(signal: str) -> Act:
    """Have somebody send the engine a signal."""
    return lambda stage: stage.send(stage.engine_pid, signal)


def watchdog_gets(signal: str) -> Act:
    """Have somebody who is not its manager send the watchdog a signal."""
    return lambda stage: stage.send(stage.watchdog_pid, signal)


def kill_watchdog_that_looked(stage: Stage) -> None:
    """Kill the watchdog once it has seen which processes its engine has."""
    _after_a_look(stage)
    stage.send(stage.watchdog_pid, "KILL")


def kill_two_watchdogs(stage: Stage) -> None:
    """Kill the watchdog, and the next one, too, once it is ready."""
    stage.send(stage.watchdog_pid, "KILL")
    stage.wait_ready(2)
    stage.now()
    stage.send(stage.watchdog_pid, "KILL")


def _after_a_look(stage: Stage) -> None:
    """Wait until the watchdog has looked around, which it does every second."""
    stage.happens(stage.is_over, 3)
    stage.now()


def stop(stage: Stage) -> None:
    """Have the manager stop it."""
    stage.stop()


def kill_worker(stage: Stage) -> None:
    """Kill one of the engine's own processes."""
    worker = stage.fetch("/_fault")["workers"][0]
    stage.now()
    stage.send(worker, "KILL")


def hang_without_worker(stage: Stage) -> None:
    """Kill one of the processes of an engine that does not notice, and answers nothing more."""
    worker = stage.fetch("/_fault")["workers"][0]
    stage.tell(completion="hang")
    stage.send(worker, "KILL")


def hang_and_ask_the_manager(stage: Stage) -> None:
    """Have completions hang, and ask the manager for its view as soon as this is a fault."""
    stage.tell(completion="hang")
    stage.wait(lambda: stage.records(Kind.FAULT), READY_LIMIT, "it is a fault")
    stage.happens(lambda: not stage.view().startswith("active "), 1)
    stage.notes["view"] = (stage.view(), len(stage.records(Kind.GONE)))


def hang_up(stage: Stage) -> None:
    """Close the terminal that the watchdog runs in."""
    stage.send(stage.manager_pid, "USR1")


def die_with_shared_memory(stage: Stage) -> None:
    """Kill the engine while it has a file in shared memory."""
    stage.tell(shm=f"psm_{stage.token}")
    stage.wait(stage.shared_memory, OWN_LIMIT, "the file is there")
    _after_a_look(stage)
    stage.send(stage.engine_pid, "KILL")


def stand_still(seconds: float) -> Act:
    """Stop watchdog and engine for a while, as a pause of the virtual machine does."""

    def act(stage: Stage) -> None:
        pids = (stage.watchdog_pid, stage.engine_pid)
        for pid in pids:
            stage.send(pid, "STOP")
        stage.happens(stage.is_over, seconds)
        for pid in reversed(pids):
            stage.send(pid, "CONT")

    return act


def download_for(seconds: float) -> Act:
    """Have a file grow as the hub's client makes it, and the start go on after that."""

    def act(stage: Stage) -> None:
        blobs = stage.cache / "huggingface/hub/models--lab--model/blobs"
        blobs.mkdir(parents=True)
        over = time.monotonic() + seconds
        with (blobs / "cafe.incomplete").open("wb", buffering=0) as file:
            while time.monotonic() < over:
                file.write(bytes(1 << 20))
                stage.happens(stage.is_over, 0.5)
        stage.tell(stall=None)

    return act


def leave_engine_beside(stage: Stage) -> None:
    """Have a process run that an earlier run of the service left behind, and that is seen late."""
    marker = Marker(stage.name, "earlier", stage.home)
    stage.run("sleep", "1000", own=True, **{VARIABLE: marker.value})


def start_while_vram_is_lost(stage: Stage) -> None:
    """Have an operator start it anew when VRAM is in use that no process holds."""
    stage.stop()
    stage.wait(stage.is_over, OWN_LIMIT, "it is stopped")
    vram_is_lost(stage)
    stage.now()
    stage.start()


def take_vram_for(seconds: float) -> Act:
    """Have the engine take its VRAM little by little, and the start go on after that."""

    def act(stage: Stage) -> None:
        steps = int(seconds / 0.5)
        for step in range(steps):
            stage.drive(part=(step + 1) / steps)
            stage.happens(stage.is_over, 0.5)
        stage.tell(stall=None)

    return act


def stop_while_holding_off(stage: Stage) -> None:
    """Have the manager stop it while the third run waits to launch its engine."""
    stage.wait(lambda: len(stage.records(Kind.STARTED)) > 2, READY_LIMIT, "a third run began")
    stage.now()
    stage.stop()


def watch_twice(stage: Stage) -> None:
    """Run a second watchdog."""
    second = stage.spawn(*stage.watch, own=True)
    stage.strangers.append(second)
    stage.wait(lambda: second.poll() is not None, OWN_LIMIT, "the second one is over")
    stage.notes["second"] = second.returncode


# A whole manager.


def kill_supervisord(stage: Stage) -> None:
    """Kill supervisord."""
    assert isinstance(stage, Supervised), f"{stage.manager} is no supervisord"
    stage.outlive_supervisord()


def _machine(stage: Stage) -> Machine:
    assert isinstance(stage, Inside), f"{stage.manager} has no machine"
    return stage.machine


def have_systemd_wait_for(seconds: int) -> Act:
    """Have systemd give up a start early, which the watchdog can only ask it to put off."""

    def act(stage: Stage) -> None:
        machine = _machine(stage)
        unit = f"/etc/systemd/system/servicekit-{stage.name}.service.d/patience.conf"
        machine.write(unit, f"[Service]\nTimeoutStartSec={seconds}\n")
        machine.run("systemctl", "daemon-reload")

    return act


def reload_after(seconds: float) -> Act:
    """Have systemd read its files again, as every install makes it do."""

    def act(stage: Stage) -> None:
        stage.happens(stage.is_over, seconds)
        _machine(stage).run("systemctl", "daemon-reload")

    return act


def shut_down(stage: Stage) -> None:
    """Shut the machine down in order, and switch it on again."""
    _machine(stage).reboot()


def cut_the_power(stage: Stage) -> None:
    """End everything at once, and switch the machine on again; an operator starts the service."""
    machine = _machine(stage)
    machine.crash()
    machine.boot()
    stage.start()


def die_with_the_host(times: int) -> Act:
    """Cut the power so many times while it loads; systemd starts the service at each boot."""

    def die(stage: Stage) -> None:
        machine = _machine(stage)
        machine.crash()
        machine.boot()
        stage.now()
        machine.run("systemctl", "start", "--no-block", f"servicekit-{stage.name}.service")

    def act(stage: Stage) -> None:
        for _ in range(times - 1):
            launches = len(stage.records(Kind.LAUNCHED))
            die(stage)
            stage.wait(partial(_launched, stage, launches), READY_LIMIT, "the engine loads again")
        die(stage)

    return act


def _launched(stage: Stage, times: int) -> bool:
    return len(stage.records(Kind.LAUNCHED)) > times


def stop_the_distribution(stage: Stage) -> None:
    """End everything at once, as WSL does when it is idle, and start anew in the same machine."""
    machine = _machine(stage)
    machine.crash()
    machine.boot(container="wsl", boot_id=machine.boot_id)
    stage.start()


def freeze_for(seconds: float) -> Act:
    """Stop the engine for a while."""

    def act(stage: Stage) -> None:
        stage.send(stage.engine_pid, "STOP")
        stage.happens(stage.is_over, seconds)
        stage.send(stage.engine_pid, "CONT")

    return act


def trace_for(seconds: float) -> Act:
    """Have a debugger stop every thread of the engine for a while."""

    def act(stage: Stage) -> None:
        tracer = stage.spawn("python3", "-c", TRACES, str(stage.engine_pid), str(seconds))
        stage.strangers.append(tracer)
        stage.wait(lambda: tracer.poll() is not None, seconds + OWN_LIMIT, "the debugger is done")
        assert tracer.returncode == 0, "the debugger could not attach"

    return act


def freeze_the_group_for(seconds: float) -> Act:
    """Freeze the control group of the engine for a while."""

    def act(stage: Stage) -> None:
        group = "/sys/fs/cgroup$(sed -n s/^0:://p /proc/$0/cgroup)/cgroup.freeze"
        pid = str(stage.engine_pid)
        stage.order("sh", "-c", f"echo 1 > {group}", pid)
        stage.happens(stage.is_over, seconds)
        if not stage.is_over():
            stage.order("sh", "-c", f"echo 0 > {group}", pid)

    return act


def starve_for(seconds: float) -> Act:
    """Have others use the only core that the engine may run on, for a while."""

    def act(stage: Stage) -> None:
        pid, core = stage.engine_pid, str(min(os.sched_getaffinity(0)))
        stage.order("taskset", "-a", "-c", "-p", core, str(pid))
        stage.order("chrt", "-a", "-i", "-p", "0", str(pid))
        for _ in range(4):
            stage.run("taskset", "-c", core, "python3", "-c", "while True: pass")
        # Where each session has its own share, that share decides.
        groups = {pid: 19, **{each.pid: -20 for each in stage.strangers}}
        for each, nice in groups.items():
            stage.order(
                "sh",
                "-c",
                f"test ! -e /proc/$0/autogroup || echo {nice} > /proc/$0/autogroup",
                str(each),
            )
        stage.now()
        stage.happens(stage.is_over, seconds)
        stage.dismiss()

    return act


def sleep_badly(seconds: float) -> Act:
    """Stop the watchdog, as a sleep of the machine does, which the engine does not survive."""

    def act(stage: Stage) -> None:
        stage.send(stage.watchdog_pid, "STOP")
        stage.tell(completion="hang")
        stage.happens(stage.is_over, seconds)
        stage.send(stage.watchdog_pid, "CONT")
        stage.now()

    return act


# Strangers.


def serve_the_port(stage: Stage) -> None:
    """Have a process that is not of the service answer on its port, and rightly so."""
    stage.run(stage.fake_engine, "--port", str(stage.port), "--served-model-name", "row")
    stage.wait(stage.listening, OWN_LIMIT, "the stranger listens")
    stage.now()


def hold_port(stage: Stage) -> None:
    """Have a web server hold the port."""
    stage.run("python3", "-m", "http.server", str(stage.port), "--bind", "127.0.0.1")
    stage.wait(stage.listening, OWN_LIMIT, "the stranger listens")


def hold_port_in_colours(stage: Stage) -> None:
    """Have a web server hold the port that would clear the terminal of who reads its name."""
    where = ("--bind", "127.0.0.1", "--directory", "/\x1b[2J\x9b1m")
    stage.run("python3", "-m", "http.server", str(stage.port), *where, own=True)
    stage.wait(stage.listening, OWN_LIMIT, "the stranger listens")


def hold_port_for(seconds: float) -> Act:
    """Have a web server hold the port for a while."""

    def act(stage: Stage) -> None:
        hold_port(stage)
        leaves = threading.Timer(seconds, stage.dismiss)
        leaves.start()
        stage.after.callback(leaves.join)

    return act


def leave_engine_behind(stage: Stage) -> None:
    """Have an engine run that an earlier run of the service left behind."""
    marker = Marker(stage.name, "earlier", stage.home)
    argv = (stage.fake_engine, "--port", str(stage.port), "--served-model-name", "row")
    stage.run(*argv, own=True, **{VARIABLE: marker.value})
    stage.wait(stage.listening, OWN_LIMIT, "the orphan listens")


def run_namesake(stage: Stage) -> None:
    """Have an engine run of a profile of the same name that lives elsewhere."""
    marker = Marker(stage.name, "other", "/somewhere/else")
    stage.run("sleep", "1000", own=True, **{VARIABLE: marker.value})


def hold_vram(stage: Stage) -> None:
    """Have a foreign process hold most of the GPU."""
    stage.run("sleep", "1000", own=True, **{stage.vram: "20000"})


def hold_gpu_lock(stage: Stage) -> None:
    """Have another profile's watchdog hold the GPU."""
    stage.run("python3", "-c", HOLDS_LOCK, stage.uuid)
    names = stage.sockets.parent / "unix"
    stage.wait(lambda: stage.uuid in names.read_text(), OWN_LIMIT, "the lock is held")


# The driver.


def driver_says(error: str) -> Act:
    """Have every call into the driver fail."""
    return lambda stage: stage.drive(error=error)


def driver_comes_late(stage: Stage) -> None:
    """Have a driver that is up only 2 s later."""
    stage.drive(error="DriverNotLoaded")
    late = threading.Timer(2, stage.drive)
    late.start()
    stage.after.callback(late.join)


def driver_hangs(stage: Stage) -> None:
    """Have calls into the driver never return, whatever signal comes."""
    stage.drive(hang=str(_stuck(stage).path))


def vram_is_given_up(stage: Stage) -> None:
    """Have the engine hold no VRAM any more."""
    stage.drive(part=0)


def kill_drivers_child(stage: Stage) -> None:
    """Kill what asks the driver for the watchdog."""
    stage.order("pkill", "-KILL", "-f", "-P", str(stage.watchdog_pid), "servicekit.host.gpu_child")


def vram_is_lost(stage: Stage) -> None:
    """Have VRAM in use that no process holds."""
    stage.drive(used=20600)


def vram_comes_back_late(stage: Stage) -> None:
    """Have the engine exit, and its memory be free only 2 s later."""
    stage.drive(used=20600)
    stage.tell(exit=1)
    stage.wait(lambda: stage.records(Kind.FAULT), OWN_LIMIT, "it is noticed")
    stage.happens(lambda: stage.records(Kind.GONE), 2)
    stage.notes["gone early"] = stage.records(Kind.GONE)
    stage.drive()


def die_unkillably(stage: Stage) -> None:
    """Kill the engine while one of its threads is stuck inside the kernel."""
    stuck = _stuck(stage)
    stage.tell(stuck=str(stuck.path))
    stuck.wait()
    stage.now()
    stage.send(stage.engine_pid, "KILL")


def _stuck(stage: Stage) -> Stuck:
    """Make a name that holds whoever looks it up, until the row is over."""
    folder = stage.folder / "stuck"
    folder.mkdir()
    stuck = Stuck(folder)
    stage.after.callback(stuck.release)
    stage.notes["stuck"] = stuck
    return stuck


def run_out_of_memory(stage: Stage) -> None:
    """Have the engine take more memory than its group has."""
    own = limited.group(f"fault-{os.getpid()}")
    stage.after.callback(own.rmdir)
    stage.tell(eat=1000)


# The disk.


def fill_the_disk(stage: Stage) -> None:
    """Let the watchdog write to no file, while there is something to be written."""

    def shows(state: str) -> bool:
        now = stage.state()
        return now is not None and now.state == state

    pid = str(stage.watchdog_pid)
    stage.wait(lambda: shows("ready"), OWN_LIMIT, "it shows that it is ready")
    stage.order("prlimit", "--pid", pid, "--fsize=0:", own=True)
    stage.tell(completion="empty")
    stage.wait(lambda: "degraded: " in stage.told(), OWN_LIMIT, "it is told as degraded")
    stage.order("prlimit", "--pid", pid, "--fsize=unlimited:", own=True)
    stage.wait(lambda: shows("degraded"), OWN_LIMIT, "it is shown as degraded")
    stage.tell(completion="text")
    stage.wait(lambda: stage.records(Kind.RECOVERED), OWN_LIMIT, "it is ready again")
    stage.now()


def free_the_disk_and_die(stage: Stage) -> None:
    """Let the watchdog write again, and have the engine killed."""
    stage.order("prlimit", "--pid", str(stage.manager_pid), "--fsize=unlimited:", own=True)
    (engine,) = stage.alive()
    stage.now()
    stage.send(engine, "KILL")


# What is looked at in the end: "" when it is as it must be.


def was_shown_as_deactivating(stage: Stage) -> str:
    """Over an ending engine the manager must not show an active service."""
    view, gone = stage.notes["view"]
    return "" if gone or view.startswith("deactivating ") else f"it was shown as {view}"


def stranger_lives(stage: Stage) -> str:
    """A process that is not ours must never be touched."""
    alive = all(stranger.poll() is None for stranger in stage.strangers)
    return "" if alive else "a foreign process was killed"


def orphan_is_gone(stage: Stage) -> str:
    """What is ours must be swept."""
    alive = any(stranger.poll() is None for stranger in stage.strangers)
    return "the orphan lives" if alive else ""


def begins_anew(stage: Stage) -> str:
    """An operator's start must have a budget of its own."""
    before = len({record.run for record in stage.records(Kind.READY)})
    stage.play()
    stage.start()
    stage.wait_ready(before + 1)
    state = stage.state()
    return "" if state is not None and state.restarts == 0 else f"state.json says {state}"


def _asked(stage: Stage) -> dict[str, Any]:
    asked: dict[str, Any] = stage.fetch("/_fault")["asked"][OURS]
    return asked


def serve_users(*, at_once: int, tokens: int, seconds: float) -> Act:
    """Have users served all the time."""

    def act(stage: Stage) -> None:
        stage.tell(users={"at_once": at_once, "tokens": tokens, "seconds": seconds})
        stage.notes["begun"] = _asked(stage)["begun"]

    return act


def ask(tokens: int, *, reads: str = "all") -> Act:
    """Have a user ask a real engine for a long answer, and wait until it is at it."""

    def act(stage: Stage) -> None:
        stage.run("python3", "-c", ASKS, str(stage.port), str(tokens), reads)
        stage.wait(
            lambda: any(slot["is_processing"] for slot in stage.fetch("/slots")),
            OWN_LIMIT,
            "a slot is at work",
        )
        stage.now()

    return act


def ask_and_then(do: Act) -> Act:
    """Do something while a real engine is in the middle of a long answer."""

    def act(stage: Stage) -> None:
        ask(800)(stage)
        do(stage)

    return act


def probed_beside_users(stage: Stage) -> str:
    """While users are answered, at most the probe that was due already may be sent."""
    probes = _asked(stage)["begun"] - stage.notes["begun"]
    return f"{probes} probes beside users who were answered" if probes > 1 else ""


def probes_piled_up(stage: Stage) -> str:
    """There must never be more than one probe at a time."""
    most = _asked(stage)["most"]
    return f"{most} probes at a time" if most > 1 else ""


def says_it_plainly(stage: Stage) -> str:
    """Nothing that the watchdog itself writes may lead a terminal."""
    state = stage.state()
    said = [*stage.own_lines(), *(record.sentence for record in stage.records())]
    said += [state.why] if state is not None else []
    odd = [line for line in said if not line.isprintable()]
    return f"it says {odd!r}" if odd or not said else ""


def second_was_refused(stage: Stage) -> str:
    """One watchdog at a time may watch a profile."""
    code = stage.notes["second"]
    return "" if code == 1 else f"the second watchdog exited {code}"


def took(seconds: float) -> Callable[[Stage], str]:
    """The end must not be cut short."""

    def check(stage: Stage) -> str:
        stopping, gone = stage.last(Kind.STOPPING), stage.last(Kind.GONE)
        lasted = (gone.at - stopping.at).total_seconds()
        return "" if lasted >= seconds else f"its end was cut short after {lasted:.1f} s"

    return check


def was_waited_for(stage: Stage) -> str:
    """No run may be over before its memory is back."""
    return "it was gone before its memory was back" if stage.notes["gone early"] else ""


def said_that_it_cannot_write(stage: Stage) -> str:
    """A full disk must be told of."""
    log = stage.log()
    said = {what for what in ("ledger", "state.json") if re.search(f"cannot write .*{what}", log)}
    return "" if len(said) == 2 else f"it only said that it cannot write {said}"


def last_cause_is(cause: str) -> Callable[[Stage], str]:
    """The run must end by a cause that came after its fault."""

    def check(stage: Stage) -> str:
        if "stuck" in stage.notes:
            stage.notes["stuck"].release()
        said = stage.last(Kind.GONE).fields.get("cause")
        return "" if said == cause else f"it is gone by {said}, not {cause}"

    return check
