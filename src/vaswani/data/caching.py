"""Cache rows for all runs, in the cache of `datasets`.

A folder is written under a temporary name, with a manifest of the SHA-256 of every file, flushed to disk and
then renamed. Each run checks the hashes before it reads, and replaces a folder that is damaged or has no
manifest.
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

from vaswani.data.text_codec import text_settings
from vaswani.errors import RunError, UserError, describe_cache_failure, is_full_disk
from vaswani.files.atomic_files import discard_unfinished, remove, sha256_of, sync, unfinished_path

logger = logging.getLogger(__name__)

ROWS = "rows.arrow"
MANIFEST = "manifest.json"
LOCKS = "locks"
SECONDS_OF_SILENCE = 5  # then a warning says which folder the process waits for
VARIABLES = "HF_DATASETS_CACHE or HF_HOME"


def cache_folder() -> Path:
    """Return the folder that holds the cached folders."""
    return Path(datasets.config.HF_DATASETS_CACHE, "vaswani")


def cached_folder(name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder of the cache; make it first if it is missing or damaged.

    Args:
        name: name of the folder: a key of everything that its contents depend on.
        make: writes the files into the folder it is given; other processes wait meanwhile.

    Raises:
        UserError: the cache cannot be written.
        RunError: the disk is full.
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


def cache_key(values: Any, *modules: str) -> str:
    """Return a hash of plain JSON values, and of source files, so that other versions share no folder."""
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
    for module in modules:
        digest.update(Path(module).read_bytes())
    return digest.hexdigest()


def open_rows(file: Path, fingerprint: str) -> Dataset:
    """Open an Arrow file as memory-mapped rows; `fingerprint` identifies everything they depend on."""
    return Dataset(ArrowReader.read_table(str(file)), fingerprint=fingerprint)


@contextmanager
def cache_errors(cache: Path, variables: str = VARIABLES) -> Iterator[None]:
    """Turn errors about an unwritable cache into a one-line message with its folder and the remedy.

    Args:
        cache: the folder.
        variables: the environment variables that set another folder.
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
    """Let only one process at a time make a folder; the lock is released when the process ends."""
    locks = folder.with_name(LOCKS)
    locks.mkdir(exist_ok=True)
    lock = FileLock(locks / folder.name)
    try:
        lock.acquire(timeout=SECONDS_OF_SILENCE)
    except Timeout:
        logger.warning("Waiting for another process that is writing %s.", folder)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(folder: Path, make: Callable[[Path], object], fault: str) -> None:
    """Make a folder and replace the unusable one."""
    discard_unfinished(folder.parent)
    if os.path.lexists(folder):
        logger.warning("Making %s again: %s.", folder, fault)
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
    """Describe why a folder cannot be used; None if its files match their hashes."""
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
    """Map batches of rows to a file of the cache, or open the file if it exists (see `cached_folder`).

    `Dataset.map` alone would write the file beside the rows, possibly into the user's folder, and would later
    read it without a check.

    Args:
        dataset: the rows; if they are in memory, so is the result.
        function: maps the columns of a batch to new columns, which may have more or fewer rows.
        features: features of the result.
        key: a hash of everything that the result depends on.
        folder: writes the file there, for this process alone; default the cache of `datasets`.
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
    """Return a hash of everything that token ids depend on.

    None for a tokenizer with dropout, whose token ids are random, and for a slow one, whose settings are
    unknown.

    Args:
        tokenizer: makes the token ids.
        modules: source files of the calling code, so that other versions do not share rows.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or getattr(backend.model, "dropout", None):
        return None
    of_last_call = {"padding": None, "truncation": None}  # each call sets these
    outside = {
        name: getattr(tokenizer, name, None) for name in ("src_lang", "tgt_lang")
    }  # each call adds their tokens
    settings = {**json.loads(backend.to_str()), **of_last_call, **outside, **text_settings(tokenizer)}
    return cache_key(settings, *modules)
