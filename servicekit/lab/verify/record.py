"""Verifications on disk: one JSON file per run, with the versions that it is valid for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Self

from servicekit.host import run_files, untrusted
from servicekit.lab.verify.gate import LEAST_SENTENCES, TWIN_TOKENS, GateOutcome, GateResult, Twin
from servicekit.lab.verify.status import FOLDER, NOT_VERIFIED, VerificationStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

COMMIT: Final = 8  # characters of a commit that are shown
LONGEST: Final = 1e9  # seconds; a file that claims more is not believed
FORMAT: Final = 1  # version of the file's layout; files of another one are ignored


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a verification is valid for. An empty text is a value that is not known."""

    profile: str  # hash of the profile as it takes effect
    servicekit: str
    engine: str
    model: str  # commit on the hub, or a hash of the files' sizes and times
    driver: str
    gpu: str

    def changed(self, now: Fingerprint) -> tuple[str, ...]:
        """Name what differs `now`, with both values; commits and hashes are shortened."""
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
    at: str  # start, ISO 8601
    fingerprint: Fingerprint
    about: str  # model and revision, by which a twin is found
    below_fp8: str | None
    gates: tuple[str, ...]  # the gates to run
    findings: tuple[GateResult, ...]  # their results; fewer after ^C

    @property
    def complete(self) -> bool:
        return len(self.findings) == len(self.gates)

    @property
    def failed(self) -> tuple[str, ...]:
        return tuple(each.gate for each in self.findings if each.outcome is GateOutcome.FAIL)

    @property
    def longest(self) -> int | None:
        """Tokens of the longest prompt that was recalled."""
        values = [f.evidence.get("longest_measured") for f in self.findings if f.gate == "recall"]
        return next((tokens for tokens in values if type(tokens) is int and tokens > 0), None)

    def as_json(self) -> dict[str, Any]:
        more = {"format": FORMAT, "complete": self.complete, "longest_measured": self.longest}
        return asdict(self) | more

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read a file; `None` if it is not a verification of this format.

        The service can write to this directory, so everything is checked.
        """
        try:
            content = json.loads(text)
            if content["format"] != FORMAT:
                return None
            parsed = cls(
                profile=content["profile"],
                at=content["at"],
                fingerprint=Fingerprint(**content["fingerprint"]),
                about=content["about"],
                below_fp8=content["below_fp8"],
                gates=tuple(content["gates"]),
                findings=tuple(
                    GateResult(**each | _shown_safely(each)) for each in content["findings"]
                ),
            )
        except (AttributeError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return parsed if parsed.is_sound else None

    @property
    def is_sound(self) -> bool:
        """Whether every part has the right type."""
        texts: list[object] = [self.profile, self.at, self.about, self.below_fp8 or "", *self.gates]
        texts += (getattr(self.fingerprint, each.name) for each in fields(self.fingerprint))
        texts += (each.gate for each in self.findings)
        return (
            all(isinstance(text, str) and text.isprintable() for text in texts)
            and all(isinstance(each.evidence, dict) for each in self.findings)
            and all(_is_time(each.seconds) for each in self.findings)
        )


def _shown_safely(finding: Mapping[str, Any]) -> dict[str, Any]:
    """Check the two values of a finding that are shown; a reason may quote the model."""
    outcome, reason = GateOutcome(finding["outcome"]), untrusted.words(finding["reason"])
    return {"outcome": outcome, "reason": reason}


def _is_time(seconds: object) -> bool:
    return isinstance(seconds, int | float) and 0 <= seconds < LONGEST


def verification_status(
    last: Verification | None, now: Fingerprint | None, gates: tuple[str, ...]
) -> VerificationStatus:
    """Compare the last verification of all `gates` with the fingerprint of the profile `now`. Pure.

    `now` is not needed where there is no verification.
    """
    if last is None or now is None or set(last.gates) != set(gates) or not last.complete:
        return NOT_VERIFIED
    if last.failed:
        text = f"not verified: {', '.join(last.failed)} failed"
        return VerificationStatus(verified=False, text=text)
    if changes := last.fingerprint.changed(now):
        return VerificationStatus(verified=False, text=f"changed since: {', '.join(changes)}")
    longest = f", prompts up to {last.longest} tokens" if last.longest else ""
    return VerificationStatus(verified=True, text=f"verified{longest}")


def prepare(state: Path) -> None:
    """Create the directory of verifications; raise `OSError` if that fails."""
    run_files.prepare(state, FOLDER)


def write(state: Path, verification: Verification) -> str:
    """Store a verification below the state directory of its profile; return the file's name.

    The name is its time. If the clock was set back, it follows the newest name instead, so that an
    earlier run that passed never stands for one that fails now.
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
    parsed = (Verification.parse(text) for _, text in run_files.read(state, FOLDER))
    return tuple(each for each in parsed if each is not None)


def last_of(every: tuple[Verification, ...], gates: tuple[str, ...]) -> Verification | None:
    """Return the newest complete verification of all `gates`; one with `--only` does not count."""
    whole = [each for each in every if set(each.gates) == set(gates) and each.complete]
    return whole[-1] if whole else None


def twin_of(others: Mapping[str, tuple[Verification, ...]], about: str) -> Twin | None:
    """Return the newest answers of a profile with the same model and a cache of FP8 or better."""
    twins = [
        twin
        for stored in others.values()
        for each in stored
        if each.about == about and each.below_fp8 is None
        for result in each.findings
        if result.gate == "kv-precision" and (twin := _twin(each, result)) is not None
    ]
    return max(twins, key=lambda twin: twin.at, default=None)


def _twin(verification: Verification, result: GateResult) -> Twin | None:
    answers, sentences = result.evidence.get("answers"), result.evidence.get("sentences")
    if not isinstance(answers, dict) or not isinstance(sentences, int):
        return None
    if not all(isinstance(answer, str) for answer in answers.values()):
        return None
    if not LEAST_SENTENCES <= sentences <= TWIN_TOKENS:
        return None
    return Twin(verification.profile, verification.at, answers, sentences)
