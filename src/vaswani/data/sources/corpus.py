"""Load every kind of corpus (files, folders, the Hub, the built-in dates) as rows of text.

A corpus is parallel, with sources and targets (`CorpusSpec`), or holds plain texts (`TextCorpusSpec`).

Every row is kept unchanged, or left out and counted in a `RowReport`. A corpus is either read once into the
cache of `datasets` (`HF_DATASETS_CACHE`), under a key of its contents, so an edited file is read again; or it
is streamed in constant memory. Nothing is written beside the user's files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import datasets
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, IterableDataset, Value
from datasets.arrow_writer import ArrowWriter
from huggingface_hub import constants

from vaswani.data.caching import ROWS, cache_errors, cached_folder, open_rows
from vaswani.data.sources import reading
from vaswani.data.sources.reading import Row
from vaswani.errors import RunError, UserError, listing, one_line
from vaswani.files.atomic_files import sha256_of
from vaswani.files.hub_client import use_patient_client

logger = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")
BUILT_IN_DATES = "dates"
REPORT = "report.json"
TEXT_FEATURES = Features({"source": Value("string"), "target": Value("string")})


@dataclass
class BaseCorpusSpec:
    """The location of a corpus; subclasses add the fields to read.

    Args:
        dataset: `"dates"` for the built-in corpus; a folder that was saved with `save_to_disk` or holds
            `train.jsonl`, `validation.jsonl`, `test.jsonl` (or other known formats); or a name on the Hub.
        dataset_config: configuration of a Hub data set; for the dates, their locales (`"de,fr"` or `"all"`).
        train_file: instead of `dataset`: one JSONL, JSON, CSV, TSV (each also `.gz`) or Parquet file; or a
            plain text file (also `.gz`) for each column. With `joins_tables`, any number of such tables.
        validation_file: likewise.
        test_file: likewise.
        streaming: read rows when they are needed, for corpora larger than memory and the cache's disk.

    Raises:
        UserError: neither or both of `dataset` and files are given, or a split has more files than columns.
    """

    columns: ClassVar[tuple[str, ...]]  # of the rows; column NAME is read from the field in option NAME_field
    joins_tables: ClassVar[bool] = False  # if True, a split can be several tables, read one after the other

    dataset: str | None = None
    dataset_config: str | None = None
    train_file: list[str] = field(default_factory=list)
    validation_file: list[str] = field(default_factory=list)
    test_file: list[str] = field(default_factory=list)
    streaming: bool = False

    def __post_init__(self) -> None:
        for split in SPLITS:
            files = getattr(self, f"{split}_file")
            if isinstance(files, str):
                setattr(self, f"{split}_file", [files])
            elif len(files) > len(self.columns) and not (self.joins_tables and all(map(is_table, files))):
                pair = ", or two of plain text" if len(self.columns) == 2 else ""
                tables = "tables" if self.joins_tables else "one file"
                raise UserError(f"{split}_file takes {tables}{pair}; got {len(files)} files")
        if self.dataset and self.files:
            raise UserError(f"dataset={self.dataset} and files were both given; give one of them")
        if not self.dataset and not self.files:
            raise UserError("no corpus was given; set dataset, or train_file, validation_file or test_file")

    @property
    def files(self) -> dict[str, list[str]]:
        """The files of each split that has files."""
        named = {split: getattr(self, f"{split}_file") for split in SPLITS}
        return {split: files for split, files in named.items() if files}

    @property
    def options(self) -> dict[str, str]:
        """The name of the field to read for each option, such as `source_field`."""
        return {f"{column}_field": getattr(self, f"{column}_field") for column in self.columns}

    @property
    def identity(self) -> dict[str, Any]:
        """The options that the rows of files depend on."""
        return self.options

    @property
    def folder_endings(self) -> tuple[str, ...]:
        """The file endings to look for in a folder."""
        return tuple(reading.TABLE_FORMATS)

    @property
    def features(self) -> Features:
        """The columns, all of which hold text."""
        return Features({column: Value("string") for column in self.columns})

    def read_text(self, *paths: Path) -> Iterator[Row]:
        """Yield the rows of plain text files, one file per column."""
        raise NotImplementedError


@dataclass
class CorpusSpec(BaseCorpusSpec):
    """A parallel corpus with its source and target fields; two text files are paired line by line.

    Several tables are joined to one corpus in the given order; a table that is given twice is read twice.

    Args:
        source_field: field of the source text; a dot reaches into nested columns (`translation.de`).
        target_field: field of the target text.
    """

    columns = ("source", "target")
    joins_tables = True

    source_field: str = "source"
    target_field: str = "target"

    def read_text(self, *paths: Path) -> Iterator[Row]:
        """Yield sources and targets, line by line."""
        return reading.read_text_pair(*paths)


@dataclass
class TextCorpusSpec(BaseCorpusSpec):
    """A corpus of plain texts with its text field.

    Args:
        text_field: field of the text; a dot reaches into nested columns.
        documents: in plain text files, `"line"` for a document on each line, or `"blank_line"` for blank
            lines between documents.
    """

    columns = ("text",)

    text_field: str = "text"
    documents: Literal["line", "blank_line"] = "line"

    @property
    def folder_endings(self) -> tuple[str, ...]:
        """The file endings to look for in a folder."""
        return (*super().folder_endings, *reading.TEXT_ENDINGS)

    @property
    def identity(self) -> dict[str, Any]:
        """The options that the rows of files depend on."""
        return {**self.options, "documents": self.documents}

    def read_text(self, *paths: Path) -> Iterator[Row]:
        """Yield the documents."""
        return (reading.read_lines if self.documents == "line" else reading.read_paragraphs)(*paths)


@dataclass
class RowReport:
    """Counts of the rows of one split that have been read so far.

    `kept` rows are used; some of them may be `truncated`. A row is left out if a side has only white space
    (`empty`), too many tokens (`over_long`), bytes that are not UTF-8 (`not_utf8`) or no text at all
    (`missing_source`, `missing_target`, or `missing_text` in a corpus of plain texts), if it does not state
    its label or its answers (`missing_label`, `missing_answers`), or if it does not parse (`malformed`).
    """

    kept: int = 0
    empty: int = 0
    over_long: int = 0
    not_utf8: int = 0
    malformed: int = 0
    missing_source: int = 0
    missing_target: int = 0
    truncated: int = 0
    missing_text: int = 0
    missing_label: int = 0
    missing_answers: int = 0

    @property
    def mispaired(self) -> int:
        """Number of rows without text on a side, such as the last lines of the longer of two text files."""
        return self.missing_source + self.missing_target

    @property
    def rows(self) -> int:
        """Number of all rows read."""
        return sum(asdict(self).values()) - self.truncated

    @property
    def left_out(self) -> int:
        """Number of rows that are not used."""
        return self.rows - self.kept

    def reset(self) -> None:
        """Reset all counts for a new pass over the rows."""
        for count in fields(self):
            setattr(self, count.name, 0)

    def leave_out(self, problem: str, count: int) -> None:
        """Move rows from `kept` to the field that counts a problem, such as `over_long`."""
        self.kept -= count
        setattr(self, problem, getattr(self, problem) + count)

    @property
    def lacks(self) -> str | None:
        """What some rows lack for training, "labels" or "answers"; None if they lack neither."""
        if self.missing_label:
            return "labels"
        return "answers" if self.missing_answers else None

    def __str__(self) -> str:
        sources, targets = self.rows - self.missing_source, self.rows - self.missing_target
        counts = {
            "empty": self.empty,
            "over-long": self.over_long,
            "not UTF-8": self.not_utf8,
            "malformed": self.malformed,
            f"mispaired ({sources:,} sources, {targets:,} targets)": self.mispaired,
            "without text": self.missing_text,
            "without label": self.missing_label,
            "without answers": self.missing_answers,
        }
        problems = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        cut = f", {self.truncated:,} of them cut off" if self.truncated else ""
        return f"kept {self.kept:,} of {self.rows:,} rows{cut}" + (
            f"; left out: {problems}" if problems else ""
        )


@dataclass
class Corpus:
    """The splits of a corpus, with only the text columns `source` and `target`, or `text`.

    Args:
        splits: the requested splits that exist.
        reports: counts of the rows of each split; for a stream, those of the latest pass so far.
        fingerprint: the origin of the rows, with hashes where they are known; plain JSON values.
        available: the names of all splits of the corpus.
    """

    splits: dict[str, Dataset | IterableDataset]
    reports: dict[str, RowReport]
    fingerprint: dict[str, Any]
    available: list[str]

    def identity(self) -> dict[str, Any]:
        """Return the parts of the fingerprint that identify training and validation rows, without paths."""
        values = self.fingerprint
        whole = {name: values[name] for name in ("dataset", "sha256") if name in values}
        return whole | {name: _without_paths(values[name]) for name in SPLITS[:2] if name in values}

    @property
    def seen_in_training(self) -> list[str]:
        """The splits that share a file with the training split, compared by contents."""
        origins = {split: self.fingerprint[split] for split in SPLITS if split in self.fingerprint}
        files = {split: _without_paths(origin).get("files", []) for split, origin in origins.items()}
        trained = files.pop("train", [])
        return [split for split, found in files.items() if any(file in trained for file in found)]

    def split(self, name: str) -> Dataset | IterableDataset:
        """Return a split by name.

        Raises:
            UserError: the corpus has no such split.
        """
        if name not in self.splits:
            raise UserError(f"the corpus has no split '{name}'; it has {listing(self.available)}")
        return self.splits[name]


def _without_paths(split: dict[str, Any]) -> dict[str, Any]:
    files = [
        {name: value for name, value in file.items() if name != "path"} for file in split.get("files", [])
    ]
    rest = {name: value for name, value in split.items() if name not in ("name", "files")}
    return rest | ({"files": files} if files else {})


def load_corpus(spec: BaseCorpusSpec, splits: Sequence[str] = SPLITS) -> Corpus:
    """Load the requested splits of a corpus, as far as they exist.

    Unusable rows are left out and counted in `Corpus.reports` (see `RowReport`). A warning is logged for text
    files of different lengths and for a split that loses more than half of its rows. Splits of a streaming
    corpus are `IterableDataset`s; their rows are counted, and their errors raised, while they are read.

    Raises:
        UserError: a file, folder, field or Hub data set does not exist, a format is unknown, none of the
            splits exists, or a split has no usable row.
    """
    if spec.dataset == BUILT_IN_DATES:
        return _load_dates(spec, splits)
    found = find_splits(spec, _file_source, _dataset_source)
    wanted = [split for split in splits if split in found]
    if not wanted:
        raise UserError(f"the corpus has none of the splits {listing(splits)}; it has {listing(found)}")
    corpus = Corpus({}, {}, {}, available=list(found))
    sources = {split: found[split]() for split in wanted}  # open all before reading the first
    for split, source in sources.items():
        identity = source.identity()
        rows, report = _stream(source, spec) if spec.streaming else _cache(source, spec, identity)
        corpus.splits[split], corpus.reports[split] = rows, report
        corpus.fingerprint[split] = {"name": source.name, **identity}
    return corpus


def load_in_memory(
    spec: BaseCorpusSpec, splits: Sequence[str], *, sources: tuple[FileSource, RowsSource], rows_of: RowsOf
) -> Corpus:
    """Load the requested splits of a corpus into memory, as far as they exist; cells need not be text.

    A split other than train is skipped if none of its rows can be used and some of them lack labels or
    answers (`RowReport.lacks`), as in the test data of a competition.

    Args:
        spec: the location of the corpus, and its features.
        splits: names of the splits.
        sources: two functions, `file_source` and `rows_source` of `find_splits`.
        rows_of: called with a source, the spec and the report; yields the usable rows as columns and counts
            the others.

    Raises:
        UserError: as `load_corpus`.
    """
    corpus = Corpus({}, {}, {}, available=[])
    found = find_splits(spec, *sources)
    opened = {split: found[split]() for split in splits if split in found}
    for split, source in opened.items():
        report = RowReport()
        rows = list(rows_of(source, spec, report))
        if split != "train" and report.lacks and not report.kept:
            logger.warning("%s has no %s and is skipped: %s.", source.name, report.lacks, report)
            continue
        check_report(source, report)
        columns = {name: [row[name] for row in rows] for name in spec.features}
        corpus.splits[split] = Dataset.from_dict(columns, features=spec.features)
        corpus.reports[split] = report
        corpus.fingerprint[split] = {"name": source.name, **source.identity()}
        corpus.available.append(split)
    return corpus


def _load_dates(spec: BaseCorpusSpec, splits: Sequence[str]) -> Corpus:
    from vaswani.data.sources.dates import describe_dates, generate_dates

    dates = generate_dates(spec.dataset_config)
    check_fields(dates["train"].column_names, spec, "the corpus of dates")
    corpus = Corpus({}, {}, {"dataset": BUILT_IN_DATES, **describe_dates(dates)}, available=list(dates))
    names = list(spec.options.values())
    for split in (split for split in splits if split in dates):
        if spec.streaming:
            rows = partial(_dataset_rows, dates[split], *names)
            source = Source(f"dates ({split})", rows, dict)
            corpus.splits[split], corpus.reports[split] = _stream(source, spec)
        else:
            columns = dates[split].select_columns(names)
            corpus.splits[split] = columns.rename_columns(dict(zip(names, spec.columns, strict=True)))
            corpus.reports[split] = RowReport(kept=len(columns))
    return corpus


# Reading, counting and caching the rows of a split.


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


def arrow_table(dataset: Dataset, fields: Iterable[str]) -> pa.Table:
    """Return the columns of a data set that hold the fields."""
    columns = reading.columns_of(fields, dataset.column_names)
    table: pa.Table = dataset.select_columns(columns).with_format("arrow")[:]
    return table


def _usable_rows(rows: Iterable[Row], report: RowReport) -> Iterator[tuple[str, ...]]:
    for row in rows:
        problem = reading.problem_of(row)
        if problem is None:
            report.kept += 1
            yield row  # type: ignore[misc]  # a row without a problem is a tuple of texts
        else:
            setattr(report, problem, getattr(report, problem) + 1)


def check_report(source: Source, report: RowReport) -> None:
    """Raise a UserError if no row of a split is usable, and log a warning if many are not."""
    if report.rows == 0:
        raise UserError(f"{source.name} holds no rows")
    if report.kept == 0:
        raise UserError(f"no row of {source.name} can be used: {report}")
    if 2 * report.kept < report.rows:
        logger.warning("More than half of the rows of %s cannot be used: %s.", source.name, report)
    if source.sides and report.mispaired:
        logger.warning(
            "%s has %d lines but %s has %d: they may be misaligned; only pairs are used.",
            source.sides[0],
            report.rows - report.missing_source,
            source.sides[1],
            report.rows - report.missing_target,
        )


@dataclass
class _RowStream:
    """The rows of a source as a generator function; each pass starts new counts."""

    source: Source
    columns: tuple[str, ...]
    report: RowReport

    def __call__(self) -> Iterator[dict[str, str]]:
        self.report.reset()
        for row in _usable_rows(self.source.rows(), self.report):
            yield dict(zip(self.columns, row, strict=True))
        check_report(self.source, self.report)


def _stream(source: Source, spec: BaseCorpusSpec) -> tuple[IterableDataset, RowReport]:
    report = RowReport()
    stream = _RowStream(source, spec.columns, report)
    return IterableDataset.from_generator(stream, features=spec.features), report


def _cache(source: Source, spec: BaseCorpusSpec, identity: dict[str, Any]) -> tuple[Dataset, RowReport]:
    """Return the rows as a memory-mapped Arrow file, which is written unless it is in the cache.

    The key includes the code of this module and of the readers, so that other versions do not share rows.
    """
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode())
    for module in (__file__, reading.__file__):
        digest.update(Path(module).read_bytes())
    key = digest.hexdigest()
    folder = cached_folder(key, partial(_write_rows, source, spec))
    report = RowReport(**json.loads((folder / REPORT).read_text()))
    check_report(source, report)
    return open_rows(folder / ROWS, key), report


def _write_rows(source: Source, spec: BaseCorpusSpec, folder: Path) -> None:
    """Write the rows of a source and their report into a folder."""
    report = RowReport()
    rows = _usable_rows(source.rows(), report)
    with (
        ArrowWriter(path=str(folder / ROWS), features=spec.features) as writer,
        datasets.utils.tqdm(desc=f"Reading {source.name}", unit=" rows") as progress,
    ):
        while batch := list(islice(rows, reading.ROWS_PER_BATCH)):
            writer.write_batch(dict(zip(spec.columns, zip(*batch, strict=True), strict=True)))
            progress.update(len(batch))
        writer.finalize()
    (folder / REPORT).write_text(json.dumps(asdict(report)))


# Finding the splits of a corpus.


FileSource = Callable[[Sequence[str], Any], Source]
RowsSource = Callable[[Any, Any, str, Callable[[], dict[str, Any]]], Source]
RowsOf = Callable[[Source, Any, RowReport], Iterator[dict[str, Any]]]


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
        return {split: partial(file_source, names, spec) for split, names in spec.files.items()}
    try:
        return _splits_of_dataset(spec, file_source, rows_source)
    except PermissionError as error:
        raise UserError(f"dataset={spec.dataset}: cannot read {error.filename}: {error.strerror}") from error


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


def check_fields(existing: Sequence[str], spec: BaseCorpusSpec, where: str) -> None:
    """Raise a UserError unless each requested field exists exactly once."""
    for option, name in spec.options.items():
        reading.check_field(option, name, existing, where)


def is_table(name: str) -> bool:
    """Return whether a file has the ending of a table."""
    return reading.table_format(Path(name)) is not None


def existing_file(name: str) -> Path:
    """Return the path of a readable file.

    Raises:
        UserError: it is missing, a folder or unreadable.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        raise UserError(f"{name} is a folder, not a file; give a folder as dataset")
    if not path.is_file():
        raise UserError(f"no such file: {name}")
    if not os.access(path, os.R_OK):
        raise UserError(f"cannot read {name}: permission denied")
    return path


def _file_source(names: Sequence[str], spec: BaseCorpusSpec) -> Source:
    """Return a source for tables, or for plain text files, one per column."""
    paths = [existing_file(name) for name in names]
    identity = partial(file_identity, paths, spec)
    tables = [table for path in paths if (table := reading.table_format(path)) is not None]
    if len(tables) == len(paths):
        for name, path, table in zip(names, paths, tables, strict=True):
            check_fields(table.fields(path), spec, name)
        readers = [partial(table.rows, path) for table, path in zip(tables, paths, strict=True)]
        return Source(
            " and ".join(names), partial(_rows_of_tables, readers, *spec.options.values()), identity
        )
    if tables:
        raise UserError(f"files must be tables, or two of plain text, not both; got {listing(names)}")
    if len(names) < len(spec.columns):
        known = ", ".join(reading.TABLE_FORMATS)
        raise UserError(f"{names[0]} has none of the known endings {known}; plain text takes two files")
    sides = (names[0], names[1]) if len(names) == 2 else None
    return Source(" and ".join(names), partial(spec.read_text, *paths), identity, sides)


def _rows_of_tables(readers: Sequence[Callable[..., Iterator[Row]]], *names: str) -> Iterator[Row]:
    """Yield the cells of the named fields, one table after the other."""
    for rows in readers:
        yield from rows(*names)


END_BYTES = 1 << 20  # hashed at the start and at the end of a streamed file


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


def _saved_identity(dataset: Dataset, spec: BaseCorpusSpec) -> dict[str, Any]:
    return file_identity([Path(file["filename"]) for file in dataset.cache_files], spec)


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


def _hub_identity(dataset: Dataset, spec: BaseCorpusSpec, split: str) -> dict[str, Any]:
    return {
        "dataset": spec.dataset,
        "dataset_config": spec.dataset_config,
        "split": split,
        "fingerprint": getattr(dataset, "_fingerprint", None),  # streams have none
        **spec.identity,
    }


def _dataset_source(
    dataset: Dataset | IterableDataset,
    spec: BaseCorpusSpec,
    split: str,
    identity: Callable[[], dict[str, Any]],
) -> Source:
    """Return a source for a split that `datasets` has opened."""
    name = f"{spec.dataset} ({split})"
    if dataset.features is not None:
        schema = dataset.features.arrow_schema
    else:
        schema = next(iter(dataset.with_format("arrow").iter(batch_size=1))).schema
    check_fields(list(reading.arrow_fields(schema)), spec, name)
    names = list(spec.options.values())
    for field_name in names:
        reading.check_holds_text(schema, field_name, name)
    return Source(name, partial(_dataset_rows, dataset, *names), identity)


def _dataset_rows(dataset: Dataset | IterableDataset, *names: str) -> Iterator[Row]:
    for table in dataset.with_format("arrow").iter(batch_size=reading.ROWS_PER_BATCH):
        yield from reading.arrow_rows(table, *names)
