"""A check and its result: a status, what was found, and a remedy. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from servicekit.doctor.view import Unseen

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class CheckStatus(StrEnum):
    """Result of a check, best first."""

    OK = "ok"
    SKIP = "skip"  # it does not apply, or its subject could not be read
    WARN = "warn"  # services run, but something will probably cost time or a request
    FAIL = "fail"  # a service cannot start, or will not survive what is normal here


class Answer(NamedTuple):
    """A check's result, before it has a name."""

    verdict: CheckStatus
    what: str
    remedy: str = ""


def ok(what: str) -> Answer:
    return Answer(CheckStatus.OK, what)


def skip(why: str) -> Answer:
    return Answer(CheckStatus.SKIP, why)


def warn(what: str, remedy: str) -> Answer:
    return Answer(CheckStatus.WARN, what, remedy)


def fail(what: str, remedy: str) -> Answer:
    return Answer(CheckStatus.FAIL, what, remedy)


class _UnseenError(Exception):
    """A check met a fact that could not be read."""


def seen(fact: T | Unseen) -> T:
    """Return a fact; one that could not be read ends the check with a skip and the reason."""
    if isinstance(fact, Unseen):
        raise _UnseenError(fact.why)
    return fact


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the report."""

    code: str  # stable name, for programs and for docs/doctor.md
    title: str
    group: str
    profile: str | None  # `None` for a check of the host
    verdict: CheckStatus
    what: str  # what was found, one line
    remedy: str  # what would help, one line; empty unless the verdict is warn or fail

    @property
    def line(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


@dataclass(frozen=True, slots=True)
class Check(Generic[T]):
    """A check of one kind of subject."""

    code: str
    title: str
    ask: Callable[[T], Answer]

    def run(self, subject: T, group: str, profile: str | None = None) -> CheckResult:
        try:
            answer = self.ask(subject)
        except _UnseenError as unseen:
            answer = skip(str(unseen))
        return CheckResult(self.code, self.title, group, profile, *answer)


class Checks(list[Check[T]]):
    """The checks of one module, in the order in which they are defined and shown."""

    def add(
        self, code: str, title: str
    ) -> Callable[[Callable[[T], Answer]], Callable[[T], Answer]]:
        """Register the decorated function; its docstring is the text of docs/doctor.md."""

        def register(ask: Callable[[T], Answer]) -> Callable[[T], Answer]:
            self.append(Check(code, title, ask))
            return ask

        return register
