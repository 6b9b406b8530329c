"""A real model measured, from the command line, under a real supervisord."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from machines.hosted import LIMIT, Host

from servicekit import data
from servicekit.lab.bench.figures import DECODE, FIGURES, TTFT
from servicekit.lab.bench.result import BenchResult

if TYPE_CHECKING:
    from machines.supervisor import Supervisor

pytestmark = [pytest.mark.llama, pytest.mark.supervisord, pytest.mark.timeout(900)]

ENDLESS = """
name = "endless"
version = 1
summary = "more requests than anybody waits for"
[[cases]]
name = "word"
question = "What is the capital of France? Reply with one word."
max_tokens = 4
requests = 10000
"""


def kept(host: Host) -> list[BenchResult]:
    """Read the runs that are kept, the oldest first."""
    files = sorted((host.home / "state/here/bench").glob("*.json"))
    return [BenchResult.parse(file.read_text(), where=file.name) for file in files]


def test_a_model_is_measured(supervisord: Supervisor, free_port: int) -> None:
    """Unverified only when told so; every figure is there, beside the engine's own, and is kept."""
    host = Host(supervisord, free_port, context=288)
    host.run("install", "here")
    refusal = host.done("bench", "here", code=1).stderr
    assert 'cannot measure "here": not verified' in refusal
    host.run("start", "here")

    small = host.told("bench", "here", "--anyway")
    result = kept(host)[0]
    assert (result.name, result.verified, result.complete) == (small["name"], False, True)
    assert [case.name for case in result.cases] == ["word", "decode", "prompt-256", "two"]
    word, decode, prompt, two = result.cases
    assert word.correctness == 1
    assert {each.completion_tokens for each in decode.samples} == {32}
    assert all(decode.statistics(figure) for figure in FIGURES)
    assert all(abs((each.prompt_tokens or 0) - 256) <= 4 for each in prompt.samples)
    assert two.conditions.concurrency == 2
    assert {case.conditions.kv_precision for case in result.cases} == {"f16"}
    # The engine's clock sees no connection and no other process: client and engine differ a little.
    ours, theirs = decode.statistics(DECODE), decode.engine
    assert ours is not None
    assert theirs is not None
    assert theirs.generated_tokens == 3 * 32
    assert theirs.prompt_tokens == sum(each.prompt_tokens or 0 for each in decode.samples)
    assert theirs.decode == pytest.approx(ours.median, rel=0.5)

    # On a CPU two requests of each kind tell as much as five.
    text = data.read("suites", "prefix")
    suite = host.write("prefix.toml", text.replace("requests = 5", "requests = 2"))
    said = host.run("bench", "here", "--suite", str(suite), "--anyway")
    cold, warm, stamped = kept(host)[1].cases
    first = [case.statistics(TTFT) for case in (cold, warm, stamped)]
    assert [each is not None for each in first] == [True] * 3
    cached = [sum(each.cached_tokens or 0 for each in case.samples) for case in (cold, warm)]
    assert cached[1] > 4 * cached[0]
    assert "a cached prefix cuts the first token from " in said
    assert "a timestamp at its beginning loses " in said
    assert "unverified: not verified" in said
    listed = host.run("bench", "--list")
    assert [line.split()[0] for line in listed.splitlines()[1:]] == [
        each.name for each in kept(host)
    ]


def test_an_interrupt_keeps_what_was_measured(supervisord: Supervisor, free_port: int) -> None:
    """^C ends the measuring with 130, and the file says that it was interrupted."""
    host = Host(supervisord, free_port, context=512)
    suite = host.write("endless.toml", ENDLESS)
    host.run("install", "here")
    host.run("start", "here")
    measuring = subprocess.Popen(
        host.argv("bench", "here", "--suite", str(suite), "--anyway"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert measuring.stderr is not None
    for line in measuring.stderr:
        if "of 10000 requests" in line:
            break
    measuring.send_signal(signal.SIGINT)
    out, err = measuring.communicate(timeout=LIMIT)
    assert measuring.returncode == 130, err
    assert "interrupted: the figures are of what was measured until then" in out
    (result,) = kept(host)
    assert not result.complete
    assert 0 < len(result.cases[0].sound) < 10000
    assert Path(err.rpartition("kept as ")[2].strip()).name == f"{result.name}.json"
    assert host.told("status", "here")["state"] == "ready"
