"""Vocabularies of corpora: each is trained once and kept in the cache of `datasets`, as rows are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import tokenizers
from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from vaswani.data import tokenization
from vaswani.data.caching import cache_key, cached_folder
from vaswani.data.tokenization import load_tokenizers, save_tokenizers, train_tokenizer

ROWS_AT_A_TIME = 1000


def trained_tokenizer(
    rows: Dataset | IterableDataset, columns: Sequence[str], **options: Any
) -> PreTrainedTokenizerBase:
    """Train a tokenizer on columns of rows, or load it if it was trained before.

    Args:
        rows: hold texts. Streams, and rows that are only in memory, are trained on each time.
        columns: names of the columns.
        options: of `train_tokenizer`.

    Raises:
        UserError: as `train_tokenizer`; or the cache cannot be written.
        RunError: the disk is full.
    """

    def train() -> PreTrainedTokenizerBase:
        return train_tokenizer(_texts(rows, columns), **options)

    def save(folder: Path) -> None:
        tokenizer = train()
        save_tokenizers(tokenizer, tokenizer, folder)

    if isinstance(rows, IterableDataset) or not rows.cache_files:
        return train()
    origin = {"rows": rows._fingerprint, "columns": columns, "tokenizers": tokenizers.__version__}
    key = cache_key(origin | options, tokenization.__file__, __file__)
    return load_tokenizers(cached_folder(f"vocabulary-{key}", save))[0]


def _texts(rows: Dataset | IterableDataset, columns: Sequence[str]) -> Iterator[list[str]]:
    """Yield the texts of the columns in batches, and report how many rows have been read."""
    total = None if isinstance(rows, IterableDataset) else len(rows)
    with datasets.utils.tqdm(total=total, desc="Training a vocabulary", unit=" rows") as progress:
        for batch in rows.iter(batch_size=ROWS_AT_A_TIME):
            for column in columns:
                yield batch[column]
            progress.update(len(batch[columns[0]]))
