"""Find the splits of a corpus in files, in a folder or on the Hub, and say what identifies their rows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets import Dataset, DatasetDict, IterableDataset
from huggingface_hub import constants

from vaswani.data.caching import cache_errors
from vaswani.data.sources import reading
from vaswani.data.sources.corpus_spec import SPLITS, BaseCorpusSpec
from vaswani.data.sources.reading import Row
from vaswani.errors import RunError, UserError, listing, names_of_files, one_line
from vaswani.files.atomic_files import sha256_of
from vaswani.files.hub_client import use_patient_client

END_BYTES = 1 << 20  # hashed at the start and at the end of a streamed file


@dataclass(frozen=True)
class Source:
    """One split on disk or on the Hub.

    Args:
        name: name of the split in messages.
        rows: starts a pass over all rows.
        identity: returns everything that the rows depend on, as plain JSON values.
        sides: the names of a pair of text files.
    """

    name: str
    rows: Callable[[], Iterator[Row]]
    identity: Callable[[], dict[str, Any]]
    sides: tuple[str, str] | None = None


FileSource = Callable[[Sequence[str], Any], Source]
RowsSource = Callable[[Any, Any, str, Callable[[], dict[str, Any]]], Source]


def find_splits(
    spec: BaseCorpusSpec, file_source: FileSource, rows_source: RowsSource
) -> dict[str, Callable[[], Source]]:
    """Find the splits of a corpus; return a function that opens each split.

    Args:
        spec: the location of the corpus.
        file_source: opens the files of a split.
        rows_source: makes a source from a split that `datasets` has opened, given its rows, the spec, its
            name and a function that returns everything that the rows depend on.

    Raises:
        UserError: the corpus does not exist.
    """
    if spec.files:
        _check_no_config(spec)
        return {split: partial(_joined, names, spec, file_source) for split, names in spec.files.items()}
    try:
        return _splits_of_dataset(spec, file_source, rows_source)
    except PermissionError as error:
        raise UserError(f"dataset={spec.dataset}: cannot read {error.filename}: {error.strerror}") from error


def _joined(names: Sequence[str], spec: BaseCorpusSpec, file_source: FileSource) -> Source:
    """Return a source of files that are read one after the other."""
    sources = [file_source(together, spec) for together in spec.read_together(names)]
    if len(sources) == 1:
        return sources[0]
    identity = partial(file_identity, list(map(existing_file, names)), spec)
    return Source(names_of_files(names), partial(_rows_of, sources), identity)


def _rows_of(sources: Sequence[Source]) -> Iterator[Row]:
    for source in sources:
        yield from source.rows()


def _splits_of_dataset(
    spec: BaseCorpusSpec, file_source: FileSource, rows_source: RowsSource
) -> dict[str, Callable[[], Source]]:
    name = str(spec.dataset)
    folder = Path(name).expanduser()
    if folder.is_file():
        raise UserError(f"dataset={name} is a file; give it as train_file, validation_file or test_file")
    if folder.is_dir():
        _check_no_config(spec)
        if any((folder / mark).is_file() for mark in ("dataset_dict.json", "state.json")):
            return {
                split: partial(rows_source, rows, spec, split, partial(_saved_identity, rows, spec))
                for split, rows in _open_saved(folder).items()
            }
        files = _folder_files(folder, spec.folder_endings)
        return {split: partial(file_source, names, spec) for split, names in files.items()}
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise UserError(f"dataset={name}: no such folder")
    return {
        split: partial(rows_source, rows, spec, split, partial(_hub_identity, rows, spec, split))
        for split, rows in _open_hub(spec).items()
    }


def _check_no_config(spec: BaseCorpusSpec) -> None:
    """Raise a UserError for a configuration, which files and folders do not have."""
    if spec.dataset_config is not None:
        raise UserError(
            f"dataset_config={spec.dataset_config} chooses within a data set of the Hub, and this one is in "
            "files; leave it out"
        )


def _folder_files(folder: Path, endings: Sequence[str]) -> dict[str, list[str]]:
    """Return the file of each split in a folder."""
    found: dict[str, list[str]] = {}
    for split in SPLITS:
        paths = [folder / (split + ending) for ending in endings]
        files = [str(path) for path in paths if path.is_file()]
        if len(files) > 1:
            raise UserError(f"{folder} holds the split {split} more than once: {listing(files)}; keep one")
        if files:
            found[split] = files
    if not found:
        raise UserError(
            f"{folder} was not saved with save_to_disk, nor does it hold train, validation or test with one "
            f"of the endings {', '.join(endings)}"
        )
    return found


def _open_saved(folder: Path) -> Mapping[str, Dataset]:
    try:
        saved = datasets.load_from_disk(str(folder), keep_in_memory=False)  # its files identify it
    except Exception as error:  # a damaged folder can raise anything
        raise UserError(
            f"cannot open the data set saved in {folder}: {type(error).__name__}: {one_line(error)}"
        ) from error
    return saved if isinstance(saved, DatasetDict) else {"train": saved}


def _open_hub(spec: BaseCorpusSpec) -> Mapping[str, Dataset | IterableDataset]:
    use_patient_client()
    try:
        with (
            cache_errors(Path(constants.HF_HUB_CACHE), "HF_HOME"),
            cache_errors(Path(datasets.config.HF_DATASETS_CACHE)),
        ):
            return datasets.load_dataset(spec.dataset, spec.dataset_config, streaming=spec.streaming)
    except (UserError, RunError):
        raise
    except Exception as error:  # from the Hub, the network or the data set's builder
        raise UserError(
            f"cannot load the data set '{spec.dataset}' from the Hub: {type(error).__name__}: "
            f"{one_line(error)}; check its name, dataset_config and the connection, or give a folder or files"
        ) from error


# What the rows of a split depend on.


def file_identity(paths: Sequence[Path], spec: BaseCorpusSpec) -> dict[str, Any]:
    """Return everything that the rows of files depend on."""
    files = [
        {"path": str(path), **(_size_and_ends(path) if spec.streaming else {"sha256": sha256_of(path)})}
        for path in paths
    ]
    return {"files": files, **spec.identity}


def _size_and_ends(path: Path) -> dict[str, Any]:
    """Identify a file that is too large to hash as a whole, by its size and its two ends."""
    size = path.stat().st_size
    with path.open("rb") as file:
        ends = hashlib.sha256(file.read(END_BYTES))
        file.seek(max(0, size - END_BYTES))
        ends.update(file.read())
    return {"bytes": size, "sha256_of_ends": ends.hexdigest()}


def _saved_identity(dataset: Dataset, spec: BaseCorpusSpec) -> dict[str, Any]:
    return file_identity([Path(file["filename"]) for file in dataset.cache_files], spec)


def _hub_identity(dataset: Dataset, spec: BaseCorpusSpec, split: str) -> dict[str, Any]:
    return {
        "dataset": spec.dataset,
        "dataset_config": spec.dataset_config,
        "split": split,
        "fingerprint": getattr(dataset, "_fingerprint", None),  # streams have none
        **spec.identity,
    }


# Checks and tables for the readers of rows.


def check_fields(existing: Sequence[str], spec: BaseCorpusSpec, where: str) -> None:
    """Raise a UserError unless each requested field exists exactly once."""
    for option, name in spec.options.items():
        reading.check_field(option, name, existing, where)


def existing_file(name: str) -> Path:
    """Return the path of a readable file.

    Raises:
        UserError: it is missing, a folder or unreadable.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        raise UserError(f"{name} is a folder, not a file; give a folder as dataset")
    if not os.path.lexists(path):
        raise UserError(f"no such file: {name}")
    if not path.is_file():
        raise UserError(
            f"{name} is a pipe, a device or a broken link, and a corpus is read more than once; write it "
            "to a file first"
        )
    if not os.access(path, os.R_OK):
        raise UserError(f"cannot read {name}: permission denied")
    return path


def arrow_table(dataset: Dataset, fields: Iterable[str]) -> pa.Table:
    """Return the columns of a data set that hold the fields."""
    columns = reading.columns_of(fields, dataset.column_names)
    table: pa.Table = dataset.select_columns(columns).with_format("arrow")[:]
    return table
