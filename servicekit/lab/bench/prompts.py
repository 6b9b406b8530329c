"""Prompts of a given length, as counted by the engine. Pure."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from servicekit.lab.bench.samples import Prefix
from servicekit.lab.ruler import SENTENCE, Length

if TYPE_CHECKING:
    from servicekit.lab.bench.cases import Planned

VERSION: Final = 1  # of the prompts made here; part of a suite's hash
PAD: Final = "well "
# One token each in most tokenizers, so that different labels are equally long.
WORDS: Final = (
    *("apple", "autumn", "bird", "book", "bread", "bridge", "castle", "cloud", "coast", "corn"),
    *("desert", "door", "dream", "eagle", "engine", "farm", "field", "fire", "fish", "flower"),
    *("forest", "garden", "glass", "gold", "grass", "green", "hill", "horse", "house", "island"),
    *("king", "lake", "lamp", "leaf", "light", "market", "moon", "morning", "mountain", "music"),
    *("night", "ocean", "paper", "plant", "queen", "rain", "red", "river", "road", "rock"),
    *("school", "ship", "silver", "snow", "spring", "star", "stone", "summer", "sun", "village"),
)


def label(run: str, case: str, turn: int) -> str:
    """Return words that practically no other prompt begins with, of this run or another."""
    chosen = Random(f"{run} {case} {turn}")  # noqa: S311 - no secret
    return f"Note {' '.join(chosen.choice(WORDS) for _ in range(6))}. "


def prompt(planned: Planned, length: Length | None, *, run: str, turn: int) -> str:
    """Return prompt number `turn` of a case; negative numbers are those that are not measured.

    Prompts of a case with a cold prefix differ from their first words on. Those with a warm prefix
    are equal up to the question, and stamped ones follow a time of day.
    """
    case, prefix = planned.data, planned.conditions.prefix
    begin = label(run, planned.name, turn if prefix is Prefix.COLD else 0)
    if prefix is Prefix.STAMPED:
        # As an application would write it, and different for each turn; the date does not matter.
        minutes, seconds = divmod(1000 + turn, 60)
        begin = f"The time is {minutes % 24:02}:{seconds:02}:{turn % 60:02}. {begin}"
    if length is None:
        return f"{begin}\n\n{case.question}"
    parts = [SENTENCE] * length.sentences
    if parts and case.hidden:
        parts[len(parts) // 2] += case.hidden
    text = "".join(parts) + PAD * length.words
    return f"{begin}{text}\n\nRequest {(turn % 100):02}. {case.question}"


def body(
    planned: Planned, text: str, *, served_name: str, max_tokens: int | None = None
) -> dict[str, Any]:
    """Return the body of a chat completion; `max_tokens` replaces the case's own limit."""
    conditions = planned.conditions
    content: dict[str, Any] = {
        "model": served_name,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens or conditions.max_tokens,
        "temperature": conditions.sampling.temperature,
        "seed": conditions.sampling.seed,
    }
    if conditions.thinking is not None:
        content["chat_template_kwargs"] = {"enable_thinking": conditions.thinking}
    if conditions.exact_output:
        content["ignore_eos"] = True
    return content
