"""The client of the gates: whatever a server does comes back as a reply, within its bound."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from machines.scripted import as_stream, completion, scripted

from servicekit.lab.verify.chat import ChatReply, ChatRequest
from servicekit.lab.verify.client import BODY_LIMIT, HIDDEN, QUOTED, Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def asked(
    status: int,
    text: str,
    *,
    streamed: bool = False,
    limit: float = 20,
    key: str | None = None,
    body_limit: int = BODY_LIMIT,
) -> ChatReply:
    """Ask a server that says this."""

    async def ask(base: str) -> ChatReply:
        async with Client(base, limit=limit, api_key=key, body_limit=body_limit) as client:
            return await client.ask(ChatRequest({"messages": []}, streamed))

    with scripted(lambda _: (status, text)) as base:
        return asyncio.run(ask(base))


def test_a_stream_is_one_reply_with_the_time_of_its_first_token() -> None:
    """Pieces are joined, the count is that of the last event, and the first token has its time."""
    body = completion("Paris", prompt=7, reasoning_content="Hm.")
    reply = asked(200, as_stream(body) + "data: {broken\n\n: a comment\n\n", streamed=True)
    assert (reply.content, reply.reasoning, reply.prompt_tokens) == ("Paris", "Hm.", 7)
    assert reply.fault == ""
    assert reply.ttft is not None
    assert 0 < reply.ttft <= reply.seconds


def test_what_is_seen_first_is_neither_a_thought_nor_a_blank() -> None:
    """A person waits for the first sign of the answer; the engine may be at work long before."""
    deltas = ({"reasoning_content": "Hm."}, {"content": "\n\n"})
    events = "".join(f"data: {json.dumps({'choices': [{'delta': d}]})}\n\n" for d in deltas)
    blank = asked(200, events, streamed=True)
    assert blank.visible is None
    assert blank.ttft is not None
    assert blank.last is not None
    seen = asked(200, events + as_stream(completion("Paris")), streamed=True)
    assert seen.ttft is not None
    assert seen.visible is not None
    assert seen.ttft <= seen.visible <= seen.seconds
    assert seen.content == "\n\nParis"


def test_tokens_are_counted_by_the_engine() -> None:
    """Prompt, answer, and what was cached, where it tells; nothing for what is no count."""
    usage: dict[str, Any] = {"prompt_tokens": 9, "completion_tokens": 3}
    told = usage | {"prompt_tokens_details": {"cached_tokens": 4}}
    for said, counts in (
        (told, (9, 3, 4)),
        (usage | {"prompt_tokens_details": None}, (9, 3, None)),
        ({"prompt_tokens": "9", "completion_tokens": -1}, (None, None, None)),
        ([], (None, None, None)),
    ):
        reply = ChatReply(200, completion("Paris") | {"usage": said})
        assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == counts


def test_a_whole_answer_has_no_first_token() -> None:
    """What arrives at once does not tell when it began."""
    reply = asked(200, json.dumps(completion("Paris")), key="secret")
    assert (reply.content, reply.ttft) == ("Paris", None)


def test_a_refusal_is_quoted() -> None:
    """A bad status comes with the beginning of what was said, streamed or not."""
    for streamed in (False, True):
        reply = asked(400, "too\nlong " + "x" * 999, streamed=streamed)
        assert reply.status == 400
        assert reply.error.startswith("too long xxx")
        assert len(reply.error) == QUOTED


def test_what_is_no_json_is_no_completion() -> None:
    """A web page with status 200 is a fault."""
    assert asked(200, "<html>").fault == "the answer is not a chat completion"


def test_a_server_that_cuts_or_hangs_is_a_reply() -> None:
    """Neither a cut connection nor silence raises anything."""
    assert asked(0, "").error.startswith("the connection failed: ")

    async def silent() -> ChatReply:
        async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ended.append(writer)

        ended: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, Client(f"http://127.0.0.1:{port}", limit=0.2) as client:
            reply = await client.ask(ChatRequest({}))
            for writer in ended:
                writer.close()
            return reply

    assert asyncio.run(silent()).status == 0


def test_an_endless_answer_is_not_kept() -> None:
    """More than the bound is given up: whole, as lines of a stream, or as one that never ends."""
    for text in ("data: " + "x" * 999 + "\n\n", "x" * 999, "data: 1\n" * 99):
        for streamed in (False, True):
            reply = asked(200, text, streamed=streamed, body_limit=100)
            assert reply.error.startswith("an answer of more than")


def test_a_stream_that_breaks_off_is_a_fault() -> None:
    """An error between the pieces is quoted, and an end without a reason is named."""
    begun = as_stream(completion("Par")).partition('data: {"choices": [{"delta": {}')[0]
    assert asked(200, begun, streamed=True).fault == "the answer has no finish reason"
    broken = begun + 'data: {"error": {"message": "out of memory"}}\n\n'
    wanted = 'the stream broke off: {"message": "out of memory"}'
    assert asked(200, broken, streamed=True).fault == wanted


def test_a_key_that_a_server_repeats_is_not_kept() -> None:
    """Whole, streamed, refused, parsed or not, spelt with escapes or as a name: never the key."""
    key = "sk-s3cr/et"
    escaped = json.dumps({"error": f"Bearer {key}"}).replace("/", "\\/")
    for status, text in (
        (200, json.dumps(completion(f"You sent {key}.", tool_calls=[{"function": {key: key}}]))),
        (200, as_stream(completion(f"You sent {key}."))),
        (200, f'data: {{"error": "no {key}"}}\n\n'),
        (401, json.dumps({"error": f"wrong key {key}"})),
        (401, escaped),
        (401, f"<p>{'x' * (QUOTED - 8)}{key}"),
    ):
        reply = asked(status, text, streamed=text.startswith("data"), key=key)
        assert "s3cr" not in repr(reply)
        assert HIDDEN[:5] in repr(reply)


def test_what_cannot_be_written_is_taken_out() -> None:
    """Half characters, what is no number and bottomless lists do not spoil the evidence."""
    spoilt = '{"choices": [{"finish_reason": "stop", "message": {"content": "a\\ud800b"}}], '
    spoilt += f'"usage": {{"prompt_tokens": NaN, "more": {"[" * 300}{"]" * 300}}}}}'
    reply = asked(200, spoilt)
    assert (reply.content, reply.prompt_tokens, reply.fault) == ("a?b", None, "")
    assert "NaN" not in json.dumps(reply.body)
    assert asked(200, "[" * 100_000).fault == "the answer is not a chat completion"


def test_no_redirect_is_followed() -> None:
    """A server that points elsewhere has not answered; nobody is asked there."""
    asked_there: list[dict[str, Any]] = []

    def there(body: dict[str, Any]) -> tuple[int, str]:
        asked_there.append(body)
        return 200, json.dumps(completion("Paris"))

    with scripted(there) as elsewhere:
        head = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {elsewhere}/v1/chat/completions\r\n"
        reply = asyncio.run(_told(f"{head}Content-Length: 0\r\n\r\n".encode()))
    assert reply.fault == "HTTP 307: "
    assert asked_there == []


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}", "the connection failed: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}" + b" " * 99, "the answer is not a chat"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{}",
            "the connection failed: ",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n{}", "the answer is not a chat"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "the connection failed: "),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the connection failed: "),
        (b"", "the connection failed: Server disconnected without sending a response."),
        (b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig", "HTTP 413: big"),
    ],
    ids=[
        "half",
        "too long",
        "half a chunk",
        "not decoded",
        "half a head",
        "no HTTP",
        "nothing",
        "413",
    ],
)
def test_half_an_answer_is_none(answer: bytes, fault: str) -> None:
    """What is cut, mislabelled or no HTTP is a reply with a reason, and raises nothing."""
    assert asyncio.run(_told(answer)).fault.startswith(fault)


def test_each_request_has_a_connection_of_its_own() -> None:
    """A server that closes after an answer without a word, as llama-server when idle, cuts none."""

    async def ask_again() -> list[str]:
        body = json.dumps(completion("Paris")).encode()
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        async with _server(answer) as base, Client(base, limit=20) as client:
            return [(await client.ask(ChatRequest({}))).fault for _ in range(3)]

    assert asyncio.run(ask_again()) == ["", "", ""]


async def _told(answer: bytes) -> ChatReply:
    """Ask a server that says these bytes and closes."""
    async with _server(answer) as base, Client(base, limit=20) as client:
        return await client.ask(ChatRequest({}))


@asynccontextmanager
async def _server(answer: bytes) -> AsyncIterator[str]:
    """Serve these bytes to each who has sent a request; give the base URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        await reader.readexactly(int(length[1]) if length else 0)
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_what_a_server_tells_of_itself_may_be_nothing() -> None:
    """Properties that are none are empty, not an error."""

    async def look(base: str) -> Any:  # noqa: ANN401 - JSON
        async with Client(base) as client:
            return await client.properties("/props")

    cases: tuple[tuple[int, str, dict[str, Any]], ...] = (
        (200, '{"modalities": {}}', {"modalities": {}}),
        (200, "[1]", {}),
        (404, "no", {}),
        (401, '{"modalities": {}}', {}),
        (0, "", {}),
    )
    for status, text, told in cases:
        said = (status, text)
        with scripted(lambda _, said=said: said) as base:  # type: ignore[misc]
            assert asyncio.run(look(base)) == told
