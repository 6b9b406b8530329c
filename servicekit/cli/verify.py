"""`verify`: runs the acceptance gates against a running profile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from servicekit.cli.control import is_up
from servicekit.cli.options import AsJson, ForUser, ProfileName, session_of
from servicekit.cli.output import as_json, duration, note, table
from servicekit.cli.served import client_of, plan_of_what_runs, served, tells_thinking, undisturbed
from servicekit.cli.session import Installed, Session
from servicekit.engines import engine
from servicekit.engines.commandline import given
from servicekit.errors import UserError, refused
from servicekit.lab.verify.binding import fingerprint, vram
from servicekit.lab.verify.gate import GateResult, ServedModel
from servicekit.lab.verify.gates import GATES
from servicekit.lab.verify.record import Verification, prepare, read, twin_of, write
from servicekit.lab.verify.runner import run
from servicekit.profiles.model import Profile
from servicekit.profiles.rules import kv_below_fp8
from servicekit.text import printable
from servicekit.watchdog.status import Status

EVIDENCE: Final = 100  # characters of a reason that a line of progress shows


def verify(
    ctx: typer.Context,
    profile: ProfileName,
    *,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="GATE", help="Run only this gate; may be repeated."),
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(
            "--repeats",
            min=4,
            metavar="N",
            help="Number of identical requests of the stability gate.",
        ),
    ] = 8,
    json: AsJson = False,
    user: ForUser = False,
) -> None:
    """Run the acceptance gates against a running profile.

    \b
    The gates:
      text, thinking, recall, tools, json, vision, wall, stability, kv-precision

    Each gate passes, fails or is skipped with a reason. The requests and answers are stored below
    the state directory with the versions that they hold for; `status` and `show` report whether
    they still do. A service that is down is started, and stopped afterwards. ^C, SIGTERM and a
    closed terminal keep the results so far. Exit code 1 if a gate failed.

    With --json the stored verification.
    """  # noqa: D301 - the character itself keeps the lines apart
    unknown = [name for name in only or () if name not in GATES]
    if unknown:
        raise typer.BadParameter(f'no gate "{unknown[0]}"; there are {", ".join(GATES)}')
    names = tuple(name for name in GATES if not only or name in only)
    session = session_of(ctx, user=user)
    service = session.installed(profile)
    _prepare(session, profile)
    with served(session, service, to="verified") as now:
        result = _verified(session, service, now, names, repeats)
        # Before printing it and stopping the service: both may fail or be interrupted.
        with undisturbed():
            lost = _keep(session, result)
        if result.complete:
            _note_another_run(session, service, now)
    if json:
        as_json(result.as_json())
    else:
        _print(result)
    if lost is not None:
        raise lost
    if not result.complete:
        raise KeyboardInterrupt
    raise typer.Exit(1 if result.failed else 0)


def _prepare(session: Session, profile: str) -> None:
    """Raise `UserError` now rather than after an hour if no result could be written."""
    state = Path(session.places.state, profile)
    try:
        prepare(state)
    except OSError as error:
        raise _unkept(state, error) from None


def _keep(session: Session, result: Verification) -> UserError | None:
    """Write a result; return the error instead of raising it, since the result is still shown."""
    state = Path(session.places.state, result.profile)
    try:
        name = write(state, result)
    except OSError as error:
        return _unkept(state, error)
    if not result.complete:
        note(f"interrupted: {len(result.findings)} of {len(result.gates)} gates ended")
    note(f"written to {state}/verifications/{name}")
    return None


def _note_another_run(session: Session, service: Installed, before: Status) -> None:
    """Print a note if the service restarted meanwhile, which may be why a gate failed."""
    try:
        now = session.look(service)
    except UserError:  # without an answer there is no contradiction
        return
    if now.run != before.run or not is_up(now):
        note(
            f'"{now.profile}" stopped or restarted during the run, which may be why a gate failed; '
            f"`servicekit history {now.profile}` shows why"
        )


def _unkept(state: Path, error: OSError) -> UserError:
    return refused(f'cannot write the verification below "{state}"', error)


def _verified(
    session: Session, service: Installed, now: Status, names: tuple[str, ...], repeats: int
) -> Verification:
    """Run the gates; after ^C the result holds those that ended."""
    recipe = session.profile(now.profile)
    plan = plan_of_what_runs(session, service, recipe, now, to="verified")
    began = datetime.now(UTC).isoformat(timespec="milliseconds")
    # Beforehand, so that a second ^C finds nothing left to do but to write.
    bound = asyncio.run(fingerprint(plan))
    findings: list[GateResult] = []
    show = _progress(names, read(Path(session.places.state, now.profile)))

    def keep(finding: GateResult) -> None:
        findings.append(finding)
        show(finding)

    with suppress(KeyboardInterrupt):
        asyncio.run(_ask(session, recipe, now, names, repeats, keep))
    return Verification(
        profile=now.profile,
        at=began,
        fingerprint=bound,
        about=_about(recipe),
        below_fp8=kv_below_fp8(recipe),
        gates=names,
        findings=tuple(findings),
    )


async def _ask(
    session: Session,
    recipe: Profile,
    now: Status,
    names: tuple[str, ...],
    repeats: int,
    keep: Callable[[GateResult], object],
) -> None:
    async with client_of(session, recipe, now) as client:
        path = engine(recipe.engine).pool_path
        # SGLang's answer contains its API key, and nothing that is needed here.
        properties = await client.properties(path) if path == "/props" else {}
        subject = _subject(session, recipe, now, properties, repeats)
        gates = {name: GATES[name] for name in names}
        await run(gates, subject, client, lambda: vram(recipe.gpus), keep)


def _subject(
    session: Session, recipe: Profile, now: Status, properties: Mapping[str, Any], repeats: int
) -> ServedModel:
    adapter = engine(recipe.engine)
    context = now.context.get("effective") or recipe.context.requested
    below = kv_below_fp8(recipe)
    others = {
        name: read(Path(session.places.state, name))
        for name in (session.catalog.names() if below is not None else ())
        if name != recipe.name
    }
    return ServedModel(
        served_name=recipe.served_name,
        context=context,
        usable=adapter.usable_input(context),
        parallel=recipe.context.parallel,
        repeats=repeats,
        toggles_thinking=tells_thinking(recipe),
        thinks=given(recipe, "reasoning-parser") is not None,
        tools=_flag(properties, "chat_template_caps", "supports_tools"),
        tool_parser=adapter.lacks_tool_parser(recipe),
        vision=_flag(properties, "modalities", "vision"),
        below_fp8=below,
        twin=twin_of(others, _about(recipe)),
    )


def _flag(properties: Mapping[str, Any], table_name: str, key: str) -> bool | None:
    """Read a flag of llama-server's /props; `None` if it is absent."""
    flags = properties.get(table_name)
    value = flags.get(key) if isinstance(flags, dict) else None
    return value if isinstance(value, bool) else None


def _about(recipe: Profile) -> str:
    return f"{recipe.model} {recipe.revision or ''}".strip()


def _progress(
    names: tuple[str, ...], earlier: tuple[Verification, ...]
) -> Callable[[GateResult], object]:
    """Print each result to stderr, with the time left by the last run of each gate."""
    took = {each.gate: each.seconds for past in earlier for each in past.findings}
    began = time.monotonic()
    asked: list[str] = []

    def left() -> str:
        ahead = [took.get(name) for name in names if name not in asked]
        known = [seconds for seconds in ahead if seconds is not None]
        if not ahead or len(known) < len(ahead):
            return f"{duration(time.monotonic() - began)} so far"
        return f"about {duration(sum(known))} left"

    def show(finding: GateResult) -> None:
        asked.append(finding.gate)
        reason = printable(finding.reason[:EVIDENCE])
        step = f"[{len(asked)}/{len(names)}] {finding.gate}: {finding.outcome.value}: {reason}"
        note(f"{step} ({left()})")

    note(f"{len(names)} gates, {left()}")
    return show


def _print(result: Verification) -> None:
    rows = [
        (each.gate, each.outcome.value, duration(each.seconds), each.reason)
        for each in result.findings
    ]
    table(("GATE", "", "TOOK", "WHY"), rows, whole=True)
    for finding in result.findings:
        for row in finding.evidence.get("lengths", ()):
            if row["prompt_tokens"] is None:
                continue  # it was not answered, which the reason says
            ttft = row["ttft_seconds"]
            at = "" if ttft is None else f", first token after {duration(ttft)}"
            typer.echo(f"  recall: {row['prompt_tokens']} prompt tokens{at}")
