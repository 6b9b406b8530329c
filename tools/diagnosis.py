"""Print how many failures `diagnose` names rightly, and what noise makes of healthy logs.

`make diagnosis` runs it. Of the unseen set only the score is printed: no signature may be made for
its rows.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from diagnosis_sets import Case, cases, false_cause, noisy_logs

from servicekit.diagnosis.causes import Cause
from servicekit.diagnosis.reader import LogReader
from servicekit.diagnosis.signatures import FILES, Role, document, knowledge
from servicekit.diagnosis.verdict import diagnose


def samples() -> list[Case]:
    """Return the samples of all signatures as cases, each with its signature's cause."""
    known = knowledge("any").signatures
    by_id = {one.id: one for one in known if one.role is not Role.ECHO and not one.phases}
    return [
        Case(by_id[entry["id"]].cause or Cause.UNKNOWN, line)
        for name in FILES["any"]
        for entry in document(name)["signature"]
        for line in entry["samples"]
        if entry["id"] in by_id
    ]


def score(title: str, wanted: list[Case], *, rows: bool = True) -> int:
    """Print how many cases are right, wrong and unknown; return the number of the wrong ones.

    `rows` prints each case that is not right, too.
    """
    results: Counter[str] = Counter()
    for case in wanted:
        reader = LogReader()
        reader.feed(case.log.encode())
        found = diagnose(reader).cause
        kind = "right" if found in case.causes else "unknown" if found is Cause.UNKNOWN else "wrong"
        results[kind] += 1
        if kind != "right" and rows:
            last = case.log.strip().splitlines()[-1]
            print(f"  {kind}: {found}, wanted {case.cause}: {last[:90]}")
    share = 100 * results["right"] / len(wanted)
    print(
        f"{title}: {results['right']} of {len(wanted)} right ({share:.0f} %), "
        f"{results['wrong']} wrong, {results['unknown']} unknown"
    )
    return results["wrong"]


def noise() -> int:
    """Print what noise makes of healthy logs, cut at every line; return the false causes."""
    false: Counter[str] = Counter()
    logs = cuts = 0
    for name, lines in noisy_logs():
        logs += 1
        reader = LogReader()
        for line in lines:
            reader.feed_line(line)
            cuts += 1
            cause = false_cause(reader.reading())
            if cause:
                false[f"{name}: {cause}"] += 1
    for what, count in false.most_common():
        print(f"  false at {count} cuts: {what}")
    print(f"noise: {logs} healthy and noisy logs, {cuts} cuts, {sum(false.values())} false causes")
    return sum(false.values())


def main() -> None:
    """Print all scores."""
    score("seen", [*samples(), *cases("seen")])
    score("training", cases("training"))
    score("unseen", cases("unseen"), rows=False)
    noise()


if __name__ == "__main__":
    main()
