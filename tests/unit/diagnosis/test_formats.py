"""A failure is recognised in every form in which people get hold of a log."""

from __future__ import annotations

import pytest

from servicekit.diagnosis.reader import LogReader
from servicekit.diagnosis.verdict import diagnose

ENGINE = "RuntimeError: No CUDA GPUs are available"
KERNEL = "NVRM: Xid (PCI:0000:01:00): 79, pid=1, name=x, GPU has fallen off the bus."
JOURNAL = {
    "short": "Nov 30 08:00:00 box sglang[7]: {}",
    "short-precise": "Nov 30 08:00:00.123456 box sglang[7]: {}",
    "short-iso": "2026-11-30T08:00:00+00:00 box sglang[7]: {}",
    "short-iso-precise": "2026-11-30T08:00:00.123456+0000 box sglang[7]: {}",
    "short-full": "Mon 2026-11-30 08:00:00 UTC box sglang[7]: {}",
    "short-monotonic": "[ 1234.567890] box sglang[7]: {}",
    "short-delta": "[ 1234.567890 <    0.000012 >] box sglang[7]: {}",
    "short-delta, first line": "[ 1234.567890                ] box sglang[7]: {}",
    "short-unix": "1764489600.123456 box sglang[7]: {}",
    "with-unit": "Mon 2026-11-30 08:00:00 CET box servicekit-mtp.service[7]: {}",
    "verbose": "Mon 2026-11-30 08:00:00.123456 UTC [s=ab]\n    _PID=7\n    MESSAGE={}",
    "export": "__CURSOR=s=1\nMESSAGE={}\n_PID=7",
    "json": '{{"_PID":"7","MESSAGE":"{}"}}',
    "json-pretty": '{{\n\t"_PID" : "7",\n\t"MESSAGE" : "{}"\n}}',
    "json-sse": 'data: {{"MESSAGE":"{}"}}',
    "json-seq": '\x1e{{"MESSAGE":"{}"}}',
    "cat": "{}",
}
DMESG = {
    "dmesg": "[ 1234.567890] {}",
    "dmesg -T": "[Mon Nov 30 08:00:00 2026] {}",
    "dmesg -T with callers": "[Mon Nov 30 08:00:00 2026] [ T77] {}",
    "dmesg -d": "[ 1234.567890 <    0.000012>] {}",
    "dmesg -H": "[Nov30 08:00] {}",
    "dmesg -H, later": "[  +0.000005] {}",
    "dmesg -x": "kern  :err   : [ 1234.567890] {}",
    "dmesg --time-format iso": "2026-11-30T08:00:00,123456+00:00 {}",
    "dmesg --json": '      {{\n         "pri": 3,\n         "msg": "{}"\n      }}',
}
CONTAINERS = {
    "docker compose": "llm-1  | {}",
    "docker-compose": "llm_1  | {}",
    "docker compose -t": "llm-1  | 2026-11-30T08:00:00.123456789Z {}",
    "docker compose in colour": "\x1b[36mllm-1  |\x1b[0m {}",
    "docker logs -t": "2026-11-30T08:00:00.123456789Z {}",
    "docker's json-file": '{{"log":"{}\\n","stream":"stderr","time":"2026-11-30T08:00:00.1Z"}}',
    "Kubernetes": "2026-11-30T08:00:00.123456789Z stderr F {}",
    "Ray": "(SGLangEngine pid=77, ip=10.0.0.1) {}",
    "Ray without a name": "(pid=77) {}",
}
LIBRARIES = {
    "loguru": "2026-11-30 08:00:00.123 | ERROR    | app.main:run:77 - {}",
    "logging": "ERROR:root:{}",
    "logging with a name": "2026-11-30 08:00:00,123 - app.core - ERROR - {}",
    "uvicorn": "ERROR:    {}",
    "rich": "[08:00:00] ERROR    {}",
    "structlog": "2026-11-30 08:00:00 [error    ] {}",
    "logfmt": 'time=2026-11-30T08:00:00Z level=error msg="{}"',
    "Go": "2026/11/30 08:00:00 {}",
    "torch": "[rank0]: {}",
    "torchrun": "[default0]:{}",
    "RFC 5424": "<11>1 2026-11-30T08:00:00.1Z box sglang 7 - - {}",
    "ts": "Nov 30 08:00:00 {}",
}
FORMS = JOURNAL | DMESG | CONTAINERS | LIBRARIES


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(("text", "cause"), [(ENGINE, "driver"), (KERNEL, "gpu-lost")])
def test_a_failure_is_recognised_in_this_form(form: str, text: str, cause: str) -> None:
    """What stands before the message does not hide it."""
    reader = LogReader()
    reader.feed((form.format(text) + "\n").encode())
    assert diagnose(reader).cause == cause


@pytest.mark.parametrize(
    "form",
    [
        "2026-11-30 08:00:00,123 - app.core - WARNING - {}",
        "2026-11-30 08:00:00 [warning  ] {}",
        'time=2026-11-30T08:00:00Z level=info msg="{}"',
        "WARNING:root:{}",
        "2026-11-30 08:00:00.123 | INFO     | app.main:run:77 - {}",
    ],
)
def test_what_is_logged_as_a_warning_is_no_failure(form: str) -> None:
    """The levels of these forms are read, too."""
    reader = LogReader()
    reader.feed((form.format(ENGINE) + "\n").encode())
    assert diagnose(reader).cause == "unknown"
