"""Every known text of a failure, behind everything that logs put in front of a message."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from servicekit.diagnosis.reader import LogReader
from servicekit.diagnosis.verdict import diagnose

TEXTS = [
    (cause, text)
    for cause, texts in tomllib.loads(
        (Path(__file__).parent.parent.parent / "diagnosis" / "texts.toml").read_text()
    ).items()
    for text in texts
]
FRONTS = {
    "bare": "{}",
    "sglang": "[2026-12-01 01:02:03 TP1] {}",
    "vllm": "(EngineCore pid=1) ERROR 11-30 07:30:43 [core.py:1510] {}",
    "vllm worker": "(Worker_TP0 pid=5) ERROR 12-01 07:30:43 [executor.py:953] ValueError: {}",
    "llama": "0.00.005.812 E srv         start: {}",
    "exception": "RuntimeError: {}",
    "uvicorn": "ERROR:    {}",
    "journal": "Dec 01 07:31:32 box servicekit-mtp[1]: {}",
    "container": "2026-12-01T07:31:32.123Z stderr F {}",
    "colours": "\x1b[31;1m{}\x1b[0m",
    "torch rank": "[rank1]: RuntimeError: {}",
}


@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
@pytest.mark.parametrize(("cause", "text"), TEXTS)
def test_a_known_text_is_known_behind_anything(cause: str, text: str, front: str) -> None:
    """The cause is the text's, whatever stands before it; a wrapper's is unknown."""
    reader = LogReader()
    reader.feed_line(front.format(text))
    assert diagnose(reader).cause == cause


@pytest.mark.parametrize(
    "quotation",
    [
        "(APIServer pid=1) INFO 12-01 07:31:06 [logger.py:39] Received request x: prompt: '{}'",
        "(APIServer pid=1) ERROR 12-01 07:31:06 [serving.py:274] Error with model `{}`",
        "[2026-12-01 01:02:03] Receive: obj=GenerateReqInput(rid='1', text='{}')",
        "[2026-12-01 01:02:03] Finish: obj=GenerateReqInput(rid='1'), out={{'text': '{}'}}",
        '0.24.256.296 D srv  log_server_r: request: {{"messages":[{{"content":"{}"}}]}}',
        "I was told: {}",
    ],
)
@pytest.mark.parametrize(("cause", "text"), TEXTS)
def test_a_known_text_in_a_quotation_is_none(cause: str, text: str, quotation: str) -> None:
    """What a user writes about a failure is no failure."""
    reader = LogReader()
    reader.feed_line(quotation.format(text))
    assert diagnose(reader).cause != cause or cause == "unknown"
