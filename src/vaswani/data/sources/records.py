"""Read tables as whole rows, each with its place in the file, for commands that answer every row.

A corpus leaves out unusable rows (see `reading.py`). Here an unusable row is an error that names its place,
because the answers must stay beside their rows. Only blank lines are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaswani.data.sources import conll, reading
from vaswani.errors import UserError
from vaswani.files.json_files import parse_json


@dataclass(frozen=True)
class Record:
    """A row of a table: its place, such as "line 3 of FILE", and its fields."""

    place: str
    row: dict[str, Any]

    def text(self, field: str, words: bool = False) -> Any:
        """Return the text of a field; an empty text for null or a missing field.

        Args:
            field: name of the field; dots reach into nested objects.
            words: allow a list of words instead of a text.

        Raises:
            UserError: the field holds something else.
        """
        cell = reading.cell_of(self.row, field)
        if cell is None:
            return ""
        if words and isinstance(cell, list) and all(isinstance(word, str) for word in cell):
            return cell
        if not isinstance(cell, str):
            raise UserError(f"{self.place}: field '{field}' holds {reading.shown(cell)}; expected a text")
        return cell

    def has(self, field: str) -> bool:
        """Return True if the row has a field; a nested field that is null counts as missing."""
        return field in self.row or reading.cell_of(self.row, field) is not None

    def check_lacks(self, fields: Iterable[str], remedy: str) -> None:
        """Raise a UserError if the row has one of the fields that a command adds."""
        for field in fields:
            if self.has(field):
                raise UserError(f"{self.place} has a field '{field}', which the output adds; {remedy}")


def fields_of(path: Path) -> list[str]:
    """Return the names of the fields of a table; dots for nested fields."""
    return reading.known_table(path).fields(path)


def read_records(path: Path) -> Iterator[Record]:
    """Yield the rows of a table.

    Raises:
        UserError: the file is damaged or its ending is unknown, or a row cannot be read.
    """
    reading.known_table(path)
    name = path.name.lower().removesuffix(".gz")
    readers = {".jsonl": _json_lines, ".json": _json_values, ".csv": _csv_rows, ".tsv": _tsv_rows}
    return readers.get(Path(name).suffix, _parquet_rows)(path)


def read_sentences(path: Path) -> Iterator[Record]:
    """Yield the `words` of each sentence of a file in CoNLL's columns, without their tags."""
    with reading.open_text(path) as lines:
        for number, words in conll.sentences(line.rstrip("\r\n") for line in lines):
            yield Record(f"line {number:,} of {path}", {"words": [columns[0] for columns in words]})


def count_records(path: Path) -> int | None:
    """Return the number of rows of a Parquet file, which states it; None for other formats."""
    if path.suffix.lower() != ".parquet":
        return None
    with reading.open_parquet(path) as file:
        return file.metadata.num_rows


def check_text_field(path: Path, option: str, field: str, words: bool = False) -> None:
    """Raise a UserError unless a table has the field that an option names.

    In a Parquet file the field must also hold text, unless it may hold `words`.
    """
    reading.check_field(option, field, fields_of(path), str(path))
    if path.suffix.lower() == ".parquet" and not words:
        with reading.open_parquet(path) as file:
            reading.check_holds_text(file.schema_arrow, field, str(path))


def json_records(lines: Iterable[str], name: str) -> Iterator[Record]:
    """Yield the objects of JSON Lines.

    Args:
        lines: each holds an object, or is blank.
        name: name of the file or stream in messages.

    Raises:
        UserError: a line is not a JSON object.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"line {number:,} of {name}"
        try:
            value = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place} is not JSON ({error}); correct or remove it") from error
        yield _record(place, value)


def _record(place: str, value: Any) -> Record:
    if not isinstance(value, dict):
        raise UserError(f"{place} holds a JSON {type(value).__name__}; expected an object with fields")
    return Record(place, value)


def _json_lines(path: Path) -> Iterator[Record]:
    with reading.open_text(path) as file:
        yield from json_records(file, str(path))


def _json_values(path: Path) -> Iterator[Record]:
    """Yield the objects of a .json file: one array, or JSON Lines."""
    values = reading.json_array(path)
    if values is None:
        yield from _json_lines(path)
        return
    for number, value in enumerate(values, start=1):
        yield _record(f"row {number:,} of {path}", value)


def _csv_rows(path: Path) -> Iterator[Record]:
    return _separated_rows(reading.numbered_csv_cells(path), path)


def _tsv_rows(path: Path) -> Iterator[Record]:
    return _separated_rows(enumerate(reading.tsv_cells(path), start=1), path)


def _separated_rows(numbered: Iterable[tuple[int, list[str] | None]], path: Path) -> Iterator[Record]:
    header: list[str] | None = None
    for number, cells in numbered:
        place = f"line {number:,} of {path}"
        if cells is None:
            raise UserError(f"{place} has broken quotes; correct them")
        if not cells:
            continue
        if header is None:
            header = cells
        elif len(cells) != len(header):
            raise UserError(f"{place} has {len(cells)} cells, and the header has {len(header)}; correct it")
        else:
            yield Record(place, dict(zip(header, cells, strict=True)))


def _parquet_rows(path: Path) -> Iterator[Record]:
    number = 0
    with reading.open_parquet(path) as file:
        names = file.schema_arrow.names
        for batch in file.iter_batches(batch_size=reading.ROWS_PER_BATCH):
            for cells in reading.arrow_rows(batch, *names):
                number += 1
                yield Record(f"row {number:,} of {path}", dict(zip(names, cells or (), strict=True)))
