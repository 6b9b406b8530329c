"""What a log has said: findings, steps of the boot, figures. Values only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from servicekit.diagnosis.lines import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.diagnosis.signatures import BootPhase, Signature

_TAIL_LINES: Final = 10  # lines of the log's end that are shown to a person


@dataclass(frozen=True, slots=True)
class LogFinding:
    """One line that explains something."""

    signature: Signature
    captures: Mapping[str, str]
    lines: tuple[str, ...]
    """The line, and those after it that belong to its message; secrets are blotted out."""
    at: float
    phase: BootPhase | None  # the furthest step of the boot when it was written
    speaker: str  # rank or process that wrote it, as far as the line shows
    outlived: bool = False  # whether the engine went on working afterwards


@dataclass(frozen=True, slots=True)
class PhaseSeen:
    """A step of the boot, when it was first seen, and the line that showed it."""

    phase: BootPhase
    at: float
    line: str


@dataclass(frozen=True, slots=True)
class BootFacts:
    """What the boot log says about memory and limits; `None` where it says nothing.

    Sizes are GiB of the device. With a drafter all figures are the target's.
    """

    weights_gib: float | None = None
    kv_tokens: int | None = None  # physical KV pool in tokens; for llama.cpp what one slot holds
    kv_gib: float | None = None
    declared_context: int | None = None  # model length in tokens; for llama.cpp that of a slot
    state_slots: int | None = None
    state_gib: float | None = None
    graph_gib: float | None = None
    free_gib: float | None = None  # what was left of the card at the end
    requests: int | None = None  # requests that can run at a time
    draft_graph_disabled: bool = False

    def figures(self) -> dict[str, float]:
        """Return the numbers that the log gave, by name."""
        numbers = asdict(self)
        del numbers["draft_graph_disabled"]
        return {name: number for name, number in numbers.items() if number is not None}


@dataclass(frozen=True, slots=True)
class DecodeFigures:
    """What the engine last said about decoding; `None` where it does not say."""

    at: float = 0.0
    throughput: float | None = None  # tokens/s
    accept_length: float | None = None  # mean tokens per verification, the target's own included
    accept_rate: float | None = None  # accepted part of the drafted tokens, 0 to 1
    cuda_graph: bool | None = None
    running: int | None = None
    queued: int | None = None
    kv_usage: float | None = None  # used part of the KV pool, 0 to 1


@dataclass(frozen=True, slots=True)
class Reading:
    """What a log has said so far about its last start."""

    engine: str
    findings: tuple[LogFinding, ...] = ()  # in the order of the log, one per signature
    phases: tuple[PhaseSeen, ...] = ()
    facts: BootFacts = field(default_factory=BootFacts)
    decode: DecodeFigures | None = None
    trouble: tuple[str, ...] = ()
    """Lines that look like errors, and the ends of the first traceback."""
    end: bytes = field(default=b"", repr=False)  # the end of the log as it came, up to 8 KiB

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines, whatever they are."""
        lines = self.end.decode(errors="replace").splitlines()
        return tuple([shown(line) for line in lines if line.strip()][-_TAIL_LINES:])

    @property
    def phase(self) -> BootPhase | None:
        """The step of the boot that was reached last."""
        return self.phases[-1].phase if self.phases else None
