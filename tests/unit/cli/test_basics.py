"""The command line behaves: help, versions, one-line errors, pipes, interrupts, completion."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from unit.cli.cli_runs import PROGRAM, environment, on_terminal, refused, said, servicekit

from servicekit import __version__
from servicekit.cli.verbs import EXIT_CODES, VERBS

if TYPE_CHECKING:
    from pathlib import Path


def test_help_names_every_verb_and_the_exit_codes() -> None:
    """`--help` is the map of the program, and fits on one screen of 80 columns."""
    text = said("--help")
    lines = [line.split() for line in text.splitlines()]
    assert set(VERBS) <= {line[0] for line in lines if line}
    summary = " ".join(text.partition("Exit codes:")[2].split())
    for code in EXIT_CODES:
        assert f" {code} " in f" {summary}", code
    assert len(lines) < 60
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help_that_begins_with_its_summary(verb: str) -> None:
    """A verb's line in the list of verbs is the first sentence of its own help."""
    usage, _, *words = " ".join(said(verb, "-h").split()).partition("] ")
    assert usage.startswith(f"Usage: servicekit {verb} [")
    assert VERBS[verb].summary in " ".join(words)
    (line,) = (line for line in said("-h").splitlines() if line.split()[:1] == [verb])
    assert line.endswith(VERBS[verb].summary)
    assert "\\b" not in said(verb, "-h")  # what keeps lines apart is not for the reader


def test_without_a_verb_there_is_help() -> None:
    """Who types the bare name learns what to type."""
    done = servicekit()
    assert "Usage: servicekit" in done.out + done.err


def test_the_version_is_told() -> None:
    """`--version` names program and version; so does the module."""
    assert servicekit("--version").out == f"servicekit {__version__}\n"
    module = subprocess.run(
        [sys.executable, "-m", "servicekit", "--version"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    assert module.stdout == f"servicekit {__version__}\n"


@pytest.mark.parametrize(
    "words",
    [["frobnicate"], ["show"], ["show", "demo", "--wrong"], ["render", "demo", "--manager", "x"]],
)
def test_a_wrong_command_line_is_exit_code_2(words: list[str]) -> None:
    """What cannot be understood is explained by usage."""
    assert "Usage: servicekit" in refused(*words, code=2)


def test_a_mistyped_verb_is_answered_with_the_one_that_was_meant() -> None:
    """As a mistyped profile or option is."""
    assert 'no command "lst"; did you mean "list"?' in refused("lst", code=2)


def test_a_users_mistake_is_one_line() -> None:
    """An error names the thing and what would do, on standard error, behind the program's name."""
    done = servicekit("show", "dmeo")
    assert done == (78, "", 'servicekit: there is no profile "dmeo"; did you mean "demo"?\n')


def test_a_settings_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A named settings file must exist."""
    text = refused("--config", tmp_path / "no.toml", "list", code=78)
    assert text.startswith(f'servicekit: settings file "{tmp_path}/no.toml" does not exist; ')


def test_several_findings_are_several_lines(tmp_path: Path) -> None:
    """All mistakes of a file are told at once, each on a line of its own."""
    config = tmp_path / "servicekit.toml"
    config.write_text('manager = "runit"\nlog_format = "xml"\n')
    config.chmod(0o644)
    lines = refused("--user", "--config", config, "list", code=78).splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"servicekit: {config}: ") for line in lines)


def test_a_reader_that_has_enough_is_no_error() -> None:
    """`servicekit schema | head -1` prints its line and nothing about pipes."""
    process = subprocess.Popen(
        [PROGRAM, "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) == 1


def shell(line: str, cwd: Path) -> tuple[int, str]:
    """Run a line of sh, in which $S is servicekit; its exit code and all that it printed."""
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=cwd,
        env=environment({"S": PROGRAM, "SERVICEKIT_ROOT": str(cwd)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("verb", ["list", "schema", "--help"])
def test_a_full_disk_is_one_line(verb: str, tmp_path: Path) -> None:
    """Where the output does not fit, that is said, without a traceback."""
    code, told = shell(f"$S {verb} >/dev/full", tmp_path)
    assert (code, told) == (
        1,
        "servicekit: cannot write the output: no space left on device\n",
    )


@pytest.mark.parametrize(
    ("line", "code"), [("$S list", 0), ("$S show none", 78), ("$S list <&-", 0)]
)
def test_closed_streams_are_no_error(line: str, code: int, tmp_path: Path) -> None:
    """Started without any stream, as some init scripts do, a verb still does its work."""
    assert shell(f"{line} >&- 2>&-", tmp_path) == (code, "")


def test_the_exit_code_tells_where_nothing_can_be_said(tmp_path: Path) -> None:
    """A full disk behind stderr does not change why a verb failed."""
    assert shell("$S show none 2>/dev/full", tmp_path) == (78, "")


def test_a_directory_that_is_gone_is_one_line(tmp_path: Path) -> None:
    """A relative path leads nowhere from a directory that was removed."""
    code, told = shell("mkdir d; cd d; rmdir ../d; $S --config x list", tmp_path)
    assert (code, told) == (
        1,
        "servicekit: the current directory is gone; change to one that exists\n",
    )


def test_what_the_encoding_lacks_is_spelt_out(tmp_path: Path) -> None:
    """A terminal of another age still shows every profile."""
    profiles = tmp_path / "profiles.d"
    profiles.mkdir()
    (profiles / "odd.toml").write_text('summary = "\u6f22"\nextends = "demo"\n', encoding="utf-8")
    code, told = shell("PYTHONIOENCODING=latin-1 $S list", tmp_path)
    assert code == 0
    assert "\\u6f22" in told


def test_control_c_is_quiet(tmp_path: Path) -> None:
    """An interrupt while waiting ends with 130 and no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        profile = tmp_path / "profiles.d/mute.toml"
        profile.parent.mkdir()
        profile.write_text(f'extends = "demo"\nport = {mute.getsockname()[1]}\n')
        profile.chmod(0o644)
        env = environment({"SERVICEKIT_ROOT": str(tmp_path), "SERVICEKIT_ALLOW": "mute"})
        process = subprocess.Popen(
            [PROGRAM, "--user", "probe", "mute", "--deep"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            text=True,
        )
        mute.settimeout(30)
        asked, _ = mute.accept()  # so it is waiting for an answer now
        with asked:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")


def test_colours_are_for_terminals_only() -> None:
    """A pipe gets plain text, a terminal colours, and NO_COLOR is heeded."""
    words = ("--user", "list")
    assert "\x1b" not in said(*words)
    text = on_terminal(*words, env={"NO_COLOR": "1", "TERM": "xterm"})
    assert "\x1b" not in text
    # Nothing on a terminal is wider than it is, which here is what COLUMNS says.
    assert max(len(line) for line in text.splitlines()) <= 100


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_profile_names_are_completed(shell: str) -> None:
    """Each shell's completion knows the verbs and the names of profiles."""
    env = {
        "_SERVICEKIT_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "servicekit show de",
        "COMP_CWORD": "2",
        "_TYPER_COMPLETE_ARGS": "servicekit show de",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = servicekit(env=env)
    assert "demo" in done.out
    assert "balanced" not in done.out
