"""Prompt lengths in tokens as the engine counts them. Pure.

A text of equal sentences grows by the same number of tokens with each. Two short prompts therefore
show how many sentences a length takes, for any tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

SENTENCE: Final = "The harbour was quiet and the boats lay still in the morning light. "
# Sentences of the two prompts that are counted.
SHORT: Final = 4
LONG: Final = 8


@dataclass(frozen=True, slots=True)
class Length:
    """Length of the text before a question."""

    sentences: int
    words: int = 0


@dataclass(frozen=True, slots=True)
class Ruler:
    """Tokens of a prompt by the number of its sentences."""

    frame: float  # tokens of a prompt with no sentence
    sentence: float

    @classmethod
    def of(cls, short: int, long: int) -> Ruler | None:
        """Return the ruler for prompts of `SHORT` and `LONG` sentences with these token counts.

        `None` if the counts do not grow: a sentence has more than one token, and with less a prompt
        would be made of millions of sentences.
        """
        sentence = (long - short) / (LONG - SHORT)
        return cls(short - SHORT * sentence, sentence) if sentence >= 1 else None

    def length(self, wanted: float) -> Length:
        """Return the length of a text that makes a prompt of about `wanted` tokens."""
        room = max(0.0, wanted - self.frame)
        sentences = int(room / self.sentence)
        return Length(sentences, round(room - sentences * self.sentence))

    def mended(self, length: Length, *, wanted: int, counted: int) -> Length:
        """Correct `length`, whose prompt had `counted` tokens instead of `wanted`."""
        words = length.words + wanted - counted
        fewer = 0 if words >= 0 else min(length.sentences, int(-words / self.sentence) + 1)
        more = max(0, words + round(fewer * self.sentence))
        return replace(length, sentences=length.sentences - fewer, words=more)
