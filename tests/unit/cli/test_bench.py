"""`servicekit bench` from its command line: what it refuses, marks, prints and keeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any
from xmlrpc.client import Fault

import pytest
from bench_results import result
from machines.scripted import completion, scripted
from unit.cli.cli_runs import PROGRAM, environment, servicekit
from unit.models.sound_model import sound, spoken, words
from unit.watchdog.running_host import Host

from servicekit.lab.bench import store
from servicekit.lab.bench.result import BenchResult

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from machines.driver import Driver
    from unit.cli.cli_runs import Ran
    from unit.models.sound_model import Answer, Model


@pytest.fixture
def host(tmp_path: Path, driver: Driver) -> Iterator[Host]:
    """Give a host whose service runs."""
    host = Host(tmp_path, driver)
    try:
        yield host
    finally:
        host.close()


def bench(host: Host, *words: str, model: Model = sound) -> Ran:
    """Measure the host's profile while this model answers; it has no metrics."""
    answer = spoken(model)

    def serve(body: dict[str, Any]) -> tuple[int, str]:
        return (404, "") if "path" in body else answer(body)

    with scripted(serve) as base:
        host.serve_at(base)
        return host.run("bench", "here", *words)


def kept(host: Host) -> list[BenchResult]:
    """Read what is kept."""
    return [
        BenchResult.parse(text, where=name)
        for name, text in store.texts(host.home / "state").items()
    ]


def test_only_what_is_verified_is_measured(host: Host) -> None:
    """Without a verification it is refused, and marked with --anyway; with one it is neither."""
    done = bench(host)
    assert done.code == 1
    assert done.err == (
        'servicekit: cannot measure "here": not verified; run `servicekit --user verify here`, '
        "or measure it unverified with --anyway\n"
    )
    assert kept(host) == []
    done = bench(host, "--anyway")
    assert done.code == 0, done.err
    assert "unverified: not verified" in done.out
    assert [each.verified for each in kept(host)] == [False]
    assert host.verify(sound).code == 0
    (host.home / "state/here/bench").rename(host.home / "elsewhere")
    done = bench(host)
    assert done.code == 0, done.err
    assert "unverified" not in done.out
    (measured,) = kept(host)
    assert (measured.verified, measured.complete, measured.engine) == (True, True, "sglang")
    assert measured.standing.startswith("verified, prompts up to ")
    host.release("0.5.23")
    assert 'cannot measure "here": changed since: engine (0.5.16 → 0.5.23)' in bench(host).err


def test_conditions_of_a_suite_are_held(host: Host) -> None:
    """What the suite compares alone is refused in one line before anything is asked."""
    host.profile("[context]\nrequested = 16384\n")
    done = bench(host, "--suite", "matched-32k")
    assert done.code == 1
    assert done.err.startswith(
        'servicekit: "here" does not match suite "matched-32k": context 16384 instead of 32768'
    )
    assert len(done.err.splitlines()) == 1


def test_what_is_printed_is_what_is_kept(host: Host) -> None:
    """--json is the file, its name, and a summary; without, a table; progress is on stderr."""
    done = bench(host, "--anyway", "--json")
    told = json.loads(done.out)
    (measured,) = kept(host)
    assert told["name"] == measured.name
    assert {key: told[key] for key in measured.model_dump()} == measured.model_dump(mode="json")
    assert [each["case"] for each in told["summary"]] == ["word", "decode", "prompt-256", "two"]
    assert told["summary"][0]["correctness"] == 1.0
    assert "[1/4] word: first token " in done.err
    assert "[4/4] two: first token " in done.err
    assert f"written to {host.home}/state/here/bench/{measured.name}.json" in done.err
    (host.home / f"state/here/bench/{measured.name}.json").unlink()
    text = bench(host, "--anyway").out
    assert text.splitlines()[0].split()[:4] == ["CASE", "FIGURE", "MEDIAN", "P99"]
    assert "correct          3 of 3" in text


def test_a_request_that_fails_is_exit_code_1(host: Host) -> None:
    """The others count, and it is said."""
    asked: list[str] = []

    def fails_once(body: dict[str, Any]) -> Answer:
        asked.append(str(body))
        if "Request 01." in str(body):
            return 500, {"error": "no"}
        return sound(body)

    done = bench(host, "--anyway", model=fails_once)
    assert done.code == 1
    assert "prompt-256: 1 of 3 requests failed: HTTP 500" in done.out
    assert kept(host)[0].complete


def test_an_engine_that_stops_answering_keeps_what_there_is(host: Host) -> None:
    """What was measured before is kept as incomplete, and why is said."""

    def tires(body: dict[str, Any]) -> Answer:
        return (500, {"error": "dead"}) if "the sea" in str(body) else sound(body)

    done = bench(host, "--anyway", model=tires)
    assert done.code == 1
    assert "warning: decode: the warm-up request failed: HTTP 500" in done.err
    (measured,) = kept(host)
    assert not measured.complete
    assert [case.name for case in measured.cases] == ["word"]


def test_a_service_that_gives_no_answer_is_not_measured(host: Host) -> None:
    """One line, and no file."""
    done = bench(host, "--anyway", model=lambda _: (503, {"error": "loading"}))
    assert done.code == 1
    assert 'servicekit: "here" does not answer: HTTP 503' in done.err
    assert kept(host) == []


def test_mistakes_are_one_line(host: Host) -> None:
    """No profile, another suite, and a prompt that nothing has room for."""
    assert "give a profile, or --list" in host.run("bench").err
    assert "there is no suite" in host.run("bench", "here", "--suite", "none").err
    suite = host.write(
        "long.toml",
        'name = "long"\nversion = 1\nsummary = "s"\n[[cases]]\nname = "one"\nquestion = "?"\n'
        "prompt_tokens = 900000\nmax_tokens = 8\nrequests = 1\n",
    )
    done = bench(host, "--anyway", "--suite", str(suite))
    assert done.code == 1
    assert "no case of the suite can run: one: 900000 prompt tokens" in done.err


def test_a_state_that_cannot_be_written_is_said(host: Host) -> None:
    """A link in the place of the folder is not followed, and the reason is one line."""
    (host.home / "state/here").mkdir(parents=True, exist_ok=True)
    (host.home / "state/here/bench").symlink_to(host.home)
    done = bench(host, "--anyway")
    assert done.code == 1
    assert "cannot write the result below" in done.err


def test_nothing_is_measured_where_nothing_could_be_kept(host: Host) -> None:
    """What stands in the way of the file is said before the first question."""
    asked: list[dict[str, Any]] = []

    def notes(body: dict[str, Any]) -> Answer:
        asked.append(body)
        return sound(body)

    host.write("state/here/bench", "in the way")
    done = bench(host, "--anyway", model=notes)
    assert done.code == 1
    assert f'cannot write the result below "{host.home}/state": not a directory\n' in done.err
    assert asked == []


def test_what_cannot_be_kept_in_the_end_is_told_all_the_same(host: Host) -> None:
    """A disk that fails meanwhile costs the file and not the figures."""
    folder = host.home / "state/here/bench"

    def pulls_the_rug(body: dict[str, Any]) -> Answer:
        if folder.is_dir() and not folder.is_symlink():
            folder.rmdir()
            folder.symlink_to(host.home)
        return sound(body)

    done = bench(host, "--anyway", "--json", model=pulls_the_rug)
    assert done.code == 1
    assert json.loads(done.out)["cases"][0]["name"] == "word"
    assert 'cannot write the result below "' in done.err


def test_a_second_interrupt_loses_nothing(host: Host) -> None:
    """It comes while the state is asked for and the file is written, which is done first."""
    interrupted: list[str] = []

    def interrupt(where: str) -> None:
        if len(interrupted) < 2:
            interrupted.append(where)
            os.kill(os.getpid(), signal.SIGINT)

    def interrupts(body: dict[str, Any]) -> Answer:
        if "the sea" in str(body) and not interrupted:
            host.supervisord.heard = interrupt
            interrupt("the model")
        return sound(body)

    done = bench(host, "--anyway", model=interrupts)
    assert done.code == 130, done.err
    assert interrupted == ["the model", "getAllProcessInfo"]
    (measured,) = kept(host)
    assert (measured.complete, measured.cases[0].name) == (False, "word")


def test_a_service_is_measured_by_one_at_a_time(host: Host) -> None:
    """Two would measure each other: the second one is refused, and so is a verification."""
    refused: list[str] = []

    def asks_for_more(body: dict[str, Any]) -> Answer:
        if "the sea" in str(body) and not refused:
            for verb in (("bench", "here", "--anyway"), ("verify", "here")):
                done = servicekit("--user", "--config", host.config, *verb)
                refused.append(f"{done.code} {done.err}")
        return sound(body)

    assert bench(host, "--anyway", model=asks_for_more).code == 0
    assert [line.partition(";")[0] for line in refused] == [
        f'1 servicekit: "here" cannot be {what}, because it is already being verified or measured'
        for what in ("measured", "verified")
    ]
    assert len(kept(host)) == 1


def test_an_engine_that_was_started_anew_is_said(host: Host) -> None:
    """Its figures are of two engines; so is one that cannot be looked at in the end."""
    for run, said in (("r2", "started-anew-meanwhile"), ("", "not-seen-afterwards")):

        def dies(body: dict[str, Any], run: str = run) -> Answer:
            state = host.home / "run/here/state.json"
            if run:
                state.write_text(state.read_text().replace('"r1"', f'"{run}"'))
            else:
                host.supervisord.refuses["getAllProcessInfo"] = Fault(6, "SHUTDOWN_STATE")
            return sound(body)

        done = bench(host, "--anyway", model=dies)
        assert f"measured while degraded: {said}" in done.out, done.err
        (host.home / "state/here/bench").rename(host.home / f"moved{run}")


def test_a_clock_that_was_set_back_is_said(host: Host) -> None:
    """A run of the future stands for the latest one: whoever measures now is told."""
    future = result("here", started="2199-02-01T12:00:00.000+00:00")
    store.write(host.home / "state", future)
    done = bench(host, "--anyway")
    assert done.code == 0
    assert f'warning: the clock was set back since "{future.name}"' in done.err


def test_progress_that_nobody_hears_costs_nothing(host: Host) -> None:
    """What is measured is kept and told where stderr is a pipe that nobody reads any more."""
    answer = spoken(sound)
    with scripted(lambda body: (404, "") if "path" in body else answer(body)) as base:
        host.serve_at(base)
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [PROGRAM, "--user", "--config", host.config, "bench", "here", "--anyway", "--json"],
            env=environment(host.driver.variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=write,
            check=False,
            timeout=60,
        )
        os.close(write)
    (measured,) = kept(host)
    assert (done.returncode, json.loads(done.stdout)["name"]) == (0, measured.name)


def test_a_server_cannot_lead_the_terminal(host: Host) -> None:
    """Control characters of what it says are spelt out, in the table's remarks and in errors."""

    def serve(body: dict[str, Any]) -> tuple[int, str]:
        if "Request 01." in str(body):
            return 500, "\x1b[2Jno\x9b2J"
        return (404, "") if "path" in body else spoken(sound)(body)

    with scripted(serve) as base:
        host.serve_at(base)
        done = host.run("bench", "here", "--anyway")
    assert "1 of 3 requests failed: HTTP 500: \\x1b[2Jno\\x9b2J" in done.out
    with scripted(lambda _: (500, "\x1b[2Jno")) as base:
        host.serve_at(base)
        done = host.run("bench", "here", "--anyway")
    assert '"here" does not answer: HTTP 500: \\x1b[2Jno' in done.err


def test_runs_are_listed(host: Host) -> None:
    """All, or those of one profile; what cannot be read is said and passed over."""
    assert "no benchmark results" in host.run("bench", "--list").err
    states = host.home / "state"
    first = result("here")
    other = result("other", started="2026-02-01T12:00:00.000+00:00", complete=False)
    for each in (first, other):
        store.write(states, each)
    (states / "here/bench/broken.json").write_text("{")
    done = host.run("bench", "--list")
    assert [line.split()[0] for line in done.out.splitlines()] == ["RUN", first.name, other.name]
    assert "1, interrupted" in done.out
    assert 'warning: "broken" is not a benchmark result' in done.err
    told = json.loads(host.run("bench", "other", "--list", "--json").out)
    assert [each["name"] for each in told] == [other.name]


def test_the_length_of_prompts_is_the_engines_count(host: Host) -> None:
    """The engine counts words here; all prompts of a case have as many as its suite wants."""

    def counting(body: dict[str, Any]) -> Answer:
        return 200, completion("Paris", prompt=words(body) + 11)

    assert bench(host, "--anyway", model=counting).code == 0
    case = kept(host)[0].case("prompt-256")
    assert case is not None
    assert {each.prompt_tokens for each in case.samples} == {256}
