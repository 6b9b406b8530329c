"""The diagnosis: what a log shows, weighed against how the process ended. Pure.

The first cause in the log wins, because later ones usually follow from it. Without a cause, a
symptom decides; without a symptom, the exit status does, and the lines that look like errors are
shown. A finding that the engine outlived decides nothing, unless the engine never served.

Status 137 or SIGKILL is no evidence of the OOM killer: SGLang kills itself with it on any failure.
"""

from __future__ import annotations

import math
import operator
import signal as signals
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Final

from servicekit.diagnosis.causes import Cause, Group, Retry
from servicekit.diagnosis.reader import LogReader
from servicekit.diagnosis.signatures import BootPhase, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.diagnosis.reading import LogFinding, Reading
    from servicekit.diagnosis.signatures import Remedy

_SHELL_SIGNALS: Final = 128  # a shell reports death by signal N as exit status 128 + N
_NOT_EXECUTABLE: Final = frozenset({126, 127})
_CREDENTIALS: Final = 243  # systemd's exit status when a credential of the unit is missing
_USAGE: Final = 2  # exit status of Python's argparse when it refuses the command line
_EVIDENCE: Final = 12  # lines of evidence at most
_COMPARISONS: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why it ended, or what is not as it should be, and what would help."""

    cause: Cause
    captures: Mapping[str, str | int | float]
    """Numbers and names out of the log; a name ends in its unit where it has one."""
    sentence: str  # one sentence for a person, without a full stop
    remedies: tuple[str, ...]  # what would help, most useful first
    source: str  # where the text that decided was read, or what else decided
    evidence_lines: tuple[str, ...]  # lines of the log, secrets blotted out
    retry: Retry  # whether a new run may do better
    signature: str = ""  # id of the signature that decided, empty where none did
    figures: Mapping[str, float] = field(default_factory=dict)
    """What the log says about memory, limits and decoding; GiB, tokens, tokens/s, shares of 1."""
    planned: Mapping[str, float] = field(default_factory=dict)
    """What the memory plan said of the same, where there is one."""
    weak: bool = False
    """Whether better evidence may overrule it: only a symptom decided, or the way it ended."""


def diagnose(
    log: LogReader | Reading,
    *,
    options: Mapping[str, object] | None = None,
    exit_status: int | None = None,
    signal: int | None = None,
    profile: str = "PROFILE",
) -> Diagnosis:
    """Return why the engine ended.

    `options` are the profile's engine options by name, for the remedies. `exit_status` is what the
    engine's process exited with, unasked, or `signal` the number of the signal
    it died by; both are `None` for an engine that lives, and where only its log is known.
    """
    if isinstance(log, LogReader):
        log.close()
        log = log.reading()
    if exit_status is not None and (exit_status < 0 or exit_status > _SHELL_SIGNALS):
        dead_by = -exit_status if exit_status < 0 else exit_status - _SHELL_SIGNALS
        if dead_by in {number.value for number in signals.Signals}:
            exit_status, signal = None, dead_by
    finding = _decisive(log, ended=exit_status is not None or signal is not None)
    if signal == signals.SIGILL:  # stronger than any line: no engine raises it by intention
        finding = None
    if finding is not None:
        diagnosis = _from_finding(finding, log, _normal(options or {}), profile)
    else:
        diagnosis = _from_ending(log, exit_status, signal, profile)
    return replace(diagnosis, figures=figures_of(log))


def figures_of(log: Reading) -> dict[str, float]:
    """Return what the log says about memory, limits and decoding; only what it does say."""
    decode = {} if log.decode is None else asdict(log.decode)
    decode.pop("at", None)
    decode = {name: value for name, value in decode.items() if value is not None}
    return {**log.facts.figures(), **decode}


def render_text(diagnosis: Diagnosis, *, evidence: bool = True) -> str:
    """Return a diagnosis for a terminal: cause, sentence, remedies in order, lines, source."""
    planned = diagnosis.planned
    figures = ", ".join(
        _figure(name, value) + (f" (planned {planned[name]:,g})" if name in planned else "")
        for name, value in diagnosis.figures.items()
    )
    summary = [f"the log's figures: {figures}"] if figures else []
    if diagnosis.sentence == _NO_FAILURE:
        return "\n".join((_NO_FAILURE, *summary))
    lines = [f"cause: {diagnosis.cause}", f"{diagnosis.sentence}"]
    if diagnosis.remedies:
        lines += ["", "what helps, in this order:"]
        lines += [f"  {number}. {text}" for number, text in enumerate(diagnosis.remedies, start=1)]
    if evidence and diagnosis.evidence_lines:
        lines += ["", "evidence:" if diagnosis.signature else "lines to read:"]
        lines += [f"  | {line}" for line in diagnosis.evidence_lines]
    lines.append("")
    if diagnosis.cause.group is not Group.DEGRADED:
        lines.append(f"restart: {_RESTART[diagnosis.retry]}")
    return "\n".join((*lines, f"source: {diagnosis.source}", *summary))


def _figure(name: str, value: float) -> str:
    words, unit = (name.removesuffix("_gib"), " GiB") if name.endswith("_gib") else (name, "")
    words = words.replace("_", " ")
    return words if isinstance(value, bool) else f"{words} {value:,g}{unit}"


def as_json(diagnosis: Diagnosis) -> dict[str, object]:
    """Return a diagnosis as values that `json.dumps` takes."""
    return {
        "cause": diagnosis.cause.value,
        "sentence": diagnosis.sentence,
        "captures": dict(diagnosis.captures),
        "remedies": list(diagnosis.remedies),
        "retry": diagnosis.retry.value,
        "evidence": list(diagnosis.evidence_lines),
        "figures": dict(diagnosis.figures),
        "planned": dict(diagnosis.planned),
        "source": diagnosis.source,
        "signature": diagnosis.signature or None,
        "message_id": diagnosis.cause.message_id,
    }


_NO_FAILURE: Final = "this log shows no failure: the engine started and served"
_RESTART: Final = {
    Retry.ALWAYS: "a restart may help",
    Retry.ONCE: "one restart is worth it; the same cause again means stop",
    Retry.NEVER_CONFIG: "no: the configuration must change first",
    Retry.NEVER_HOST: "no: the host or an operator must act first",
}


def _decisive(log: Reading, *, ended: bool) -> LogFinding | None:
    """Return the finding that explains, `None` where none does."""
    served = log.phase is BootPhase.SERVING
    findings = log.findings
    if ended and findings and findings[-1].signature.retried:
        findings = findings[:-1]
    causes = [one for one in findings if one.signature.role is Role.CAUSE]
    symptoms = [one for one in findings if one.signature.role is Role.SYMPTOM]
    notices = [one for one in findings if one.signature.role is Role.NOTICE]
    candidates = [
        *(cause for cause in causes if not cause.outlived),
        # Ranks load side by side: one may fail while another goes on for a while.
        *(cause for cause in causes if not served),
        *(symptom for symptom in symptoms if not symptom.outlived),
        # Where nothing ended, what is not as it should be is the answer.
        *(notice for notice in notices if not ended),
    ]
    return next(iter(candidates), None)


def _from_finding(
    finding: LogFinding, log: Reading, options: Mapping[str, object], profile: str
) -> Diagnosis:
    signature = finding.signature
    cause = signature.cause or Cause.UNKNOWN
    captures: dict[str, str | int | float] = {
        name: _value(text) for name, text in finding.captures.items()
    }
    for name, ratio in signature.derive.items():
        upper, lower = (captures.get(part) for part in ratio.split(" / "))
        if isinstance(upper, int | float) and isinstance(lower, int | float) and lower:
            captures[name] = math.floor(100 * upper / lower) / 100
    words = {**finding.captures, **{n: str(captures[n]) for n in signature.derive if n in captures}}
    words |= {"profile": profile}
    remedies = [
        text
        for remedy in signature.remedies
        if _applies(remedy, log.engine, options)
        and (text := _filled(remedy.text, words, options)) is not None
    ]
    return Diagnosis(
        cause=cause,
        captures=captures,
        sentence=_filled(signature.sentence, words, options) or cause.title,
        remedies=tuple(remedies) or _own_remedies(cause, profile),
        source=signature.source,
        evidence_lines=_suspicious(log) if signature.generic else _evidence(finding, log),
        retry=cause.retry,
        signature=signature.id,
        weak=signature.role is Role.SYMPTOM,
    )


def _evidence(finding: LogFinding, log: Reading) -> tuple[str, ...]:
    """Return the lines of `finding` and of what else the log says of the same cause.

    A failed build is reported by its caller before its compiler's line that names the reason.
    """
    cause = finding.signature.cause
    others = [one for one in log.findings if one.signature.cause is cause and one is not finding]
    lines = (line for one in (finding, *others) for line in one.lines)
    return tuple(dict.fromkeys(lines))[:_EVIDENCE]


def _from_ending(
    log: Reading, exit_status: int | None, signal: int | None, profile: str
) -> Diagnosis:
    """Return what the exit status or signal alone says."""
    if signal is not None:
        cause, sentence = _signalled(signal, log.engine)
    elif exit_status is not None:
        cause, sentence = _exited(exit_status, (*log.trouble, *log.tail))
    elif log.trouble:
        cause, sentence = (
            Cause.UNKNOWN,
            "this log shows no known failure; the lines below look like errors",
        )
    elif log.phase is BootPhase.SERVING:
        cause, sentence = Cause.UNKNOWN, _NO_FAILURE
    else:
        cause, sentence = Cause.UNKNOWN, "this log shows no known failure"
    return Diagnosis(
        cause=cause,
        captures={},
        sentence=sentence,
        remedies=_own_remedies(cause, profile),
        source="how the process ended"
        if exit_status is not None or signal
        else "the end of the log",
        evidence_lines=_suspicious(log),
        retry=cause.retry,
        weak=cause in {Cause.UNKNOWN, Cause.ENGINE_EXIT, Cause.ENGINE_SIGNAL},
    )


def _suspicious(log: Reading) -> tuple[str, ...]:
    """Return the lines that look like errors and the last ones, where no known line explains."""
    lines = (*log.trouble, *log.tail[-3:]) if log.trouble else log.tail
    return tuple(dict.fromkeys(lines))[-_EVIDENCE:]


def _signalled(number: int, engine: str) -> tuple[Cause, str]:
    try:
        name = signals.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    match number:
        case signals.SIGILL:
            return Cause.ILLEGAL_INSTRUCTION, Cause.ILLEGAL_INSTRUCTION.title
        case signals.SIGKILL if engine == "sglang":
            return Cause.ENGINE_SIGNAL, (
                "SGLang died by SIGKILL, which it also sends to itself after any internal failure; "
                "this says nothing about memory"
            )
        case signals.SIGKILL:
            return Cause.ENGINE_SIGNAL, (
                "the engine was killed with SIGKILL; only the kernel's log shows whether "
                "it was the OOM killer: `journalctl -k | grep 'Killed process'`"
            )
        case signals.SIGTERM | signals.SIGHUP | signals.SIGINT:
            return (
                Cause.ENGINE_SIGNAL,
                f"another process terminated the engine with {name}",
            )
        case _:
            return Cause.ENGINE_SIGNAL, f"the engine crashed with {name}"


def _exited(status: int, lines: tuple[str, ...]) -> tuple[Cause, str]:
    if status == _USAGE and (refusal := next((line for line in lines if ": error: " in line), "")):
        return Cause.BAD_FLAGS, f"the engine rejects its command line: {refusal}"
    if status in _NOT_EXECUTABLE:
        return Cause.EXECUTABLE_MISSING, (
            f"the wrapper could not run the engine's program (exit status {status})"
        )
    if status == _CREDENTIALS:
        return Cause.SECRET_MISSING, Cause.SECRET_MISSING.title
    if status == 0:
        return Cause.ENGINE_EXIT, (
            "the engine exited unexpectedly with status 0, as vLLM does after its core process died"
        )
    return (
        Cause.ENGINE_EXIT,
        f"the engine exited with status {status}, and its log shows no cause",
    )


def _own_remedies(cause: Cause, profile: str) -> tuple[str, ...]:
    return tuple(text.replace("{profile}", profile) for text in cause.remedies)


def _value(text: str) -> str | int | float:
    digits = text.replace(",", "")
    for kind in (int, float):
        try:
            return kind(digits)
        except ValueError:
            continue
    return text


def _filled(text: str, words: Mapping[str, str], options: Mapping[str, object]) -> str | None:
    """Return `text` with its captures and options, `None` where there is none or one is missing."""
    try:
        return text.format(**words, opt=options) or None
    except KeyError:
        return None


def _normal(options: Mapping[str, object]) -> dict[str, object]:
    """Return the options that are set, by name without dashes in front."""
    return {
        name.lstrip("-").replace("_", "-"): value
        for name, value in options.items()
        if value is not False and value is not None
    }


def _applies(remedy: Remedy, engine: str, options: Mapping[str, object]) -> bool:
    if remedy.engine and engine not in {remedy.engine, "any"}:
        return False
    if any(_holds(name, wanted, options) for name, wanted in remedy.unless.items()):
        return False
    return all(_holds(name, wanted, options) for name, wanted in remedy.when.items())


def _holds(name: str, wanted: object, options: Mapping[str, object]) -> bool:
    """Whether the option `name` is as `wanted`, in the words of the signature files."""
    value = options.get(name)
    if isinstance(wanted, bool):
        return (name in options) is wanted
    if isinstance(wanted, list):
        return value in wanted
    operator, _, bound = wanted.partition(" ") if isinstance(wanted, str) else ("", "", "")
    if operator in _COMPARISONS:
        number = _value(str(value))
        return not isinstance(number, str) and bool(_COMPARISONS[operator](number, float(bound)))
    return value == wanted
