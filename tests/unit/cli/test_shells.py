"""What a shell offers beside the program: completion in real shells, and the manual page."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from unit.cli.cli_runs import PROGRAM, environment, servicekit

from servicekit.cli.verbs import VERBS

ROOT = Path(__file__).parents[3]
ASK = {
    "bash": """
        source {script}
        COMP_WORDS=({words}); COMP_CWORD={last}
        _servicekit_completion servicekit
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    # compsys wants a terminal; what its functions are given is seen by standing in their place.
    "zsh": """
        compdef() {{ }}
        source {script}
        _arguments() {{ print -r -- "$@" }}
        _describe() {{ print -r -- "${{(P@)2}}" }}
        words=({words}); CURRENT=$(({last} + 1))
        _servicekit_completion
    """,
    "fish": """
        source {script}
        complete --do-complete "{line}"
    """,
}
"""How each shell is asked for what it would offer at the end of a line."""


def offered(shell: str, line: str, folder: Path) -> str:
    """What a real shell offers at the end of `line`, with the completion that we print for it."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = folder / f"completion.{shell}"
    script.write_text(servicekit(env={"_SERVICEKIT_COMPLETE": f"source_{shell}"}).out)
    words = " ".join(word or "''" for word in line.split(" "))
    ask = ASK[shell].format(script=script, words=words, last=line.count(" "), line=line)
    path = f"{Path(PROGRAM).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "-c", ask],
        env=environment({"PATH": path, "HOME": str(folder)}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_real_shell_completes_verbs_and_profiles(shell: str, tmp_path: Path) -> None:
    """The printed completion works in the shell itself, with the names of this site's profiles."""
    verbs = offered(shell, "servicekit st", tmp_path)
    assert "start" in verbs
    assert "uninstall" not in verbs
    for verb in ("start", "install", "switch", "logs"):
        names = offered(shell, f"servicekit {verb} ba", tmp_path)
        assert "balanced" in names
        assert "demo" not in names
    assert "--purge" in offered(shell, "servicekit uninstall --", tmp_path)


def test_the_manual_page_is_that_of_this_command_line() -> None:
    """`man/servicekit.1` is what `tools/manpage.py` writes now, and names every verb."""
    program = "import tools.manpage as it; print(it.page(), end='')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    page = (ROOT / "man/servicekit.1").read_text(encoding="utf-8")
    assert page == done.stdout, "run `python tools/manpage.py`"
    assert all(f".SS servicekit {verb}" in page for verb in VERBS)


def test_the_manual_page_is_good_roff() -> None:
    """groff formats it without a warning, and dashes stay dashes that can be pasted."""
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-P-c", str(ROOT / "man/servicekit.1")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    assert "--purge" in done.stdout
