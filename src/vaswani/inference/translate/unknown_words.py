"""Replace unknown words of a translation by the source words that they attend to most.

Luong et al., 2015, arXiv:1410.8206, copy source words by alignments that the model learns; here the alignment
is the cross-attention of the last layer. Words are separated by white space.
"""

from __future__ import annotations

from collections.abc import Sequence

from vaswani.data.text_codec import TextCodec
from vaswani.inference.align.words import Words
from vaswani.inference.translate.engine import Output


class UnknownWords:
    """Replaces the unknown tokens of outputs.

    Args:
        targets: decodes targets, with an unknown token.
    """

    def __init__(self, targets: TextCodec):
        self._targets = targets
        self._unknown = targets.unknown_id()

    def text(self, output: Output, words: Sequence[str], word_of_token: Words) -> str:
        """Return the text of an output, with a source word in place of each unknown token.

        The source word is the one whose tokens get the largest total attention. Adjacent unknown tokens that
        attend to the same word are replaced by it once.

        Args:
            output: an output with the attention of each unknown token.
            words: the words of the source.
            word_of_token: the word of each source token (see `words_of_texts`); not all may be None.
        """
        parts: list[str] = []
        start, copied = 0, None
        places = [place for place, token in enumerate(output.token_ids) if token == self._unknown]
        for place, weights in zip(places, output.attention, strict=True):
            between = self._decode(output.token_ids[start:place])
            word = _attended_word(weights, word_of_token)
            if between or word != copied:
                parts += [between, words[word]]
            start, copied = place + 1, word
        return " ".join(part for part in [*parts, self._decode(output.token_ids[start:])] if part)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._targets.decode([list(token_ids)])[0].strip() if token_ids else ""


def _attended_word(weights: Sequence[float], word_of_token: Words) -> int:
    """Return the word whose tokens have the largest sum of weights."""
    sums: dict[int, float] = {}
    for weight, word in zip(weights, word_of_token, strict=True):
        if word is not None:
            sums[word] = sums.get(word, 0.0) + weight
    return max(sums, key=sums.__getitem__)
