"""The client of the gates: whatever a server does comes back as a reply, within its bound."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from machines.scripted import as_stream, completion, scripted

from servicekit.verify import client as module
from servicekit.verify.client import Client
from servicekit.verify.values import Reply, Request

if TYPE_CHECKING:
    import pytest


def asked(
    status: int, text: str, *, streamed: bool = False, limit: float = 20, key: str | None = None
) -> Reply:
    """Ask a server that says this."""

    async def ask(base: str) -> Reply:
        async with Client(base, limit=limit, api_key=key) as client:
            return await client.ask(Request({"messages": []}, streamed))

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
        assert len(reply.error) == module.QUOTED


def test_what_is_no_json_is_no_completion() -> None:
    """A web page with status 200 is a fault."""
    assert asked(200, "<html>").fault == "the answer is no chat completion"


def test_a_server_that_cuts_or_hangs_is_a_reply() -> None:
    """Neither a cut connection nor silence raises anything."""
    assert asked(0, "").error.startswith("the connection failed: ")

    async def silent() -> Reply:
        async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ended.append(writer)

        ended: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, Client(f"http://127.0.0.1:{port}", limit=0.2) as client:
            reply = await client.ask(Request({}))
            for writer in ended:
                writer.close()
            return reply

    assert asyncio.run(silent()).status == 0


def test_an_endless_answer_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the bound is given up, streamed or not."""
    monkeypatch.setattr(module, "BODY_LIMIT", 100)
    for streamed in (False, True):
        reply = asked(200, "data: " + "x" * 999 + "\n\n", streamed=streamed)
        assert reply.error.startswith("an answer of more than")


def test_what_a_server_tells_of_itself_may_be_nothing() -> None:
    """Properties that are none are empty, not an error."""

    async def look(base: str) -> Any:  # noqa: ANN401 - JSON
        async with Client(base) as client:
            return await client.properties("/props")

    cases: tuple[tuple[int, str, dict[str, Any]], ...] = (
        (200, '{"modalities": {}}', {"modalities": {}}),
        (200, "[1]", {}),
        (404, "no", {}),
        (0, "", {}),
    )
    for status, text, told in cases:
        said = (status, text)
        with scripted(lambda _, said=said: said) as base:  # type: ignore[misc]
            assert asyncio.run(look(base)) == told
