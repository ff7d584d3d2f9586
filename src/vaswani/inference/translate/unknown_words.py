"""Unknown words of a translation, replaced by those of the source that they attend to most.

Luong et al., 2015, arXiv:1410.8206, copy source words by alignments that the model learns; here the alignment
is the cross-attention (see `cross_attention.py`). Words are what white space separates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from vaswani.data.text_codec import TextCodec


class UnknownWords:
    """Replaces the unknown tokens of outputs.

    Args:
        sources: encodes sources.
        targets: decodes targets, with an unknown token.
    """

    def __init__(self, sources: TextCodec, targets: TextCodec):
        self._sources, self._targets = sources, targets
        self._unknown = targets.unknown_id()

    def text(
        self,
        token_ids: Sequence[int],
        attention: Sequence[Sequence[float]],
        sentence: str,
        source_ids: Sequence[int],
    ) -> str:
        """Return the text of an output, with a word of the source in the place of each unknown token.

        A source word is the one whose tokens have most attention together. Unknown tokens beside each other
        that attend to the same word give it once.

        Args:
            token_ids: of the output.
            attention: of each unknown token, a weight for each token of the source.
            sentence: the source.
            source_ids: its tokens, which may be cut off.
        """
        words = self._words(sentence, source_ids)
        parts: list[str] = []
        start, copied = 0, None
        places = [place for place, token in enumerate(token_ids) if token == self._unknown]
        for place, weights in zip(places, attention, strict=True):
            between = self._decode(token_ids[start:place])
            word = max(words, key=lambda word: sum(weights[word.start : word.stop]))
            if between or word != copied:
                parts += [between, sentence[words[word]]]
            start, copied = place + 1, word
        return " ".join(part for part in [*parts, self._decode(token_ids[start:])] if part)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._targets.decode([list(token_ids)])[0].strip() if token_ids else ""

    def _words(self, sentence: str, source_ids: Sequence[int]) -> dict[range, slice]:
        """Return the tokens of each word, and its place in the sentence."""
        found = [match.span() for match in re.finditer(r"\S+", sentence)]
        beginnings = [sentence[: found[0][0]], *(sentence[:end] for _, end in found[:-1])]
        whole = self._sources.token_ids([sentence])[0]
        frame = self._sources.frame()
        starts = [
            _common_length(tokens[: len(tokens) - len(frame.trailing)], whole)
            for tokens in self._sources.token_ids(beginnings)
        ]
        ends = [*starts, len(whole) - len(frame.trailing)]
        dropped = len(whole) - len(source_ids) if frame.keeps_end else 0  # from the beginning
        ranges = [range(max(first - dropped, 0), max(last - dropped, 0)) for first, last in pairwise(ends)]
        return {
            tokens: slice(*place) for tokens, place in zip(ranges, found, strict=True) if len(tokens)
        } or {range(len(source_ids)): slice(*found[0])}


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(first), len(second)))
