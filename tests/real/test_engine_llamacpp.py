"""llama.cpp's adapter against llama.cpp: started with its words, read with its eyes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plans
import pytest
from machines.waiting import wait_until

from servicekit.engines import engine
from servicekit.engines.base import FINISH_REASONS, Counters
from servicekit.engines.llama_server import find_model
from servicekit.engines.versions import look
from servicekit.profiles.vocabulary import EngineName
from servicekit.service.check import check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.service.plan import Plan

pytestmark = pytest.mark.llama

PROGRAM = Path(sys.executable).with_name("servicekit-llama-server")
ADAPTER = engine(EngineName.LLAMACPP)
READY_LIMIT = 60.0
WORK_LIMIT = 100.0

TRAINED = 8192
"""Tokens that SmolLM2-135M was trained for."""


class Running:
    """The demo's engine, run by the words of its plan."""

    def __init__(self, plan: Plan, log: Path) -> None:
        self.plan = plan
        self.profile = plan.profile
        self.url = f"http://{self.profile.host}:{self.profile.port}"
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(plan.argv(), stdout=out, stderr=out)

    def get(self, path: str) -> str:
        """Give the body of an answer."""
        with urllib.request.urlopen(self.url + path, timeout=WORK_LIMIT) as answer:  # noqa: S310
            text: str = answer.read().decode()
        return text

    def complete(self, **changes: object) -> Any:  # noqa: ANN401 # JSON
        """Give the parsed answer to the bounded completion, with changes."""
        body = json.dumps(ADAPTER.completion_request(self.profile) | changes).encode()
        request = urllib.request.Request(  # noqa: S310 # to a server of our own
            f"{self.url}/v1/chat/completions", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=WORK_LIMIT) as answer:  # noqa: S310
            return json.loads(answer.read())

    def counters(self) -> Counters:
        """Give its counters as the adapter reads them."""
        assert ADAPTER.metrics_path is not None
        return ADAPTER.counters(self.get(ADAPTER.metrics_path))

    def healthy(self) -> bool:
        """Whether it serves; fails at once when it has ended."""
        assert self.process.poll() is None, self.log.read_text(encoding="utf-8")
        try:
            return '"ok"' in self.get("/health")
        except urllib.error.URLError:
            return False


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Give the demo's engine with two slots and small batches, serving."""
    changes = {
        "port": _free_port(),
        "tunables": ["port"],
        "context": {"requested": 1024, "parallel": 2},
        # A batch is the smallest piece of work that its counters show.
        "options": {"batch-size": 64, "ubatch-size": 64},
    }
    profile = plans.profile("demo", **changes)
    model = str(find_model(profile.model))
    plan = plans.plan(profile.model_copy(update={"model": model}), executable=str(PROGRAM))
    server = Running(plan, tmp_path_factory.mktemp("engine") / "log")
    try:
        wait_until(server.healthy, READY_LIMIT, "the engine serves")
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def test_its_words_are_legal_to_it(running: Running) -> None:
    """Every option of the plan is in the list that the program itself gives."""
    installed = look(EngineName.LLAMACPP, str(PROGRAM), options=True)
    assert installed.listed is not None
    report = check(running.profile, running.plan, installed)
    assert report.remarks == ()
    assert report.ok


def test_who_answers(running: Running) -> None:
    """The served name is listed and stands in the reply, whatever name was asked for."""
    models = json.loads(running.get("/v1/models"))
    assert ADAPTER.served(models, running.profile)
    reply = running.complete(model="another")
    assert ADAPTER.answers_as(reply["model"], running.profile)
    other = running.profile.model_copy(update={"served_name": "another"})
    assert not ADAPTER.served(models, other)


def test_the_three_context_figures(running: Running) -> None:
    """The trained length is declared, and a slot has what was asked for, not its share."""
    assert ADAPTER.pool_path is not None
    models = json.loads(running.get("/v1/models"))
    assert ADAPTER.declared(models, running.profile) == TRAINED
    assert ADAPTER.pool(running.get(ADAPTER.pool_path), running.profile) == 1024


def test_the_bounded_completion(running: Running) -> None:
    """It comes back with tokens, a legal reason and text, within the tokens it was given."""
    completion = ADAPTER.completion(running.complete())
    assert completion.model == running.profile.served_name
    assert 1 <= completion.completion_tokens <= running.profile.probe.max_tokens
    assert completion.finish_reason in FINISH_REASONS
    assert completion.text.strip()


def test_the_longest_prompt(running: Running) -> None:
    """A prompt of the whole slot is refused; what the adapter calls usable is less than that."""
    assert ADAPTER.usable_input(1024) == 1023
    words = "a " * 1100
    with pytest.raises(urllib.error.HTTPError) as refused:
        running.complete(messages=[{"role": "user", "content": words}])
    assert refused.value.code == 400
    assert b"exceeds the available context size (1024 tokens)" in refused.value.read()


def test_counters_of_a_completion(running: Running) -> None:
    """A completion moves all of them, and an idle engine none."""
    before = running.counters()
    running.complete()
    after = running.counters()
    assert after == running.counters()
    assert all(new >= old for new, old in zip(after.progress, before.progress, strict=True))
    assert after.progress != before.progress
    for figure in ("tokens", "generated", "finished", "decode_seconds"):
        assert getattr(after, figure) > getattr(before, figure)


def test_progress_within_one_long_prompt(running: Running) -> None:
    """A lone long prefill moves the counters before anything has finished: it is not hung."""
    before = running.counters()
    prompt = " ".join(f"number {count}" for count in range(180))
    asking = threading.Thread(
        target=running.complete,
        kwargs={"messages": [{"role": "user", "content": prompt}], "max_tokens": 1},
    )
    asking.start()
    seen: list[Counters] = []

    def moved_while_unfinished() -> bool:
        seen.append(running.counters())
        return seen[-1].progress != before.progress or not asking.is_alive()

    wait_until(moved_while_unfinished, WORK_LIMIT, "the prompt is being worked on")
    asking.join(WORK_LIMIT)
    assert not asking.is_alive()
    assert seen[-1].progress != before.progress
    assert seen[-1].finished == before.finished
    finished = running.counters().finished
    assert finished is not None
    assert before.finished is not None
    assert finished > before.finished
