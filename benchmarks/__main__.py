"""Measures servicekit, and what else keeps model servers alive: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import beside, commands, diagnosis, measuring, own
from benchmarks.machinery import Machinery
from benchmarks.table import as_json, render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.table import Row

MEASUREMENTS: Final[Mapping[str, Callable[[Machinery], Iterator[Row]]]] = {
    "commands": commands.measure,
    "crashes": own.measure_crashes,
    "idle": own.measure_idle,
    "beside": beside.measure,
    "logs": diagnosis.measure,
    "measuring": measuring.measure,
}


HEAD: Final = """\
# What it takes, and what else there is

`make bench` measures this. *Aim* is what the figure should not exceed, or fall short of. Where
something else does the same, *ratio* says how many times ours its figure is.

Side by side means the same faults at the same time, around the same
[fake engine](../tests/fake_engine.py), everything with the periods and bounds that it ships with.
Supervisor's httpok asks each minute and gives ten seconds to answer; monit, as Debian has it, looks
every two minutes; the plain unit restarts on failure and asks nothing. A crash is a SIGKILL to an
engine with a double-forked child, a full hang a SIGSTOP; when completions hang, `/health` and
`/v1/models` are well. Our bound for a hang is that of the profile: 180 s in which no counter moves.
"""


def main(argv: Sequence[str]) -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        metavar="NAME",
        choices=MEASUREMENTS,
        action="append",
        help=f"only this measurement, one of {', '.join(MEASUREMENTS)}; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a page")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write the page there, too")
    wanted = parser.parse_args(argv)
    rows: list[Row] = []
    begun = time.monotonic()
    with Machinery() as machinery:
        for name in wanted.only or MEASUREMENTS:
            for row in MEASUREMENTS[name](machinery):
                rows.append(row)
                print(" · ".join(filter(None, row.cells)), file=sys.stderr, flush=True)
    if wanted.json:
        print(as_json(rows))
        return 0
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    where = (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}; "
        f"{time.monotonic() - begun:.0f} s; load of the machine over 1, 5, 15 min: {load}"
    )
    page = f"{HEAD}\n{render(rows)}\n\n{where}\n"
    print(page)
    if wanted.out is not None:
        wanted.out.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
