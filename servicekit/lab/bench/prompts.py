"""Prompts of a given length, as the engine itself counts it. Pure.

A text of equal sentences grows by the same tokens with each, so two short prompts tell how many
sentences a length takes; what a third, of about that length, is off by, is made up in single words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from servicekit.lab.bench.values import Prefix
from servicekit.lab.verify.gates import FILLER

if TYPE_CHECKING:
    from servicekit.lab.bench.cases import Planned

VERSION: Final = 1
"""Of what is made here: it is part of a suite's hash."""
SHORT: Final = 4
LONG: Final = 8
"""Sentences of the two prompts by which lengths are found."""
PAD: Final = "well "
WORDS: Final = (
    *("apple", "autumn", "bird", "book", "bread", "bridge", "castle", "cloud", "coast", "corn"),
    *("desert", "door", "dream", "eagle", "engine", "farm", "field", "fire", "fish", "flower"),
    *("forest", "garden", "glass", "gold", "grass", "green", "hill", "horse", "house", "island"),
    *("king", "lake", "lamp", "leaf", "light", "market", "moon", "morning", "mountain", "music"),
    *("night", "ocean", "paper", "plant", "queen", "rain", "red", "river", "road", "rock"),
    *("school", "ship", "silver", "snow", "spring", "star", "stone", "summer", "sun", "village"),
)
"""Words that most tokenizers have as one token each: labels that differ are equally long."""


@dataclass(frozen=True, slots=True)
class Length:
    """How long the text before a question is."""

    sentences: int
    words: int = 0


@dataclass(frozen=True, slots=True)
class Ruler:
    """How many tokens a prompt has by the sentences of its text."""

    frame: float
    """Tokens of a prompt without any."""
    sentence: float

    @classmethod
    def of(cls, short: int, long: int) -> Ruler | None:
        """Make one from the tokens of the two prompts; `None` where they do not tell."""
        sentence = (long - short) / (LONG - SHORT)
        # A sentence has more than one token: by less, a prompt would be made of millions of them.
        return cls(short - SHORT * sentence, sentence) if sentence >= 1 else None

    def length(self, wanted: int) -> Length:
        """Give the length of a text that makes a prompt of `wanted` tokens, or somewhat fewer."""
        room = max(0.0, wanted - self.frame)
        sentences = int(room / self.sentence)
        return Length(sentences, round(room - sentences * self.sentence))

    def mended(self, length: Length, *, wanted: int, counted: int) -> Length:
        """Make up for what a prompt of `length` was off by."""
        words = length.words + wanted - counted
        fewer = 0 if words >= 0 else min(length.sentences, int(-words / self.sentence) + 1)
        more = max(0, words + round(fewer * self.sentence))
        return replace(length, sentences=length.sentences - fewer, words=more)


def label(run: str, case: str, turn: int) -> str:
    """Give words that no other prompt begins with, of this run or another, as good as surely."""
    chosen = Random(f"{run} {case} {turn}")  # noqa: S311 - no secret
    return f"Note {' '.join(chosen.choice(WORDS) for _ in range(6))}. "


def prompt(planned: Planned, length: Length | None, *, run: str, turn: int) -> str:
    """Give the prompt number `turn` of a case; below 0 are those that are not measured.

    The prompts of a case with a cold prefix differ from their first words on. With a warm one they
    are equal up to the question; a stamped one is a warm one behind the time of day.
    """
    case, prefix = planned.data, planned.conditions.prefix
    begin = label(run, planned.name, turn if prefix is Prefix.COLD else 0)
    if prefix is Prefix.STAMPED:
        # As an application would put it, and another one each time; the date is of no matter.
        minutes, seconds = divmod(1000 + turn, 60)
        begin = f"The time is {minutes % 24:02}:{seconds:02}:{turn % 60:02}. {begin}"
    if length is None:
        return f"{begin}\n\n{case.question}"
    parts = [FILLER] * length.sentences
    if parts and case.hidden:
        parts[len(parts) // 2] += case.hidden
    text = "".join(parts) + PAD * length.words
    return f"{begin}{text}\n\nRequest {(turn % 100):02}. {case.question}"


def body(
    planned: Planned, text: str, *, served_name: str, max_tokens: int | None = None
) -> dict[str, Any]:
    """Give the body of a chat completion; `max_tokens` replaces the case's own."""
    conditions = planned.conditions
    asked: dict[str, Any] = {
        "model": served_name,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens or conditions.max_tokens,
        "temperature": conditions.sampling.temperature,
        "seed": conditions.sampling.seed,
    }
    if conditions.thinking is not None:
        asked["chat_template_kwargs"] = {"enable_thinking": conditions.thinking}
    if conditions.exact_output:
        asked["ignore_eos"] = True
    return asked
