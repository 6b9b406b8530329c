"""Prints the fault matrix: every row under every manager that it can be run under.

    python -m faults [--manager NAME]... [--row NAME]... [--out FILE]

Exit code 1 where anything is not as its row says; what that is, is told on stderr.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Final

from faults.rows import MANAGERS, Degraded, Failed, Ready
from faults.side_by_side import played, report
from faults.table import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from faults.rows import Outcome, Row

HEAD: Final = """\
# What happens when something goes wrong

Every fault below is injected into a real service: a real `servicekit watch` over a
[fake engine](../tests/fake_engine.py) that replies as SGLang, vLLM, llama.cpp or any
OpenAI-compatible server does and misbehaves on command, or, in the last rows, over llama.cpp's own
server with a real model. Where a GPU is needed, its [driver](../tests/drivers/pynvml.py) is fake
as well; [gpu.md](gpu.md) reports on a real one. Each row runs under {managers}: in `bare` the
test is the watchdog's parent; the others are real managers, with what `servicekit install` writes.

`make faults` runs all rows and writes this page; `make test` runs those that differ from each
other, and the most important ones under the real managers as well. The rows are a
[table](../tests/faults/table.py), and what they do is a
[list of acts](../tests/faults/acts.py).

Times are seconds; several values belong to the managers in that order, and `-` means
that the row does not apply to that manager. *Detected after* counts from the injection, or from the
launch where the fault is there from the start. *New process after* counts from the fault to the
next engine's process, and includes the proof that nothing of the old one is left; up to six
rows run at a time on {cores} cores, which lengthens them. *Left behind* lists
processes (and so the VRAM that they hold), ports and shared memory that remain after the row.

All rows use a profile with short limits unless they say otherwise: a completion every 1 s,
1.5 s to answer it, a hang after 3 s without progress, a start given up after 4 s without progress.
With longer limits, detection takes that much longer.

{rows} rows, played {played} times: {wrong}.

| fault | injected | detected after | state and cause shown | manager's view | restarted | \
new process after | left behind |
|---|---|---|---|---|---|---|---|
"""


def main() -> int:
    """Play what was asked for, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--manager", action="append", choices=MANAGERS)
    parser.add_argument("--row", action="append", choices=[row.name for row in ROWS])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    managers: Sequence[str] = asked.manager or MANAGERS
    rows = [row for row in ROWS if not asked.row or row.name in asked.row]
    outcomes: dict[str, dict[str, Outcome]] = {row.name: {} for row in rows}
    progress = Progress(sum(len({*managers} & {*row.managers}) for row in rows))
    for manager in managers:
        chosen = [row for row in rows if manager in row.managers]
        with played(chosen, manager) as coming:
            for future in as_completed(coming.values()):
                outcome = future.result()
                outcomes[outcome.row.name][manager] = outcome
                progress.tell(outcome)
    table = render(rows, outcomes, managers)
    print(table, end="")
    if asked.out is not None:
        asked.out.write_text(table, encoding="utf-8")
    return any(report(each) for of_row in outcomes.values() for each in of_row.values())


class Progress:
    """Tells how each row went, and how long the rest may take."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._done = 0
        self._begun = time.monotonic()

    def tell(self, outcome: Outcome) -> None:
        """Count one more row."""
        self._done += 1
        passed = time.monotonic() - self._begun
        left = passed / self._done * (self._every - self._done)
        wrong = report(outcome)
        times = f"{_minutes(passed)} passed, about {_minutes(left)} left"
        row = f"{outcome.row.name} under {outcome.manager}: {'WRONG' if wrong else 'ok'}"
        print(f"{self._done}/{self._every}, {times}: {row}", file=sys.stderr, flush=True)
        if wrong:
            print(wrong, file=sys.stderr, flush=True)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02} min"


def render(
    rows: Sequence[Row], outcomes: Mapping[str, Mapping[str, Outcome]], managers: Sequence[str]
) -> str:
    """Write the page."""
    every = [outcome for of_row in outcomes.values() for outcome in of_row.values()]
    wrong = sum(bool(report(outcome)) for outcome in every)
    missed = sum(outcome.detected is None for outcome in every if _is_fault(outcome))
    killed = sum(outcome.restarted != "no" for outcome in every if not _is_fault(outcome))
    told = f"{missed} missed, {killed} healthy engines killed, {wrong} otherwise than expected"
    head = HEAD.format(
        managers=", ".join(managers),
        cores=os.cpu_count(),
        rows=len(rows),
        played=len(every),
        wrong=told,
    )
    return head + "".join(_line(row, outcomes[row.name], managers) for row in rows)


def _is_fault(outcome: Outcome) -> bool:
    """Whether this row ends or restarts the engine."""
    return not isinstance(outcome.row.expect, Ready | Degraded)


def _line(row: Row, of_row: Mapping[str, Outcome], managers: Sequence[str]) -> str:
    def each(show: Callable[[Outcome], str]) -> str:
        shown = [show(of_row[name]) if name in of_row else "-" for name in managers]
        said = {*shown} - {"-"}
        return said.pop() if len(said) == 1 else " · ".join(shown)

    cells = [
        row.name,
        row.injected,
        each(lambda outcome: _seconds(outcome.detected)),
        each(lambda outcome: outcome.shown),
        each(lambda outcome: outcome.view),
        each(lambda outcome: outcome.restarted),
        each(lambda outcome: _seconds(outcome.renewed)) if isinstance(row.expect, Failed) else "",
        each(lambda outcome: outcome.left),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _seconds(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.2f}" if figure < 1 else f"{figure:.1f}"


if __name__ == "__main__":
    sys.exit(main())
