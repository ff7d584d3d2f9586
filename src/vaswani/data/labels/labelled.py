"""Labelled texts: rows with one or two texts and a label, several labels, a number, or a tag for each word.

Rows are read and counted as in other corpora (see `data/sources/corpus.py`). Labels may be text, numbers,
booleans or lists; classes in files of `datasets` are read by name. Words and tags may be in columns, as in
CoNLL files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import ClassLabel, Dataset, Features, List, Value

from vaswani.data.labels.label_parsing import read_label, read_text
from vaswani.data.sources import conll, reading
from vaswani.data.sources.corpus import Corpus, load_in_memory
from vaswani.data.sources.corpus_spec import SPLITS, BaseCorpusSpec
from vaswani.data.sources.reading import Row
from vaswani.data.sources.row_report import RowReport
from vaswani.data.sources.splits import Source, arrow_table, check_fields, existing_file, file_identity
from vaswani.errors import UserError, listing
from vaswani.files.line_files import COLUMN_ENDINGS

CONLL_ENDINGS = (*COLUMN_ENDINGS, *reading.TEXT_ENDINGS)
SEVERAL = List(Value("string"))
LABEL_FEATURES = {
    "classification": Value("string"),
    "multi_label": SEVERAL,
    "regression": Value("float64"),
    "tagging": SEVERAL,
}


@dataclass
class LabelledSpec(BaseCorpusSpec):
    """Labelled texts, and their fields; two text files are paired line by line, as texts and labels.

    Args:
        task: `"classification"` (one label per text), `"multi_label"` (any number of labels), `"regression"`
            (a number) or `"tagging"` (a tag for each word).
        text_field: field of the text or, for tagging, of its words.
        text_pair_field: field of a second text.
        label_field: field of the label, labels, number or tags.
        label_separator: separates labels that are given as one text.
    """

    columns = ("text", "label")

    task: str = "classification"
    text_field: str = "text"
    text_pair_field: str | None = None
    label_field: str = "label"
    label_separator: str = ","

    @property
    def options(self) -> dict[str, str]:
        """The name of the field to read for each option, such as `text_field`."""
        names = {name: getattr(self, name) for name in ("text_field", "text_pair_field", "label_field")}
        return {option: name for option, name in names.items() if name is not None}

    @property
    def folder_endings(self) -> tuple[str, ...]:
        """The file endings to look for in a folder; for tagging also those of CoNLL files."""
        return (*super().folder_endings, *(CONLL_ENDINGS if self.task == "tagging" else ()))

    @property
    def identity(self) -> dict[str, Any]:
        """The options that the rows of files depend on."""
        return {**self.options, "task": self.task, "label_separator": self.label_separator}

    @property
    def features(self) -> Features:
        """The columns."""
        text = SEVERAL if self.task == "tagging" else Value("string")
        pair = {} if self.text_pair_field is None else {"text_pair": Value("string")}
        return Features({"text": text, **pair, "label": LABEL_FEATURES[self.task]})


def load_labelled(spec: LabelledSpec, splits: Sequence[str] = SPLITS) -> Corpus:
    """Load the requested splits of labelled texts into memory, as far as they exist.

    Returns:
        Splits with columns `text` (for tagging a list of words), `text_pair` if there is one, and `label`: a
        name, a list of names, or a number. Rows without a text or a label are left out and counted. A split
        without labels, such as the test data of a competition, is left out.

    Raises:
        UserError: as `load_corpus`; or a label does not fit the task; or a row has more words than tags, or
            fewer.
    """
    return load_in_memory(spec, splits, sources=(_file_table, _dataset_table), rows_of=_labelled_rows)


# --------------------------------------------------------------------------------------------------- sources


def _file_table(names: Sequence[str], spec: LabelledSpec) -> Source:
    """Return a source of one file of rows, or of two plain text files with texts and labels."""
    paths = [existing_file(name) for name in names]
    identity = partial(file_identity, paths, spec)
    formats = [reading.table_format(path) for path in paths]
    if len(paths) == 2:
        if any(formats) or spec.text_pair_field is not None:
            raise UserError(f"two files must be of plain text, texts and labels; got {listing(names)}")
        return Source(" and ".join(names), partial(_paired_lines, names, paths), identity)
    (path,), (name,), (table,) = paths, names, formats
    if table is None:
        if not path.name.lower().endswith(spec.folder_endings):
            known = ", ".join(spec.folder_endings)
            raise UserError(f"{name} has none of the known endings {known}; plain text takes two files")
        return Source(name, partial(read_conll, path), identity)
    check_fields(table.fields(path), spec, name)
    if path.suffix.lower() == ".parquet":
        rows = reading.read_parquet(path, spec.options.values())
        return Source(name, partial(_arrow_rows, rows, spec), identity)
    return Source(name, partial(table.rows, path, *spec.options.values()), identity)


def _paired_lines(names: Sequence[str], paths: Sequence[Path]) -> Iterator[Row]:
    """Yield texts and labels, line by line."""
    for number, row in enumerate(reading.read_text_pair(*paths), start=1):
        if row is None or None in row:
            raise UserError(
                f"{names[0]} and {names[1]} must have equally many lines, and only one of them has line "
                f"{number:,}; correct them"
            )
        yield row


def _dataset_table(
    dataset: Dataset, spec: LabelledSpec, split: str, identity: Callable[[], dict[str, Any]]
) -> Source:
    """Return a source of a data set that `datasets` has opened."""
    name = f"{spec.dataset} ({split})"
    check_fields(list(reading.arrow_fields(dataset.features.arrow_schema)), spec, name)
    table = arrow_table(dataset, spec.options.values())
    return Source(name, partial(_arrow_rows, table, spec), identity)


def _arrow_rows(table: pa.Table, spec: LabelledSpec) -> Iterator[Row]:
    """Yield the rows of a table in memory; class numbers of `datasets` become class names."""
    is_of_datasets = b"huggingface" in (table.schema.metadata or {})
    features = Features.from_arrow_schema(table.schema) if is_of_datasets else {}
    fields = spec.options.values()
    names = [_class_names(features, field) for field in fields]
    for row in reading.arrow_rows(table, *fields):
        yield tuple(map(_named, row or (), names))


def _class_names(features: Mapping[str, Any], field: str) -> list[str] | None:
    """Return the class names of a field, or of a list in it, that stores classes as numbers; else None."""
    feature: Any = features
    for part in [field] if field in features else field.split("."):
        feature = feature.get(part) if isinstance(feature, dict) else None
    while isinstance(feature, List):
        feature = feature.feature
    return feature.names if isinstance(feature, ClassLabel) else None


def _named(cell: Any, names: list[str] | None) -> Any:
    if names is None or cell is None:
        return cell
    if isinstance(cell, list):
        return [_named(item, names) for item in cell]
    return names[cell] if cell >= 0 else None  # -1 marks a missing label


def read_conll(path: Path) -> Iterator[Row]:
    """Read sentences from a CoNLL file (see `conll.sentences`).

    Yields:
        The words, from the first column, and their tags, from the last; None for a sentence with a line of
        one column, with lines of different numbers of columns, or without a word or tag.
    """
    for _, words in conll.sentences(reading.text_lines(path)):
        is_even = len(set(map(len, words))) == 1 < len(words[0])  # else a line may lack its tag
        whole = is_even and all(columns[0] and columns[-1] for columns in words)
        yield ([columns[0] for columns in words], [columns[-1] for columns in words]) if whole else None


# ------------------------------------------------------------------------------------------------------ rows


def _labelled_rows(table: Source, spec: LabelledSpec, report: RowReport) -> Iterator[dict[str, Any]]:
    """Yield the usable rows with the columns of `LabelledSpec.features`; count the others."""
    columns, uneven = list(spec.features), []
    for number, cells in enumerate(table.rows(), start=1):
        where = f"row {number:,} of {table.name}"
        row = None if cells is None else dict(zip(columns, _read_row(cells, spec, where), strict=True))
        problem = _problem_of(row)
        if problem is not None:
            report.count(problem)
        elif row and spec.task == "tagging" and len(row["text"]) != len(row["label"]):
            uneven.append(f"{where} has {len(row['text'])} words and {len(row['label'])} tags")
        elif row:
            report.kept += 1
            yield row
    if uneven:
        others = f" ({len(uneven):,} rows are uneven)" if len(uneven) > 1 else ""
        raise UserError(f"every word needs a tag, but {uneven[0]}{others}: correct or remove them")


def _read_row(cells: tuple[Any, ...], spec: LabelledSpec, where: str) -> list[Any]:
    """Return the texts and the label of a row; None for each that is missing."""
    *texts, label = cells
    try:
        return [
            *(read_text(cell, spec.task) for cell in texts),
            read_label(label, spec.task, spec.label_separator),
        ]
    except ValueError as error:
        raise UserError(f"{where} {error}") from error


def _problem_of(row: dict[str, Any] | None) -> str | None:
    """Return the field of `RowReport` that counts an unusable row, or None for a usable one."""
    if row is None:
        return "malformed"
    *texts, label = row.values()
    if [] in texts:
        return "empty"
    if problem := _problem_of_texts(texts):
        return problem
    if label is None:
        return "missing_label"
    return None if isinstance(label, float) else _problem_of_texts([label])


def _problem_of_texts(texts: list[Any]) -> str | None:
    """Return the problem of a row's texts or lists of words, as `_problem_of` does."""
    parts = [part for text in texts for part in (text if isinstance(text, list) else [text])]
    return next(filter(None, (reading.problem_of((part,)) for part in parts)), None)
