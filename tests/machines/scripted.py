"""A server whose answers a test writes: one function from the request's body to the reply."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def completion(
    content: str | None, *, prompt: int = 8, finish: str | None = "stop", **message: object
) -> dict[str, Any]:
    """Spell a chat completion."""
    said = {"role": "assistant", "content": content, **message}
    return {
        "choices": [{"index": 0, "finish_reason": finish, "message": said}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": 2},
    }


def as_stream(body: dict[str, Any]) -> str:
    """Spell the same completion as the events of a stream."""
    choice = body["choices"][0]
    events: list[dict[str, Any]] = [
        {"choices": [{"delta": {"role": "assistant", "content": None}}]},
        {"choices": [{"delta": choice["message"]}]},
        {"choices": [{"delta": {}, "finish_reason": choice["finish_reason"]}]},
        {"choices": [], "usage": body["usage"]},
    ]
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


@contextmanager
def scripted(answer: Callable[[dict[str, Any]], tuple[int, str]]) -> Iterator[str]:
    """Serve on loopback; give the base URL. An empty answer with status 0 cuts the connection."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._say(*answer({"path": self.path}))

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            self._say(*answer(json.loads(self.rfile.read(length))))

        def _say(self, status: int, text: str) -> None:
            if status == 0:
                self.close_connection = True
                return
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        @override
        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
