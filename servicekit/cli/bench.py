"""`bench`: measures a verified profile with a versioned suite."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from servicekit.cli.forecast import local_model, plan_of
from servicekit.cli.options import AsJson, ForUser, OneProfile, session_of
from servicekit.cli.output import as_json, duration, local, note, table, warn
from servicekit.cli.served import client_of, plan_of_what_runs, served, tells_thinking, undisturbed
from servicekit.cli.session import Installed, Session
from servicekit.cli.verification import verification_status_of
from servicekit.engines import engine
from servicekit.errors import UserError, refused
from servicekit.lab.bench import store
from servicekit.lab.bench.cases import Planned
from servicekit.lab.bench.figures import FIGURES
from servicekit.lab.bench.formatting import with_unit
from servicekit.lab.bench.precision import kv_precision
from servicekit.lab.bench.report import HEADS, remarks, rows
from servicekit.lab.bench.result import (
    FORMAT,
    BenchResult,
    Case,
    ContextFigures,
    ResultError,
    summary,
)
from servicekit.lab.bench.runner import SuiteRunner, case_of
from servicekit.lab.bench.samples import Sample
from servicekit.lab.bench.suites import LoadedSuite, ServiceLimits, load, names, planned, unmatched
from servicekit.lab.verify.binding import fingerprint
from servicekit.lab.verify.chat import ChatRequest
from servicekit.lab.verify.status import UNKNOWN, VerificationStatus
from servicekit.profiles.model import Profile
from servicekit.profiles.vocabulary import EngineName
from servicekit.service.plan import Plan
from servicekit.text import printable
from servicekit.watchdog.status import Status

UNSEEN: Final = "not-seen-afterwards"
"""A reason for being degraded: the state of the service at the end could not be read."""
ANOTHER_RUN: Final = "started-anew-meanwhile"
"""Stands there where the engine is not the one that was measured first."""
LINE_EVERY: Final = 10.0  # seconds between lines of progress within a case
PROMPT_WEIGHT: Final = 0.05
"""What a token of a prompt takes beside one of an answer, about; only the time left hangs on it."""


def _suites(incomplete: str) -> list[str]:
    return [name for name in names() if name.startswith(incomplete)]


SuiteName = Annotated[
    str,
    typer.Option(
        "--suite",
        metavar="NAME",
        help="Suite to run, or path of a suite file.",
        autocompletion=_suites,
    ),
]
Overrule = Annotated[
    bool,
    typer.Option(
        "--anyway",
        help="Measure a profile that is not verified, or not under the suite's conditions; "
        "the result is marked.",
    ),
]
Every = Annotated[bool, typer.Option("--list", help="List the stored runs; measure nothing.")]


def bench(
    ctx: typer.Context,
    profile: OneProfile = None,
    *,
    suite: SuiteName = "small",
    anyway: Overrule = False,
    every: Every = False,
    json: AsJson = False,
    user: ForUser = False,
) -> None:
    """Run a benchmark suite against a verified profile.

    \b
    The suites:
      small          a first look within a minute
      serving        1,024 tokens in, 128 out, 100 prompts, at concurrency 1, 2 and 4
      matched-32k    profiles side by side: 32,768 tokens, one at a time, FP8 KV cache
      context-sweep  prompts of 1,024 to 256,000 tokens, as far as they fit
      prefix         a long prefix: uncached, cached, and cached behind a timestamp

    Measures first token, first visible token, prefill and decode rates, time to the finished
    answer, acceptance and correctness. Each run is a file below the state directory. A service
    that is down is started, and stopped afterwards. ^C keeps the results so far. Exit code 1 if a
    request failed.
    """  # noqa: D301 - the character itself keeps the lines apart
    session = session_of(ctx, user=user)
    if every:
        _list(session, profile, json=json)
        return
    if profile is None:
        raise typer.BadParameter("give a profile, or --list")
    run = _Run(session, profile, suite)
    run.refuse(anyway=anyway)
    service = session.installed(profile)
    run.prepare()
    with served(session, service, to="measured") as now:
        run.refuse_running(service, now, anyway=anyway)
        result, lost = run.measured(now)
    if json:
        data = result.model_dump(mode="json")
        as_json({"name": result.name, **data, "summary": [summary(c) for c in result.cases]})
    else:
        table(HEADS, rows(result))
        for line in remarks(result):
            typer.echo(printable(line))
    if lost is not None:
        raise lost
    if run.interrupted:
        raise KeyboardInterrupt
    answered = result.complete and not any(case.faults for case in result.cases)
    raise typer.Exit(0 if answered else 1)


class _Run:
    def __init__(self, session: Session, profile: str, suite: str) -> None:
        self._session = session
        self._loaded: LoadedSuite = load(suite)
        session.manifest(profile)  # report a profile that is not installed first
        self._recipe: Profile = session.profile(profile)
        self._plan: Plan = plan_of(session, self._recipe)
        self._setting = self._setting_of(effective=None)
        self._verification: VerificationStatus | None = None
        self.interrupted = False

    def _setting_of(self, effective: int | None) -> ServiceLimits:
        recipe = self._recipe
        context = recipe.context.requested
        return ServiceLimits(
            context=context,
            effective=effective,
            usable=engine(recipe.engine).usable_input(effective or context),
            kv_precision=kv_precision(recipe, local_model(self._plan)),
            tells_thinking=tells_thinking(recipe),
            forces_length=recipe.engine is not EngineName.OPENAI,
        )

    def refuse(self, *, anyway: bool) -> None:
        """Refuse an unverified or unmatched profile before anything is started."""
        name = self._recipe.name
        self._refuse_unmatched(anyway=anyway)
        status = self._verification = verification_status_of(self._session, name)
        if not status.verified and not anyway:
            raise UserError(
                f'cannot measure "{name}": {status.text}',
                hint=f"run `servicekit verify {name}`, or measure it unverified with --anyway",
            )

    def refuse_running(self, service: Installed, now: Status, *, anyway: bool) -> None:
        """Refuse a service that runs another plan, or has less context than the suite needs."""
        self._plan = plan_of_what_runs(self._session, service, self._recipe, now, to="measured")
        self._setting = self._setting_of(now.context.get("effective"))
        self._refuse_unmatched(anyway=anyway)

    def _refuse_unmatched(self, *, anyway: bool) -> None:
        data = self._loaded.data
        differs = unmatched(data, self._setting)
        if differs and not anyway:
            raise UserError(
                f'"{self._recipe.name}" does not match suite "{data.name}": {", ".join(differs)}',
                hint="measure it anyway with --anyway, or choose another suite",
            )

    def prepare(self) -> None:
        """Refuse now rather than after an hour if no result could be written."""
        states = Path(self._session.places.state)
        try:
            store.prepare(states, self._recipe.name)
        except OSError as error:
            raise _unkept(states, error) from None

    def measured(self, now: Status) -> tuple[BenchResult, UserError | None]:
        """Measure and store; return the result, and the error if it could not be stored."""
        cases, skipped = planned(self._loaded.data, self._setting)
        if not cases:
            raise UserError(f"no case of the suite can run: {skipped[0]}")
        # Beforehand, so that a second ^C finds nothing left to do but to write.
        self._bound = asyncio.run(fingerprint(self._plan))
        self._pools = ContextFigures(**now.context)
        began = datetime.now(UTC)
        keeper = _Keeper(cases)
        failed: UserError | None = None
        try:
            asyncio.run(self._ask(now, cases, keeper))
        except KeyboardInterrupt:
            self.interrupted = True
        except UserError as error:
            failed = error
        if self.interrupted or failed:
            keeper.cut()
            if not keeper.cases:
                if failed:
                    raise failed
                note("interrupted before the first sample: no result is written")
                raise KeyboardInterrupt
            if failed:
                warn(str(failed))
        complete = not self.interrupted and failed is None
        with undisturbed():
            result = self._result(now, began, keeper.cases, skipped, complete=complete)
            lost = self._keep(result)
        return result, lost

    def _result(
        self,
        before: Status,
        began: datetime,
        cases: Sequence[Case],
        skipped: tuple[str, ...],
        *,
        complete: bool,
    ) -> BenchResult:
        recipe, status = self._recipe, self._verification or UNKNOWN
        return BenchResult(
            format=FORMAT,
            suite=self._loaded.suite,
            profile=recipe.name,
            engine=recipe.engine.value,
            model=recipe.model,
            drafter=recipe.drafter,
            fingerprint=self._bound,
            verified=status.verified,
            standing=status.text,
            unmatched=unmatched(self._loaded.data, self._setting),
            skipped=skipped,
            started=began.isoformat(timespec="milliseconds"),
            ended=datetime.now(UTC).isoformat(timespec="milliseconds"),
            complete=complete,
            degraded=self._reasons(before),
            pools=self._pools,
            cases=tuple(cases),
        )

    def _reasons(self, before: Status) -> tuple[str, ...]:
        """List why the service was degraded before or after, and whether it restarted."""
        try:
            after = self._session.look(self._session.installed(before.profile))
        except (OSError, UserError):  # nothing that was measured is lost by that
            return (*map(str, before.reasons), UNSEEN)
        reasons = [*before.reasons, *after.reasons]
        if after.run != before.run:
            reasons.append(ANOTHER_RUN)
        return tuple(dict.fromkeys(map(str, reasons)))

    async def _ask(self, now: Status, cases: Sequence[Planned], keeper: _Keeper) -> None:
        adapter = engine(self._recipe.engine)
        async with client_of(self._session, self._recipe, now) as client:
            # A service is measured when it has answered, and has compiled what an answer takes.
            reply = await client.ask(ChatRequest(adapter.completion_request(self._recipe)))
            if reply.broken:
                raise UserError(f'"{self._recipe.name}" does not answer: {reply.broken}')
            runner = SuiteRunner(
                client,
                keeper,
                served_name=self._recipe.served_name,
                engine=self._recipe.engine,
                metrics_path=adapter.metrics_path,
                run=secrets.token_hex(8),
            )
            await runner.measure(cases)

    def _keep(self, result: BenchResult) -> UserError | None:
        """Store the result; return an error instead of raising it, to show the result first."""
        states = Path(self._session.places.state)
        try:
            file = store.write(states, result)
        except OSError as error:
            return _unkept(states, error)
        note(f"written to {file}")
        newest = max(name for name in store.names(states) if f"-{result.profile}-" in name)
        if newest > result.name:
            warn(
                f'the clock was set back since "{newest}": `servicekit compare` uses that run as '
                "the latest until it is removed"
            )
        return None


def _unkept(states: Path, error: OSError) -> UserError:
    return refused(f'cannot write the result below "{states}"', error)


class _Keeper:
    """Collects results as they arrive, and prints progress."""

    def __init__(self, cases: Sequence[Planned]) -> None:
        self.cases: list[Case] = []
        self._planned = cases
        self._now: Planned | None = None
        self._samples: list[Sample] = []
        self._done = 0.0
        self._whole = sum(_weight(each) * each.data.requests for each in cases)
        self._began = self._printed = time.monotonic()

    def begins(self, planned: Planned) -> None:
        self._now, self._samples = planned, []

    def measured(self, sample: Sample) -> None:
        if self._now is None:
            return
        self._samples.append(sample)
        self._done += _weight(self._now)
        if time.monotonic() - self._printed > LINE_EVERY:
            self._show(f"{len(self._samples)} of {self._now.data.requests} requests")

    def ended(self, case: Case) -> None:
        figures = [
            f"{figure.label} {with_unit(known.median, figure.unit)}"
            for figure in FIGURES
            if (known := case.statistics(figure)) is not None
        ]
        self._show(", ".join(figures) or ("no figure" if case.sound else "no request was answered"))
        self.cases.append(case)
        self._now, self._samples = None, []

    def cut(self) -> None:
        """Keep the samples of an interrupted case."""
        if self._now is not None and self._samples:
            self.cases.append(case_of(self._now, self._samples, None))

    def _show(self, text: str) -> None:
        self._printed = time.monotonic()
        elapsed = self._printed - self._began
        ahead = max(0.0, self._whole - self._done)
        left = elapsed * ahead / self._done if self._done else None
        more = f" (about {duration(left)} left)" if left else ""
        name = "" if self._now is None else self._now.name
        note(f"[{len(self.cases) + 1}/{len(self._planned)}] {name}: {text}{more}")


def _weight(planned: Planned) -> float:
    """Estimate the relative duration of one request."""
    conditions = planned.conditions
    spent = conditions.max_tokens + PROMPT_WEIGHT * conditions.prompt_tokens
    return spent / conditions.concurrency


def _list(session: Session, profile: str | None, *, json: bool) -> None:
    results: list[BenchResult] = []
    for name, text in store.texts(Path(session.places.state)).items():
        try:
            result = BenchResult.parse(text, where=name)
        except ResultError as error:
            warn(str(error))
            continue
        if profile in {None, result.profile}:
            results.append(result)
    if json:
        as_json([_entry(result) for result in results])
    elif results:
        heads = ("RUN", "SUITE", "CASES", "VERIFIED", "STARTED")
        table(heads, [_row(result) for result in results])
    else:
        note("no benchmark results; `servicekit bench PROFILE` runs a benchmark")


def _entry(result: BenchResult) -> dict[str, object]:
    return {
        "name": result.name,
        "profile": result.profile,
        "suite": result.suite.model_dump(),
        "cases": [case.name for case in result.cases],
        "verified": result.verified,
        "complete": result.complete,
        "started": result.started,
    }


def _row(result: BenchResult) -> tuple[str, ...]:
    cases = str(len(result.cases)) + ("" if result.complete else ", interrupted")
    at = local(datetime.fromisoformat(result.started))
    suite = f"{result.suite.name} {result.suite.version}"
    return result.name, suite, cases, "yes" if result.verified else "no", at
