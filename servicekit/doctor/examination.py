"""All checks of one host, in order, with a summary; and the handbook's page. Pure.

`python -m servicekit.doctor.examination` prints `docs/doctor.md`.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from servicekit.doctor import graphics, machine, recipe, services, windows
from servicekit.doctor.answer import CheckResult, CheckStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from servicekit.doctor.answer import Check
    from servicekit.doctor.view import HostView

OF_HOST: Final = (
    (services.GROUP, services.CHECKS),
    (graphics.GROUP, graphics.CHECKS),
    (machine.GROUP, machine.CHECKS),
)

COMMAND: Final = "python -m servicekit.doctor.examination"
INTRODUCTION: Final = """\
Each check prints one line: what was found and, if needed, a remedy. Its result is

- **ok**,
- **warn**: services run, but something will probably cost time or a request,
- **fail**: a service cannot start, or will not survive what is normal on this host, or
- **skip**: the check does not apply or cannot be made; the line says why.

Nothing is changed, no engine is started, and no check needs root. The command takes ten seconds at
most; what does not reply by then is skipped.

`servicekit doctor` checks the host and all installed profiles, `servicekit doctor PROFILE` the host
and that profile, installed or not. The exit code is 1 if any check fails, else 0.
`--json` prints the same for programs, by the codes below.
"""


@dataclass(frozen=True, slots=True)
class Examination:
    """The results of all checks."""

    checks: tuple[CheckResult, ...]

    @property
    def verdict(self) -> CheckStatus:
        """The worst result: `ok`, `warn` or `fail`."""
        order = (CheckStatus.FAIL, CheckStatus.WARN)
        return next((verdict for verdict in order if self.counts[verdict]), CheckStatus.OK)

    @property
    def counts(self) -> dict[str, int]:
        counted = Counter(check.verdict for check in self.checks)
        return {verdict.value: counted[verdict] for verdict in CheckStatus}

    @property
    def summary(self) -> str:
        counts = self.counts
        words = {"fail": "failed", "warn": "warned", "ok": "ok", "skip": "skipped"}
        return ", ".join(f"{counts[key]} {word}" for key, word in words.items() if counts[key])

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.value,
            "counts": self.counts,
            "checks": [asdict(check) for check in self.checks],
        }


def examine(host: HostView) -> Examination:
    return Examination(tuple(_results(host)))


def _results(host: HostView) -> Iterator[CheckResult]:
    for group, checks in OF_HOST:
        yield from (check.run(host, group) for check in checks)
    if host.wsl is not None:
        yield from (check.run(host.wsl, windows.GROUP) for check in windows.CHECKS)
    for refused in host.refused:
        yield recipe.REFUSED.run(refused, recipe.group_of(refused.name), refused.name)
    for subject in host.subjects:
        name = subject.profile.name
        group = recipe.group_of(name)
        yield from (check.run(subject, group, name) for check in recipe.CHECKS)


def handbook() -> str:
    """Return `docs/doctor.md`."""
    lines = [
        f"<!-- Written by `{COMMAND}`; change the checks instead. -->",
        "",
        "# What `servicekit doctor` checks",
        "",
        INTRODUCTION.rstrip(),
    ]
    tables: list[tuple[str, Iterable[Check[Any]]]] = [
        ("The host: services", services.CHECKS),
        ("The host: GPU", graphics.CHECKS),
        ("The host: machine", machine.CHECKS),
        ("Under WSL", windows.CHECKS),
        ("Each profile", recipe.CHECKS),
    ]
    for title, checks in tables:
        lines += ["", f"## {title}", "", "| code | what is checked |", "| --- | --- |"]
        lines += [f"| `{check.code}` | {check.about} |" for check in checks]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(handbook())
