"""Values that all engines share: context figures, counters, completions, option tables. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Contexts:
    """The context figures of a running engine, in tokens; `None` if not reported."""

    requested: int | None = None  # what the profile requests
    declared: int | None = None  # the model length that the API reports
    physical: int | None = None  # what the KV pool (for llama.cpp, the slot) holds for one request

    @property
    def effective(self) -> int | None:
        """The smaller of declared and physical: what one request can really use."""
        known = [tokens for tokens in (self.declared, self.physical) if tokens is not None]
        return min(known) if known else None


@dataclass(frozen=True, slots=True)
class Counters:
    """Progress of an engine, as reported by its metrics.

    `progress` holds figures that change if and only if work is done (tokens, steps, KV use); two
    equal tuples mean that nothing moved. Gauges of running requests are left out: a hung engine may
    report 0.
    """

    progress: tuple[float, ...]
    tokens: float | None = None  # prompt and generated tokens
    generated: float | None = None  # tokens that `decode_seconds` were spent on
    finished: float | None = None
    """Grows only when a request has been answered; a count if the engine has one."""
    drafted: float | None = None  # tokens proposed by the drafter (a lower bound)
    accepted: float | None = None  # of those, accepted by the target
    decode_seconds: float | None = None
    """Seconds that requests spent decoding, added up over requests.

    The growth of `generated` over the growth of this is the speed of one request.
    """
    running: float | None = None
    """Requests at work now, by the engine's own account."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A chat completion, in one shape for every engine."""

    model: str | None
    completion_tokens: int
    finish_reason: str | None
    text: str  # visible text and reasoning text together


# Finish reasons of a complete answer; others are an abort or an error.
FINISH_REASONS: Final = frozenset({"stop", "length", "tool_calls"})


class ShapeError(ValueError):
    """A body with an unexpected shape; the message quotes its beginning."""


@dataclass(frozen=True, slots=True)
class LegalValue:
    """What the engine's parser accepts behind one option."""

    takes: str
    """`flag` nothing · `int` · `count` an int, or one with the engine's suffixes such as `32k` ·
    `count-or-auto` · `float` · `number` either, or one of `choices` · `json` · `text` ·
    `removed` the parser knows the option only to refuse it."""
    choices: tuple[str, ...] = ()  # the legal values, where they are listed
    many: str = ""
    """How many values: `` one · `?` none or one · `+` one or more · `*` any number · `2` two ·
    `,` one word of values joined by commas."""
    deprecated: bool = False  # still accepted, with a warning


@dataclass(frozen=True, slots=True)
class FlagTable:
    """The options of one engine version's own parser."""

    engine: EngineName
    version: str
    options: Mapping[str, LegalValue]  # by option, with its dashes


# Packages whose version is the engine's; that of llama.cpp is its build number.
PACKAGE: Final[Mapping[EngineName, str]] = {
    EngineName.SGLANG: "sglang",
    EngineName.VLLM: "vllm",
    EngineName.LLAMACPP: "llama.cpp",
}


@dataclass(frozen=True, slots=True)
class InstalledEngine:
    """What is known about the engine on this host; empty if it is not installed."""

    executable: str = ""  # absolute path of its program
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions by the package's name in lower case, with dashes; `llama.cpp` by its build."""
    cuda: str | None = None  # version of the CUDA runtime beside it, as `12.8`
    capability: str | None = None  # compute capability of the profile's GPU, as `12.0`
    listed: FlagTable | None = None  # options listed by the engine's own `--help`

    def version(self, engine: EngineName) -> str | None:
        return self.packages.get(PACKAGE.get(engine, ""))
