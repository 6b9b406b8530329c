"""A double of the hub on loopback: what huggingface_hub asks for, and how the hub fails.

Small files come from the hub itself. Large ones, which it knows by their SHA-256, come by a
redirect from a second server with an address that is signed for a while, as from its storage.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LARGE = (".safetensors", ".gguf", ".bin", ".pth")
"""Endings of files that are kept by their SHA-256."""
PIECE = 64 * 1024
"""Bytes sent at once."""


class Asked(NamedTuple):
    """A request that came in."""

    server: str
    """`hub` or `storage`."""
    method: str
    path: str
    range: str | None
    authorization: str | None
    agent: str | None


@dataclass
class Model:
    """A repository with one commit; `main` and each of `revisions` lead to it."""

    name: str
    files: dict[str, bytes]
    commit: str = "1" * 40
    revisions: tuple[str, ...] = ("main",)
    readers: tuple[str, ...] | None = None
    """Tokens that it is given to; `None`: to anybody."""
    private: bool = False
    """Whether others are told that it does not exist, not that it is gated."""

    def digest(self, name: str) -> str:
        """The checksum that the hub has for a file."""
        content = self.files[name]
        if name.endswith(LARGE):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324 - git's


@dataclass
class Faults:
    """What goes wrong. All of it may be changed while the servers run."""

    cut_after: list[int] = field(default_factory=list)
    """Each takes one answer of the storage: so many bytes of it are sent, then it hangs up."""
    stall_after: int | None = None
    """Bytes after which the storage sends nothing more, and the connection stays open."""
    exchange: dict[str, bytes] = field(default_factory=dict)
    """By name: other content than the checksums were made of."""
    ignores_ranges: bool = False
    status: int = 0
    """What the hub answers to everything, if not 0."""
    page: bytes = b""
    """What the hub answers to everything with 200, as the login page of a network does."""
    before_sending: Callable[[], object] = lambda: None
    """Called before a large file is sent."""


class Hub:
    """Two servers, what they were asked, and what goes wrong."""

    def __init__(self) -> None:
        self.models: dict[str, Model] = {}
        self.faults = Faults()
        self.asked: list[Asked] = []
        self.sent = 0
        """Bytes of large files that went out."""
        self.ended = threading.Event()
        self._servers = [_Server(self, name) for name in ("hub", "storage")]
        self._threads = [
            threading.Thread(target=server.serve_forever, args=(0.02,)) for server in self._servers
        ]
        for thread in self._threads:
            thread.start()

    def url(self, server: str = "hub") -> str:
        """Address of one of the servers."""
        port = self._servers[0 if server == "hub" else 1].server_address[1]
        return f"http://127.0.0.1:{port}"

    def environment(self, **more: str) -> dict[str, str]:
        """What leads a program to this hub, past any proxy of the machine."""
        return {"HF_ENDPOINT": self.url(), "NO_PROXY": "127.0.0.1", **more}

    def add(self, model: Model) -> Model:
        """Have a model."""
        self.models[model.name] = model
        return model

    def downloads(self, server: str = "storage") -> list[Asked]:
        """Requests for the content of files."""
        return [
            asked
            for asked in self.asked
            if asked.server == server and asked.method == "GET" and "/api/" not in asked.path
        ]

    def stop(self) -> None:
        """End both servers; answers that stall come to their end."""
        self.ended.set()
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: Hub, name: str) -> None:
        super().__init__(("127.0.0.1", 0), _Hub if name == "hub" else _Storage)
        self.hub = hub
        self.name = name

    @override
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that hang up."""


class _Handler(BaseHTTPRequestHandler, ABC):
    server: _Server
    protocol_version = "HTTP/1.1"

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._take()

    def do_GET(self) -> None:
        self._take()

    def _take(self) -> None:
        header = self.headers.get
        self.server.hub.asked.append(
            Asked(
                self.server.name,
                self.command,
                self.path,
                header("Range"),
                header("Authorization"),
                header("User-Agent"),
            )
        )
        self.answer(unquote(urlsplit(self.path).path))

    @abstractmethod
    def answer(self, path: str) -> None:
        """Answer a request for `path`."""

    def say(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Hub(_Handler):
    @override
    def answer(self, path: str) -> None:
        hub = self.server.hub
        if hub.faults.status:
            self.say(hub.faults.status, {})
            return
        if hub.faults.page:
            self.say(200, {"Content-Type": "text/html"}, hub.faults.page)
            return
        listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
        content = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        found = listing or content
        model = hub.models.get(found[1]) if found else None
        reads = model is not None and (model.readers is None or self._token() in model.readers)
        if model is None or (model.private and not reads):
            self._refuse(404 if self._token() else 401, "RepoNotFound")
        elif (found[2] or "main") not in (*model.revisions, model.commit):  # type: ignore[index]
            self._refuse(404, "RevisionNotFound")
        elif listing:
            self.say(200, {"Content-Type": "application/json"}, self._listing(model))
        elif not reads:
            self._refuse(403 if self._token() else 401, "GatedRepo")
        else:
            self._content(model, content[3])  # type: ignore[index]

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _refuse(self, status: int, code: str) -> None:
        self.say(status, {"X-Error-Code": code, "X-Error-Message": f"no: {self._token()}"})

    def _listing(self, model: Model) -> bytes:
        siblings = []
        for name, content in model.files.items():
            digest, size = model.digest(name), len(content)
            entry: dict[str, object] = {"rfilename": name, "size": size, "blobId": digest}
            if name.endswith(LARGE):
                entry |= {"blobId": "0" * 40}
                entry |= {"lfs": {"sha256": digest, "size": size, "pointerSize": 134}}
            siblings.append(entry)
        return json.dumps(
            {"_id": "1", "id": model.name, "sha": model.commit, "siblings": siblings}
        ).encode()

    def _content(self, model: Model, name: str) -> None:
        hub = self.server.hub
        if name not in model.files:
            self._refuse(404, "EntryNotFound")
            return
        digest = model.digest(name)
        headers = {"X-Repo-Commit": model.commit, "ETag": f'"{digest}"'}
        if name.endswith(LARGE):
            linked = {"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(len(model.files[name]))}
            location = f"{hub.url('storage')}/{model.name}/{name}?X-Amz-Signature=signed"
            self.say(302, {**headers, **linked, "Location": location})
        else:
            self.say(200, headers, hub.faults.exchange.get(name, model.files[name]))


class _Storage(_Handler):
    @override
    def answer(self, path: str) -> None:
        hub = self.server.hub
        owner, name, file = path.removeprefix("/").split("/", 2)
        content = hub.faults.exchange.get(file, hub.models[f"{owner}/{name}"].files[file])
        hub.faults.before_sending()
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked and not hub.faults.ignores_ranges else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        cut = hub.faults.cut_after.pop(0) if hub.faults.cut_after else None
        stall = hub.faults.stall_after
        end = start + min(x for x in (cut, stall, len(content) - start) if x is not None)
        for at in range(start, end, PIECE):
            piece = content[at : min(at + PIECE, end)]
            self.wfile.write(piece)
            hub.sent += len(piece)
        if cut is not None:
            self.close_connection = True
        elif stall is not None:
            hub.ended.wait()


@contextmanager
def running() -> Iterator[Hub]:
    """Run a hub for a while."""
    hub = Hub()
    try:
        yield hub
    finally:
        hub.stop()


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Give a hub without any model."""
    with running() as double:
        yield double
