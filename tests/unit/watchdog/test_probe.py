"""What an engine says of itself is repeated in short and on one line, whatever it says."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from plans import profile
from typing_extensions import override

from servicekit.profiles.parsing import parse
from servicekit.watchdog.events import ProbeFailure
from servicekit.watchdog.probe import NotReady, Passed, Prober

if TYPE_CHECKING:
    from collections.abc import Callable

    from machines.fake import FakeEngine

    Start = Callable[..., FakeEngine]

ODD = "\x1b[31m\x9b\x00\nsmollm2 " * 1000
"""Terminal escapes, a line's end and no end."""
LONGEST = 1000
"""Characters; a status line has no room for more."""


async def gate(port: int) -> NotReady:
    """Try the gate of an engine that must not pass it."""
    async with Prober(profile("demo", port=port)) as prober:
        found = await prober.readiness()
    assert isinstance(found, NotReady)
    return found


@pytest.mark.parametrize(
    ("lie", "miss"),
    [
        ({"name": ODD}, ProbeFailure.WRONG_MODEL),
        ({"name": "smollm2-135m", "reply_name": ODD}, ProbeFailure.WRONG_MODEL),
    ],
)
def test_a_name_cannot_lead_a_terminal_or_fill_a_ledger(
    fake_engine: Start, lie: dict[str, str], miss: ProbeFailure
) -> None:
    """A wrong name goes into status, history and journal: as one short printable line."""
    engine = fake_engine(dialect="llamacpp", **lie)
    found = asyncio.run(gate(engine.port))
    assert found.failure is miss
    assert found.sentence.isprintable()
    assert len(found.sentence) < LONGEST


class Server:
    """Serves fixed replies by path on loopback, and records the bodies that it is sent."""

    def __init__(self, replies: dict[str, tuple[int, object]]) -> None:
        self.bodies: list[dict[str, Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def _reply(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                if length:
                    server.bodies.append(json.loads(self.rfile.read(length)))
                status, body = replies.get(self.path, (404, {"error": "Not Found"}))
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _reply  # noqa: N815 - names of http.server

            @override
            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


MODELS = (200, {"object": "list", "data": [{"id": "smollm2-135m", "object": "model"}]})
ANSWER = {
    "model": "smollm2-135m",
    "choices": [{"message": {"content": "Four."}, "finish_reason": "stop"}],
    "usage": {"completion_tokens": 2},
}
SERVER: dict[str, Any] = {
    "summary": "a server",
    "engine": "openai",
    "executable": "/opt/server",
    "model": "x",
    "served_name": "smollm2-135m",
    "arguments": ["--port", "{port}"],
    "gpus": [],
}


async def asked(port: int, **probe: object) -> NotReady | Passed:
    """Probe a server of any kind, with a probe of the profile's."""
    data = SERVER | {"port": port, "probe": probe, "context": {"requested": 2048}}
    async with Prober(parse(data, name="any", where="test")) as prober:
        return await prober.readiness()


@pytest.mark.parametrize(
    ("models", "completion", "says", "helps"),
    [
        ((404, {}), (200, ANSWER), "the server has no /v1/models", "lists the models there"),
        (MODELS, (501, {}), "the server has no chat completions", "probe.path"),
        (MODELS, (404, {}), "the server has no chat completions", "probe.path"),
        (
            MODELS,
            (422, {"detail": "extra field: temperature"}),
            "the server refuses the probe's request (the completion returned 422",
            "probe.omit",
        ),
        (
            MODELS,
            (400, {"error": "the tokenizer has no chat template"}),
            "the model has no chat template",
            "chat-template",
        ),
        (
            MODELS,
            (400, {"error": "this model only supports embeddings"}),
            "the server only makes embeddings",
            "a model that generates text",
        ),
    ],
)
def test_a_refusal_is_explained_with_its_own_remedy(
    models: tuple[int, object], completion: tuple[int, object], says: str, helps: str
) -> None:
    """Each says what the server does not do, and what to change."""
    server = Server({"/v1/models": models, "/v1/chat/completions": completion})
    try:
        found = asyncio.run(asked(server.port))
    finally:
        server.close()
    assert isinstance(found, NotReady)
    assert found.failure is ProbeFailure.GARBAGE
    assert found.sentence.startswith(says)
    assert helps in found.remedy


def test_a_profile_adapts_the_request_of_the_probe() -> None:
    """A strict server gets only the fields that it takes, at its own path."""
    server = Server({"/v1/models": MODELS, "/api/chat": (200, ANSWER)})
    more = {"path": "/api/chat", "token_limit": "max_completion_tokens", "omit": ["temperature"]}
    try:
        assert isinstance(asyncio.run(asked(server.port, **more)), Passed)
    finally:
        server.close()
    (body,) = server.bodies
    assert body.keys() == {"model", "messages", "max_completion_tokens", "stream"}
