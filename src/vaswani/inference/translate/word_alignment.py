"""Which words of its source the words of a translation come from, by the cross-attention of the search."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vaswani.data.text_codec import TextCodec
from vaswani.inference.align.links import aligned_words
from vaswani.inference.align.words import words_by_decoding, words_of_texts
from vaswani.inference.translate.engine import Output

WordAlignment = tuple[tuple[int, int], ...]


def word_alignment(
    codecs: tuple[TextCodec, TextCodec], sentence: str, source_ids: Sequence[int], output: Output
) -> WordAlignment | None:
    """Return pairs of a source word and a target word, which count from 0.

    Words are what white space separates. Each target word is aligned to the source word that it attends to
    most (see `aligned_words`).

    Args:
        codecs: of sources and targets.
        sentence: the source.
        source_ids: its tokens.
        output: with the attention of each of its tokens.

    Returns:
        None if the source is cut off, or a tokenizer does not tell the words of its tokens.
    """
    sources, targets = codecs
    if len(source_ids) < len(sources.token_ids([sentence])[0]):
        return None
    (source_words,) = words_of_texts(sources, [sentence], [source_ids])
    target_words = words_by_decoding(targets, output.token_ids)
    if source_words is None or target_words is None:
        return None
    weights = torch.tensor(output.attention).reshape(len(output.token_ids), len(source_ids))
    return tuple(sorted(aligned_words(weights, source_words, target_words)))
