"""Asks an engine on loopback, whole or streamed, within one bound for each request. HTTP.

Every failure comes back as a reply with a reason: what a gate makes of it is the gate's business.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Self

import httpx

from servicekit.verify.values import Reply

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from servicekit.verify.values import Request

LIMIT: Final = 1800.0
"""Seconds for one request: a prompt of 262144 tokens takes minutes on one GPU."""
BODY_LIMIT: Final = 16 << 20
"""Bytes of an answer that are read at most."""
QUOTED: Final = 300
"""Characters of a refusal that are kept."""


class _TooLargeError(Exception):
    pass


class Client:
    """Asks the engine at `base`, such as `http://127.0.0.1:8000`. An asynchronous context manager.

    No proxy of the environment is used: what is asked here is on loopback.
    """

    def __init__(self, base: str, *, api_key: str | None = None, limit: float = LIMIT) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # These are per read, which a server that trickles always keeps: `ask` bounds the whole.
        self._http = httpx.AsyncClient(
            base_url=base,
            headers=headers,
            timeout=limit,
            trust_env=False,
            # llama-server closes idle connections after five seconds, maybe just when one is used.
            limits=httpx.Limits(max_keepalive_connections=0),
            # There is no TLS on loopback, and loading certificates takes longer than a request.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )
        self._limit = limit

    async def __aenter__(self) -> Self:
        """Give the client itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def properties(self, path: str) -> Mapping[str, Any]:
        """Read what the server tells of itself; nothing where it tells nothing."""
        try:
            async with asyncio.timeout(min(self._limit, 10.0)):
                answer = await self._http.get(path)
                told = answer.json()
        except (TimeoutError, httpx.HTTPError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}

    async def ask(self, request: Request) -> Reply:
        """Ask for one completion; never raises for what the server does."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._limit):
                if request.streamed:
                    return await self._streamed(request.body, began)
                return await self._whole(request.body, began)
        except TimeoutError:
            error = f"no whole answer within {self._limit:.0f} s"
        except httpx.HTTPError as failed:
            error = f"the connection failed: {type(failed).__name__}"
        except _TooLargeError:
            error = f"an answer of more than {BODY_LIMIT >> 20} MiB"
        return Reply(0, error=error, seconds=time.monotonic() - began)

    async def _whole(self, body: Mapping[str, Any], began: float) -> Reply:
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
            return _reply(answer.status_code, await _read(answer), began)

    async def _streamed(self, body: Mapping[str, Any], began: float) -> Reply:
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        parts: dict[str, str] = {}
        finish: Any = None
        usage: Any = None
        ttft: float | None = None
        async with self._http.stream("POST", "/v1/chat/completions", json=asked) as answer:
            if answer.status_code != HTTPStatus.OK:
                return _reply(answer.status_code, await _read(answer), began)
            size = 0
            async for line in answer.aiter_lines():
                size += len(line)
                if size > BODY_LIMIT:
                    raise _TooLargeError
                event = _event(line)
                usage = event.get("usage") or usage
                choice = _first(event.get("choices"))
                finish = choice.get("finish_reason") or finish
                for key, piece in _first([choice.get("delta")]).items():
                    if isinstance(piece, str) and piece and key != "role":
                        ttft = time.monotonic() - began if ttft is None else ttft
                        parts[key] = parts.get(key, "") + piece
        made = {"choices": [{"finish_reason": finish, "message": parts}], "usage": usage}
        return Reply(HTTPStatus.OK, made, seconds=time.monotonic() - began, ttft=ttft)


async def _read(answer: httpx.Response) -> bytes:
    content = bytearray()
    async for piece in answer.aiter_bytes():
        content += piece
        if len(content) > BODY_LIMIT:
            raise _TooLargeError
    return bytes(content)


def _first(found: object) -> Mapping[str, Any]:
    first = found[0] if isinstance(found, list) and found else None
    return first if isinstance(first, dict) else {}


def _event(line: str) -> Mapping[str, Any]:
    """Parse one line of an event stream; what is no JSON object, such as `[DONE]`, says nothing."""
    try:
        told = json.loads(line.removeprefix("data:")) if line.startswith("data:") else None
    except (ValueError, RecursionError):
        told = None
    return told if isinstance(told, dict) else {}


def _reply(status: int, content: bytes, began: float) -> Reply:
    seconds = time.monotonic() - began
    text = content.decode("utf-8", errors="replace")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    if status == HTTPStatus.OK:
        return Reply(status, body, seconds=seconds)
    return Reply(status, body, error=" ".join(text.split())[:QUOTED], seconds=seconds)
