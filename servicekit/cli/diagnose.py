"""`diagnose`: why an engine failed, from its log."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from servicekit.cli.freshness import note_outdated
from servicekit.cli.options import AsJson, ForUser, complete_profile, session_of
from servicekit.cli.output import as_json, duration, local, ours, say
from servicekit.cli.session import Session
from servicekit.diagnosis.lines import unwrapped
from servicekit.diagnosis.reader import LogReader
from servicekit.diagnosis.signatures import FILES
from servicekit.diagnosis.verdict import Diagnosis, render_text
from servicekit.diagnosis.verdict import as_json as in_json
from servicekit.diagnosis.verdict import diagnose as conclude
from servicekit.errors import UserError, reason
from servicekit.managers import LogQuery
from servicekit.managers.logstream import log_of
from servicekit.profiles.model import Profile
from servicekit.text import printable
from servicekit.watchdog import history, ledger

READ_SIZE: Final = 1 << 20
PASTED: Final = 1 << 20
"""Bytes of a log that may have been copied from a terminal, with its line breaks."""
STDIN: Final = "-"


def diagnose(
    ctx: typer.Context,
    profile: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROFILE|-]",
            help="Profile whose last run to explain; - reads a log from standard input.",
            autocompletion=complete_profile,
        ),
    ] = None,
    *,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            metavar="LOG",
            help="Read this log instead, - for standard input; several are read in their order.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="NAME", help="Engine that wrote the log, if not obvious."),
    ] = None,
    run: Annotated[
        str,
        typer.Option(
            "--run", metavar="ID", help="Explain this run, by its id in `history --json`."
        ),
    ] = "",
    json: AsJson = False,
    user: ForUser = False,
) -> None:
    """Explain from its log why an engine failed.

    Prints the cause, the log lines that show it, and what helps, in order. With a profile alone it
    explains the last run that failed: when and why it ended, what followed, and how the service is
    now. With a profile and --file, the remedies fit the profile's options.
    """
    files = file or []
    if profile == STDIN:
        profile, files = None, [*files, STDIN]
    if profile is None and not files:
        raise typer.BadParameter("give a profile, - or --file LOG")
    if engine is not None:
        _check_engine(engine)
    story: _Story | None = None
    if files:
        recipe = None if profile is None else session_of(ctx, user=user).profile(profile)
        diagnosis = _diagnosed(_pieces(files), recipe, engine)
    else:
        story = _Story(session_of(ctx, user=user), str(profile), run)
        diagnosis = story.diagnosis(engine)
    if json:
        as_json(in_json(diagnosis) | ({} if story is None else {"story": story.as_json()}))
    else:
        for line in () if story is None else story.lines():
            say(printable(line))
        say(ours(render_text(diagnosis)))


def _check_engine(name: str) -> None:
    if name not in FILES:
        raise typer.BadParameter(f'engine "{name}" must be one of {", ".join(FILES)}')


def _pieces(files: Iterable[str]) -> Iterator[bytes]:
    """Read logs in their order; a short one may have been wrapped by a terminal."""
    for name in files:
        with ExitStack() as stack:
            try:
                stream: BinaryIO = (
                    sys.stdin.buffer
                    if name == STDIN
                    else stack.enter_context(Path(name).open("rb"))
                )
                piece = stream.read(PASTED)
                rest = stream.read(READ_SIZE)
                yield piece if rest else unwrapped(piece)
                while rest:
                    yield rest
                    rest = stream.read(READ_SIZE)
            except OSError as error:
                raise UserError(f'cannot read log "{name}": {reason(error)}') from None
        yield b"\n"


def _diagnosed(
    pieces: Iterable[bytes], profile: Profile | None = None, engine: str | None = None
) -> Diagnosis:
    reader = LogReader(engine or (profile.engine.value if profile else "any"))
    for piece in pieces:
        reader.feed(piece)
    if profile is None:
        return conclude(reader)
    return conclude(reader, options=profile.options, profile=profile.name)


class _Story:
    """The run of a service to explain, what followed it, and how the service is now."""

    def __init__(self, session: Session, name: str, run: str) -> None:
        self._session, self._name = session, name
        self._service = session.installed(name)
        self._recipe = session.installed_profile(name)
        note_outdated(session, name)
        self._runs = history.runs(ledger.read(Path(session.places.ledger(name))))
        if not self._runs:
            hint = f"`servicekit start {name}` starts it"
            raise UserError(f'"{name}" has not run yet', hint=hint)
        self._at = self._chosen(run)
        self._run = self._runs[self._at]

    def _chosen(self, run: str) -> int:
        """Return the index of the run called `run`, else of the last that failed, else the last."""
        numbers = range(len(self._runs) - 1, -1, -1)
        if run:
            found = next((n for n in numbers if self._runs[n].run.startswith(run)), None)
            if found is None:
                hint = f"`servicekit history {self._name} --json` lists them"
                raise UserError(f'"{self._name}" has no run "{run}"', hint=hint)
            return found
        failed = (n for n in numbers if self._runs[n].cause not in {None, *ledger.UNCOUNTED})
        return next(failed, len(self._runs) - 1)

    def diagnosis(self, engine: str | None) -> Diagnosis:
        """Read the log of the run; what the watchdog recorded decides where the log does not."""
        service, run = self._service, self._run
        with log_of(service.manager, service.unit, LogQuery(run=run.run)) as lines:
            found = replace(
                _diagnosed(lines, self._recipe, engine), planned=service.manifest.planned
            )
        recorded = run.cause
        if recorded is None or recorded in ledger.UNCOUNTED or found.signature:
            return found
        remedies = tuple(each.replace("{profile}", self._name) for each in recorded.remedies)
        return replace(
            found,
            cause=recorded,
            sentence=run.sentence or recorded.title,
            remedies=remedies,
            retry=recorded.retry,
            source="the service's history",
        )

    def lines(self) -> list[str]:
        """Format it as text."""
        run, now = self._run, self._session.look(self._service)
        lasted = duration((run.ended - run.began).total_seconds()) if run.ended else ""
        end = f"ended after {lasted}" if lasted else "has not ended"
        cause = f" by {run.cause}: {run.sentence}" if run.cause else ""
        after = self._runs[self._at + 1 :]
        lines = [f"run {run.run[:8]} of {local(run.began)} {end}{cause}"]
        if after:
            count = f"{len(after)} further run{'s' * (len(after) > 1)}"
            ready = next((each for each in after if each.ready_seconds is not None), None)
            outcome = f"the one of {local(ready.began)} was ready" if ready else "none was ready"
            lines.append(f"then: {count}, {outcome}")
        return [*lines, f"now: {now.state}: {now.why}", ""]

    def as_json(self) -> dict[str, object]:
        """Give the same for a program."""
        run, now = self._run, self._session.look(self._service)
        return {
            "run": run.run,
            "began": run.began.isoformat(timespec="milliseconds"),
            "ended": run.ended.isoformat(timespec="milliseconds") if run.ended else None,
            "code": run.code,
            "cause": run.cause.value if run.cause else None,
            "sentence": run.sentence,
            "later_runs": len(self._runs) - self._at - 1,
            "now": {"state": now.state, "why": now.why},
        }
