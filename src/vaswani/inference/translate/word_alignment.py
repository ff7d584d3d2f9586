"""Align the words of a translation to the words of its source, by the cross-attention of the search."""

from __future__ import annotations

import torch

from vaswani.data.text_codec import TextCodec
from vaswani.inference.align.links import aligned_words
from vaswani.inference.align.words import Words, words_by_decoding
from vaswani.inference.translate.engine import Output

WordAlignment = tuple[tuple[int, int], ...]


def word_alignment(targets: TextCodec, source_words: Words, output: Output) -> WordAlignment | None:
    """Return pairs of a source word and a target word, both counted from 0.

    Words are separated by white space. Each target word is aligned to the source word that it attends to most
    (see `aligned_words`).

    Args:
        targets: decodes targets.
        source_words: the word of each token of the source, see `words_of_texts`.
        output: an output with the attention of each of its tokens.

    Returns:
        The sorted pairs; None if the tokenizer does not reveal the words of the output.
    """
    target_words = words_by_decoding(targets, output.token_ids)
    if target_words is None:
        return None
    weights = torch.tensor(output.attention).reshape(len(output.token_ids), len(source_words))
    return tuple(sorted(aligned_words(weights, source_words, target_words)))
