"""A server with known timings: when it sent what, it remembers itself.

It runs in the event loop of whoever asks it, so that no other process or thread stands between what
it sends and what is received: on a busy machine, too, the two times belong together.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FRAME = 7
"""Tokens that every prompt has beside its words; each word is one."""


@dataclass(frozen=True)
class Pace:
    """How one answer comes."""

    first: float = 0.03
    """Seconds to its first token."""
    gap: float = 0.005
    """Seconds between two events."""
    thoughts: int = 0
    """Events of thinking before the first one of the answer."""
    words: int = 30
    """Events of the answer."""
    together: int = 1
    """Tokens in each event but the first, as with a drafter whose guesses are right."""
    says: str = "word "
    finish: str = "stop"
    cached: int | None = None
    """Tokens of the prompt that are told to be from the cache."""
    fault: int = 0
    """HTTP status in the place of an answer."""
    told: int | None = None
    """Tokens that every prompt is told to have, in the place of its own; 0: none are told."""
    uneven: int = 0
    """Words that every second, third and fourth answer have more, once, twice and three times."""


@dataclass
class Sent:
    """When one request came, and when its answer went out: seconds of the loop's clock."""

    arrived: float
    body: dict[str, Any]
    prompt_tokens: int
    tokens: int = 0
    first: float | None = None
    visible: float | None = None
    last: float | None = None
    done: float | None = None


@dataclass
class Paced:
    """The server; `pace` may be changed between two requests."""

    pace: Pace = field(default_factory=Pace)
    url: str = ""
    sent: list[Sent] = field(default_factory=list)
    """Requests, in the order of their arrival."""
    metrics: bool = True
    lag: int = 0
    """Looks at the metrics that tell of one request fewer, after each."""
    looks: int = 0

    @property
    def measured(self) -> list[Sent]:
        """Requests that were measured: neither warm-ups nor for counting tokens."""
        return [each for each in self.sent if each.body["max_tokens"] > 1]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection with one request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = [line for line in head.lower().splitlines() if line.startswith("content-length:")]
        if not length:
            writer.write(_head(200 if self.metrics else 404) + self._page().encode())
        else:
            body = json.loads(await reader.readexactly(int(length[0].partition(":")[2])))
            await self._complete(body, writer)
        writer.close()

    async def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        text = body["messages"][0]["content"]
        sent = Sent(clock(), body, len(text.split()) + FRAME)
        self.sent.append(sent)
        self.looks = 0
        pace = self.pace
        if pace.fault:
            writer.write(_head(pace.fault) + b"no")
            return
        writer.write(_head(200))
        _say(writer, {"choices": [{"delta": {"role": "assistant", "content": None}}]})
        await writer.drain()
        more = pace.uneven * (len(self.sent) % 4)
        events = [{"reasoning_content": "hm "}] * pace.thoughts
        events += [{"content": pace.says}] * (pace.words + more)
        events = events[: body["max_tokens"]]
        sent.tokens = 1 + (len(events) - 1) * pace.together
        for number, delta in enumerate(events):
            await asyncio.sleep(max(0.0, sent.arrived + pace.first + number * pace.gap - clock()))
            sent.last = clock()
            sent.first = sent.first or sent.last
            if "content" in delta:
                sent.visible = sent.visible or sent.last
            _say(writer, {"choices": [{"delta": delta}]})
            await writer.drain()
        _say(writer, {"choices": [{"delta": {}, "finish_reason": pace.finish}]})
        _say(writer, {"choices": [], "usage": self._usage(sent, pace)})
        sent.done = clock()
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()

    @staticmethod
    def _usage(sent: Sent, pace: Pace) -> dict[str, Any]:
        told = sent.prompt_tokens if pace.told is None else pace.told
        usage: dict[str, Any] = {"completion_tokens": sent.tokens}
        if told:
            usage["prompt_tokens"] = told
        if pace.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": pace.cached}
        return usage

    def _page(self) -> str:
        """Tell what vLLM would, from the same memory."""
        whole = [each for each in self.sent if each.done is not None]
        if self.looks < self.lag:
            self.looks += 1
            whole = whole[:-1]
        first = [each.first - each.arrived for each in whole if each.first is not None]
        decode = [each.last - each.first for each in whole if each.last and each.first]
        told = {
            "vllm:prompt_tokens_total": sum(each.prompt_tokens for each in whole),
            "vllm:generation_tokens_total": sum(each.tokens for each in whole),
            "vllm:request_prefill_time_seconds_sum": sum(first),
            "vllm:time_to_first_token_seconds_sum": sum(first),
            "vllm:time_to_first_token_seconds_count": len(first),
            "vllm:inter_token_latency_seconds_sum": sum(decode),
        }
        return "".join(f"{name} {value}\n" for name, value in told.items())


def _head(status: int) -> bytes:
    return f"HTTP/1.1 {status} X\r\nConnection: close\r\n\r\n".encode()


def _say(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    writer.write(f"data: {json.dumps(event)}\n\n".encode())


@asynccontextmanager
async def paced(pace: Pace | None = None) -> AsyncIterator[Paced]:
    """Serve on loopback, within this event loop."""
    made = Paced(pace or Pace())
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0)
    async with server:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made
