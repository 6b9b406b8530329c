"""The readiness probe, over HTTP: ownership, identity and one bounded completion.

A listening port, a `/health` of 200 or a list of models is never enough: ready is what answers.
Every attempt has one deadline for all of its requests together, since an HTTP client's own timeouts
are per read, and a server that trickles would hold them open for ever. The client is the one that
httpx stands on: what httpx adds is of no use on loopback, and costs 8 MiB.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import httpcore

from servicekit import __version__
from servicekit.engines import engine
from servicekit.engines.base import FINISH_REASONS, Contexts, ShapeError
from servicekit.engines.shapes import names_listed, quote
from servicekit.watchdog.events import ProbeFailure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from servicekit.engines.base import Completion, Counters
    from servicekit.profiles.model import Profile

BAD_REQUEST: Final = 400
BODY_LIMIT: Final = 4 * 1024 * 1024
LONGEST_ANSWER: Final = 4096
"""Characters of an answer that a profile's own pattern is applied to."""
"""Bytes of a reply that are read at most; the largest, metrics, have some hundred KiB."""
COUNTERS_DEADLINE: Final = 5.0
GET_LIMIT: Final = 10.0  # seconds
KEPT_ALIVE: Final = 1.0
"""Seconds for which a connection is used again: within an attempt, and not from one to the next. A
server that closes idle ones just then, as uvicorn does after 5 s, would pass for one that fails."""
USER_AGENT: Final = f"servicekit/{__version__}"
REPEATED_LEAST: Final = 4
"""Characters from which an answer of one repeated character is garbage and not a short answer."""


class Owner(StrEnum):
    """Whose process listens on the profile's port."""

    NONE = "none"
    OURS = "ours"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"
    """Something listens, and whose it is is not visible."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who listens; `who` names a foreign process."""

    owner: Owner
    who: str = ""


@dataclass(frozen=True, slots=True)
class Passed:
    """The engine answers."""

    contexts: Contexts
    completion: Completion


@dataclass(frozen=True, slots=True)
class NotReady:
    """It does not; `identified` says that the right model was listed before that."""

    failure: ProbeFailure
    sentence: str
    identified: bool = False
    remedy: str = ""


class _NotReadyError(Exception):
    def __init__(self, failure: ProbeFailure, sentence: str, remedy: str = "") -> None:
        super().__init__(sentence)
        self.failure = failure
        self.sentence = sentence
        self.remedy = remedy


async def anyone() -> Ownership:
    """Accept any listener: for a probe from outside, which does not know the run."""
    return Ownership(Owner.UNKNOWN)


async def not_looked_at() -> bool | None:
    """Do not check whether the engine holds VRAM."""
    return None


class Prober:
    """Probes one engine on loopback. Use it as an asynchronous context manager."""

    def __init__(
        self,
        profile: Profile,
        *,
        api_key: str | None = None,
        owner: Callable[[], Awaitable[Ownership]] = anyone,
        holds_vram: Callable[[], Awaitable[bool | None]] = not_looked_at,
    ) -> None:
        self._profile = profile
        self._engine = engine(profile.engine)
        self._owner = owner
        self._holds_vram = holds_vram
        self._passed = False
        """Whether a probe has passed: the pool does not change while the engine lives."""
        self._physical: int | None = None
        host = f"[{profile.host}]" if ":" in profile.host else profile.host
        self._base = f"http://{host}:{profile.port}"
        self._headers = [("Host", f"{host}:{profile.port}"), ("User-Agent", USER_AGENT)]
        if api_key:
            self._headers.append(("Authorization", f"Bearer {api_key}"))
        # No timeouts, no proxy, no redirects: asyncio.timeout bounds whole attempts instead.
        self._client = httpcore.AsyncConnectionPool(keepalive_expiry=KEPT_ALIVE)

    async def __aenter__(self) -> Self:
        """Enter; nothing is opened before the first request."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave; every connection is closed."""
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def readiness(self) -> Passed | NotReady:
        """Run the whole probe within the profile's `probe.deadline`.

        The check of the VRAM comes after it and has a limit of its own: a driver that does not
        answer must not be mistaken for an engine that does not.
        """
        identified = False
        stage = "/v1/models"
        try:
            async with asyncio.timeout(self._profile.probe.deadline):
                await self._check_owner()
                models = await self._identify()
                if not self._passed:
                    await self._check_loaded()
                identified, stage = True, "the completion"
                completion = await self._complete()
                stage = self._engine.pool_path or ""
                contexts = Contexts(
                    requested=self._profile.context.requested,
                    declared=self._engine.declared(models, self._profile),
                    physical=self._physical if self._passed else await self._pool(),
                )
                self._check_contexts(contexts)
            await self._check_vram()
        except TimeoutError:
            sentence = f"no answer to {stage} within {self._profile.probe.deadline:g} s"
            return NotReady(ProbeFailure.UNANSWERED, sentence, identified)
        except _NotReadyError as error:
            return NotReady(error.failure, error.sentence, identified, error.remedy)
        self._passed, self._physical = True, contexts.physical
        return Passed(contexts, completion)

    async def identity(self) -> NotReady | None:
        """Only check whether the right model is listed: alive, not ready. `None` when it is."""
        try:
            async with asyncio.timeout(self._profile.probe.deadline):
                await self._check_owner()
                await self._identify()
                await self._check_loaded()
        except TimeoutError:
            sentence = f"no answer to /v1/models within {self._profile.probe.deadline:g} s"
            return NotReady(ProbeFailure.UNANSWERED, sentence)
        except _NotReadyError as error:
            return NotReady(error.failure, error.sentence, remedy=error.remedy)
        return None

    async def counters(self) -> Counters | None:
        """Read the progress counters; `None` where the engine does not report them."""
        path = self._engine.metrics_path
        if path is None:
            return None
        try:
            async with asyncio.timeout(COUNTERS_DEADLINE):
                status, body = await self._get(path)
            return self._engine.counters(body) if status == HTTPStatus.OK else None
        except (TimeoutError, _NotReadyError, ShapeError):
            return None

    async def _check_owner(self) -> None:
        ownership = await self._owner()
        port = self._profile.port
        match ownership.owner:
            case Owner.NONE:
                raise _NotReadyError(ProbeFailure.REFUSED, f"nothing listens on port {port}")
            case Owner.FOREIGN:
                sentence = f"port {port} is served by {ownership.who}, not by this engine"
                raise _NotReadyError(ProbeFailure.NOT_OURS, sentence)
            case Owner.OURS | Owner.UNKNOWN:
                return

    async def _identify(self) -> Any:  # noqa: ANN401 - parsed JSON
        status, body = await self._get("/v1/models")
        models = self._parsed(status, body, "/v1/models")
        try:
            if self._engine.served(models, self._profile):
                return models
            names = names_listed(models)
        except ShapeError as error:
            raise _NotReadyError(ProbeFailure.GARBAGE, f"/v1/models: {error}") from None
        if self._profile.served_name in names:  # an engine that lists what is behind the name
            self._refuse_model()
        listed = quote(", ".join(f'"{each}"' for each in names)) or "nothing"
        sentence = f'serves {listed}, not "{self._profile.served_name}"'
        raise _NotReadyError(ProbeFailure.WRONG_MODEL, sentence)

    async def _check_loaded(self) -> None:
        """Compare the loaded model, where the engine reports it: once, since it stays loaded."""
        for path in self._engine.identity_paths:
            status, body = await self._get(path)
            if status != HTTPStatus.OK:
                continue
            with suppress(ShapeError):
                if not self._engine.loaded(body, self._profile):
                    self._refuse_model()
            return

    def _refuse_model(self) -> NoReturn:
        profile = self._profile
        sentence = f'serves another model than "{profile.model}" as "{profile.served_name}"'
        raise _NotReadyError(ProbeFailure.WRONG_MODEL, sentence)

    async def _complete(self) -> Completion:
        request = self._engine.completion_request(self._profile)
        status, text = await self._send("POST", self._profile.probe.path, request)
        body = self._parsed(status, text, "the completion")
        try:
            completion = self._engine.completion(body)
        except ShapeError as error:
            raise _NotReadyError(ProbeFailure.GARBAGE, f"the completion: {error}") from None
        if not self._engine.answers_as(completion.model, self._profile):
            sentence = (
                f'replied as model "{quote(completion.model)}", not "{self._profile.served_name}"'
            )
            raise _NotReadyError(ProbeFailure.WRONG_MODEL, sentence)
        self._check_answer(completion)
        return completion

    def _check_answer(self, completion: Completion) -> None:
        """Refuse what is no answer.

        A model that was cut off while it was thinking has answered, without any text.
        """
        text = completion.text.strip()
        if completion.completion_tokens < 1:
            raise _NotReadyError(ProbeFailure.WRONG_ANSWER, "the completion has no tokens")
        if completion.finish_reason not in FINISH_REASONS:
            sentence = f'the completion ended by "{quote(completion.finish_reason)}"'
            raise _NotReadyError(ProbeFailure.WRONG_ANSWER, sentence)
        if len(text) >= REPEATED_LEAST and len(set(text)) == 1:
            raise _NotReadyError(
                ProbeFailure.REPEATED, f'the answer repeats one character: "{quote(text)}"'
            )
        expect = self._profile.probe.expect
        if expect is not None and text and not re.search(expect, text[:LONGEST_ANSWER]):
            sentence = f'the answer "{quote(text)}" does not match probe.expect "{expect}"'
            raise _NotReadyError(ProbeFailure.WRONG_ANSWER, sentence)

    async def _pool(self) -> int | None:
        path = self._engine.pool_path
        if path is None:
            return None
        status, body = await self._get(path)
        try:
            return self._engine.pool(body, self._profile) if status == HTTPStatus.OK else None
        except ShapeError:
            return None

    def _check_contexts(self, contexts: Contexts) -> None:
        effective, floor = contexts.effective, self._profile.context.floor
        if effective is not None and effective < floor:
            sentence = (
                f"context is {effective} tokens (declared {contexts.declared}, "
                f"physical {contexts.physical}), below context.minimum ({floor} tokens)"
            )
            raise _NotReadyError(ProbeFailure.CONTEXT_TOO_SMALL, sentence)

    async def _check_vram(self) -> None:
        if await self._holds_vram() is False:
            least = self._profile.watch.vram_minimum
            sentence = f"the engine holds less than {least} MiB of VRAM: it runs on the CPU"
            raise _NotReadyError(ProbeFailure.CPU_FALLBACK, sentence)

    def _parsed(self, status: int, body: str, what: str) -> Any:  # noqa: ANN401 - parsed JSON
        if status != HTTPStatus.OK:
            self._refuse(status, body, what)
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise _NotReadyError(
                ProbeFailure.GARBAGE, f"{what} is not JSON: {quote(body)}"
            ) from None

    def _refuse(self, status: int, body: str, what: str) -> NoReturn:
        sentence = f"{what} returned {status}: {quote(body)}"
        if refusal := _refusal(status, body, what):
            explained, remedy = refusal
            raise _NotReadyError(ProbeFailure.GARBAGE, f"{explained} ({sentence})", remedy)
        match status:
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
                sentence = f"{what} returned {status}: the API key is not accepted"
                raise _NotReadyError(ProbeFailure.UNAUTHORIZED, sentence)
            case HTTPStatus.SERVICE_UNAVAILABLE | HTTPStatus.TOO_MANY_REQUESTS:
                raise _NotReadyError(ProbeFailure.UNAVAILABLE, sentence)
            case HTTPStatus.NOT_FOUND if "does not exist" in body:
                raise _NotReadyError(ProbeFailure.WRONG_MODEL, sentence)
            case _ if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise _NotReadyError(ProbeFailure.ERROR, sentence)
            case _:
                raise _NotReadyError(ProbeFailure.GARBAGE, sentence)

    async def _get(self, path: str) -> tuple[int, str]:
        return await self._send("GET", path, None)

    async def _send(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, str]:
        headers, content = [*self._headers], None
        if body is not None:
            headers.append(("Content-Type", "application/json"))
            content = json.dumps(body).encode()
        try:
            async with self._client.stream(
                method, self._base + path, headers=headers, content=content
            ) as reply:
                read = bytearray()
                async for piece in reply.aiter_stream():
                    read += piece
                    if len(read) > BODY_LIMIT:
                        sentence = f"{path} answers more than {BODY_LIMIT} bytes"
                        raise _NotReadyError(ProbeFailure.GARBAGE, sentence)
                return reply.status, read.decode("utf-8", "replace")
        except httpcore.ConnectError:
            sentence = f"nothing listens on port {self._profile.port}"
            raise _NotReadyError(ProbeFailure.REFUSED, sentence) from None
        except httpcore.RemoteProtocolError as error:
            cut = "disconnected" in str(error) or "closed" in str(error)
            failure = ProbeFailure.ERROR if cut else ProbeFailure.GARBAGE
            raise _NotReadyError(failure, f"{path}: {quote(str(error))}") from None
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            sentence = f"{path}: {quote(str(error) or type(error).__name__)}"
            raise _NotReadyError(ProbeFailure.ERROR, sentence) from None


def _refusal(status: int, body: str, what: str) -> tuple[str, str] | None:
    """Explain a reply by which a server says that it will never serve the probe, with a remedy."""
    text = body.lower()
    absent = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
    if what == "/v1/models":
        if status not in absent:
            return None
        return "the server has no /v1/models", "serve OpenAI's API, which lists the models there"
    if status == HTTPStatus.NOT_FOUND and "does not exist" in text:
        return None  # another model is served
    if any(word in text for word in ("chat template", "chat_template")) and status >= BAD_REQUEST:
        remedy = "name a chat template in options: chat-template, for llama.cpp chat-template-file"
        return "the model has no chat template", remedy
    if "embedding" in text or "pooling" in text:
        remedy = "serve a model that generates text: the readiness probe asks for a completion"
        return "the server only makes embeddings", remedy
    if status in absent:
        remedy = "set probe.path to the path of its chat completions"
        return "the server has no chat completions at this path", remedy
    if status in {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}:
        remedy = (
            "list the refused field in probe.omit, or set probe.token_limit to "
            '"max_completion_tokens"'
        )
        return "the server refuses the probe's request", remedy
    return None


async def get(url: str) -> str:
    """GET a URL of the operator's within `GET_LIMIT`; return why that failed, empty if it did not.

    The URL itself is in no message, since it may name its receiver in confidence.
    """
    try:
        async with asyncio.timeout(GET_LIMIT), httpcore.AsyncConnectionPool() as pool:
            reply = await pool.request("GET", url, headers=[("User-Agent", USER_AGENT)])
    except TimeoutError:
        return f"no answer within {GET_LIMIT:g} s"
    except (
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.UnsupportedProtocol,
        OSError,
    ) as error:
        return quote(type(error).__name__)
    return "" if reply.status < BAD_REQUEST else f"its receiver answered {reply.status}"
