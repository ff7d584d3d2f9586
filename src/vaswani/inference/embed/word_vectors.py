"""Find the tokens of each word, and pool their states into a vector of the word.

The vector of a word is the state of its first or last subword, or the mean over its subwords. For character
and byte models, it consists of the states at the word's first and last character, as in FLAIR (Akbik et al.,
2018, "Contextual String Embeddings for Sequence Labeling", section 2.3):

- with one model that sees the whole text, `"first_last"` concatenates the two states;
- with a forward and a backward language model, `"last"` takes the state of each model after reading the word:
  at its last character for the forward model, at its first for the backward model. `stack_word_vectors`
  concatenates the two vectors.

T tokens of a text · W its words · d width
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

Span = tuple[int, int]  # of characters: start and end

SUBTOKEN_POOLINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # tokens of one word: [n, d] -> [d]
    "first": lambda states: states[0],
    "last": lambda states: states[-1],
    "first_last": lambda states: torch.cat([states[0], states[-1]]),  # [2d]
    "mean": lambda states: states.mean(dim=0),
}


class WordVectors(NamedTuple):
    """The words of a text with their vectors: float [W, d]."""

    words: list[str]
    vectors: torch.Tensor


@dataclass(frozen=True)
class Sentence:
    """A text and the spans of its words."""

    text: str
    spans: list[Span]

    @property
    def words(self) -> list[str]:
        """The words in order."""
        return [self.text[start:end] for start, end in self.spans]

    def reversed(self) -> Sentence:
        """Return the text with reversed characters, and the spans of its words in it, in the same order."""
        length = len(self.text)
        return Sentence(self.text[::-1], [(length - end, length - start) for start, end in self.spans])


def as_sentence(text: str | Sequence[str]) -> Sentence:
    """Make a sentence from a text, which is split at white space, or from a list of words."""
    if isinstance(text, str):
        return Sentence(text, [match.span() for match in re.finditer(r"\S+", text)])
    spans, start = [], 0
    for word in text:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return Sentence(" ".join(text), spans)


def tokens_of_words(sentence: Sentence, offsets: Sequence[Span]) -> list[list[int]]:
    """Return the token indices of each word, in order; a token may belong to two words.

    Args:
        sentence: the text with its words.
        offsets: the span of each token in the text; a token with an empty span belongs to no word.
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


def stack_word_vectors(
    parts: Iterable[Iterable[WordVectors]], normalize: bool = False
) -> Iterator[WordVectors]:
    """Concatenate the vectors of the same words from several models, text by text.

    With `normalize`, each vector is then divided by its length.
    """
    for of_text in zip(*parts, strict=True):
        vectors = torch.cat([part.vectors for part in of_text], dim=1)
        yield WordVectors(of_text[0].words, F.normalize(vectors, dim=1) if normalize else vectors)
