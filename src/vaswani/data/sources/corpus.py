"""Load every kind of corpus (files, folders, the Hub, the built-in dates) as rows of text.

A corpus is parallel, with sources and targets (`CorpusSpec`), or holds plain texts (`TextCorpusSpec`).

Every row is kept unchanged, or left out and counted in a `RowReport`. A corpus is either read once into the
cache of `datasets` (`HF_DATASETS_CACHE`), under a key of its contents, so an edited file is read again; or it
is streamed in constant memory. Nothing is written beside the user's files.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, IterableDataset
from datasets.arrow_writer import ArrowWriter

from vaswani.data.caching import ROWS, cache_key, cached_folder, open_rows
from vaswani.data.sources import corpus_spec, directions, reading
from vaswani.data.sources.corpus_spec import BUILT_IN_DATES, SPLITS, BaseCorpusSpec, TextCorpusSpec
from vaswani.data.sources.reading import Row
from vaswani.data.sources.row_report import RowReport
from vaswani.data.sources.shared_rows import count_shared_rows
from vaswani.data.sources.splits import (
    FileSource,
    RowsSource,
    Source,
    check_fields,
    existing_file,
    file_identity,
    find_splits,
)
from vaswani.errors import UserError, listing

logger = logging.getLogger(__name__)

REPORT = "report.json"
RowsOf = Callable[[Source, Any, RowReport], Iterator[dict[str, Any]]]


@dataclass
class Corpus:
    """The splits of a corpus, with only the text columns `source` and `target`, or `text`.

    With directions (see `CorpusSpec`), there is also a column `direction`.

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

    def count_rows_in_training(self) -> None:
        """Count, in `reports`, the rows of other splits that are also training rows; none of streams."""
        training = self.splits.get("train")
        for split, rows in self.splits.items():
            if split != "train" and isinstance(rows, Dataset) and isinstance(training, Dataset):
                self.reports[split].in_training = count_shared_rows(rows, training)

    @property
    def trained_splits(self) -> list[str]:
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


def load_unlabelled(files: list[str], text_field: str) -> Corpus:
    """Load texts without labels or targets, as the training split.

    Args:
        files: tables or plain text files, as the `train_file` of a `TextCorpusSpec`.
        text_field: field of the texts in tables.

    Raises:
        UserError: as `load_corpus`.
    """
    return load_corpus(TextCorpusSpec(train_file=files, text_field=text_field), ["train"])


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


# The rows of a split.


def _file_source(names: Sequence[str], spec: BaseCorpusSpec) -> Source:
    """Return a source for a table, or for plain text files, one per column."""
    paths = [existing_file(name) for name in names]
    identity = partial(file_identity, paths, spec)
    tables = list(map(reading.table_format, paths))
    if len(names) == 1 and (table := tables[0]) is not None:
        check_fields(table.fields(paths[0]), spec, names[0])
        return Source(names[0], partial(table.rows, paths[0], *spec.options.values()), identity)
    if any(tables):
        raise UserError(f"files must be tables, or two of plain text, not both; got {listing(names)}")
    if len(names) < len(spec.columns):
        known = ", ".join(reading.TABLE_FORMATS)
        raise UserError(f"{names[0]} has none of the known endings {known}; plain text takes two files")
    sides = (names[0], names[1]) if len(names) == 2 else None
    return Source(" and ".join(names), partial(spec.read_text, *paths), identity, sides)


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


# Counting, streaming and caching them.


def _usable_rows(source: Source, spec: BaseCorpusSpec, report: RowReport) -> Iterator[tuple[str, ...]]:
    for row in spec.examples(source.rows()):
        problem = reading.problem_of(row)
        if problem is None:
            report.kept += 1
            yield row  # type: ignore[misc]  # a row without a problem is a tuple of texts
        else:
            report.count(problem)


def check_report(source: Source, report: RowReport) -> None:
    """Log a warning if many rows of a split are not usable.

    Raises:
        UserError: no row is usable, or two text files have different numbers of lines. A line is then missing
            somewhere, and after it each source would be paired with the target of another.
    """
    if report.rows == 0:
        raise UserError(f"{source.name} holds no rows")
    if source.sides and report.mispaired:
        one, other = source.sides
        raise UserError(
            f"{one} has {report.rows - report.missing_source:,} lines and {other} has "
            f"{report.rows - report.missing_target:,}: give a pair per line"
        )
    if report.kept == 0:
        raise UserError(f"no row of {source.name} can be used: {report}")
    if 2 * report.kept < report.rows:
        logger.warning("More than half of the rows of %s cannot be used: %s.", source.name, report)


@dataclass
class _RowStream:
    """The rows of a source as a generator function; each pass starts new counts."""

    source: Source
    spec: BaseCorpusSpec
    report: RowReport

    def __call__(self) -> Iterator[dict[str, str]]:
        self.report.reset()
        columns, unseen = list(self.spec.features), set(self.spec.direction_names)
        for row in _usable_rows(self.source, self.spec, self.report):
            unseen.discard(row[-1])
            yield dict(zip(columns, row, strict=True))
        check_report(self.source, self.report)
        if unseen:
            names = listing(sorted(unseen))
            logger.warning("No row of %s has text in both columns of: %s.", self.source.name, names)


def _stream(source: Source, spec: BaseCorpusSpec) -> tuple[IterableDataset, RowReport]:
    report = RowReport()
    stream = _RowStream(source, spec, report)
    return IterableDataset.from_generator(stream, features=spec.features), report


def _cache(source: Source, spec: BaseCorpusSpec, identity: dict[str, Any]) -> tuple[Dataset, RowReport]:
    """Return the rows as a memory-mapped Arrow file, which is written unless it is in the cache.

    The key includes the code that reads the rows, so that other versions do not share rows.
    """
    key = cache_key(identity, __file__, corpus_spec.__file__, directions.__file__, reading.__file__)
    folder = cached_folder(key, partial(_write_rows, source, spec))
    report = RowReport(**json.loads((folder / REPORT).read_text()))
    check_report(source, report)
    return open_rows(folder / ROWS, key), report


def _write_rows(source: Source, spec: BaseCorpusSpec, folder: Path) -> None:
    """Write the rows of a source and their report into a folder."""
    report = RowReport()
    rows = _usable_rows(source, spec, report)
    with (
        ArrowWriter(path=str(folder / ROWS), features=spec.features) as writer,
        datasets.utils.tqdm(desc=f"Reading {source.name}", unit=" rows") as progress,
    ):
        while batch := list(islice(rows, reading.ROWS_PER_BATCH)):
            writer.write_batch(dict(zip(spec.features, zip(*batch, strict=True), strict=True)))
            progress.update(len(batch))
        writer.finalize()
    (folder / REPORT).write_text(json.dumps(asdict(report)))
