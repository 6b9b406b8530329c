"""All checks over one host: in order, summed up, and written down for the handbook. Pure.

`python -m servicekit.doctor.examination` prints `docs/doctor.md`.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from servicekit.doctor import graphics, machine, recipe, services, windows
from servicekit.doctor.answer import Check, CheckStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from servicekit.doctor.answer import Inquiry
    from servicekit.doctor.view import HostView

OF_HOST: Final = (
    (services.GROUP, services.INQUIRIES),
    (graphics.GROUP, graphics.INQUIRIES),
    (machine.GROUP, machine.INQUIRIES),
)

COMMAND: Final = "python -m servicekit.doctor.examination"
INTRODUCTION: Final = """\
Every check is one line: what was seen and, behind it, what would help. Its verdict is

- **ok**,
- **warn**: services run, but something will probably cost time or an answer one day,
- **fail**: a service cannot start, or will not survive what is normal on this host, or
- **skip**: it does not apply here, or could not be looked at; the line says why.

Nothing is changed, no engine is started, and no check needs root. All of it takes ten seconds at
most: what has not answered by then is skipped.

`servicekit doctor` looks at the host and at all installed profiles, `servicekit doctor PROFILE` at
the host and at that one, installed or not. The exit code is 1 where anything fails, else 0.
`--json` prints the same for programs, by the codes below.
"""


@dataclass(frozen=True, slots=True)
class Examination:
    """What all checks said."""

    checks: tuple[Check, ...]

    @property
    def verdict(self) -> CheckStatus:
        """The worst verdict: `ok`, `warn` or `fail`."""
        order = (CheckStatus.FAIL, CheckStatus.WARN)
        said = {check.verdict for check in self.checks}
        return next((verdict for verdict in order if verdict in said), CheckStatus.OK)

    @property
    def counts(self) -> dict[str, int]:
        """How many checks there are of each verdict."""
        counted = Counter(check.verdict for check in self.checks)
        return {verdict.value: counted[verdict] for verdict in CheckStatus}

    @property
    def summary(self) -> str:
        """One line."""
        counts = self.counts
        told = (
            (counts["fail"], "failed"),
            (counts["warn"], "to look at"),
            (counts["ok"], "ok"),
            (counts["skip"], "skipped"),
        )
        return ", ".join(f"{count} {word}" for count, word in told if count)

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        return {
            "verdict": self.verdict.value,
            "counts": self.counts,
            "checks": [check.as_json() for check in self.checks],
        }


def examine(host: HostView) -> Examination:
    """Make every check that applies to `host`."""
    return Examination(tuple(_checks(host)))


def _checks(host: HostView) -> Iterator[Check]:
    for group, inquiries in OF_HOST:
        yield from (inquiry.check(host, group) for inquiry in inquiries)
    if host.wsl is not None:
        yield from (inquiry.check(host.wsl, windows.GROUP) for inquiry in windows.INQUIRIES)
    for refused in host.refused:
        yield recipe.REFUSED.check(refused, recipe.group_of(refused.name), refused.name)
    for subject in host.subjects:
        name = subject.profile.name
        group = recipe.group_of(name)
        yield from (inquiry.check(subject, group, name) for inquiry in recipe.INQUIRIES)


def handbook() -> str:
    """Return `docs/doctor.md`."""
    lines = [
        f"<!-- Written by `{COMMAND}`; change the checks instead. -->",
        "",
        "# What `servicekit doctor` looks at",
        "",
        INTRODUCTION.rstrip(),
    ]
    tables: list[tuple[str, Iterable[Inquiry[Any]]]] = [
        ("The host: services", services.INQUIRIES),
        ("The host: GPU", graphics.INQUIRIES),
        ("The host: machine", machine.INQUIRIES),
        ("Under WSL", windows.INQUIRIES),
        ("Each profile", recipe.INQUIRIES),
    ]
    for title, inquiries in tables:
        lines += ["", f"## {title}", "", "| code | what is looked at |", "| --- | --- |"]
        lines += [f"| `{inquiry.code}` | {inquiry.about} |" for inquiry in inquiries]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(handbook())
