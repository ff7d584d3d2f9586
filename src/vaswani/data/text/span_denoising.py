"""Span denoising: predict removed spans of a text (T5; Raffel et al., 2020, arXiv:1910.10683).

In the source, a sentinel (a special token) replaces each removed span. The target holds the same sentinels,
each before its span, and one more at its end (section 3.1.4). The length of the text determines the number of
removed tokens and of spans; the lengths and places of the spans are random (section 3.3.4). T5's code removes
the last tokens of every text; here spans can be anywhere.

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

from vaswani.data.collation import Example
from vaswani.data.text.denoising import LENGTHS, Integers, frames
from vaswani.data.text.sequences import TOKENS, Document, Flags, SequenceBuilder

MIN_SENTINELS = 100  # in a new vocabulary, as in T5


@dataclass(frozen=True)
class SpanNoise:
    """Number and lengths of the spans that are removed from a text.

    Args:
        noise_density: share of the tokens that are removed, above 0 and below 1.
        mean_noise_span_length: mean number of tokens of a removed span, at least 1.
    """

    noise_density: float = 0.15
    mean_noise_span_length: float = 3.0

    def counts(self, length: int) -> tuple[int, int]:
        """Return the number of removed tokens and of spans for a text of `length` tokens, at least 2."""
        removed = min(max(round(length * self.noise_density), 1), length - 1)
        spans = min(max(round(removed / self.mean_noise_span_length), 1), length - removed)
        return removed, spans

    def num_sentinels(self, length: int) -> int:
        """Return the number of sentinels that a text of `length` tokens needs."""
        return self.counts(length)[1] + 1

    def lengths(self, length: int) -> tuple[int, int]:
        """Return the lengths of source and target, without the special tokens around every text."""
        removed, spans = self.counts(length)
        return length - removed + spans, removed + spans + 1

    def mask(self, length: int, generator: np.random.Generator) -> Flags:
        """Draw which tokens of a text are removed: bool [N]."""
        removed, spans = self.counts(length)
        kept = length - removed
        places = np.sort(generator.choice(kept + 1, spans, replace=False))  # kept tokens before each span
        cuts = np.sort(generator.choice(removed - 1, spans - 1, replace=False)) + 1
        runs = np.zeros(2 * spans + 1, dtype=np.int64)  # lengths of kept and removed runs, in turn
        runs[::2] = np.diff(places, prepend=0, append=kept)
        runs[1::2] = np.diff(cuts, prepend=0, append=removed)
        return np.repeat(np.arange(len(runs)) % 2 == 1, runs)


@dataclass(frozen=True, eq=False)
class SpanDenoising:
    """Replaces random spans of a row by sentinels.

    Args:
        noise: number and lengths of the removed spans.
        sentinels: token ids of the sentinels, in order.
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
        tokens: token ids of the text [N].
        removed: True for tokens to remove [N].
        sentinels: token ids of the sentinels, at least one more than there are spans.
    """
    begins = removed & ~np.append(False, removed[:-1])
    spans = int(begins.sum())
    seen = tokens.copy()
    seen[begins] = sentinels[:spans]
    in_target = np.flatnonzero(begins[removed])  # where each span begins among the removed tokens
    target = np.insert(tokens[removed], in_target, sentinels[:spans])
    return seen[~removed | begins], np.append(target, sentinels[spans])


def sentinel_names(count: int) -> list[str]:
    """Return the names of the first `count` sentinels, as in T5."""
    return [f"<extra_id_{number}>" for number in range(count)]


def sentinel_ids(tokenizer: PreTrainedTokenizerBase) -> Integers:
    """Return the token ids of a tokenizer's sentinels, in order: int64, empty if it has none."""
    vocabulary = tokenizer.get_vocab()
    names = (f"<extra_id_{number}>" for number in itertools.count())
    found = itertools.takewhile(lambda name: name in vocabulary, names)
    return np.array([vocabulary[name] for name in found], dtype=np.int64)


@dataclass(frozen=True)
class SpanPieces(SequenceBuilder):
    """Pieces of documents for span denoising; a piece of a single token is left out.

    Args:
        noise: determines the lengths of sources and targets.
    """

    noise: SpanNoise = SpanNoise()

    features: ClassVar[Features] = Features(TOKENS | LENGTHS)

    def sequences(
        self, documents: list[Document], numbers: list[int], tokenizer: PreTrainedTokenizerBase
    ) -> Iterator[dict[str, Any]]:
        """Yield the token ids of each piece and the lengths of its source and target."""
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
