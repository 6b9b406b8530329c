"""Verifications on disk: one JSON file a run, bound to what it was made with."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from servicekit.host import run_files
from servicekit.lab.verify.values import LEAST_SENTENCES, TWIN_TOKENS, GateOutcome, GateResult, Twin

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FOLDER: Final = "verifications"
COMMIT: Final = 8
"""Characters of a commit that tell it from another."""
LONGEST: Final = 1e9
"""Seconds that no gate takes, whatever a file says."""
FORMAT: Final = 1
"""Version of the file's layout; another one is passed over."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a verification holds for; an empty text is what could not be found out."""

    profile: str
    """Hash of the profile as it takes effect."""
    servicekit: str
    engine: str
    model: str
    """Commit on the hub, else a hash of the files' sizes and times."""
    driver: str
    gpu: str

    def changed(self, now: Fingerprint) -> tuple[str, ...]:
        """Name what is different `now`, each with both values; of commits and hashes a part."""
        before, after = asdict(self), asdict(now)
        return tuple(
            name
            if name == "profile"
            else f"{name} ({_shown(before, name)} → {_shown(after, name)})"
            for name in before
            if before[name] != after[name]
        )


def _shown(values: Mapping[str, str], name: str) -> str:
    value = values[name]
    if name == "model":
        value = " ".join(word[:COMMIT] for word in value.split())
    return value or "?"


@dataclass(frozen=True, slots=True)
class Verification:
    """One run of the gates."""

    profile: str
    at: str
    """When it began, ISO 8601."""
    fingerprint: Fingerprint
    about: str
    """Model and revision, by which a twin is found."""
    below_fp8: str | None
    gates: tuple[str, ...]
    """What was to be asked."""
    findings: tuple[GateResult, ...]
    """What was; fewer after ^C."""

    @property
    def complete(self) -> bool:
        """Whether every gate that was to be asked was."""
        return len(self.findings) == len(self.gates)

    @property
    def failed(self) -> tuple[str, ...]:
        """Gates that failed."""
        return tuple(each.gate for each in self.findings if each.outcome is GateOutcome.FAIL)

    @property
    def longest(self) -> int | None:
        """Longest prompt that was measured and recalled, in tokens."""
        told = [f.evidence.get("longest_measured") for f in self.findings if f.gate == "recall"]
        return next((tokens for tokens in told if type(tokens) is int and tokens > 0), None)

    def as_json(self) -> dict[str, Any]:
        """For a program, and for the file."""
        more = {"format": FORMAT, "complete": self.complete, "longest_measured": self.longest}
        return asdict(self) | more

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read a file; `None` where it is no verification of this format.

        It lies where the service may write: what is in it is checked, not believed.
        """
        try:
            told = json.loads(text)
            if told["format"] != FORMAT:
                return None
            findings = tuple(
                GateResult(**{**each, "outcome": GateOutcome(each["outcome"])})
                for each in told["findings"]
            )
            parsed = cls(
                profile=told["profile"],
                at=told["at"],
                fingerprint=Fingerprint(**told["fingerprint"]),
                about=told["about"],
                below_fp8=told["below_fp8"],
                gates=tuple(told["gates"]),
                findings=findings,
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return parsed if parsed.is_sound else None

    @property
    def is_sound(self) -> bool:
        """Whether every part is of the type that it should be."""
        texts = [self.profile, self.at, self.about, self.below_fp8 or "", *self.gates]
        texts += asdict(self.fingerprint).values()
        for each in self.findings:
            texts += [each.gate, each.reason]
        return (
            all(isinstance(text, str) for text in texts)
            and all(isinstance(each.evidence, dict) for each in self.findings)
            and all(_is_time(each.seconds) for each in self.findings)
        )


def _is_time(seconds: object) -> bool:
    return isinstance(seconds, int | float) and 0 <= seconds < LONGEST


def standing(last: Verification | None, now: Fingerprint | None, gates: tuple[str, ...]) -> str:
    """Say in a few words whether a profile is verified. Pure.

    `last` is its last verification of all `gates`, `now` its fingerprint, which nobody needs to
    find out where there is no verification.
    """
    if last is None or now is None or set(last.gates) != set(gates) or not last.complete:
        return "not verified"
    if last.failed:
        return f"not verified: {', '.join(last.failed)} failed"
    if changes := last.fingerprint.changed(now):
        return f"changed since: {', '.join(changes)}"
    return f"verified, prompts up to {last.longest} tokens" if last.longest else "verified"


def prepare(state: Path) -> None:
    """Make the place where verifications are kept; raise `OSError` where that cannot be."""
    run_files.prepare(state, FOLDER)


def write(state: Path, verification: Verification) -> str:
    """Store it below the state directory of its profile; give the file's name.

    That is its time, or what comes right behind the newest one where the clock was set back: an
    earlier run that passed must not stand for one that fails now.
    """
    name = f"{verification.at.replace(':', '').replace('+0000', 'Z')}{run_files.SUFFIX}"
    times = (other for other, _ in run_files.read(state, FOLDER) if other[0].isdecimal())
    newest = max(times, default="")
    if newest >= name:
        stem, _, number = newest.removesuffix(run_files.SUFFIX).partition("_")
        after = int(number) + 1 if number.isdecimal() else 1
        name = f"{stem}_{after:06}{run_files.SUFFIX}"
    content = json.dumps(verification.as_json(), indent=1, ensure_ascii=False) + "\n"
    run_files.write(state, FOLDER, name, content)
    return name


def read(state: Path) -> tuple[Verification, ...]:
    """Read all that is stored below a profile's state directory, the oldest first."""
    found = (Verification.parse(text) for _, text in run_files.read(state, FOLDER))
    return tuple(each for each in found if each is not None)


def last_of(every: tuple[Verification, ...], gates: tuple[str, ...]) -> Verification | None:
    """Give the newest verification of all `gates`; `--only` proves a part and replaces none."""
    whole = [each for each in every if set(each.gates) == set(gates) and each.complete]
    return whole[-1] if whole else None


def twin_of(others: Mapping[str, tuple[Verification, ...]], about: str) -> Twin | None:
    """Give the newest answers of a profile about the same model whose cache is FP8 or better."""
    found = [
        twin
        for stored in others.values()
        for each in stored
        if each.about == about and each.below_fp8 is None
        for finding in each.findings
        if finding.gate == "kv-precision" and (twin := _twin(each, finding)) is not None
    ]
    return max(found, key=lambda twin: twin.at, default=None)


def _twin(verification: Verification, finding: GateResult) -> Twin | None:
    answers, sentences = finding.evidence.get("answers"), finding.evidence.get("sentences")
    if not isinstance(answers, dict) or not isinstance(sentences, int):
        return None
    if not all(isinstance(answer, str) for answer in answers.values()):
        return None
    if not LEAST_SENTENCES <= sentences <= TWIN_TOKENS:
        return None
    return Twin(verification.profile, verification.at, answers, sentences)
