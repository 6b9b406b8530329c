"""The heartbeat: a real receiver hears from a ready service, and from no other."""

from __future__ import annotations

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from plans import profile
from typing_extensions import override

from servicekit.errors import UserError
from servicekit.log import Priority
from servicekit.watchdog.heartbeat import beat

if TYPE_CHECKING:
    from collections.abc import Iterator


class Receiver:
    """Records what it is sent on loopback, and answers with a status."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                receiver.heard.append(self.path)
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            @override
            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/ping/x"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Give a receiver."""
    made = Receiver()
    yield made
    made.close()


class Service:
    """A service that is ready or not, and records what its watchdog logs."""

    def __init__(self, receiver: Receiver, *, ready: bool) -> None:
        self.ready, self.looks = ready, 0
        self.said: list[tuple[str, Priority]] = []
        watch = {"heartbeat": receiver.url, "heartbeat_interval": 0.01}
        self.watch = profile("demo", watch=watch).watch

    def is_ready(self) -> bool:
        """Whether it is ready; counts how often it was asked."""
        self.looks += 1
        return self.ready

    def say(self, message: str, priority: Priority) -> None:
        """Record a line of the log."""
        self.said.append((message, priority))

    async def until(self, enough: int) -> None:
        """Beat until it was asked so many times whether it is ready."""
        task = asyncio.create_task(beat(self.watch, self.is_ready, self.say, look=0.01))
        async with asyncio.timeout(30):
            while self.looks < enough:  # noqa: ASYNC110 - the task counts
                await asyncio.sleep(0.01)
        task.cancel()


def test_a_ready_service_is_heard_from(receiver: Receiver) -> None:
    """Each beat is a GET of the URL."""
    service = Service(receiver, ready=True)
    asyncio.run(service.until(3))
    assert len(receiver.heard) >= 2
    assert set(receiver.heard) == {"/ping/x"}
    assert service.said == []


def test_a_service_that_is_not_ready_is_silent(receiver: Receiver) -> None:
    """So its receiver raises the alarm."""
    service = Service(receiver, ready=False)
    asyncio.run(service.until(5))
    assert receiver.heard == []


def test_a_receiver_that_fails_is_logged_once(receiver: Receiver) -> None:
    """The service goes on; a line for each beat would only fill the log."""
    service = Service(receiver, ready=True)
    receiver.status = 503
    asyncio.run(service.until(4))
    assert len(receiver.heard) >= 3
    says = "cannot send the heartbeat: its receiver answered 503"
    assert service.said == [(says, Priority.WARNING)]


def test_nothing_is_sent_without_a_url() -> None:
    """It is off unless a profile names a URL."""
    asyncio.run(beat(profile("demo").watch, lambda: True, lambda *_: None))


def test_a_heartbeat_beyond_loopback_needs_the_network() -> None:
    """A service that is confined to loopback could never send it."""
    watch = {"heartbeat": "https://hc.example/ping"}
    with pytest.raises(UserError, match="must be on loopback, not at"):
        profile("demo", watch=watch)
    profile("demo", watch=watch, service={"network": "internet"})
