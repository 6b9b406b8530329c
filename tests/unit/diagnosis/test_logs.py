"""Whole logs: real ones, the articles' own excerpts, and ten that were written independently."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from servicekit.diagnosis.causes import Cause
from servicekit.diagnosis.reader import LogReader
from servicekit.diagnosis.signatures import BootPhase as Phase
from servicekit.diagnosis.verdict import Diagnosis, diagnose

DIRECTORY = Path(__file__).parent.parent.parent / "diagnosis"
CASES = tomllib.loads((DIRECTORY / "cases.toml").read_text())["case"]
STEPS = (1, 7, 4096, 1 << 20)
"""Sizes of the pieces that a log may arrive in."""


def _read(log: str, engine: str = "any", step: int = 1 << 20) -> LogReader:
    content = (DIRECTORY / log).read_bytes()
    reader = LogReader(engine)
    for start in range(0, len(content), step):
        reader.feed(content[start : start + step])
    reader.close()
    return reader


def _diagnose(case: dict[str, Any], step: int = 1 << 20) -> Diagnosis:
    return diagnose(
        _read(case["log"], case.get("engine", "any"), step),
        options=case.get("options"),
        exit_status=case.get("exit_status"),
        signal=case.get("signal"),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["log"])
def test_every_log_is_diagnosed(case: dict[str, Any]) -> None:
    """Cause, numbers, sentence and remedies are those of the table."""
    diagnosis = _diagnose(case)
    assert diagnosis.cause == Cause(case["cause"])
    assert case.get("captures", {}).items() <= diagnosis.captures.items()
    assert case.get("sentence", diagnosis.sentence) == diagnosis.sentence
    assert case.get("signature", diagnosis.signature) == diagnosis.signature
    assert case.get("first", diagnosis.remedies[0]) == diagnosis.remedies[0]
    assert tuple(case.get("remedies", diagnosis.remedies)) == diagnosis.remedies


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["log"])
def test_the_pieces_do_not_matter(case: dict[str, Any]) -> None:
    """A log says the same whatever pieces it arrives in."""
    readings = [_read(case["log"], case.get("engine", "any"), step).reading() for step in STEPS]
    for reading in readings[1:]:
        assert reading == readings[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["log"])
def test_remedies_name_the_profile(case: dict[str, Any]) -> None:
    """No remedy or sentence leaves a brace behind, and none is empty."""
    diagnosis = _diagnose(case)
    for text in (diagnosis.sentence, *diagnosis.remedies):
        assert text
        assert "{" not in text


def test_no_secret_of_a_log_is_repeated() -> None:
    """An API key in the engine's own dump of its arguments does not get into phases or evidence."""
    reader = LogReader()
    reader.feed_line(
        "[2026-12-03 21:14:05] server_args=ServerArgs(api_key='sk-very-secret-1') Error: x"
    )
    reader.feed_line(
        "RuntimeError: bad header Authorization: Bearer hf_abcdefghijkl token=abcd1234"
    )
    reading = reader.reading()
    shown = " ".join((*reading.trouble, *reading.tail))
    assert "secret" not in shown
    assert "hf_abc" not in shown
    assert "abcd1234" not in shown


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (
            "logs/vllm_worker_killed.log",
            [
                Phase.LOADING_WEIGHTS,
                Phase.ALLOCATING,
                Phase.WARMING_UP,
                Phase.SERVING,
            ],
        ),
        (
            "logs/llama_verbose_boot.log",
            [
                Phase.LOADING_WEIGHTS,
                Phase.ALLOCATING,
                Phase.WARMING_UP,
                Phase.SERVING,
            ],
        ),
        ("logs/llama_serving.log", [Phase.LOADING_WEIGHTS, Phase.SERVING]),
        ("logs/vllm_truncated.log", [Phase.LOADING_WEIGHTS]),
        (
            "articles/boot_balanced.log",
            [Phase.ALLOCATING, Phase.CAPTURING_GRAPHS, Phase.SERVING],
        ),
        (
            "articles/draft_graph.log",
            [Phase.LOADING_WEIGHTS, Phase.CAPTURING_GRAPHS, Phase.SERVING],
        ),
    ],
)
def test_the_boot_is_followed(log: str, expected: list[Phase]) -> None:
    """The steps of a boot come in the order in which the log first shows them."""
    assert [seen.phase for seen in _read(log).reading().phases] == expected
