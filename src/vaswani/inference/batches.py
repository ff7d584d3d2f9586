"""Buffers and batches of texts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import TypeVar

import torch

from vaswani.errors import RunError

BUFFERED_TEXTS = 4096  # read ahead and sorted by length
FIRST_TEXTS = 512  # in the first buffer, for early results; 256 would cost 5 % of the speed
BUFFERED_CHARACTERS = 1 << 20  # ends a buffer of very long texts

Text = TypeVar("Text", bound=Sized)
Key = TypeVar("Key", bound=Hashable)


def buffers(texts: Iterable[Text], buffer_size: int = BUFFERED_TEXTS) -> Iterator[list[Text]]:
    """Yield lists of up to `buffer_size` texts, shorter at the beginning and if texts are very long."""
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
    """Yield batches of similar length within a token budget, longest first, so that memory fails early.

    Args:
        tokens: number of tokens of each text, including those to be generated, by its key.
        max_tokens: maximum tokens of a batch, padding included; a longer text is a batch by itself.
        equal: batch only texts of equal length, so that there is no padding.
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


@contextmanager
def within_memory(what: str, count: int, longest: int) -> Iterator[None]:
    """Raise a RunError if a batch of `count` texts does not fit into the device's memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        size = f"{count} {what} of up to {longest} tokens"
        raise RunError(f"out of memory with {size}; lower max_tokens_per_batch") from error
