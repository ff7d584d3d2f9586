"""How many texts are read, and how many computed, at a time."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sized
from typing import TypeVar

BUFFERED_TEXTS = 4096  # read ahead, to be sorted by length
FIRST_TEXTS = 512  # of the first buffer, so that results come soon; half as many would cost 5 % of the speed
BUFFERED_CHARACTERS = 1 << 20  # fewer texts are read ahead where they are very long

Text = TypeVar("Text", bound=Sized)
Key = TypeVar("Key", bound=Hashable)


def buffers(texts: Iterable[Text], buffer_size: int = BUFFERED_TEXTS) -> Iterator[list[Text]]:
    """Yield lists of so many texts, fewer at the beginning and where they have very many characters."""
    buffer: list[Text] = []
    characters, size = 0, min(FIRST_TEXTS, buffer_size)
    for text in texts:
        buffer.append(text)
        characters += len(text)
        if len(buffer) >= size or characters >= BUFFERED_CHARACTERS:
            yield buffer
            buffer, characters, size = [], 0, min(2 * size, buffer_size)
    if buffer:
        yield buffer


def batches(tokens: Mapping[Key, int], max_tokens: int, *, equal: bool = False) -> Iterator[list[Key]]:
    """Texts of similar length within a token budget, longest first: short memory shows at once.

    Args:
        tokens: that each takes, with what it may become; by whatever names it.
        max_tokens: of a batch, padding included; a text that takes more by itself is a batch of its own.
        equal: those of a batch take equally many, so that there is no padding.
    """
    batch: list[Key] = []
    longest = 0
    for key in sorted(tokens, key=lambda key: -tokens[key]):
        is_full = (len(batch) + 1) * longest > max_tokens
        if batch and (is_full or (equal and tokens[key] < longest)):
            yield batch
            batch = []
        if not batch:
            longest = tokens[key]
        batch.append(key)
    if batch:
        yield batch
