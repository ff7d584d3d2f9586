"""Span denoising: predict removed spans of a text (T5; Raffel et al., 2020, arXiv:1910.10683).

A sentinel, a token of its own, stands in the source for each removed span. The target holds the same
sentinels, each before its span, and one more at its end (section 3.1.4). The number of removed tokens and of
spans follows from the length of the text; their lengths and places are random (section 3.3.4). T5's code
removes the last tokens of every text; here no place is special.

N tokens of a text · M spans
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from datasets import Features
from transformers import PreTrainedTokenizerBase

from vaswani.data.batching import Example
from vaswani.data.text.denoising import LENGTHS, Integers, frames
from vaswani.data.text.sequences import TOKENS, Document, Flags, SequenceBuilder

FEWEST_SENTINELS = 100  # of a new vocabulary, as in T5's


@dataclass(frozen=True)
class SpanNoise:
    """How much of a text is removed.

    Args:
        noise_density: share of the tokens that are removed, above 0 and below 1.
        mean_noise_span_length: mean number of tokens of a removed span, at least 1.
    """

    noise_density: float = 0.15
    mean_noise_span_length: float = 3.0

    def counts(self, length: int) -> tuple[int, int]:
        """Return the number of tokens that are removed from a text of two tokens or more, and of spans."""
        removed = min(max(round(length * self.noise_density), 1), length - 1)
        spans = min(max(round(removed / self.mean_noise_span_length), 1), length - removed)
        return removed, spans

    def num_sentinels(self, length: int) -> int:
        """Return the number of sentinels that texts of so many tokens need."""
        return self.counts(length)[1] + 1

    def lengths(self, length: int) -> tuple[int, int]:
        """Return the number of tokens of source and target, without those around every text."""
        removed, spans = self.counts(length)
        return length - removed + spans, removed + spans + 1

    def mask(self, length: int, generator: np.random.Generator) -> Flags:
        """Draw which tokens of a text are removed: bool [N]."""
        removed, spans = self.counts(length)
        kept = length - removed
        places = np.sort(generator.choice(kept + 1, spans, replace=False))  # kept tokens before each span
        cuts = np.sort(generator.choice(removed - 1, spans - 1, replace=False)) + 1
        runs = np.zeros(2 * spans + 1, dtype=np.int64)  # lengths of what is kept, removed, kept ...
        runs[::2] = np.diff(places, prepend=0, append=kept)
        runs[1::2] = np.diff(cuts, prepend=0, append=removed)
        return np.repeat(np.arange(len(runs)) % 2 == 1, runs)


@dataclass(frozen=True, eq=False)
class SpanDenoising:
    """Replaces random spans of a row by sentinels.

    Args:
        noise: how much is removed.
        sentinels: the tokens, in their order.
    """

    noise: SpanNoise
    sentinels: Integers

    def __call__(self, row: Example, generator: np.random.Generator) -> tuple[Integers, Integers]:
        """Return the source and the target of a row with `input_ids`."""
        tokens = row["input_ids"]
        return remove_spans(tokens, self.noise.mask(len(tokens), generator), self.sentinels)


def remove_spans(tokens: Integers, removed: Flags, sentinels: Integers) -> tuple[Integers, Integers]:
    """Return the source and the target of a text.

    Args:
        tokens: of the text [N].
        removed: which tokens are removed [N].
        sentinels: more than there are spans.
    """
    begins = removed & ~np.append(False, removed[:-1])
    spans = int(begins.sum())
    seen = tokens.copy()
    seen[begins] = sentinels[:spans]
    in_target = np.flatnonzero(begins[removed])  # where each span begins among the removed tokens
    target = np.insert(tokens[removed], in_target, sentinels[:spans])
    return seen[~removed | begins], np.append(target, sentinels[spans])


def sentinel_names(count: int) -> list[str]:
    """Return the names of sentinels, which are T5's."""
    return [f"<extra_id_{number}>" for number in range(count)]


def sentinel_ids(tokenizer: PreTrainedTokenizerBase) -> Integers:
    """Return the sentinels of a tokenizer, in their order: int64, empty without any."""
    vocabulary = tokenizer.get_vocab()
    names = (f"<extra_id_{number}>" for number in itertools.count())
    found = itertools.takewhile(lambda name: name in vocabulary, names)
    return np.array([vocabulary[name] for name in found], dtype=np.int64)


@dataclass(frozen=True)
class SpanPieces(SequenceBuilder):
    """Pieces of documents for span denoising, of which one token alone is left out.

    Args:
        noise: how much will be removed, from which the lengths of sources and targets follow.
    """

    noise: SpanNoise = SpanNoise()

    features: ClassVar[Features] = Features(TOKENS | LENGTHS)

    def sequences(
        self, documents: list[Document], numbers: list[int], tokenizer: PreTrainedTokenizerBase
    ) -> Iterator[dict[str, Any]]:
        """Yield the tokens of each piece, and how many its source and its target will have."""
        of_source, of_target = map(len, frames(tokenizer))
        for document in documents:
            for part in document.parts(self.max_length - of_source):
                if len(part.ids) > 1:
                    source, target = self.noise.lengths(len(part.ids))
                    yield {
                        "input_ids": part.ids,
                        "source_length": source + of_source,
                        "target_length": target + of_target,
                    }
