"""Sends chat requests to an engine on loopback, each within a deadline. HTTP.

A failure is returned as a reply with a reason; the gate decides what it means.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Self

import httpx

from servicekit.lab.verify.chat import ChatReply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from types import TracebackType

    from servicekit.lab.verify.chat import ChatRequest

LIMIT: Final = 1800.0  # seconds for one request: a prompt of 262144 tokens takes minutes on one GPU
BODY_LIMIT: Final = 16 << 20  # bytes of an answer that are read at most
QUOTED: Final = 300  # characters of a refusal that are kept
PROPERTIES_DEADLINE: Final = 60.0  # seconds for the properties of a server that may be busy
DEEPEST: Final = 64  # levels of lists and objects in an answer below which nothing is kept
# What stands for the key where a server repeats it: answers are kept as evidence.
HIDDEN: Final = "[API key]"


class _TooLargeError(Exception):
    pass


@dataclass(slots=True)
class _Times:
    """When tokens of a stream came, in seconds."""

    first: float | None = None
    visible: float | None = None
    last: float | None = None

    def count(self, now: float, *, visible: bool) -> None:
        self.first = now if self.first is None else self.first
        self.visible = now if visible and self.visible is None else self.visible
        self.last = now


class Client:
    """Asks the engine at `base`, such as `http://127.0.0.1:8000`. An asynchronous context manager.

    No proxy of the environment is used and no redirect followed: what is asked here is on loopback.
    """

    def __init__(
        self,
        base: str,
        *,
        api_key: str | None = None,
        limit: float = LIMIT,
        body_limit: int = BODY_LIMIT,
    ) -> None:
        # Not decoded either: a little that is compressed can become more than there is memory.
        headers = {"Accept-Encoding": "identity"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        # These are per read, which a server that trickles always keeps: `ask` bounds the whole.
        self._http = httpx.AsyncClient(
            base_url=base,
            headers=headers,
            timeout=limit,
            trust_env=False,
            # A connection of its own for each request: llama-server closes idle ones after five
            # seconds, maybe just when one is used, and a request that is cut off is a failed gate.
            limits=httpx.Limits(max_keepalive_connections=0),
            # There is no TLS on loopback, and loading certificates takes longer than a request.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )
        self._limit = limit
        self._body_limit = body_limit
        self._key = api_key

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def properties(self, path: str) -> Mapping[str, Any]:
        """Read what the server reports about itself; empty if nothing."""
        value = self._clean(_parsed(await self._page(path)))
        return value if isinstance(value, dict) else {}

    async def page(self, path: str) -> str:
        """Read the text at `path`; empty if there is none."""
        return self._hidden((await self._page(path)).decode("utf-8", errors="replace"))

    async def _page(self, path: str) -> bytes:
        try:
            async with (
                asyncio.timeout(min(self._limit, PROPERTIES_DEADLINE)),
                self._http.stream("GET", path) as answer,
            ):
                content = await _read(answer, self._body_limit)
        except (TimeoutError, httpx.HTTPError, _TooLargeError):
            return b""
        return content if answer.status_code == HTTPStatus.OK else b""

    async def ask(self, request: ChatRequest) -> ChatReply:
        """Request one completion; never raises for what the server does."""
        began = _now()
        try:
            async with asyncio.timeout(self._limit):
                if request.streamed:
                    return await self._streamed(request.body, began)
                return await self._whole(request.body, began)
        except TimeoutError:
            error = f"no complete answer within {self._limit:.0f} s"
        except httpx.HTTPError as failed:
            why = self._quoted(str(failed)) or type(failed).__name__
            error = f"the connection failed: {why}"
        except _TooLargeError:
            error = f"an answer of more than {self._body_limit >> 20} MiB"
        return ChatReply(0, error=error, seconds=_now() - began)

    async def _whole(self, body: Mapping[str, Any], began: float) -> ChatReply:
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
            return self._reply(answer.status_code, await _read(answer, self._body_limit), began)

    async def _streamed(self, body: Mapping[str, Any], began: float) -> ChatReply:
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        parts: dict[str, str] = {}
        finish: Any = None
        usage: Any = None
        broken: Any = None
        times = _Times()
        seconds = 0.0

        async def sent(event: str, _: Mapping[str, Any]) -> None:
            nonlocal began
            if event == "http11.send_request_headers.started":
                began = _now()  # connecting is not the engine's work

        trace = {"trace": sent}
        async with self._http.stream(
            "POST", "/v1/chat/completions", json=asked, extensions=trace
        ) as answer:
            if answer.status_code != HTTPStatus.OK:
                return self._reply(answer.status_code, await _read(answer, self._body_limit), began)
            async for line in _lines(answer, self._body_limit):
                now = _now() - began
                seconds = now if line.strip() else seconds  # closing is not the engine's work
                event = _event(line)
                usage = event.get("usage") or usage
                broken = broken or event.get("error")
                choice = _first(event.get("choices"))
                finish = choice.get("finish_reason") or finish
                for key, piece in _first([choice.get("delta")]).items():
                    if isinstance(piece, str) and piece and key != "role":
                        times.count(now, visible=key == "content" and not piece.isspace())
                        parts[key] = parts.get(key, "") + piece
        if broken:
            error = self._quoted(f"the stream broke off: {_spelt(self._clean(broken))}")
            return ChatReply(0, None, error, seconds, times.first, times.visible, times.last)
        message = {"choices": [{"finish_reason": finish, "message": parts}], "usage": usage}
        body = self._clean(message)
        return ChatReply(HTTPStatus.OK, body, "", seconds, times.first, times.visible, times.last)

    def _reply(self, status: int, content: bytes, began: float) -> ChatReply:
        seconds = _now() - began
        body = self._clean(_parsed(content))
        if status == HTTPStatus.OK:
            return ChatReply(status, body, seconds=seconds)
        # What was parsed is quoted as it was cleaned: raw, the key may be spelt with escapes.
        text = content.decode("utf-8", errors="replace") if body is None else _spelt(body)
        return ChatReply(status, body, error=self._quoted(text), seconds=seconds)

    def _quoted(self, text: str) -> str:
        return " ".join(self._hidden(text).split())[:QUOTED]

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, HIDDEN) if self._key else text

    def _clean(self, value: Any, deep: int = 0) -> Any:  # noqa: ANN401 - JSON
        """Return parsed JSON that can be kept: without the key, and fit to be written again.

        What is no number, half a character, or deeper than anything that is read, is taken out.
        """
        if isinstance(value, str):
            return self._hidden(value.encode("utf-8", errors="replace").decode())
        if isinstance(value, float):
            return value if isfinite(value) else None
        if not isinstance(value, dict | list):
            return value
        if deep == DEEPEST:
            return None
        if isinstance(value, list):
            return [self._clean(each, deep + 1) for each in value]
        return {self._clean(key): self._clean(each, deep + 1) for key, each in value.items()}


def _now() -> float:
    """Seconds by the loop's clock, monotonic unless a test replaces it."""
    return asyncio.get_running_loop().time()


async def _lines(answer: httpx.Response, most: int) -> AsyncIterator[bytes]:
    """Yield the lines of a stream as they come; the whole may have `most` bytes."""
    size, begun = 0, b""
    async for piece in answer.aiter_raw():
        size += len(piece)
        if size > most:
            raise _TooLargeError
        *whole, begun = (begun + piece).split(b"\n")
        for line in whole:
            yield line
    yield begun


async def _read(answer: httpx.Response, most: int) -> bytes:
    content = bytearray()
    async for piece in answer.aiter_raw():
        content += piece
        if len(content) > most:
            raise _TooLargeError
    return bytes(content)


def _first(value: object) -> Mapping[str, Any]:
    first = value[0] if isinstance(value, list) and value else None
    return first if isinstance(first, dict) else {}


def _event(line: bytes) -> Mapping[str, Any]:
    """Parse one line of an event stream; what is no JSON object, such as `[DONE]`, says nothing."""
    value = _parsed(line.removeprefix(b"data:")) if line.startswith(b"data:") else None
    return value if isinstance(value, dict) else {}


def _spelt(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _parsed(content: bytes) -> Any:  # noqa: ANN401 - JSON
    """Parse what should be JSON; `None` if it is not."""
    try:
        return json.loads(content.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
