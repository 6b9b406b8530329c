"""`make demo`, as a newcomer runs it: on a bare machine, as anybody, in any directory."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from machines.waiting import wait_until
from readme import blocks, not_shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = [pytest.mark.supervisord, pytest.mark.llama, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
LIMIT = 280.0
"""Seconds; on two cores with nothing else to do it takes fifteen."""
NOBODY = 65534
BECOME_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def environment(home: Path, port: int) -> dict[str, str]:
    """Give an environment with `home` as home and as place for everything temporary.

    Nothing is in it that whoever tests may have set up for services of their own.
    """
    bare = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home)}
    return {**bare, "SERVICEKIT_PORT": str(port)}


def demo(
    home: Path, port: int, *, become: list[str] | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the demo to its end."""
    return subprocess.run(
        [*(become or []), sys.executable, "demo"],
        cwd=ROOT,
        env={**environment(home, port), **(env or {})},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def unprivileged(home: Path) -> list[str]:
    """How to run as nobody, who then owns `home`; nothing, where that is not possible."""
    if os.geteuid() != 0:
        return []
    if subprocess.run([*BECOME_NOBODY, sys.executable, "-c", ""], check=False).returncode != 0:
        return []  # this checkout is in somebody's private directory
    os.chown(home, NOBODY, NOBODY)
    return BECOME_NOBODY


@pytest.fixture
def home() -> Iterator[Path]:
    """Give a directory with spaces in its name, but a short one: a socket's path is limited."""
    with tempfile.TemporaryDirectory(prefix="a new home ") as name:
        yield Path(name)


def test_it_shows_a_whole_life_and_leaves_nothing(home: Path, free_port: int) -> None:
    """Phases, ready, an answer, context, a crash with its cause, ready again, an end; no root.

    It does so in a directory with spaces in its name, and without colours where no terminal is.
    """
    done = demo(home, free_port, become=unprivileged(home))
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}{done.stderr}"
    shown = (
        r"\$ servicekit --user install demo\ncreate   ",
        r"\$ servicekit --user start demo\n(demo: starting: .+\n){2,}demo: ready after [^\n]+\n",
        r"context: +requested 2048, declared 8192, physical 2048, effective 2048 tokens\n",
        r"POST http://127\.0\.0\.1:\d+/v1/chat/completions\n\{.+\}\nsmollm2-135m: \w",
        r"\$ kill -9 \d+\n\(detected after \d+ ms\)\n",
        r"level=error event=\"failed: .+ cause=outside-kill ",
        r"demo: ready after .+ tokens of context\n\$ servicekit --user history demo\n",
        r" 75 +outside-kill +the engine was ",
        r"\nhealthy: ",
        r"\ndemo: stopped: requested by `servicekit ",
        r"\(no process is left, and port \d+ is free\)\n",
        r" 0 +stop-requested ",
        r"\$ servicekit --user uninstall demo --purge\nremove   ",
        r"\nDone: ",
    )
    position = 0
    for pattern in shown:
        found = re.compile(pattern).search(done.stdout, position)
        assert found, f"not shown, or not in this order: {pattern}\n{done.stdout}"
        position = found.start()
    assert "\x1b" not in done.stdout
    (transcript,) = blocks("text", where="demo")
    said = done.stdout.replace(str(home), "/tmp")  # noqa: S108 - where it usually is
    assert not_shown(transcript.text.splitlines(), said) == []
    assert not list(home.iterdir())


def test_it_can_be_left_up_and_ended_as_it_says(home: Path, free_port: int) -> None:
    """KEEP=1 leaves a server that answers; the command that it prints ends all of it."""
    done = demo(home, free_port, env={"KEEP": "1"})
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    end = done.stdout.splitlines()[-1]
    try:
        models = f"http://127.0.0.1:{free_port}/v1/models"
        with urllib.request.urlopen(models, timeout=20) as answer:
            assert "smollm2-135m" in answer.read().decode()
        again = demo(home, free_port)
        assert again.returncode == 1
        assert again.stderr == (
            f"demo: port {free_port} is taken; choose another: "
            f"make demo SERVICEKIT_PORT={free_port + 1}\n"
        )
    finally:
        subprocess.run(["sh", "-c", end], check=True, capture_output=True, timeout=60)
    wait_until(lambda: not list(home.iterdir()), 10, "the directory is gone")
    with socket.create_server(("127.0.0.1", free_port)):
        pass  # nobody listens there any more


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whoever_interrupts_it_finds_nothing_left(
    home: Path, free_port: int, number: signal.Signals
) -> None:
    """^C, a closed terminal or a kill in the middle of a start ends all that was started."""
    with subprocess.Popen(
        [sys.executable, "demo"],
        cwd=ROOT,
        env=environment(home, free_port),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("demo: starting: "):
                running.send_signal(number)
                break
        _, said = running.communicate(timeout=LIMIT)
    assert (running.returncode, said) == (130, "demo: interrupted\n")
    assert not list(home.iterdir())
    about = ["pid", "ppid", "status", "create_time", "cmdline"]
    left = [
        {key: process.info[key] for key in about}
        for process in psutil.process_iter([*about, "environ"])
        if str(home) in str(process.info["environ"])
    ]
    assert left == []


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({"SERVICEKIT_PORT": "http"}, 'demo: SERVICEKIT_PORT must be a port, not "http"\n'),
        ({"TMPDIR": "{long}"}, r"demo: .* is too long for a socket; set TMPDIR to a shorter .*\n"),
    ],
)
def test_what_it_cannot_do_is_said_in_one_line(
    home: Path, env: Mapping[str, str], line: str
) -> None:
    """A demo that cannot run ends with exit code 1 and one line, and leaves nothing."""
    long = home / ("long" * 30)
    long.mkdir()
    done = demo(home, 1, env={name: value.format(long=long) for name, value in env.items()})
    assert done.returncode == 1
    assert re.fullmatch(line, done.stderr)
    assert list(home.iterdir()) == [long]
    assert not list(long.iterdir())
