"""What runs without the command-line library does what it does with the library."""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

import pytest
from unit.cli.cli_runs import Ran, environment, invoke, servicekit
from unit.managers.fake_supervisord import FakeSupervisord

from servicekit.cli import direct
from servicekit.cli.failures import failures
from servicekit.cli.output import speak_of
from servicekit.places import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNDERSTOOD = [
    "--help",
    "-h",
    "--version",
    "--user --help",
    "--config C --version",
    "--config C --user status",
    "--user --config C status --json",
    "--config C status --user --json --json",
    "--config C status demo --user",
    "--user --config C status --json demo",
    "--user --config C status nope",
    "--user --config missing status",
    "--user --config missing status demo",
    "--user --config C probe demo",
    "--user --config C probe --ready demo",
    "--user --config C probe nope",
    "--config missing probe demo --user",
    "--user --config C watch nope",
    "--user --config missing watch demo",
    "--user --config C watch demo --plan missing",
    "--user --config C watch --plan missing demo",
]
LEFT_TO_THE_LIBRARY = [
    "",
    "list",
    "stats",
    "--helpp",
    "--help status",
    "status -h",
    "status --help",
    "status a b",
    "status --jsn",
    "status --json=1",
    "status --live",
    "status -",
    "status --",
    "probe",
    "probe a b",
    "probe a --live --deep",
    "watch",
    "watch a --json",
    "watch a -- b",
    "watch a --plan",
    "watch a --plan b --plan c",
    "watch --plan --user a",
    "status --plan a",
    "--config",
    "--config --user status",
    "--config a --config b status",
    "--config=a status",
    "--user",
    "--json status",
]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Give a directory with settings, below which `demo` is installed for a supervisord."""
    supervisord = FakeSupervisord(tmp_path / "s.sock")
    supervisord.added = ["servicekit-demo"]
    config = tmp_path / "servicekit.toml"
    config.write_text(
        f'root = "{tmp_path}"\nmanager = "supervisor"\nsupervisor_socket = "{tmp_path}/s.sock"\n'
    )
    config.chmod(0o644)
    assert invoke("--user", "--config", config, "install", "demo").code == 0
    try:
        yield tmp_path
    finally:
        supervisord.close()


def directly(words: list[str]) -> Ran:
    """Run a command line as `main` does that needs no library."""
    line = direct.parse(words, {})
    assert line is not None
    code = 0
    out, err = io.StringIO(), io.StringIO()
    speak_of(Scope.SYSTEM)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            with failures():
                code = direct.run(line)
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        finally:
            gc.enable()
    return Ran(code, out.getvalue(), err.getvalue())


@pytest.mark.parametrize("line", UNDERSTOOD)
def test_the_library_gives_the_same_output_and_exit_code(line: str, home: Path) -> None:
    """A command line that is run directly cannot be told from one that the library runs."""
    files = {"C": str(home / "servicekit.toml"), "missing": str(home / "missing.toml")}
    words = [files.get(word, word) for word in line.split()]
    assert directly(words) == invoke(*words)


@pytest.mark.parametrize("line", LEFT_TO_THE_LIBRARY)
def test_what_is_not_certainly_right_is_left_to_the_library(line: str) -> None:
    """Errors, the help of a verb and everything unusual are the library's."""
    assert direct.parse(line.split(), {}) is None


@pytest.mark.parametrize("words", [["status", ""], ["status", "a\nb"], ["--config", "", "status"]])
def test_a_word_that_cannot_be_a_name_is_left_to_the_library(words: list[str]) -> None:
    """An empty word and one with control characters are the library's to refuse."""
    assert direct.parse(words, {}) is None


def test_a_completion_is_left_to_the_library() -> None:
    """A shell that asks for completions gets them, whatever the command line is."""
    assert direct.parse(["status"], {direct.COMPLETION: "complete_bash"}) is None


@pytest.mark.parametrize("line", ["--help", "--version", "--user status", "--user probe nope"])
def test_no_command_line_library_is_loaded(line: str) -> None:
    """Where it is not needed it costs nothing: neither typer nor pydantic's types are imported."""
    program = (
        "import atexit, sys\n"
        "from servicekit.cli import main\n"
        "atexit.register(lambda: print('typer' in sys.modules, file=sys.stderr))\n"
        f"sys.argv = ['servicekit', *{line.split()!r}]\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment({"SERVICEKIT_ROOT": os.devnull}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == "False"


def test_an_error_of_the_command_line_comes_from_the_library() -> None:
    """The real program prints usage and the mistake, and exits with 2."""
    done = servicekit("status", "--jsn")
    assert done.code == 2
    assert done.err.startswith("Usage: servicekit status")
