"""Runs command lines: most in this process, which is quick, some as a user's shell would."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from machines.waiting import wait_until
from typer.testing import CliRunner

from servicekit.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAM = str(Path(sys.executable).with_name("servicekit"))
HEARD = ("SERVICEKIT_", "SUPERVISOR_", "_SERVICEKIT")
"""Prefixes of variables that servicekit would listen to."""


class Ran(NamedTuple):
    """How a command line ended, and what it printed."""

    code: int
    out: str
    err: str


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give the environment without anything that servicekit would listen to, and with `more`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(HEARD)}
    return kept | {"COLUMNS": "100", **(more or {})}


def servicekit(*words: str | Path, env: Mapping[str, str] | None = None) -> Ran:
    """Run the real console script to its end."""
    done = subprocess.run(
        [PROGRAM, *map(str, words)],
        env=environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def on_terminal(*words: str, env: Mapping[str, str] | None = None) -> str:
    """Give what the real console script prints on a terminal, where it succeeds."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [PROGRAM, *words], stdin=slave, stdout=slave, stderr=slave, env=environment(env)
    )
    os.close(slave)
    text = bytearray()

    def ended() -> bool:
        try:
            text.extend(os.read(master, 65536))
        except OSError:  # how a terminal says that everybody has left
            return True
        return False

    wait_until(ended, 60, "the program left its terminal")
    os.close(master)
    assert process.wait(60) == 0
    return text.decode()


def invoke(
    *words: str | Path, env: Mapping[str, str] | None = None, stdin: str | bytes = ""
) -> Ran:
    """Run a command line in this process."""
    unheard = {name: None for name in os.environ if name.startswith(HEARD)}
    chosen = {**unheard, **(env or {})}
    done = CliRunner().invoke(app, [*map(str, words)], input=stdin, env=chosen)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Ran(done.exit_code, done.stdout, done.stderr)


def said(*words: str | Path, env: Mapping[str, str] | None = None, stdin: str | bytes = "") -> str:
    """Give what a command line that succeeds prints."""
    done = invoke(*words, env=env, stdin=stdin)
    assert done.code == 0, done.err
    return done.out


def refused(
    *words: str | Path, env: Mapping[str, str] | None = None, code: int = 1, stdin: str | bytes = ""
) -> str:
    """Give what a command line that fails with `code` says."""
    done = invoke(*words, env=env, stdin=stdin)
    assert done.code == code, done.out + done.err
    return done.err
