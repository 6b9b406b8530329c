"""`history`: shows the runs in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from servicekit.cli.options import AsJson, ForUser, ProfileName, session_of
from servicekit.cli.output import as_json, duration, local, note, table
from servicekit.watchdog import history as past
from servicekit.watchdog import ledger
from servicekit.watchdog.ledger import Record


def history(
    ctx: typer.Context,
    profile: ProfileName,
    *,
    lines: Annotated[
        int,
        typer.Option("--lines", "-n", min=1, metavar="N", help="Maximum number of runs to show."),
    ] = 20,
    json: AsJson = False,
    user: ForUser = False,
) -> None:
    """Show when and why the runs of a service ended.

    Below them the phases of the last start; one that took twice as long as usual is marked slow.

    With --json a list of all records of the ledger, oldest first.
    """
    places = session_of(ctx, user=user).places
    records = ledger.read(Path(places.ledger(profile)))
    if not records:
        # A mistyped name is an error.
        session_of(ctx, user=user).profile(profile)
        if not json:
            note(f'"{profile}" has not run yet')
    if json:
        as_json([_entry(record) for record in records])
    else:
        _show(records, lines)


def _entry(record: Record) -> dict[str, Any]:
    return {
        "at": record.at.isoformat(timespec="milliseconds"),
        "boot_id": record.boot_id,
        "run": record.run,
        "kind": record.kind.value,
        **record.fields,
    }


def _show(records: Sequence[Record], lines: int) -> None:
    runs = [
        (
            local(run.began),
            duration((run.ended - run.began).total_seconds()) if run.ended else "-",
            duration(run.ready_seconds) or "-",
            "-" if run.code is None else str(run.code),
            run.cause.value if run.cause else "",
            run.sentence,
        )
        for run in past.runs(records)[-lines:]
    ]
    if runs:
        table(("BEGAN", "LASTED", "READY AFTER", "EXIT", "CAUSE", "WHY"), runs, whole=True)
    phases = [
        (phase.name, duration(phase.seconds), duration(phase.usual) or "-", "slow" * phase.slow)
        for phase in past.phase_times(records)
    ]
    if phases:
        typer.echo()
        table(("LAST START", "TOOK", "USUALLY", ""), phases)
