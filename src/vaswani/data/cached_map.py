"""Rows made of other rows, kept in a file that appears under a key of all that they depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, Features
from transformers import PreTrainedTokenizerBase


def map_to_file(
    dataset: Dataset,
    function: Callable[..., dict[str, list[Any]]],
    features: Features,
    key: str,
    folder: Path | None = None,
    **options: Any,
) -> Dataset:
    """Map batches of rows to a file named by its key, or take the file that is there.

    The library alone would write it beside the rows: for a data set saved on disk, into the user's folder.

    Args:
        dataset: the rows; where they are in memory, the result is too.
        function: from the columns of some rows to those that take their place; rows may become more or fewer.
        features: of the result.
        key: all that it depends on, as a hash.
        folder: of the file; default the cache of `datasets`.
        options: as for `Dataset.map`.
    """
    on_disk = bool(dataset.cache_files)
    folder = cache_folder() if folder is None else folder
    if on_disk:
        folder.mkdir(parents=True, exist_ok=True)
    return dataset.map(
        function,
        batched=True,
        remove_columns=dataset.column_names,
        features=features,
        new_fingerprint=key,
        cache_file_name=str(folder / f"tokens-{key}.arrow") if on_disk else None,
        keep_in_memory=not on_disk,
        **options,
    )


def cache_folder() -> Path:
    """Where such files lie, in the cache of `datasets`."""
    return Path(datasets.config.HF_DATASETS_CACHE, "vaswani")


def tokenizer_key(tokenizer: PreTrainedTokenizerBase, module: str) -> str | None:
    """All that the token ids of a text depend on; None if they differ between calls, or it cannot be told.

    Args:
        tokenizer: makes the token ids.
        module: the file of the code that asks it: rows that an older version made are not served.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or getattr(backend.model, "dropout", None):
        return None
    settings = f"{backend.to_str()} {tokenizer.split_special_tokens}"
    return hashlib.sha256(settings.encode() + Path(module).read_bytes()).hexdigest()
