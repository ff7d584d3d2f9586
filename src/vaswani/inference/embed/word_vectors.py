"""Which tokens spell a word, and one vector for each word from theirs.

A word's vector comes from the states of its sub-words: the first, the last, their mean. Of a model that reads
characters or bytes it comes from the states at the word's first and last character, as in FLAIR (Akbik et
al., 2018, "Contextual String Embeddings for Sequence Labeling", section 2.3):

- of one model that sees the whole text, `"first_last"` puts the two states side by side;
- of a forward and a backward language model, `"last"` takes from each its state after it has read the word:
  the forward model's at the word's last character, the backward model's at its first. `stack_word_vectors`
  puts these side by side.

T tokens of a text · W its words · d width
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

Span = tuple[int, int]  # of characters: the first, and the one after the last

SUBTOKEN_POOLINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # tokens of one word: [n, d] -> [d]
    "first": lambda states: states[0],
    "last": lambda states: states[-1],
    "first_last": lambda states: torch.cat([states[0], states[-1]]),  # [2d]
    "mean": lambda states: states.mean(dim=0),
}


class WordVectors(NamedTuple):
    """The words of a text, and a vector of each: float [W, d]."""

    words: list[str]
    vectors: torch.Tensor


@dataclass(frozen=True)
class Sentence:
    """A text and its words, each `text[start:end]` of one of the `spans`."""

    text: str
    spans: list[Span]

    @property
    def words(self) -> list[str]:
        """The words, in their order."""
        return [self.text[start:end] for start, end in self.spans]

    def reversed(self) -> Sentence:
        """The text read from its end, and where its words, in the order that they had, are then."""
        length = len(self.text)
        return Sentence(self.text[::-1], [(length - end, length - start) for start, end in self.spans])


def as_sentence(text: str | Sequence[str]) -> Sentence:
    """A text, whose words are what stands between white space; or its words, which spaces will join."""
    if isinstance(text, str):
        return Sentence(text, [match.span() for match in re.finditer(r"\S+", text)])
    spans, start = [], 0
    for word in text:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return Sentence(" ".join(text), spans)


def tokens_of_words(sentence: Sentence, offsets: Sequence[Span]) -> list[list[int]]:
    """Numbers of the tokens of each word, in order; a token with letters of two words is in both.

    Args:
        sentence: the text with its words.
        offsets: what each token spells of the text; an empty span is of no word.
    """
    word_at: list[int | None] = [None] * len(sentence.text)
    for word, (start, end) in enumerate(sentence.spans):
        word_at[start:end] = [word] * (end - start)
    tokens: list[list[int]] = [[] for _ in sentence.spans]
    for token, (start, end) in enumerate(offsets):
        for touched in set(word_at[start:end]):
            if touched is not None:
                tokens[touched].append(token)
    return tokens


def stack_word_vectors(parts: Iterable[Iterable[WordVectors]]) -> Iterator[WordVectors]:
    """Put the vectors that several models gave for the same words side by side, text by text."""
    for of_text in zip(*parts, strict=True):
        yield WordVectors(of_text[0].words, torch.cat([part.vectors for part in of_text], dim=1))
