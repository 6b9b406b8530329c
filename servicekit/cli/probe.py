"""`probe`: one look from outside, for people and as an exec probe of an orchestrator."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from servicekit.cli.options import ForUser, ProfileName, session

if TYPE_CHECKING:
    from servicekit.cli.session import Session
    from servicekit.profiles.model import Profile
    from servicekit.watchdog.publish import State

HEALTHY: Final = 0
UNHEALTHY: Final = 1
CANNOT_TELL: Final = 2


class Verdict(NamedTuple):
    """What a probe found."""

    code: int
    why: str


def probe(
    ctx: typer.Context,
    profile: ProfileName,
    *,
    live: Annotated[
        bool, typer.Option("--live", help="Is the right model listed? Asks no completion.")
    ] = False,
    ready: Annotated[
        bool,
        typer.Option("--ready", help="Does its watchdog call it ready? The default."),
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Does it give a real answer, now, within its bound?")
    ] = False,
    user: ForUser = False,
) -> None:
    """Tell in one line whether a service is healthy.

    Exit code 0: healthy. 1: not. 2: cannot tell, since the profile, its API key or its watchdog
    cannot be asked. Without a watchdog, --ready is answered as --deep.
    """
    from servicekit.errors import UserError

    if live + ready + deep > 1:
        raise typer.BadParameter("--live, --ready and --deep exclude each other")
    try:
        verdict = _probe(session(ctx, user=user), profile, live=live, deep=deep)
    except UserError as error:
        verdict = Verdict(CANNOT_TELL, " / ".join(str(error).splitlines()))
    word = {HEALTHY: "healthy", UNHEALTHY: "not healthy", CANNOT_TELL: "cannot tell"}[verdict.code]
    typer.echo(f"{word}: {verdict.why}")
    raise typer.Exit(verdict.code)


def _probe(mine: Session, name: str, *, live: bool, deep: bool) -> Verdict:
    state = mine.live_state(name)
    if state is not None and not live and not deep:
        return _by_watchdog(state)
    import asyncio

    from servicekit.profiles import credentials
    from servicekit.service.installed import at, of_profile, tuned

    plan = mine.installed_plan(name)
    if plan is None:
        plan = of_profile(mine.profile(name), mine.places, ())
    recipe = tuned(plan, os.environ).profile
    if state is not None and state.port is not None:
        # The service's own environment may have moved it. The address is never the state's: the
        # API key is sent there.
        recipe = at(recipe, recipe.host, state.port)
    api_key = credentials.api_key(recipe, mine.places, os.environ)
    return asyncio.run(_ask(recipe, api_key, live=live))


def _by_watchdog(state: State) -> Verdict:
    healthy = state.state in {"ready", "degraded"} and state.phase in {"serving", "degraded"}
    return Verdict(HEALTHY if healthy else UNHEALTHY, f"{state.state}: {state.why}")


async def _ask(recipe: Profile, api_key: str | None, *, live: bool) -> Verdict:
    from servicekit.watchdog.events import ProbeFailure
    from servicekit.watchdog.probe import NotReady, Prober

    async with Prober(recipe, api_key=api_key) as prober:
        found = await (prober.identity() if live else prober.gate())
    if isinstance(found, NotReady):
        told = CANNOT_TELL if found.failure is ProbeFailure.UNAUTHORIZED else UNHEALTHY
        return Verdict(told, found.sentence)
    at = f"http://{recipe.host}:{recipe.port}"
    if found is None:
        return Verdict(HEALTHY, f'"{recipe.served_name}" is listed at {at}')
    tokens = found.completion.completion_tokens
    context = found.contexts.effective or "unknown"
    return Verdict(
        HEALTHY,
        f'"{recipe.served_name}" answered {tokens} tokens at {at}, context {context} tokens',
    )
