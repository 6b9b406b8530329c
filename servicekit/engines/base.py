"""What servicekit asks of an engine: words of its command line, shapes of its answers. Pure.

One `Engine` value per engine, in a module of its own; `servicekit.engines.engine(name)` finds it.
Facts about options, endpoints and metrics are those of SGLang 0.5.16 and 0.5.23, vLLM 0.32.0 and
llama.cpp b11434.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.profiles.model import Profile
    from servicekit.quoting import Word


@dataclass(frozen=True, slots=True)
class Contexts:
    """The context figures of one running engine, in tokens; `None` where it does not tell."""

    requested: int | None = None
    """What the profile asks for."""
    declared: int | None = None
    """The model length that the API reports."""
    physical: int | None = None
    """What the KV pool (or the slot, for llama.cpp) can hold for one request."""

    @property
    def effective(self) -> int | None:
        """The smaller of declared and physical: what one request can really use."""
        known = [figure for figure in (self.declared, self.physical) if figure is not None]
        return min(known) if known else None


@dataclass(frozen=True, slots=True)
class Counters:
    """Progress of an engine as its metrics tell it.

    `progress` are figures that change if and only if work is being done (tokens, steps, KV use);
    two equal tuples mean that nothing moved. Gauges of running requests are left out: a wedged
    engine reports 0.
    """

    progress: tuple[float, ...]
    tokens: float | None = None
    """Prompt and generated tokens so far."""
    generated: float | None = None
    """Tokens that `decode_seconds` were spent on so far."""
    finished: float | None = None
    """Grows when a request has been answered, and only then; a count where the engine counts."""
    drafted: float | None = None
    """Tokens proposed by the drafter so far (at least that many), where the engine counts them."""
    accepted: float | None = None
    """Of those, accepted by the target."""
    decode_seconds: float | None = None
    """Seconds that requests spent decoding so far, added up over requests, where it counts them.

    The growth of `generated` over the growth of this is the speed of one request.
    """


@dataclass(frozen=True, slots=True)
class Completion:
    """What a chat completion's body says, in one shape for every engine."""

    model: str | None
    completion_tokens: int
    finish_reason: str | None
    text: str
    """Visible text plus reasoning text: what the model produced, wherever the engine put it."""


FINISH_REASONS: Final = frozenset({"stop", "length", "tool_calls"})
"""Finish reasons of a completion that came to its end; others are an abort or an error."""


class ShapeError(ValueError):
    """A body that is not what the endpoint promises; the message quotes the beginning of it."""


class Engine(Protocol):
    """One engine: how it is started and how it is asked."""

    @property
    def name(self) -> EngineName:
        """Which engine."""

    @property
    def default_executable(self) -> str | None:
        """Program name when the profile gives none."""

    @property
    def scrub(self) -> tuple[str, ...]:
        """Prefixes of variables that must not leak in from outside, such as `LLAMA_ARG_`."""

    def words(self, profile: Profile) -> tuple[Word, ...]:
        """Command-line words after the program, with references where a tunable applies."""

    def environment(self, profile: Profile) -> tuple[tuple[str, str], ...]:
        """Variables the engine needs for the watchdog's sake."""

    def completion_request(self, profile: Profile) -> dict[str, Any]:
        """JSON body of the bounded completion for `/v1/chat/completions`."""

    def completion(self, body: Any) -> Completion:  # noqa: ANN401 - parsed JSON
        """Read the body of a chat completion, or raise `ShapeError`."""

    def served(self, models: Any, profile: Profile) -> bool:  # noqa: ANN401 - parsed JSON
        """Whether the body of `/v1/models` lists the served name (and the model, where it tells).

        Raise `ShapeError` where the body is no list of models. What it does list, for a message,
        is in `servicekit.engines.shapes.names_listed`.
        """

    def answers_as(self, reply_model: str | None, profile: Profile) -> bool:
        """Whether the `model` of a completion's body is the profile's."""

    def declared(self, models: Any, profile: Profile) -> int | None:  # noqa: ANN401 - parsed JSON
        """Declared model length from the body of `/v1/models`, in tokens."""

    @property
    def pool_path(self) -> str | None:
        """Endpoint that tells the physical pool, `None` where none does."""

    def pool(self, body: str, profile: Profile) -> int | None:
        """Physical pool from the body of `pool_path`, in tokens that one request can use.

        `None` where the body does not tell. Raise `ShapeError` where it is something else
        altogether. Keep nothing else of the body: SGLang's holds its API key.
        """

    def usable_input(self, context: int) -> int:
        """Tokens of prompt that one request may have where `context` tokens are effective."""

    @property
    def metrics_path(self) -> str | None:
        """Endpoint with Prometheus metrics, `None` where progress cannot be read."""

    def counters(self, body: str) -> Counters:
        """Progress counters from the body of `metrics_path`.

        Raise `ShapeError` where the body has none of the engine's series, which is not the same as
        series that stand still.
        """


@dataclass(frozen=True, slots=True)
class LegalValue:
    """What the engine's parser accepts behind one option."""

    takes: str
    """`flag` nothing · `int` · `count` an int, or one with the engine's suffixes such as `32k` ·
    `count-or-auto` · `float` · `number` either, or one of `choices` · `json` · `text` ·
    `removed` the parser knows the option only to refuse it."""
    choices: tuple[str, ...] = ()
    """The legal values, where they are listed."""
    many: str = ""
    """How many values: `` one · `?` none or one · `+` one or more · `*` any number · `2` two ·
    `,` one word of values joined by commas."""
    deprecated: bool = False
    """Still accepted, with a warning."""


@dataclass(frozen=True, slots=True)
class FlagTable:
    """Exact option strings of one engine version's real parser."""

    engine: EngineName
    version: str
    options: Mapping[str, LegalValue]
    """By the option with its dashes."""


PACKAGE: Final[Mapping[EngineName, str]] = {
    EngineName.SGLANG: "sglang",
    EngineName.VLLM: "vllm",
    EngineName.LLAMACPP: "llama.cpp",
}
"""Which package's version is an engine's; llama.cpp's is the number of its build."""


@dataclass(frozen=True, slots=True)
class InstalledEngine:
    """What is known of an engine as it is installed on this host; empty where it is not."""

    executable: str = ""
    """Absolute path of its program."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions by the package's name in lower case, with dashes; `llama.cpp` by its build."""
    cuda: str | None = None
    """Version of the CUDA runtime beside it, as `12.8`."""
    capability: str | None = None
    """Compute capability of the profile's GPU, as `12.0`."""
    told: FlagTable | None = None
    """Options as the engine itself lists them."""

    def version(self, engine: EngineName) -> str | None:
        """Version of the engine itself, `None` where it is not known."""
        return self.packages.get(PACKAGE.get(engine, ""))
