"""Buffers and batches of texts."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.nn.utils.rnn import pad_sequence

from vaswani.data.sources.reading import is_utf8
from vaswani.errors import RunError, UserError

BUFFERED_TEXTS = 4096  # read ahead and sorted by length
FIRST_TEXTS = 512  # in the first buffer, for early results; 256 would cost 5 % of the speed
BUFFERED_CHARACTERS = 1 << 20  # ends a buffer of very long texts

Text = TypeVar("Text", bound=Sized)
Key = TypeVar("Key", bound=Hashable)


def buffers(texts: Iterable[Text], buffer_size: int = BUFFERED_TEXTS) -> Iterator[list[Text]]:
    """Yield lists of up to `buffer_size` texts; fewer at the beginning and for very long texts."""
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


def checked(texts: Iterable[Any], kinds: tuple[type, ...] = (str,)) -> Iterator[Any]:
    """Yield items after checking that each is a text, or a pair or list of texts, as `kinds` allows.

    Raises:
        UserError: an item has another type, such as None from an empty cell of a table, or holds anything
            other than valid text.
    """
    for number, text in enumerate(texts, 1):
        parts = text if type(text) in (tuple, list) else (text,) if isinstance(text, str) else ()
        if not isinstance(text, kinds) or not all(isinstance(part, str) for part in parts):
            raise UserError(f"text {number:,} is {repr(text)[:60]}; expected a string")
        if not all(map(is_utf8, parts)):
            raise UserError(f"text {number:,}, {ascii(text)[:60]}, has half of a surrogate pair; correct it")
        yield text


def listed(name: str, texts: Any) -> tuple[str, ...]:
    """Return the texts of a list; raise a UserError for a single text, or for anything other than texts."""
    if isinstance(texts, str):
        raise UserError(f"{name} is one text; give a list: [{texts!r}]")
    found = tuple(texts) if isinstance(texts, Iterable) else (texts,)
    if wrong := [each for each in found if not isinstance(each, str)]:
        raise UserError(f"{name} holds {repr(wrong[0])[:60]}; expected texts")
    return found


def batches(tokens: Mapping[Key, int], max_tokens: int, *, equal: bool = False) -> Iterator[list[Key]]:
    """Yield batches of similar length within a token budget, longest first, so that memory fails early.

    Args:
        tokens: number of tokens of each text, including tokens to generate, by the text's key.
        max_tokens: maximum tokens of a batch, padding included; a longer text forms its own batch.
        equal: batch only texts of equal length, to avoid padding.
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


def check_several(texts: Any, what: str = "texts") -> None:
    """Raise a UserError if one text is given where a list of texts is expected, or anything without order."""
    if isinstance(texts, str):
        raise UserError(f"expected a list of {what}, got one text: write [{texts[:20]!r}]")
    check_ordered(texts, what)


def check_ordered(items: Any, what: str) -> None:
    """Raise a UserError for a set, for a mapping or table, which iterate over names, and for no iterable."""
    kind = type(items).__name__
    if isinstance(items, Mapping) or kind == "DataFrame":
        raise UserError(f"expected a list of {what}, got a {kind}: give one of its columns or values")
    if isinstance(items, set | frozenset) or not isinstance(items, Iterable):
        raise UserError(f"expected a list of {what}, got a {kind}: give them in a list")


def padded(
    rows: Iterable[Sequence[int]], pad_token_id: int | None, device: torch.device, side: str = "right"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens of rows, padded on a side, and their attention mask: int64 [S, T].

    Args:
        rows: the tokens of each row.
        pad_token_id: pads the tokens; None, if there is no such token, pads with 0.
        device: the device of the model.
        side: "right" or "left".
    """
    tokens = [torch.tensor(row, device=device) for row in rows]
    masks = [torch.ones_like(row) for row in tokens]
    return (
        pad_sequence(tokens, True, pad_token_id or 0, padding_side=side),
        pad_sequence(masks, True, padding_side=side),
    )


def padded_inputs(
    rows: Sequence[Mapping[str, Any]],
    arguments: Container[str],
    pad_token_id: int | None,
    device: torch.device,
) -> dict[str, Any]:
    """Return a model's inputs for a batch of tokenized texts, without a cache of keys and values.

    Args:
        rows: the tokenizer's columns for each text, including `input_ids`.
        arguments: the arguments of the model's `forward`; other columns are left out.
        pad_token_id: pads `input_ids`; None, if there is no such token, pads with 0.
        device: the device of the model.

    Returns:
        The columns and `attention_mask`, padded on the right: int64 [S, T].
    """
    names = [name for name in rows[0] if name in arguments]
    columns = {name: [torch.tensor(row[name]) for row in rows] for name in names}
    columns["attention_mask"] = [torch.ones_like(row) for row in columns["input_ids"]]
    inputs: dict[str, Any] = {
        name: pad_sequence(column, True, (pad_token_id or 0) if name == "input_ids" else 0).to(device)
        for name, column in columns.items()
    }
    return {**inputs, "use_cache": False} if "use_cache" in arguments else inputs


@contextmanager
def within_memory(what: str, count: int, longest: int) -> Iterator[None]:
    """Raise a RunError if a batch of `count` texts does not fit into the device's memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        size = f"{count} {what} of up to {longest} tokens"
        raise RunError(f"out of memory with {size}; lower max_tokens_per_batch") from error
