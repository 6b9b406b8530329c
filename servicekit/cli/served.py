"""Runs a service while it is measured, and makes the client that measures it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Final

from servicekit.cli.control import (
    announce,
    is_up,
    order,
    refuse_start,
    running_rivals,
    watch_start,
)
from servicekit.cli.forecast import plan_of
from servicekit.cli.output import note
from servicekit.cli.session import Installed, Session
from servicekit.engines import engine
from servicekit.errors import UserError
from servicekit.host import run_files
from servicekit.lab.verify.binding import outdated
from servicekit.lab.verify.client import Client
from servicekit.profiles import credentials
from servicekit.profiles.model import Profile
from servicekit.service.plan import Plan
from servicekit.watchdog.status import Status

MEASURES: Final = {"verified": "verify", "measured": "bench"}  # the verb of each participle
ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""^C, a request to stop, and a closed terminal."""


@contextmanager
def served(session: Session, service: Installed, *, to: str) -> Iterator[Status]:
    """Run the service meanwhile: one that is down is started, and stopped afterwards.

    `to` completes the message `it cannot be ...`. Raises `UserError` while another command measures
    it. What a start prints goes to stderr, since stdout holds the result.
    """
    profile = service.manifest.profile
    started = False
    # As ^C, so that a service started here is stopped.
    as_by_hand = _handling(ENDS[1:], signal.default_int_handler)
    with as_by_hand, run_files.alone(Path(session.places.state, profile)) as alone:
        if not alone:
            raise UserError(
                f'"{profile}" cannot be {to}, because it is already being verified or measured',
                hint="wait until that is done: both would disturb each other",
            )
        try:
            with redirect_stdout(sys.stderr):
                now, started = _up(session, service, to)
            yield now
        finally:
            if started:
                _stop(session, service, to)
                note(f'stopped "{profile}" (it was not running before)')


@contextmanager
def _handling(
    signals: Iterable[int], handle: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """Handle signals otherwise meanwhile, except those that are ignored, as by nohup."""
    before = {each: signal.getsignal(each) for each in signals}
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, handle)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler or signal.SIG_DFL)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delay signals that end the command while a result is written."""
    held: list[int] = []
    with _handling(ENDS, lambda number, _: held.append(number)):
        yield
    if held:
        raise KeyboardInterrupt


def plan_of_what_runs(
    session: Session, service: Installed, recipe: Profile, now: Status, *, to: str
) -> Plan:
    """Make the plan of `recipe`; raise `UserError` if another one is running."""
    plan = plan_of(session, recipe, service.manager.name)
    why = outdated(plan, now.pid) if now.pid is not None else ""
    if why:
        raise UserError(
            f'"{recipe.name}" cannot be {to}, since {why}',
            hint=f"`servicekit restart {recipe.name} --install` applies the changes that "
            f"`servicekit diff {recipe.name}` shows",
        )
    return plan


def _up(session: Session, service: Installed, to: str) -> tuple[Status, bool]:
    """Start the service if it is down; return whether that was needed."""
    now = session.look(service)
    if is_up(now):
        return now, False
    ours = now.pid is None and now.state != "starting"
    if ours:
        _refuse_rivals(session, service, to)
        refuse_start(session, service, known=service.manifest.overruled)
    try:
        if ours:
            order(session, service)
        now, _ = watch_start(session, service, one_try=True)
        _refuse_down(now, to)
    except BaseException:
        if ours:
            _stop(session, service, to)
        raise
    return now, ours


def _stop(session: Session, service: Installed, to: str) -> None:
    profile = service.manifest.profile
    announce(session, profile, f"{MEASURES[to]} {profile}")
    service.manager.stop(service.unit, limit=session.stop_limit(profile))


def _refuse_rivals(session: Session, service: Installed, to: str) -> None:
    """Refuse to stop a running service for a measurement."""
    profile = service.manifest.profile
    if others := running_rivals(session, service):
        names = " and ".join(f'"{name}"' for name in others)
        raise UserError(
            f'"{profile}" cannot be {to} now: {names} runs, and uses the same GPU or port',
            hint=f"run `servicekit switch {profile}` first, which replaces it",
        )


def _refuse_down(now: Status, to: str) -> None:
    if not is_up(now):
        raise UserError(
            f'"{now.profile}" cannot be {to}, since it is {now.state}: {now.why}',
            hint=now.remedy or f"`servicekit logs {now.profile}` says more",
        )


def client_of(session: Session, recipe: Profile, now: Status) -> Client:
    """Make a client of the engine that serves `recipe`, with its key where it wants one.

    The port is the one that is published, since it may be a tunable; the address is the profile's,
    which is on loopback, whatever somebody published.
    """
    host = f"[{recipe.host}]" if ":" in recipe.host else recipe.host
    port = now.url.removesuffix("/v1").rpartition(":")[2] if now.url else recipe.port
    return Client(
        f"http://{host}:{port}", api_key=credentials.api_key(recipe, session.places, os.environ)
    )


def tells_thinking(recipe: Profile) -> bool:
    """Whether a request can turn thinking on and off."""
    silent = recipe.probe.model_copy(update={"thinking": False})
    request = engine(recipe.engine).completion_request(recipe.model_copy(update={"probe": silent}))
    return "chat_template_kwargs" in request
