"""How soon the manager hears that an engine can answer."""

from __future__ import annotations

import pytest
from faults.bare import Bare
from faults.rows import Ready, Row
from faults.stage import OWN_LIMIT

LIMIT = 0.3
"""Seconds from the moment at which an engine can answer to READY=1."""
ATTEMPTS = 5
"""A machine that is busy with something else may be late once or twice."""


def delay(engine: str) -> float:
    """Start a service, and give the seconds between its engine's being ready and READY=1."""
    stage = Bare(Row(f"delay-{engine}", "", Ready(), engine=engine, script={"load": 1}))
    with stage.after:
        stage.play(**stage.row.script)
        stage.install()
        stage.start()
        try:
            stage.wait(lambda: stage.heard("READY=1"), OWN_LIMIT, "READY=1")
            return stage.heard("READY=1") - float(stage.fetch("/_fault")["ready_at"])
        finally:
            stage.stop()


@pytest.mark.parametrize("engine", ["sglang", "vllm", "llamacpp", "openai"])
def test_ready_is_said_at_once(engine: str) -> None:
    """The manager hears of it within the limit after the engine can answer, and never before."""
    delays: list[float] = []
    while len(delays) < ATTEMPTS and not (delays and min(delays) <= LIMIT):
        delays.append(delay(engine))
    assert 0 < min(delays) <= LIMIT, delays
