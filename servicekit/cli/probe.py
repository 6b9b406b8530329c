"""`probe`: checks a service once, for a person or an exec probe of an orchestrator."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from servicekit.errors import UserError
from servicekit.text import printable

if TYPE_CHECKING:
    from servicekit.cli.session import Session
    from servicekit.profiles.model import Profile
    from servicekit.watchdog.publish import State

HEALTHY: Final = 0
UNHEALTHY: Final = 1
UNKNOWN: Final = 2


class Question(StrEnum):
    """What a probe checks."""

    LIVE = "live"
    READY = "ready"
    DEEP = "deep"


class Health(NamedTuple):
    """Exit code of a probe, and the reason."""

    code: int
    why: str


def probe(session: Session, profile: str, question: Question) -> int:
    """Print in one line whether a service is healthy; return the exit code."""
    try:
        health = _health(session, profile, question)
    except UserError as error:
        health = Health(UNKNOWN, " / ".join(str(error).splitlines()))
    word = {HEALTHY: "healthy", UNHEALTHY: "not healthy", UNKNOWN: "cannot tell"}[health.code]
    print(f"{word}: {printable(health.why)}")
    return health.code


def _health(session: Session, name: str, question: Question) -> Health:
    state = session.live_state(name)
    if state is not None and question is Question.READY:
        return _by_watchdog(state)
    import asyncio

    from servicekit.profiles import credentials
    from servicekit.service.installed import at, of_profile, tuned

    plan = session.installed_plan(name)
    if plan is None:
        plan = of_profile(session.profile(name), session.places, ())
    recipe = tuned(plan, os.environ).profile
    if (
        state is not None
        and state.port is not None
        and account_listens(state.pid, recipe.host, state.port)
    ):
        # The service's own environment may have moved it.
        recipe = at(recipe, recipe.host, state.port)
    api_key = credentials.api_key(recipe, session.places, os.environ)
    return asyncio.run(_ask(recipe, api_key, live=question is Question.LIVE))


def account_listens(watchdog: int, host: str, port: int) -> bool:
    """Whether the account of the watchdog listens on `port`, which only its state file names.

    The API key is sent there: the address is the installed one, and no other account's socket.
    """
    from servicekit.host.sockets import listeners

    try:
        account = Path(f"/proc/{watchdog}").stat().st_uid
    except OSError:
        return False
    return any(each.uid == account for each in listeners(host, port))


def _by_watchdog(state: State) -> Health:
    healthy = state.state in {"ready", "degraded"} and state.phase in {"serving", "degraded"}
    return Health(HEALTHY if healthy else UNHEALTHY, f"{state.state}: {state.why}")


async def _ask(recipe: Profile, api_key: str | None, *, live: bool) -> Health:
    from servicekit.watchdog.events import ProbeFailure
    from servicekit.watchdog.probe import NotReady, Prober

    async with Prober(recipe, api_key=api_key) as prober:
        result = await (prober.identity() if live else prober.readiness())
    if isinstance(result, NotReady):
        code = UNKNOWN if result.failure is ProbeFailure.UNAUTHORIZED else UNHEALTHY
        return Health(code, result.sentence)
    at = f"http://{recipe.host}:{recipe.port}"
    if result is None:
        return Health(HEALTHY, f'"{recipe.served_name}" is listed at {at}')
    tokens = result.completion.completion_tokens
    context = result.contexts.effective or "unknown"
    return Health(
        HEALTHY,
        f'"{recipe.served_name}" answered {tokens} tokens at {at}, context {context} tokens',
    )
