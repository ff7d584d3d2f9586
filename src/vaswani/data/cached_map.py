"""Rows made of other rows, kept in the cache under a key of all that they depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset, Features
from transformers import PreTrainedTokenizerBase

from vaswani.data.cache import ROWS, cache_errors, cached_folder, open_rows


def map_to_file(
    dataset: Dataset,
    function: Callable[..., dict[str, list[Any]]],
    features: Features,
    key: str,
    folder: Path | None = None,
    **options: Any,
) -> Dataset:
    """Map batches of rows to a file of the cache, or take the file that is there (see `cached_folder`).

    The library alone would write it beside the rows, into the user's folder where a data set was saved on
    disk, and would read it again whatever became of it.

    Args:
        dataset: the rows; where they are in memory, the result is too.
        function: from the columns of some rows to those that take their place; rows may become more or fewer.
        features: of the result.
        key: all that it depends on, as a hash.
        folder: of a file that is for this process alone; default the cache of `datasets`.
        options: as for `Dataset.map`.

    Raises:
        UserError, RunError: the file cannot be written.
    """
    write = partial(
        dataset.map,
        function,
        batched=True,
        remove_columns=dataset.column_names,
        features=features,
        new_fingerprint=key,
        load_from_cache_file=False,
        **options,
    )
    if not dataset.cache_files or not len(dataset):
        return write(keep_in_memory=True)
    if folder is not None:
        with cache_errors(folder, "TMPDIR"):
            return write(cache_file_name=str(folder / f"{key}.arrow"))
    rows = cached_folder(f"tokens-{key}", lambda made: write(cache_file_name=str(made / ROWS)))
    return open_rows(rows / ROWS, key)


def tokenizer_key(tokenizer: PreTrainedTokenizerBase, *modules: str) -> str | None:
    """All that the token ids of a text depend on; None if they differ between calls, or it cannot be told.

    Args:
        tokenizer: makes the token ids.
        modules: the files of the code that asks it: rows that an older version made are not served.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or getattr(backend.model, "dropout", None):
        return None
    of_last_call = {"padding": None, "truncation": None}  # set by each call, and not part of a tokenizer
    settings = {**json.loads(backend.to_str()), **of_last_call, "split": tokenizer.split_special_tokens}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for module in modules:
        digest.update(Path(module).read_bytes())
    return digest.hexdigest()
