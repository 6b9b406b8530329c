"""All checks of one host, in order, with a summary. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from servicekit.doctor import graphics, machine, recipe, services, windows
from servicekit.doctor.answer import CheckResult, CheckStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.doctor.view import HostView

OF_HOST: Final = (
    (services.GROUP, services.CHECKS),
    (graphics.GROUP, graphics.CHECKS),
    (machine.GROUP, machine.CHECKS),
)


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
