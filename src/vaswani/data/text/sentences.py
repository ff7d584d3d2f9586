"""Find sentence ends by punctuation alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

# The group that matches (white space or nothing) starts where the sentence ends.
_END = re.compile(
    r"(?<=[.!?…؟۔।॥։።။])(\s+)|(?<=[.!?…])[\"'”’»)\]]+(\s+)(?![a-z])|(\n\s*)|[。！？]+[」』”’）]*(\s*)"
)


def sentence_ends(text: str) -> Iterator[int]:
    """Yield the end of each sentence of a text but the last; white space alone is not a sentence."""
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    for match in _END.finditer(text):
        end = match.start(match.lastindex or 0)
        if first < end < last:
            yield end


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text, without white space around them."""
    return [text[start:end].strip() for start, end in pairwise([0, *sentence_ends(text), len(text)])]
