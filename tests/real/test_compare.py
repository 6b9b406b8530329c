"""Runs of a real model side by side, from the command line, under a real supervisord."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from machines.hosted import Host

if TYPE_CHECKING:
    from pathlib import Path

    from machines.supervisor import Supervisor

pytestmark = [pytest.mark.llama, pytest.mark.supervisord, pytest.mark.timeout(600)]

SUITE = """
name = "mine"
version = {}
summary = "a few words"
[[cases]]
name = "sea"
question = "Tell me about the sea."
max_tokens = 24
exact_output = true
requests = 4
"""


def test_runs_of_a_real_model_are_compared(
    supervisord: Supervisor, free_port: int, tmp_path: Path
) -> None:
    """Two runs of one suite are put side by side, here and from files; those of another are not."""
    host = Host(supervisord, free_port, context=512)
    suite = host.write("mine.toml", SUITE.format(1))
    host.run("install", "here")
    host.run("start", "here")
    for _ in range(2):
        host.run("bench", "here", "--suite", str(suite), "--anyway")
    report = tmp_path / "report.html"
    done = host.done("compare", "here~1", "here", "--html", str(report))
    assert done.stderr == f"servicekit: the report is {report}\n"
    said = " ".join(done.stdout.split())
    conditions = "a question alone, exactly 24 answer tokens, concurrency 1, context 512, KV f16"
    assert f"sea: {conditions}, cold prefix, " in said
    assert done.stdout.count("   unverified: not verified\n") == 2
    assert "trap: " not in done.stdout
    assert report.read_text(encoding="utf-8").count("<svg") >= 6

    files = sorted((host.home / "state/here/bench").glob("*.json"))
    told = host.told("compare", *map(str, files))
    assert [run["name"] for run in told["runs"]] == [file.stem for file in files]
    figures = {each["figure"]: each["values"] for each in told["cases"][0]["figures"]}
    assert {"ttft", "prefill", "decode", "done"} <= set(figures)
    assert [each["statistics"]["samples"] for each in figures["decode"]] == [4, 4]
    assert [each["verdict"] is None for each in figures["decode"]] == [True, False]

    host.write("mine.toml", SUITE.format(2))
    host.run("bench", "here", "--suite", str(suite), "--anyway")
    refusal = host.done("compare", "here~1", "here", code=1)
    assert refusal.stdout == ""
    assert " in suite version (1, 2), suite hash (" in refusal.stderr
