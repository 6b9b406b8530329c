"""The liar lies as it is told, and only so."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from machines.fake import PROGRAM
from machines.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from machines.fake import FakeEngine

    Start = Callable[..., FakeEngine]

SOON = 0.4
"""Seconds after which a request that shall never be answered is given up."""

COUNTERS = {
    "sglang": "sglang:generation_tokens_total{",
    "vllm": "vllm:generation_tokens_total{",
    "llamacpp": "llamacpp:tokens_predicted_total ",
}

COMMAND_LINES = {
    "sglang": ["serve", "--model-path", "lab/big", "--served-model-name", "model"],
    "vllm": ["serve", "lab/big", "--served-model-name", "model", "--max-model-len", "4096"],
    "llamacpp": ["-m", "lab/big", "--alias", "model", "--ctx-size=4096", "--jinja"],
}


def counter(engine: FakeEngine, start: str) -> float:
    """Give the value of the metric whose line starts so."""
    lines = engine.ask("/metrics")[1].splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))


def dead(pid: int) -> bool:
    """Tell whether a process has ended, whether or not anybody has asked for its exit code."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def hears(engine: FakeEngine, terms: int) -> None:
    """Wait until so many SIGTERMs were handled: two that are pending together are one."""
    wait_until(lambda: engine.get("/_fault")["terms"] == terms, 10, f"SIGTERMs heard: {terms}")


@pytest.mark.parametrize("dialect", COMMAND_LINES)
def test_plays_the_engine_whose_command_line_it_gets(fake_engine: Start, dialect: str) -> None:
    """Dialect, name and context are read from the engine's options; completions are counted."""
    engine = fake_engine(*COMMAND_LINES[dialect])
    assert engine.get("/_fault")["personality"]["dialect"] == dialect
    model = engine.get("/v1/models")["data"][0]
    assert model["id"] == "model"
    before = counter(engine, COUNTERS[dialect])
    status, answer = engine.complete()
    assert status == 200
    assert answer["model"] == "model"
    assert answer["choices"][0]["message"]["content"] == "Hello there."
    assert answer["usage"]["completion_tokens"] == 2
    assert counter(engine, COUNTERS[dialect]) == before + 2


def test_pool_smaller_than_declared(fake_engine: Start) -> None:
    """Each dialect tells its physical pool where the real engine does."""
    sglang = fake_engine(dialect="sglang", context=32768, pool=1000)
    assert sglang.get("/server_info")["max_total_num_tokens"] == 1000
    assert "#tokens: 1000," in sglang.log()
    vllm = fake_engine(dialect="vllm", context=32768, pool=1000)
    assert 'kv_cache_size_tokens="1000"' in vllm.ask("/metrics")[1]
    assert "GPU KV cache size: 1,000 tokens" in vllm.log()
    llama = fake_engine(dialect="llamacpp", context=32768, pool=1000)
    assert llama.get("/props")["default_generation_settings"]["n_ctx"] == 1000
    assert llama.get("/slots")[0]["n_ctx"] == 1000


class TestLoading:
    """Before it serves."""

    def test_llamacpp_listens_at_once(self, fake_engine: Start) -> None:
        """A llama.cpp answers 503 while it loads; it can be told more even then."""
        engine = fake_engine(dialect="llamacpp", stall=2, wait=False)

        def loading() -> bool:
            try:
                return engine.ask("/v1/models")[0] == 503
            except OSError:
                return False

        wait_until(loading, 10, "it listens")
        assert "initializing ..." in engine.log()
        engine.tell(stall=None)
        engine.wait_until_ready()

    def test_others_listen_when_loaded(self, fake_engine: Start) -> None:
        """The others refuse connections until their boot log is over."""
        engine = fake_engine(dialect="vllm", stall=3, wait=False)
        wait_until(lambda: "Available KV cache" in engine.log(), 10, "it is loading")
        with pytest.raises(urllib.error.URLError, match="refused"):
            engine.ask("/health")

    def test_fatal_line(self, fake_engine: Start) -> None:
        """It can die while loading, with a last line and an exit code."""
        engine = fake_engine(fatal="CUDA out of memory", fatal_code=3, say=["x"], wait=False)
        assert engine.process.wait(10) == 3
        assert engine.log().endswith("CUDA out of memory\n")

    def test_draft_graph_line(self, fake_engine: Start) -> None:
        """The boot log tells when the draft graph was disabled."""
        engine = fake_engine(dialect="sglang", draft_graph=False, boot=["one", "two"])
        assert engine.log().splitlines()[1].endswith("after target backend initialization.")

    def test_taken_port(self, fake_engine: Start) -> None:
        """A taken port is refused in the words of the engine, with exit code 1."""
        first = fake_engine()
        late = fake_engine(port=first.port, dialect="vllm", wait=False)
        assert late.process.wait(10) == 1
        assert late.log().endswith("OSError: [Errno 98] Address already in use\n")


class TestAnswers:
    """What a prober meets."""

    @pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics"])
    def test_silence(self, fake_engine: Start, path: str) -> None:
        """A connection is accepted and no question answered, until it is told otherwise."""
        engine = fake_engine(dialect="sglang")
        engine.tell(answers="nothing")
        with pytest.raises(TimeoutError):
            engine.ask(path, limit=SOON)
        engine.tell(answers="all")
        assert engine.ask(path)[0] == 200

    def test_hang_behind_good_health(self, fake_engine: Start) -> None:
        """Completions hang while health, identity and counters are well; they come back."""
        engine = fake_engine(dialect="vllm", completion="hang", name="model")
        assert engine.ask("/health")[0] == 200
        with socket.create_connection(("127.0.0.1", engine.port), timeout=SOON) as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
            running = "vllm:num_requests_running"
            wait_until(lambda: counter(engine, running) == 1, 10, "the request runs")
            with pytest.raises(TimeoutError):
                client.recv(1)
        engine.tell(completion="text")
        assert engine.complete()[0] == 200

    def test_trickle(self, fake_engine: Start) -> None:
        """A reply goes on for ever, faster than any timeout between two reads."""
        engine = fake_engine(completion="trickle")
        with socket.create_connection(("127.0.0.1", engine.port), timeout=5) as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
            received = b""
            while not received.endswith(b"\r\n\r\n   "):
                received += client.recv(1)
        assert b"Content-Length" not in received

    def test_web_page(self, fake_engine: Start) -> None:
        """Every answer can be somebody's web page."""
        engine = fake_engine(answers="html")
        status, text = engine.ask("/v1/models")
        assert status == 200
        assert text.startswith("<!doctype html>")

    def test_wrong_names(self, fake_engine: Start) -> None:
        """The listed name and the name in the reply can be wrong, each by itself."""
        engine = fake_engine(reply_name="other")
        assert engine.get("/v1/models")["data"][0]["id"] == "model"
        assert engine.complete()[1]["model"] == "other"
        engine.tell(name="wrong")
        assert engine.get("/v1/models")["data"][0]["id"] == "wrong"

    def test_unknown_model_is_404_in_vllm_alone(self, fake_engine: Start) -> None:
        """As in the real ones, only vLLM minds the name that is asked for."""
        assert fake_engine(dialect="vllm").complete(model="nope")[0] == 404
        assert fake_engine(dialect="sglang").complete(model="nope")[0] == 200

    def test_key(self, fake_engine: Start) -> None:
        """A key guards `/v1` and nothing else."""
        engine = fake_engine("--api-key", "secret")
        assert engine.ask("/health")[0] == 200
        assert engine.ask("/v1/models")[0] == 401
        assert engine.ask("/v1/models", key="secret")[0] == 200

    def test_status_for_a_while(self, fake_engine: Start) -> None:
        """A status stands in for every answer for as long as told."""
        engine = fake_engine()
        engine.tell(status=503, status_for=SOON)
        assert engine.ask("/health")[0] == 503
        wait_until(lambda: engine.ask("/health")[0] == 200, 10, "the status is over")
        engine.tell(status=401)
        assert [engine.ask(path)[0] for path in ("/health", "/v1/models")] == [200, 401]

    def test_thinking(self, fake_engine: Start) -> None:
        """A model that thinks uses its tokens up without any content: healthy, and empty."""
        answer = fake_engine(completion="thinking").complete()[1]
        assert answer["choices"][0]["message"]["content"] is None
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 4

    def test_repeated_character(self, fake_engine: Start) -> None:
        """A broken model says one character over and over."""
        answer = fake_engine(completion="repeat").complete()[1]
        assert answer["choices"][0]["message"]["content"] == "!!!!"

    def test_no_token(self, fake_engine: Start) -> None:
        """An answer can be without any token."""
        assert fake_engine(completion="empty").complete()[1]["usage"]["completion_tokens"] == 0

    def test_dropped_connection(self, fake_engine: Start) -> None:
        """The connection can be cut instead of an answer."""
        with pytest.raises(ConnectionError):
            fake_engine(completion="drop").complete()

    def test_stream(self, fake_engine: Start) -> None:
        """A stream begins with the role, ends with the usage, and is closed by [DONE]."""
        engine = fake_engine(text="one two")
        body = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 9}
        events = engine.ask("/v1/chat/completions", body)[1].split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
        assert [delta.get("content") for delta in deltas] == ["", "one ", "two ", None]
        assert chunks[-1]["usage"]["completion_tokens"] == 2


class TestCounters:
    """Progress, and the lack of it."""

    def test_moved_by_others(self, fake_engine: Start) -> None:
        """The counters can move without any request of ours."""
        engine = fake_engine(dialect="sglang", counters="moving")
        name = "sglang:realtime_tokens_total"
        before = counter(engine, name)
        wait_until(lambda: counter(engine, name) > before, 5, "the counter moved")
        assert counter(engine, "sglang:num_requests_total") == 0

    def test_frozen(self, fake_engine: Start) -> None:
        """They can stand still although requests are answered."""
        engine = fake_engine(dialect="sglang", counters="frozen")
        engine.complete()
        assert counter(engine, "sglang:generation_tokens_total") == 0

    def test_unreachable(self, fake_engine: Start) -> None:
        """They can be out of reach: never answered, or not there."""
        engine = fake_engine(dialect="sglang", counters="hang")
        with pytest.raises(TimeoutError):
            engine.ask("/metrics", limit=SOON)
        engine.tell(counters="absent")
        assert engine.ask("/metrics")[0] == 404

    def test_long_prefill(self, fake_engine: Start) -> None:
        """While a long prompt is read only the KV usage moves, and a request waits its turn."""
        engine = fake_engine(dialect="sglang", slots=1, prefill=1.5)
        wait_until(lambda: counter(engine, "sglang:num_running_reqs") == 1, 5, "it is busy")
        usage = counter(engine, "sglang:token_usage")
        with ThreadPoolExecutor() as clients:
            answer = clients.submit(engine.complete)
            wait_until(lambda: counter(engine, "sglang:num_queue_reqs") == 1, 1, "it waits")
            assert counter(engine, "sglang:generation_tokens_total") == 0
            wait_until(lambda: counter(engine, "sglang:token_usage") > usage, 1, "the usage moved")
            assert answer.result()[0] == 200

    def test_first_shape_stall(self, fake_engine: Start) -> None:
        """The first completion takes as long as told, counters standing still; no other does."""
        engine = fake_engine(dialect="sglang", first_stall=SOON * 2)
        with pytest.raises(TimeoutError):
            engine.complete(limit=SOON)
        assert counter(engine, "sglang:prompt_tokens_total") == 0
        assert engine.complete()[0] == 200

    @pytest.mark.parametrize("completion", ["hang", "text"])
    def test_a_client_that_hung_up(self, fake_engine: Start, completion: str) -> None:
        """A request whose client is gone is dropped, at work or in the queue, and so counted."""
        engine = fake_engine(dialect="sglang", slots=1, completion=completion)
        if completion == "text":
            engine.tell(prefill=2)
            wait_until(lambda: counter(engine, "sglang:num_running_reqs") == 1, 5, "it is busy")
        with pytest.raises(TimeoutError):
            engine.complete(limit=SOON)
        wait_until(
            lambda: counter(engine, "sglang:num_aborted_requests_total") == 1, 5, "it is dropped"
        )
        assert engine.get("/_fault")["asked"] == {
            "Python-urllib": {"begun": 1, "open": 0, "most": 1}
        }

    def test_acceptance(self, fake_engine: Start) -> None:
        """Speculation that accepts nothing shows in the metrics of each dialect."""
        engine = fake_engine(dialect="sglang", acceptance=0.0)
        assert counter(engine, "sglang:spec_accept_rate") == 0
        engine = fake_engine(dialect="vllm", acceptance=0.0)
        engine.complete()
        assert counter(engine, "vllm:spec_decode_num_draft_tokens_total") > 0
        assert counter(engine, "vllm:spec_decode_num_accepted_tokens_total") == 0


class TestProcesses:
    """How it lives and ends."""

    def test_exit_by_itself(self, fake_engine: Start) -> None:
        """It can exit 0 unasked, some time after it was told."""
        engine = fake_engine()
        engine.tell(exit=0, after=0.1)
        assert engine.process.wait(10) == 0

    @pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM"])
    def test_dies_by_signal(self, fake_engine: Start, name: str) -> None:
        """It can die by any signal."""
        engine = fake_engine()
        engine.tell(kill=name)
        assert engine.process.wait(10) == -signal.Signals[name]

    @pytest.mark.parametrize("needed", [1, 2])
    def test_sigterms(self, fake_engine: Start, needed: int) -> None:
        """It exits 0 at the SIGTERM that it was told to obey, and not before."""
        engine = fake_engine(terms=needed)
        for sent in range(needed):
            hears(engine, sent)
            engine.process.terminate()
        assert engine.process.wait(10) == 0

    def test_deaf_to_sigterm(self, fake_engine: Start) -> None:
        """It can ignore SIGTERM altogether."""
        engine = fake_engine(terms=0)
        engine.process.terminate()
        assert engine.ask("/health")[0] == 200

    def test_freeze(self, fake_engine: Start) -> None:
        """Frozen, it still accepts connections, since the kernel does that; SIGCONT thaws it."""
        engine = fake_engine()
        engine.tell(freeze=True)
        me = psutil.Process(engine.process.pid)
        wait_until(lambda: me.status() == psutil.STATUS_STOPPED, 5, "it is frozen")
        with pytest.raises(TimeoutError):
            engine.ask("/health", limit=SOON)
        me.resume()
        assert engine.ask("/health")[0] == 200

    @pytest.mark.parametrize("how", [True, "bare"])
    def test_orphan(self, fake_engine: Start, how: object) -> None:
        """What it leaves behind is not in its tree and survives it; bare, it has no marker."""
        os.environ["FAKE_MARKER"] = "here"
        try:
            engine = fake_engine(orphan=how)
        finally:
            del os.environ["FAKE_MARKER"]
        (pid,) = wait_until(lambda: engine.orphans, 10, "the orphan is there")
        orphan = psutil.Process(pid)
        wait_until(lambda: "fake-orphan" in orphan.cmdline(), 5, "it is itself")
        assert orphan not in psutil.Process(engine.process.pid).children(recursive=True)
        assert os.getsid(pid) == pid
        assert ("FAKE_MARKER" in orphan.environ()) is (how is True)
        engine.process.kill()
        engine.process.wait()
        orphan.terminate()
        assert orphan.is_running()
        engine.close()
        wait_until(lambda: not psutil.pid_exists(pid), 5, "closing ended it")

    def test_impostor(self, fake_engine: Start) -> None:
        """The port can be answered by a process that is not of the engine's tree."""
        engine = fake_engine(impostor=True)
        assert engine.get("/_fault")["pid"] != engine.process.pid
        assert engine.complete()[0] == 200
        assert psutil.Process(engine.process.pid).children() == []

    def test_lost_worker_of_vllm(self, fake_engine: Start) -> None:
        """A vLLM whose core died answers 500 and exits 0."""
        engine = fake_engine(dialect="vllm", workers=1)
        psutil.Process(engine.get("/_fault")["workers"][0]).kill()
        assert engine.process.wait(10) == 0
        assert "EngineCore encountered an issue" in engine.log()

    def test_lost_worker_of_sglang(self, fake_engine: Start) -> None:
        """An SGLang whose scheduler died kills itself, and its other children with it."""
        engine = fake_engine(dialect="sglang", workers=2)
        workers = engine.get("/_fault")["workers"]
        psutil.Process(workers[1]).kill()
        assert engine.process.wait(10) == -signal.SIGKILL
        wait_until(lambda: dead(workers[0]), 10, "the other worker died with it")

    def test_workers_of_vllm_survive_it(self, fake_engine: Start) -> None:
        """A vLLM that is killed leaves its workers to whoever adopts orphans."""
        engine = fake_engine(dialect="vllm", workers=1)
        (worker,) = engine.get("/_fault")["workers"]
        engine.process.kill()
        engine.process.wait()
        assert psutil.Process(worker).ppid() != engine.process.pid

    def test_shared_memory(self, fake_engine: Start) -> None:
        """It can leave a file in shared memory behind."""
        name = f"fake-engine-{os.getpid()}"
        left = Path("/dev/shm", name)  # noqa: S108
        try:
            fake_engine(shm=name)
            wait_until(left.exists, 5, "the file is there")
        finally:
            left.unlink(missing_ok=True)

    def test_told_by_signal(self, fake_engine: Start) -> None:
        """SIGUSR1 makes it read its script again, when nothing can be posted."""
        engine = fake_engine(stall=1, wait=False)
        wait_until(lambda: "loading" in engine.log(), 10, "it is loading")
        engine.tell_by_signal(stall=None, status=503, say=["told"])
        wait_until(lambda: "told" in engine.log(), 10, "it did what the file says")
        engine.tell_by_signal(status=0)
        engine.wait_until_ready()

    def test_unknown_key(self, fake_engine: Start) -> None:
        """A key that it does not know is refused, so that no test misspells its fault."""
        assert fake_engine().ask("/_fault", {"frieze": True}) == (
            400,
            '{"error": {"message": "no such key: frieze", "type": "Error", "code": 400}}',
        )

    def test_program_is_executable(self) -> None:
        """A profile can name it as its engine."""
        assert os.access(PROGRAM, os.X_OK)
