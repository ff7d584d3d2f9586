"""Tokenize labelled texts, and make batches of them.

N rows · B rows of a batch · T tokens of its longest row · L labels
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import BatchEncoding, PreTrainedTokenizerBase

from vaswani.data.collation import IGNORED_LABEL, pad, pad_rows
from vaswani.data.sources.row_report import RowReport
from vaswani.data.text_codec import TextCodec, exclusive, text_options
from vaswani.errors import UserError

Target = Callable[[Mapping[str, Any]], Any]


def tokenize_labelled(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    target: Target,
    max_length: int | None,
    report: RowReport,
    truncate: bool = True,
) -> Dataset:
    """Turn labelled texts into token ids and targets.

    Args:
        rows: columns `text`, which may be a list of words, `text_pair` if there is one, and `label`.
        tokenizer: adds the special tokens of the model.
        target: returns the `labels` of a row from its `label`, `input_ids` and, for words, `word_starts`: the
            position of the first token of each word that is not truncated.
        max_length: maximum tokens of a row, including special tokens; None for no limit.
        report: receives the counts of rows that are empty, left out or truncated.
        truncate: truncate longer rows; otherwise they are left out.

    Returns:
        The rows with `input_ids`, `labels`, `length` and, if the tokenizer returns them, `token_type_ids`.

    Raises:
        UserError: the limit leaves no room for text, no row is left, or a word has no token.
    """
    check_room(tokenizer, max_length, pairs="text_pair" in rows.column_names)
    tokens = rows.map(
        partial(_encode, copy.deepcopy(tokenizer), target, max_length),  # a copy: calls store truncation
        batched=True,
        keep_in_memory=True,
        new_fingerprint=secrets.token_hex(16),  # computing one takes long
        desc="Tokenizing",
    )
    is_long, is_empty = (np.array(tokens[name][:]) for name in ("is_long", "is_empty"))
    tokens = tokens.remove_columns(["is_long", "is_empty"])
    over_long = is_long & ~is_empty if not truncate else np.zeros_like(is_long)
    report.leave_out("empty", int(is_empty.sum()))
    report.leave_out("over_long", int(over_long.sum()))
    report.truncated += int((is_long & ~over_long).sum())
    fits = ~(is_empty | over_long)
    if not fits.any():
        length = f"{max_length} tokens or less" if over_long.any() else "a token of text"
        raise UserError(f"none of {len(rows):,} rows has {length}; use other texts")
    return tokens if fits.all() else tokens.select(np.flatnonzero(fits))


def check_room(tokenizer: PreTrainedTokenizerBase, max_length: int | None, pairs: bool) -> None:
    """Raise a UserError if a limit on the tokens of a row leaves no room beside the special tokens."""
    special = tokenizer.num_special_tokens_to_add(pair=pairs)
    if max_length is not None and max_length <= special:
        raise UserError(
            f"max_length={max_length} has no room beside {special} special tokens; give {special + 1} or more"
        )


def _encode(
    tokenizer: PreTrainedTokenizerBase,
    target: Target,
    max_length: int | None,
    rows: dict[str, list[Any]],
) -> dict[str, list[Any]]:
    """Return the columns that `tokenize_labelled` adds, and whether rows are too long or empty."""
    texts = [rows[name] for name in ("text", "text_pair") if name in rows]
    encoded, is_long = encode_texts(tokenizer, texts, max_length)
    for row, label in zip(encoded, rows["label"], strict=True):
        row |= {"labels": target({**row, "label": label}), "length": len(row["input_ids"])}
        row.pop("word_starts", None)
    special = TextCodec(tokenizer).special_ids()
    is_empty = [special.issuperset(row["input_ids"]) for row in encoded]
    columns = {name: [row[name] for row in encoded] for name in encoded[0]}
    return columns | {"is_long": is_long, "is_empty": is_empty}


def encode_texts(
    tokenizer: PreTrainedTokenizerBase, texts: list[list[Any]], max_length: int | None
) -> tuple[list[dict[str, Any]], list[bool]]:
    """Encode texts, pairs of texts or lists of words.

    Args:
        tokenizer: a copy, because calls store truncation in it.
        texts: one list, or two of equal length for pairs; a text may be a list of words.
        max_length: longer rows are truncated; None for no limit.

    Returns:
        For each row, the tokenizer's columns and, for words, `word_starts` (the position of the first token
        of each word that is not truncated); and for each row, whether it was too long.

    Raises:
        UserError: the tokenizer does not map tokens to words, or a word has no token.
    """
    of_words = isinstance(texts[0][0], list)
    if of_words:
        texts = [_words_as_in_text(tokenizer, texts[0])]

    def encode(texts: list[list[Any]], **cut: Any) -> list[dict[str, Any]]:
        with exclusive(tokenizer):
            options = {"is_split_into_words": of_words, **text_options(tokenizer), **cut}
            encoding = tokenizer(*texts, return_attention_mask=False, verbose=False, **options)
        return [_row(encoding, number, of_words) for number in range(len(texts[0]))]

    encoded = encode(texts)
    is_long = [max_length is not None and len(row["input_ids"]) > max_length for row in encoded]
    long = np.flatnonzero(is_long)
    if long.size:
        parts = [[text[number] for number in long] for text in texts]
        for number, row in zip(long, encode(parts, truncation=True, max_length=max_length), strict=True):
            encoded[number] = row
    return encoded, is_long


def _row(encoding: BatchEncoding, number: int, of_words: bool) -> dict[str, Any]:
    row = {name: column[number] for name, column in encoding.items()}
    return row | ({"word_starts": _word_starts(encoding.word_ids(number))} if of_words else {})


def _word_starts(word_ids: Sequence[int | None]) -> list[int]:
    """Return the positions of the first token of each word."""
    first: dict[int, int] = {}
    for place, word in enumerate(word_ids):
        if word is not None:
            first.setdefault(word, place)
    return list(first.values())


def _words_as_in_text(tokenizer: PreTrainedTokenizerBase, rows: list[list[str]]) -> list[list[str]]:
    """Return the words of rows with a space in front if the tokenizer needs it to encode them as in a text.

    Some tokenizers, such as GPT-2's and byte tokenizers, treat the space before a word as a part of it. A
    word without tokens, such as a single joiner, becomes the unknown token.

    Raises:
        UserError: the tokenizer does not map tokens to words, or a word has no token and the tokenizer has no
            unknown token.
    """
    if not tokenizer.is_fast:
        raise UserError(
            f"tagging needs a fast tokenizer, which maps tokens to words; {type(tokenizer).__name__} is slow"
        )

    def ids(texts: list[list[str]]) -> list[list[int]]:
        return (
            TextCodec(tokenizer).encode(texts, is_split_into_words=True, add_special_tokens=False).input_ids
        )

    in_text, bare, with_space = ids([["a b"], ["a", "b"], ["a", " b"]])
    space = " " if bare != in_text == with_space else ""
    spaced = [[word if place == 0 else f"{space}{word}" for place, word in enumerate(row)] for row in rows]
    distinct = list(dict.fromkeys(word for row in spaced for word in row))
    lost = {
        word for word, tokens in zip(distinct, ids([[word] for word in distinct]), strict=True) if not tokens
    }
    if lost and tokenizer.unk_token is None:
        raise UserError(f"the tokenizer has no token for the word {lost.pop()!r}; remove such rows")
    return [[tokenizer.unk_token if word in lost else word for word in row] for row in spaced]


@dataclass(frozen=True)
class LabelCollator:
    """Pad rows on the right to a batch.

    Args:
        pad_token_id: pads `input_ids`.

    Returns:
        From rows with `input_ids`, `labels` and optionally `token_type_ids`: these and `attention_mask`,
        int64 [B, T]. `labels` are int64 [B] for classes, float32 [B] for numbers, float32 [B, L] for several
        labels and int64 [B, T], padded with −100, for tags.
    """

    pad_token_id: int

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Pad a batch."""
        arrays = pad_rows(rows, self.pad_token_id)
        labels = [row["labels"] for row in rows]
        if isinstance(labels[0], list) and isinstance(labels[0][0], int):  # tags, as many as tokens
            arrays["labels"], _ = pad(labels, IGNORED_LABEL)
        batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return {"labels": torch.tensor(labels), **batch} if "labels" not in batch else batch
