"""What a check says: a verdict, what it saw, and what would help. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class CheckStatus(StrEnum):
    """How a check ended, best first."""

    OK = "ok"
    SKIP = "skip"
    """It does not apply here, or what it is about could not be looked at."""
    WARN = "warn"
    """Services run, but something will probably cost time or an answer one day."""
    FAIL = "fail"
    """A service cannot start, or will not survive what is normal on this host."""


class Answer(NamedTuple):
    """A check's result, before it has a name."""

    verdict: CheckStatus
    what: str
    remedy: str = ""


def ok(what: str) -> Answer:
    """All is well; `what` was seen."""
    return Answer(CheckStatus.OK, what)


def skip(why: str) -> Answer:
    """Nothing can be said, and why."""
    return Answer(CheckStatus.SKIP, why)


def warn(what: str, remedy: str) -> Answer:
    """Something is not as it should be."""
    return Answer(CheckStatus.WARN, what, remedy)


def fail(what: str, remedy: str) -> Answer:
    """Something does not work."""
    return Answer(CheckStatus.FAIL, what, remedy)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the examination."""

    code: str
    """Stable name, for programs and for the handbook."""
    title: str
    group: str
    profile: str | None
    """Whose check it is; `None` for the host's."""
    verdict: CheckStatus
    what: str
    """What was seen, one line."""
    remedy: str
    """What would help, one line; empty unless the verdict is warn or fail."""

    @property
    def line(self) -> str:
        """What it says in one line."""
        return f"{self.what}; {self.remedy}" if self.remedy else self.what

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Inquiry(Generic[T]):
    """A check that can be made, of one kind of subject."""

    code: str
    title: str
    about: str
    """What is looked at and why it matters, one sentence; the handbook's."""
    ask: Callable[[T], Answer]

    def check(self, subject: T, group: str, profile: str | None = None) -> Check:
        """Make it."""
        verdict, what, remedy = self.ask(subject)
        return Check(self.code, self.title, group, profile, verdict, what, remedy)
