"""Folders of rows that are made once and read by many runs, in the cache of `datasets`.

A folder is written aside, with a manifest that holds the SHA-256 of every file, brought to the disk, and only
then given its name. Each run compares the hashes before it reads: a folder that is damaged, or has no
manifest, is made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, Features
from datasets.arrow_reader import ArrowReader
from filelock import FileLock, Timeout
from transformers import PreTrainedTokenizerBase

from vaswani.errors import RunError, UserError, describe_cache_failure, is_full_disk
from vaswani.files.atomic_files import discard_unfinished, remove, sha256_of, sync, unfinished_path

logger = logging.getLogger(__name__)

ROWS = "rows.arrow"
MANIFEST = "manifest.json"
LOCKS = "locks"
SECONDS_OF_SILENCE = 5  # before it is told what is waited for
VARIABLES = "HF_DATASETS_CACHE or HF_HOME"


def cache_folder() -> Path:
    """Where such folders lie."""
    return Path(datasets.config.HF_DATASETS_CACHE, "vaswani")


def cached_folder(name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder of the cache, which is made first if there is none or if it is damaged.

    Args:
        name: of the folder, a key of all that its contents depend on.
        make: writes the files into a folder that is given to it; other processes wait for it.

    Raises:
        UserError: the cache cannot be written.
        RunError: its disk is full.
    """
    folder = cache_folder() / name
    with cache_errors(folder.parent):
        if _fault_of(folder) is None:
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            fault = _fault_of(folder)
            if fault is not None:  # else another process has made it in the meantime
                _make(folder, make, fault)
    return folder


def open_rows(file: Path, fingerprint: str) -> Dataset:
    """The rows of an Arrow file, mapped into memory, under a fingerprint that tells what they depend on."""
    return Dataset(ArrowReader.read_table(str(file)), fingerprint=fingerprint)


@contextmanager
def cache_errors(cache: Path, variables: str = VARIABLES) -> Iterator[None]:
    """Raise what keeps a cache from being written as one line that names its folder and the remedy.

    Args:
        cache: the folder.
        variables: of the environment, that put it elsewhere.
    """
    try:
        yield
    except (UserError, RunError):
        raise
    except Exception as error:
        if message := describe_cache_failure(error, cache, variables):
            raise (RunError if is_full_disk(error) else UserError)(message) from error
        raise


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let one process at a time make a folder; the lock goes with the process."""
    locks = folder.with_name(LOCKS)
    locks.mkdir(exist_ok=True)
    lock = FileLock(locks / folder.name)
    try:
        lock.acquire(timeout=SECONDS_OF_SILENCE)
    except Timeout:
        logger.warning("Waiting for another process, which is writing %s.", folder)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(folder: Path, make: Callable[[Path], object], fault: str) -> None:
    """Make a folder in the place of what cannot be used."""
    discard_unfinished(folder.parent)
    if os.path.lexists(folder):
        logger.warning("%s is made again: %s.", folder, fault)
    unfinished = unfinished_path(folder)
    try:
        unfinished.mkdir()
        make(unfinished)
        files = sorted(unfinished.iterdir())
        manifest = unfinished / MANIFEST
        manifest.write_text(json.dumps({"sha256": {file.name: sha256_of(file) for file in files}}, indent=2))
        for path in (*files, manifest, unfinished):
            sync(path)
        if os.path.lexists(folder):
            replaced = unfinished_path(folder.with_name("replaced"))
            os.rename(folder, replaced)
            remove(replaced)
        os.rename(unfinished, folder)
        sync(folder.parent)
    finally:
        remove(unfinished)


def _fault_of(folder: Path) -> str | None:
    """Why a folder cannot be used, or None if its files are those that were written."""
    if not folder.is_dir():
        return "it is not a folder"
    manifest = folder / MANIFEST
    try:
        hashes = json.loads(manifest.read_bytes())["sha256"] if manifest.is_file() else {}
        changed = [name for name, sha256 in hashes.items() if not _is(folder / name, sha256)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is damaged"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if not hashes:
        return f"{MANIFEST} is missing"
    return f"{changed[0]} does not match {MANIFEST}" if changed else None


def _is(file: Path, sha256: str) -> bool:
    return file.is_file() and sha256_of(file) == sha256


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
