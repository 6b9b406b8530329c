"""Measures servicekit, and what else keeps model servers alive: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from typing import TYPE_CHECKING, Final

from benchmarks import beside, diagnosis, measuring, own
from benchmarks.machinery import Machinery
from benchmarks.table import as_json, render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.table import Row

MEASUREMENTS: Final[Mapping[str, Callable[[Machinery], Iterator[Row]]]] = {
    "commands": own.measure_commands,
    "crashes": own.measure_crashes,
    "idle": own.measure_idle,
    "beside": beside.measure,
    "logs": diagnosis.measure,
    "measuring": measuring.measure,
}


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
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
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
    print(f"\n{render(rows)}\n")
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    print(
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}; "
        f"{time.monotonic() - begun:.0f} s; load of the machine over 1, 5, 15 min: {load}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
