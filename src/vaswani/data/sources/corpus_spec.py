"""The location of a corpus and the fields of its rows: sources and targets, or plain texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from datasets import Features, Value

from vaswani.data.sources import reading
from vaswani.data.sources.directions import columns_of, examples_of, parse_directions
from vaswani.data.sources.reading import Row
from vaswani.errors import UserError
from vaswani.files.line_files import COLUMN_ENDINGS

SPLITS = ("train", "validation", "test")
BUILT_IN_DATES = "dates"
TEXT_FEATURES = Features({"source": Value("string"), "target": Value("string")})


@dataclass
class BaseCorpusSpec:
    """The location of a corpus; subclasses add the fields to read.

    Args:
        dataset: `"dates"` for the built-in corpus; a folder that was saved with `save_to_disk` or holds
            `train.jsonl`, `validation.jsonl`, `test.jsonl` (or other known formats); or a name on the Hub.
        dataset_config: configuration of a Hub data set; for the dates, their locales (`"de,fr"` or `"all"`).
        train_file: instead of `dataset`: JSONL, JSON, CSV, TSV (each also `.gz`) or Parquet files, which are
            joined to one corpus in the given order; a file that is given twice is read twice. Or two plain
            text files (also `.gz`), if there are two columns; with one column, any number of them.
        validation_file: likewise.
        test_file: likewise.
        streaming: read rows when they are needed, for corpora larger than memory and the cache's disk.

    Raises:
        UserError: neither or both of `dataset` and files are given, or more than two plain text files have
            to be paired.
    """

    columns: ClassVar[tuple[str, ...]]  # of the rows; column NAME is read from the field in option NAME_field

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
            elif any(len(paired) > 2 for paired in self.read_together(files)):
                raise UserError(f"{split}_file takes tables, or two of plain text; got {len(files)} files")
        if self.dataset and self.files:
            raise UserError(f"dataset={self.dataset} and files were both given; give one of them")
        if not self.dataset and not self.files:
            raise UserError("no corpus was given; set dataset, or train_file, validation_file or test_file")

    @property
    def files(self) -> dict[str, list[str]]:
        """The files of each split that has files."""
        named = {split: getattr(self, f"{split}_file") for split in SPLITS}
        return {split: files for split, files in named.items() if files}

    def read_together(self, files: Sequence[str]) -> list[Sequence[str]]:
        """Split the files of a split into those that are read side by side; each table is read alone."""
        has_pairs = len(self.columns) == 2 and not all(map(_has_all_columns, files))
        return [files] if has_pairs else [[name] for name in files]

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

    @property
    def direction_names(self) -> list[str]:
        """What the column `direction` holds; empty if there is none."""
        return []

    def read_text(self, *paths: Path) -> Iterator[Row]:
        """Yield the rows of plain text files, one file per column."""
        raise NotImplementedError

    def examples(self, rows: Iterable[Row]) -> Iterable[Row]:
        """Return the examples of rows: by default, each row with the requested fields is one."""
        return rows


@dataclass
class CorpusSpec(BaseCorpusSpec):
    """A parallel corpus with its source and target fields; two text files are paired line by line.

    Args:
        source_field: field of the source text; a dot reaches into nested columns (`translation.de`).
        target_field: field of the target text.
        directions: instead of these fields, pairs of them, such as "en-de". Each row is then an example for
            each, whose source begins with a tag (see `directions`) and whose column `direction` names it.

    Raises:
        UserError: directions are malformed, or the corpus has no fields to name.
    """

    columns = ("source", "target")

    source_field: str = "source"
    target_field: str = "target"
    directions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._directions = parse_directions(self.directions)
        texts = [name for files in self.files.values() for name in files if not _has_all_columns(name)]
        without = [BUILT_IN_DATES] if self.dataset == BUILT_IN_DATES else texts
        if self.directions and without:
            raise UserError(
                f"directions needs tables with a column for each language, not {without[0]}; give tables "
                "(JSONL, CSV, TSV, Parquet), or write tags before the sources and name them as source_tags"
            )

    @property
    def options(self) -> dict[str, str]:
        """The name of the field to read for each option; directions read several."""
        of_directions = {f"directions ({name})": name for name in columns_of(self._directions)}
        return of_directions or super().options

    @property
    def identity(self) -> dict[str, Any]:
        """The options that the rows of files depend on."""
        return {"directions": self.direction_names} if self.directions else super().identity

    @property
    def direction_names(self) -> list[str]:
        """What the column `direction` holds; empty if there is none."""
        return list(map(str, self._directions))

    @property
    def features(self) -> Features:
        """The columns, all of which hold text."""
        return Features({**super().features, **({"direction": Value("string")} if self.directions else {})})

    def examples(self, rows: Iterable[Row]) -> Iterable[Row]:
        """Return the examples of rows: one for each direction or, without directions, the row."""
        return examples_of(rows, self._directions) if self.directions else rows

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


def _has_all_columns(name: str) -> bool:
    """Return whether a file has the ending of a table, or of CoNLL's columns."""
    return reading.table_format(Path(name)) is not None or name.lower().endswith(COLUMN_ENDINGS)
