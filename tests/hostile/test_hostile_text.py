"""Hostile text: whatever another program prints, reading it ends, and a hung loop is ended."""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicekit.engines.helptext import read_help
from servicekit.engines.prometheus import read_samples
from servicekit.engines.versions import _BUILD, _LONGEST_VERSION
from servicekit.host.procfs import without_secrets
from servicekit.host.xid import xid_in
from servicekit.log import Priorities, Redactor
from servicekit.managers.containers import _CONTAINER
from servicekit.managers.logfile import OURS
from servicekit.text import plain
from servicekit.tunnel.outcome import LONGEST_LINE, SshOutput
from servicekit.tunnel.values import Tunnel
from servicekit.watchdog.reporter import LINE_LENGTH, LineSplitter

MIB = 1 << 20

# What is given up as too slow: a quadratic pattern takes an hour for one of these.
pytestmark = pytest.mark.timeout(60)


def _full(pattern: str) -> str:
    """Repeat `pattern` to one MiB."""
    return pattern * (MIB // len(pattern))


@pytest.mark.parametrize(
    "labels", ["a", "a=", 'a="', 'a="\\"', "{", '"', "a ", 'a="b",', "\\", 'a="b" ']
)
def test_metrics_of_any_shape_are_read(labels: str) -> None:
    """One series of 1 MiB, and a thousand of 1 KiB, are read or passed over."""
    read_samples(f"up{{{_full(labels)}}} 1", ["up"])
    read_samples(f"up{{{_full(labels)}", ["up"])
    read_samples(f"up{{{(labels * 1024)[:1024]}}} 1\n" * 1024, ["up"])
    read_samples(f"up{' ' * MIB}", ["up"])


@pytest.mark.parametrize("word", ["key", "key=", "key ", "=", "a", "token=key "])
def test_a_command_line_of_any_shape_is_shown(word: str) -> None:
    """What looks secret is looked for in a command line in one pass."""
    assert without_secrets(_full(word))


def test_values_of_secret_options_are_hidden() -> None:
    """The value behind a name such as `--api-key` is left out, as a word of its own or after =."""
    line = "serve --api-key abc --hf_token=def --port 80 PASSWORD=x"
    assert without_secrets(line) == "serve --api-key ... --hf_token=... --port 80 PASSWORD=..."


@pytest.mark.parametrize(
    "text", ["[|", "|", "<a", "{", "a,", " - a", "allowed values: ", "[x ...", "-", ", --a", "'"]
)
def test_a_help_text_of_any_shape_is_read(text: str) -> None:
    """An option's entry of 1 MiB, in one line and in many, is read as far as it makes sense."""
    read_help(f"  --option {_full(text)}")
    read_help(f"  --option [{_full(text)}")
    read_help("  --option N\n" + f"      {(text * 1024)[:1024]}\n" * 1024)


@pytest.mark.parametrize("text", ["(a) ", "[", "a.", "Error", "CUDA ", "1 ", "error", "_"])
def test_the_priority_of_any_line_is_found(text: str) -> None:
    """A line of 1 MiB gets a priority."""
    assert Priorities().of(_full(text)) in range(2, 8)


def test_other_foreign_lines_are_searched_in_one_pass() -> None:
    """Versions, kernel messages, control groups and log lines of the worst shape are searched."""
    _BUILD.search(_full("version: ")[:_LONGEST_VERSION])
    for text in ("a", "NVRM: Xid (PCI:", "NVRM: Xid (PCI:0): 1, pid=", "0"):
        xid_in(_full(text))
        _CONTAINER.search(_full(text))
    for text in ("time=a level=b ", " run=x", "x"):
        OURS.match(f"time=a level=b {_full(text)} ".encode())


# What is shown and logged.

TOKEN = "s3cret-token/with+signs"


@pytest.mark.parametrize(
    "text",
    [
        TOKEN,
        TOKEN.upper(),
        quote(TOKEN, safe=""),
        quote(TOKEN, safe="").lower(),
        base64.b64encode(TOKEN.encode()).decode(),
        base64.urlsafe_b64encode(b"x" + TOKEN.encode() + b"yz").decode(),
        base64.b64encode(b"user:" + TOKEN.encode()).decode(),
        f"\x1b[31m{TOKEN[:5]}\x1b[0m{TOKEN[5:]}",
    ],
)
def test_a_secret_is_taken_out_however_it_is_spelt(text: str) -> None:
    """Case, URLs, base64 at any offset and colours in between hide no secret from the log."""
    line = Redactor([TOKEN])(plain(f"key={text}."))
    assert "[redacted]" in line
    assert "3cret" not in line.lower()
    assert base64.b64encode(TOKEN.encode()).decode()[4:20] not in line


def test_a_long_line_is_cut_between_words() -> None:
    """A secret that lies where a line without an end is cut is still whole in one piece."""
    splitter = LineSplitter()
    text = b"a" * (LINE_LENGTH - 10) + b" " + TOKEN.encode() + b" b"
    pieces = [*splitter.feed(text), *splitter.end()]
    assert any(TOKEN in piece for piece in pieces)
    assert "".join(pieces) == text.decode()


@given(before=st.integers(1, 200), step=st.integers(1, 5000))
def test_a_secret_in_a_line_without_spaces_is_taken_out_where_it_is_cut(
    before: int, step: int
) -> None:
    """However the output arrives, no piece of such a line has a part of the secret in it."""
    redact = Redactor([TOKEN])
    splitter = LineSplitter(redact)
    text = b"a" * (LINE_LENGTH - before) + TOKEN.encode() + b"b" * LINE_LENGTH
    reads = [text[start : start + step] for start in range(0, len(text), step)]
    pieces = [piece for read in reads for piece in splitter.feed(read)] + splitter.end()
    shown = "".join(map(redact, pieces))
    assert shown.count("[redacted]") == 1
    assert set(shown.replace("[redacted]", "")) == {"a", "b"}


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_return_does_not_cut_a_secret_in_two(end: str) -> None:
    """A secret with a carriage return in it is taken out; a progress bar still makes lines."""
    redact = Redactor([TOKEN])
    splitter = LineSplitter(redact)
    text = f"10%\r20%\nkey={TOKEN[:7]}\r{TOKEN[7:]}{end}"
    pieces = [*splitter.feed(text.encode()), *splitter.end()]
    assert list(map(redact, pieces)) == ["10%", "20%", "key=[redacted]"]


def test_the_output_of_ssh_is_followed_whatever_its_shape() -> None:
    """A line of 1 MiB from a tunnel's server is cut before any pattern meets it."""
    for text in ("Timeout, server ", "Permissions 1 for ", "Received disconnect from ", "a@a: "):
        output = SshOutput(Tunnel(name="home", user="ada", host="box.example"))
        assert len(output.hear(_full(text))) <= LONGEST_LINE


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[32mINFO\x1b[0m up", "INFO up"),
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("a\0<0>emergency", r"a\x00<0>emergency"),
        ("\u202eevil", r"\u202eevil"),
        ("a\tb\u3000c é", "a\tb\u3000c é"),
    ],
)
def test_what_a_terminal_or_the_journal_would_obey_is_spelt_out(line: str, shown: str) -> None:
    """No line of an engine leads a terminal, or begins a second journal entry with a priority."""
    assert plain(line) == shown


# The loop itself.

HANGS = """
import re
from servicekit.watchdog.dead_mans_switch import DeadMansSwitch
switch = DeadMansSwitch({limit})
{then}
re.match("(a|aa)+$", "a" * 60 + "b")
"""


def test_a_loop_that_hangs_in_a_pattern_is_ended() -> None:
    """A watchdog that Python cannot interrupt any more dies by the kernel's signal."""
    text = HANGS.format(limit=0.2, then="switch.rearm()")
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == -signal.SIGALRM


def test_a_watchdog_that_has_ended_in_time_is_not_killed() -> None:
    """Disarmed, the switch does nothing."""
    text = HANGS.format(
        limit=0.2,
        then="switch.disarm(); import signal; signal.sigtimedwait({14}, 1); raise SystemExit(7)",
    )
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 7
