"""Events and the engine's lines: real sockets, pipes and a terminal at the other end."""

from __future__ import annotations

import array
import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicekit.log import (
    BACKLOG,
    ROUTINE,
    JournalEvents,
    LineEvents,
    Output,
    Priorities,
    Priority,
    Redactor,
    logfmt,
    open_events,
)
from servicekit.managers.logfile import OURS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIELDS = {"profile": "demo", "run": "run-1"}


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[socket.socket]:
    """Listen as the journal does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "journal"))
        listening.settimeout(5)
        yield listening


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Give a pipe whose reader does not wait."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    os.close(reading)
    os.close(writing)


@pytest.fixture
def events(
    tmp_path: Path, journal: socket.socket, pipe: tuple[int, int]
) -> Iterator[JournalEvents]:
    """Log to the journal."""
    assert journal.fileno() >= 0
    events = JournalEvents(FIELDS, pipe[1], socket_path=str(tmp_path / "journal"))
    yield events
    events.close(1.0)


def fields_of(datagram: bytes) -> dict[str, str]:
    """Read an entry of the journal's own protocol, as far as its values are single lines."""
    lines = datagram.decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_an_event_is_a_journal_entry_with_fields(
    events: JournalEvents, journal: socket.socket
) -> None:
    """The journal is told message, priority, message id and whose event it is."""
    events.event("hung", Priority.ERROR, message_id="ab" * 16, state="failed", cause="hung")
    assert fields_of(journal.recv(4096)) == {
        "MESSAGE": "hung",
        "PRIORITY": "3",
        "SYSLOG_IDENTIFIER": "servicekit",
        "MESSAGE_ID": "ab" * 16,
        "SERVICEKIT_PROFILE": "demo",
        "SERVICEKIT_RUN": "run-1",
        "SERVICEKIT_STATE": "failed",
        "SERVICEKIT_CAUSE": "hung",
    }
    events.event("ready", Priority.INFO, cause="")
    assert not {"SERVICEKIT_CAUSE", "MESSAGE_ID"} & fields_of(journal.recv(4096)).keys()
    events.flush()


def test_an_event_too_long_for_a_datagram_arrives(
    events: JournalEvents, journal: socket.socket
) -> None:
    """A message of any length reaches the journal, by a file that is handed over."""
    events.event("x" * 1_000_000, Priority.ERROR)
    _, handed, _, _ = journal.recvmsg(10, socket.CMSG_SPACE(4))
    (file,) = array.array("i", handed[0][2])
    assert os.pread(file, 2_000_000, 0).startswith(b"MESSAGE=" + b"x" * 1_000_000 + b"\n")
    os.close(file)


def test_an_event_that_the_journal_does_not_take_is_a_line(
    events: JournalEvents, journal: socket.socket, pipe: tuple[int, int]
) -> None:
    """Without a journal nothing is lost and nothing fails."""
    journal.close()
    events.event("ready", Priority.INFO)
    assert os.read(pipe[0], 100) == b"<6>ready\n"


def test_a_line_of_the_engine_has_its_own_priority(
    events: JournalEvents, pipe: tuple[int, int]
) -> None:
    """Under systemd a line begins with the priority that the journal is to give it."""
    events.engine("(APIServer pid=8030) ERROR 11-30 07:30:10 [core.py:1] no")
    events.engine("loading")
    out = os.read(pipe[0], 1000).decode()
    assert out == "<3>(APIServer pid=8030) ERROR 11-30 07:30:10 [core.py:1] no\n<6>loading\n"


def test_a_line_that_a_probe_caused_is_no_news(
    events: JournalEvents, pipe: tuple[int, int]
) -> None:
    """`logs` leaves out what has the priority of debugging."""
    events.engine("0.12.623.024 W slot   operator(): id  0 | task 6 | n_past was set", probe=True)
    assert os.read(pipe[0], 1000).startswith(b"<7>0.12.623.024 W slot ")


@pytest.mark.parametrize(
    ("line", "routine"),
    [
        ("0.02.939.600 I slot get_availabl: id  0 | task -1 | selected slot by LRU", True),
        ("0.12.623.024 W slot   operator(): id  0 | task 6 | n_past was set to 30", True),
        ('INFO:     127.0.0.1:50412 - "GET /metrics HTTP/1.1" 200 OK', True),
        ('(APIServer pid=1) INFO:  127.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200', True),
        ('INFO:     127.0.0.1:50412 - "GET /metrics HTTP/1.1" 500 Internal Server Error', False),
        ("0.12.623.024 E slot   operator(): id  0 | task 6 | failed to decode", False),
        ("0.02.939.600 I srv  log_server_r: done request: GET /v1/models 127.0.0.1 200", True),
        ("0.02.939.600 I srv llama_server: listening on http://127.0.0.1:18001", False),
        ("loading weights", False),
    ],
)
def test_only_what_every_request_logs_can_be_a_probes(line: str, *, routine: bool) -> None:
    """An error is never taken for a probe's own line."""
    assert (ROUTINE.match(line) is not None) is routine


def test_lines_of_the_engine_come_back_after_the_journal_was_stopped(
    tmp_path: Path, journal: socket.socket
) -> None:
    """The journal closes its stream for good; entries of our own reach the next one."""
    reading, writing = os.pipe()
    events = JournalEvents({"profile": "x"}, writing, socket_path=str(tmp_path / "journal"))
    os.close(reading)
    events.engine("ERROR one")
    events.engine("two")
    entries = [journal.recv(4096).decode() for _ in range(2)]
    assert "MESSAGE=ERROR one\nPRIORITY=3\nSYSLOG_IDENTIFIER=servicekit-x\n" in entries[0]
    assert "MESSAGE=two\n" in entries[1]
    events.close(0.0)
    os.close(writing)


def test_elsewhere_an_event_is_a_line_of_logfmt(pipe: tuple[int, int]) -> None:
    """A file gets time, level, what happened and its fields; the engine's lines as they are."""
    events = LineEvents(FIELDS, pipe[1])
    events.event("hung: no answer", Priority.ERROR, message_id="ab", cause="hung", state="")
    events.engine("<3>loading")
    event, line = os.read(pipe[0], 4096).decode().splitlines()
    assert event.startswith("time=20")
    assert event.endswith('level=error event="hung: no answer" cause=hung profile=demo run=run-1')
    assert line == "<3>loading"
    events.close(1.0)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("hung", "hung"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "no"\nor\\', '"say \\"no\\"\\nor\\\\"'),
        ("Ä…", "Ä…"),
        ("\x1b[2J\x9b\x7f", '"\\u001b[2J\\u009b\\u007f"'),
    ],
)
def test_text_that_is_not_one_plain_word_is_quoted(text: str, written: str) -> None:
    """A field never runs into the next one, nor into the next line."""
    assert logfmt({"event": text, "level": "info"}) == f"event={written} level=info"


def test_a_terminal_gets_an_event_for_people() -> None:
    """On a terminal the event stands out, with its fields behind it."""
    reading, writing = os.openpty()
    LineEvents(FIELDS, writing).event("ready", Priority.INFO)
    said = os.read(reading, 4096).decode()
    os.close(reading)
    os.close(writing)
    assert "ready" in said
    assert "=" in said


@pytest.mark.parametrize("environment", ["journal", "none"])
def test_events_can_be_json(pipe: tuple[int, int], environment: str) -> None:
    """With `log_format = "json"` an event is an object on a line, wherever the log goes."""
    status = os.fstat(pipe[1])
    stream = f"{status.st_dev}:{status.st_ino}" if environment == "journal" else ""
    events = open_events(FIELDS, {"JOURNAL_STREAM": stream}, pipe[1], log_format="json")
    events.event("it\x1b[2J failed", Priority.ERROR, cause="hung")
    events.engine("a line of the engine")
    line, engine = os.read(pipe[0], 4096).decode().splitlines()
    said = json.loads(line)
    assert {"level": "error", "event": "it\x1b[2J failed", "cause": "hung", **FIELDS}.items() <= (
        said.items()
    )
    assert "\x1b" not in line
    assert engine == "a line of the engine"
    assert (ours := OURS.match(line.encode())) is not None
    assert ours["time"].decode() == said["time"]


def test_console_lines_have_colours_on_a_terminal_only(pipe: tuple[int, int]) -> None:
    """With `log_format = "console"` a log file gets text without control characters."""
    events = open_events(FIELDS, {}, pipe[1], log_format="console")
    events.event("ready", Priority.INFO)
    line = os.read(pipe[0], 4096).decode()
    assert "ready" in line
    assert "\x1b" not in line


def test_structlog_is_loaded_only_where_its_form_is_asked_for() -> None:
    """A service whose log is plain or the journal's does not hold it in memory."""
    for log_format in ("auto", "json", "console"):
        program = (
            "import os, sys\n"
            "from servicekit.log import open_events\n"
            "null = os.open('/dev/null', os.O_WRONLY)\n"
            f"open_events({{}}, {{}}, null, log_format='{log_format}')\n"
            "print('structlog' in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.strip() == str(log_format != "auto")


def test_lines_go_to_the_journal_only_where_it_reads_them(pipe: tuple[int, int]) -> None:
    """JOURNAL_STREAM must name our own stderr: it is inherited by what redirects it."""
    status = os.fstat(pipe[1])
    stream = f"{status.st_dev}:{status.st_ino}"
    journal = open_events(FIELDS, {"JOURNAL_STREAM": stream}, pipe[1])
    assert isinstance(journal, JournalEvents)
    journal.close(0.0)
    assert isinstance(open_events(FIELDS, {"JOURNAL_STREAM": "1:2"}, pipe[1]), LineEvents)
    assert isinstance(open_events(FIELDS, {}, pipe[1]), LineEvents)


# A reader that is slow, or gone.


def drained(reading: int) -> bytes:
    """Read what there is."""
    said = b""
    try:
        while piece := os.read(reading, 1 << 16):
            said += piece
    except BlockingIOError:
        pass
    return said


def test_a_reader_that_stopped_does_not_stop_us(pipe: tuple[int, int]) -> None:
    """Lines wait for a slow reader, then are dropped and counted, and the rest is in order."""
    output = Output(pipe[1])
    line = "x" * 9999
    lines = 2 * BACKLOG // len(line)
    for _ in range(lines):
        output.write(line)
    assert not output.flush()
    said = b""
    while not output.flush():
        said += drained(pipe[0])
    said += drained(pipe[0])
    *told, last = said.decode().splitlines()
    assert set(told) == {line}
    dropped = int(last.split()[1])
    assert last == f"servicekit: {dropped} lines were dropped, since no reader took them"
    assert len(told) + dropped == lines


def test_a_reader_that_is_gone_does_not_end_us() -> None:
    """A closed pipe swallows what is written to it."""
    reading, writing = os.pipe()
    output = Output(writing)
    os.close(reading)
    output.write("x")
    assert output.flush()
    os.close(writing)


# Secrets.


@given(
    st.lists(st.text(min_size=4, max_size=12), min_size=1, max_size=3),
    st.lists(st.text(max_size=8), min_size=1, max_size=5),
)
def test_no_secret_survives(secrets: list[str], words: list[str]) -> None:
    """Wherever secrets stand in a text, none of them is left in it."""
    text = "".join(word + secret for word in words for secret in secrets)
    redacted = Redactor(secrets)(text).replace("[redacted]", "\0")
    assert not any(secret in redacted for secret in secrets if "\0" not in secret)


def test_a_secret_is_known_in_other_spellings() -> None:
    """Engines print their arguments as JSON and in URLs; a short word is no secret."""
    redact = Redactor(['a"b/c+d', "abc", ""])
    assert redact(r'{"key": "a\"b/c+d"} ?key=a%22b%2Fc%2Bd abc') == (
        '{"key": "[redacted]"} ?key=[redacted] abc'
    )
    assert Redactor([])("abc") == "abc"


# Priorities.


@pytest.mark.parametrize(
    ("line", "priority"),
    [
        ("(EngineCore pid=8485) INFO 11-30 07:30:30 [core.py:133] error budget", Priority.INFO),
        ("(APIServer pid=8030) WARNING 11-30 07:30:22 [cpu.py:224] Triton", Priority.WARNING),
        ("(EngineCore pid=8485) ERROR 11-30 07:30:30 [core.py:133] x", Priority.ERROR),
        ("DEBUG 11-30 07:30:30 [core.py:133] x", Priority.DEBUG),
        ("INFO:     Started server process [812]", Priority.INFO),
        ("ERROR:    Exception in ASGI application", Priority.ERROR),
        ("[2026-11-30 07:30:10 TP0] Load weight begin. avail mem=30.9 GB", Priority.INFO),
        ("[2026-11-30 07:30:10 TP0] Scheduler hit an exception: x", Priority.INFO),
        ("0.00.001.519 I srv  llama_server: initializing ...", Priority.INFO),
        ("0.00.005.081 W srv  llama_server: security: no API key", Priority.WARNING),
        ("0.00.005.081 E srv  load_model: failed", Priority.ERROR),
        ("0.00.005.081 D srv  x", Priority.DEBUG),
        ("error: unknown argument: --no-such", Priority.ERROR),
        ("RuntimeError: CUDA error: device-side assert triggered", Priority.ERROR),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", Priority.ERROR),
        ("ggml_cuda_init: CUDA error: no device", Priority.ERROR),
        ("terminate called after throwing an instance of 'c10::Error'", Priority.ERROR),
        ("Information about errors", Priority.INFO),
        ("I am a story", Priority.INFO),
        ("", Priority.INFO),
    ],
)
def test_a_line_has_the_priority_that_it_says(line: str, priority: Priority) -> None:
    """What an engine calls an error is one in the journal, and a mere mention is not."""
    assert Priorities().of(line) is priority


def test_a_traceback_is_an_error_to_its_end() -> None:
    """All lines of a traceback belong together; what follows is judged by itself."""
    lines = [
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in <module>',
        "    load()",
        "LocalEntryNotFoundError: Cannot find the snapshot",
        "INFO:     done",
    ]
    priorities = Priorities()
    assert [priorities.of(line) for line in lines] == [Priority.ERROR] * 4 + [Priority.INFO]
