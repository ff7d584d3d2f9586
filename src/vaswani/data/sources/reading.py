"""Read file formats as rows: each reader yields the cells of the requested fields for every row.

A row of a parallel corpus has two cells, source and target; a row of a text corpus has one. A cell is the
value in the file, which may be something other than text, or None if there is none. Bytes that are not UTF-8
become lone surrogates (PEP 383), so a bad byte costs its row and not the whole file. An unparsable row is
None. `problem_of` checks rows; the readers drop nothing.

The builders of `datasets` are not used: all of them stop at the first malformed line or bad byte. The text
builder ends a line at a lone carriage return. The CSV builder reads "NA" and "null" as missing and "007" as
7.0; for CSV and TSV it loses quotes.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat, zip_longest
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vaswani.errors import UserError, listing
from vaswani.files.json_files import RepeatedKeyError, parse_json
from vaswani.files.line_files import BEGINNING, LONGEST_LINE, has_old_line_ends, not_utf8, paragraphs

Row = tuple[Any, ...] | None  # (source, target), (source, target, direction) or (text,)

ROWS_TO_FIND_FIELDS = 1000  # rows searched for fields, because JSON rows may have different ones
ROWS_PER_BATCH = 1000
LONGEST_SHOWN = 60  # characters of a cell in a message
LONGEST_ROW = 2 * LONGEST_LINE  # characters, for two texts; of a CSV cell too, as quotes may not be closed


def check_field(option: str, name: str, existing: Sequence[str], where: str) -> None:
    """Raise a UserError unless the field that an option names exists exactly once.

    A table without any fields passes.
    """
    if (times := list(existing).count(name)) > 1:
        raise UserError(f"{option}: {where} has {times} fields '{name}'; rename all but one")
    if existing and name not in existing:
        raise UserError(f"{option}: {where} has no field '{name}'; it has {listing(existing)}")


def problem_of(row: Row) -> str | None:
    """Return why a row cannot be used, or None if it can.

    Returns:
        "malformed" (not parsed), "missing_source", "missing_target" or "missing_text" (the cell holds no
        text but nothing, null, a number, …), "not_utf8" or "empty" (a cell holds only white space).
    """
    if row is None:
        return "malformed"
    for cell, name in zip(row, ("text",) if len(row) == 1 else ("source", "target"), strict=False):
        if not isinstance(cell, str):
            return f"missing_{name}"
    if not all(map(is_utf8, row)):
        return "not_utf8"
    if not all(cell.strip() for cell in row):
        return "empty"
    return None


def shown(cell: Any) -> str:
    """Return the beginning of a cell's value, for a message."""
    text = repr(cell)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]} …"


def is_utf8(text: str) -> bool:
    """Return True if a text can be written as UTF-8, which lone surrogates cannot."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # lone surrogates: bytes that were not UTF-8, or such an escape in JSON
        return False
    return True


class _LimitedLines(io.TextIOWrapper):
    """A text file that refuses a line of more than `LONGEST_ROW` characters, which may never end."""

    def __init__(self, path: Path, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._path, self._number = path, 0

    def __next__(self) -> str:  # type: ignore[override]
        self._number += 1
        line = self.readline(LONGEST_ROW + 1)
        if len(line) > LONGEST_ROW:
            raise UserError(
                f"line {self._number:,} of {self._path} has more than {LONGEST_ROW:,} characters; expected "
                "a line feed after each row"
            )
        if not line:
            raise StopIteration
        return line


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    r"""Open a plain or gzipped text file without its byte order mark.

    Lines end with "\n", or with "\r", as `has_old_line_ends` says.

    Raises:
        UserError: the file cannot be read, is damaged, or is UTF-16 or compressed and would be read as
            meaningless texts.
    """
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opener(path, "rb") as binary:
            start = binary.read(BEGINNING)
            binary.seek(0)
            if problem := not_utf8(start[:200]):
                raise UserError(f"{path} {problem}")
            newline = "\r" if has_old_line_ends(start) else "\n"
            options: Any = {"encoding": "utf-8-sig", "errors": "surrogateescape", "newline": newline}
            with _LimitedLines(path, binary, **options) as file:
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged or not gzip ({error}); write or download it again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def text_lines(path: Path) -> Iterator[str]:
    r"""Yield the lines of a text file, without their ends (see `open_text`).

    No other character ends a line: a lone carriage return, form feed, U+0085 or U+2028 inside a sentence
    would shift all later lines of this side against the other.
    """
    with open_text(path) as file:
        for line in file:
            yield line.removesuffix("\n").removesuffix("\r")


def read_text_pair(source_path: Path, target_path: Path) -> Iterator[Row]:
    """Yield the lines of two plain text files in pairs; None after the end of the shorter file."""
    yield from zip_longest(text_lines(source_path), text_lines(target_path))


def read_lines(path: Path) -> Iterator[Row]:
    """Yield the lines of a plain text file, one document each."""
    for line in text_lines(path):
        yield (line,)


def read_paragraphs(path: Path) -> Iterator[Row]:
    """Yield the documents of a plain text file, separated by blank lines; newlines inside them stay."""
    for document in paragraphs(text_lines(path)):
        yield (document,)


def _json_lines(path: Path) -> Iterator[Any]:
    """Yield the values of a JSON Lines file: {} for a blank line, None for a line that is not JSON."""
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            try:
                yield parse_json(line)
            except RepeatedKeyError as error:
                raise UserError(f"line {number:,} of {path}: {error}; leave one of them") from error
            except (ValueError, RecursionError):
                yield {} if line.isspace() else None


def json_array(path: Path) -> list[Any] | None:
    """Return the values of a .json file that holds one array; None if it does not begin with an array."""
    with open_text(path) as file:
        start = next((line for line in file if not line.isspace()), "")
        if not start.lstrip().startswith("["):
            return None
        file.seek(0)
        try:
            values: list[Any] = parse_json(file.read())
        except MemoryError as error:
            raise UserError(f"{path} does not fit into memory; write it as JSON Lines (.jsonl)") from error
        except RepeatedKeyError as error:
            raise UserError(f"{path}: {error}; leave one of them") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} begins a JSON array but is not valid JSON: {error}") from error
        return values


def _json_values(path: Path) -> Iterator[Any]:
    """Yield the values of a .json file: one array (read whole), or JSON Lines."""
    values = json_array(path)
    yield from _json_lines(path) if values is None else values


def _leaf_names(value: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaf_names(inner, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix


def _json_fields(values_of: Callable[[Path], Iterator[Any]], path: Path) -> list[str]:
    rows = (value for value in values_of(path) if isinstance(value, dict) and value)
    return list(dict.fromkeys(name for row in islice(rows, ROWS_TO_FIND_FIELDS) for name in _leaf_names(row)))


def cell_of(row: dict[str, Any], name: str) -> Any:
    """Return the value of a field, or None if the row has none; dots reach into nested objects."""
    if name in row:  # a plain name, or one that contains a dot
        return row[name]
    value: Any = row
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def put_cell(row: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return the row with a value set in a field; dots reach into nested objects that exist."""
    outer, _, inner = name.partition(".")
    if name in row or not inner or not isinstance(row.get(outer), dict):
        return {**row, name: value}
    return {**row, outer: put_cell(row[outer], inner, value)}


def _json_rows(values_of: Callable[[Path], Iterator[Any]], path: Path, *fields: str) -> Iterator[Row]:
    for value in values_of(path):
        if not isinstance(value, dict):
            yield None
        elif not value:
            yield ("",) * len(fields)  # a blank line
        else:
            yield tuple(cell_of(value, name) for name in fields)


def numbered_csv_cells(path: Path) -> Iterator[tuple[int, list[str] | None]]:
    """Yield the line number and the cells of each CSV row (RFC 4180); None for lines with broken quotes.

    If the header has no comma, the cells may be separated by semicolons, as spreadsheets write them where the
    comma is the decimal mark, or by tabs.
    """
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_ROW))
    with open_text(path) as file:
        start = _up_to_header(file)
        separator = next((mark for mark in (",", ";", "\t") if mark in "".join(start)), ",")
        reader = csv.reader(chain(start, file), delimiter=separator, strict=True)
        while True:
            lines_before = reader.line_num
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error:  # strict: otherwise text after a closing quote silently loses its quotes
                yield from ((number + 1, None) for number in range(lines_before, reader.line_num))
            else:
                yield lines_before + 1, cells


def _up_to_header(lines: Iterable[str]) -> list[str]:
    """Read up to the first line that is not blank, and return these lines; none from an empty file."""
    start: list[str] = []
    for line in lines:
        start.append(line)
        if not line.isspace():
            break
    return start


def _csv_cells(path: Path) -> Iterator[list[str] | None]:
    return (cells for _, cells in numbered_csv_cells(path))


def tsv_cells(path: Path) -> Iterator[list[str] | None]:
    """Yield the rows of a tab-separated file. Quotes are ordinary text: corpora contain raw quotes."""
    return (line.split("\t") if line else [] for line in text_lines(path))


Cells = Callable[[Path], Iterator[list[str] | None]]


def _separated_fields(cells_of: Cells, path: Path) -> list[str]:
    return next(filter(None, cells_of(path)), [])  # the first line that is not blank is the header


def _separated_rows(cells_of: Cells, path: Path, *fields: str) -> Iterator[Row]:
    rows = cells_of(path)
    header = next(filter(None, rows), [])
    if not header:
        return
    places = [header.index(name) for name in fields]
    for cells in rows:
        if cells is None:
            yield None
        elif not cells:
            yield ("",) * len(fields)  # a blank line
        elif len(cells) == len(header):
            yield tuple(cells[place] for place in places)
        elif len(cells) <= max(places):
            padded = [*cells, *repeat(None, len(header) - len(cells))]
            yield tuple(padded[place] for place in places)
        else:
            yield None  # the number of cells is wrong, so their fields are unknown


def _holds_text(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(test(data_type) for test in (*tests, pa.types.is_binary, pa.types.is_large_binary))


def _arrow_leaves(schema: pa.Schema | pa.StructType, prefix: str = "") -> Iterator[tuple[str, pa.DataType]]:
    for field in schema:
        if pa.types.is_struct(field.type):
            yield from _arrow_leaves(field.type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field.type


def arrow_fields(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the dotted names of the leaf columns with their types."""
    return dict(_arrow_leaves(schema))


def check_holds_text(schema: pa.Schema, name: str, where: str) -> None:
    """Raise a UserError if a column holds no text; all its rows would count as missing."""
    data_type = arrow_fields(schema).get(name)
    if data_type is not None and not _holds_text(data_type):
        raise UserError(f"field '{name}' of {where} holds {data_type}; expected a text field")


def _arrow_cells(table: pa.Table | pa.RecordBatch, name: str) -> list[Any]:
    if name in table.column_names:  # a plain name, or one that contains a dot
        column = table.column(name)
    else:
        root, *rest = name.split(".")
        column = table.column(root)
        for part in rest:
            column = pc.struct_field(column, part)
    try:
        cells = column.to_pylist()
    except UnicodeDecodeError:  # Arrow does not check text when it reads
        cells = column.cast(pa.large_binary()).to_pylist()
    return [cell.decode("utf-8", "surrogateescape") if isinstance(cell, bytes) else cell for cell in cells]


def arrow_rows(table: pa.Table | pa.RecordBatch, *fields: str) -> Iterator[Row]:
    """Yield the rows of a table in memory; dotted names reach into struct columns."""
    yield from zip(*(_arrow_cells(table, name) for name in fields), strict=True)


def columns_of(fields: Iterable[str], existing: Sequence[str]) -> list[str]:
    """Return the top-level columns that hold the fields, whose names may be dotted."""
    return list(dict.fromkeys(name if name in existing else name.split(".")[0] for name in fields))


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except pa.ArrowException as error:
        raise UserError(f"{path} is damaged or not a Parquet file: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _parquet_fields(path: Path) -> list[str]:
    with open_parquet(path) as file:
        return [name for name, _ in _arrow_leaves(file.schema_arrow)]


def _parquet_rows(path: Path, *fields: str) -> Iterator[Row]:
    with open_parquet(path) as file:
        for name in fields:
            check_holds_text(file.schema_arrow, name, str(path))
        columns = columns_of(fields, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=ROWS_PER_BATCH, columns=columns):
            yield from arrow_rows(batch, *fields)


def read_parquet(path: Path, fields: Iterable[str]) -> pa.Table:
    """Read the columns that hold the fields, which may hold something other than text."""
    with open_parquet(path) as file:
        return file.read(columns_of(fields, file.schema_arrow.names))


@dataclass(frozen=True)
class TableFormat:
    """How to read one file format.

    Args:
        fields: path → names of the fields; dots for nested fields.
        rows: (path, field, ...) → rows with a cell for each field; the fields must exist.
    """

    fields: Callable[[Path], list[str]]
    rows: Callable[..., Iterator[Row]]


_JSON_LINES = TableFormat(partial(_json_fields, _json_lines), partial(_json_rows, _json_lines))
_JSON = TableFormat(partial(_json_fields, _json_values), partial(_json_rows, _json_values))
_CSV = TableFormat(partial(_separated_fields, _csv_cells), partial(_separated_rows, _csv_cells))
_TSV = TableFormat(partial(_separated_fields, tsv_cells), partial(_separated_rows, tsv_cells))

TABLE_FORMATS = {
    ".jsonl": _JSON_LINES,
    ".jsonl.gz": _JSON_LINES,
    ".json": _JSON,
    ".json.gz": _JSON,
    ".csv": _CSV,
    ".csv.gz": _CSV,
    ".tsv": _TSV,
    ".tsv.gz": _TSV,
    ".parquet": TableFormat(_parquet_fields, _parquet_rows),
}


TEXT_ENDINGS = (".txt", ".txt.gz")  # of plain text files in a folder; files given by name may have any ending


def table_format(path: Path) -> TableFormat | None:
    """Return the format of a file by its ending, or None if it is unknown."""
    return next((form for ending, form in TABLE_FORMATS.items() if path.name.lower().endswith(ending)), None)


def known_table(path: Path, name: str | None = None) -> TableFormat:
    """Return the format of a table by its ending.

    Args:
        path: the table.
        name: its name in messages; by default the path.

    Raises:
        UserError: the ending is unknown.
    """
    if (table := table_format(path)) is None:
        raise UserError(f"{name or path} has none of the known endings {', '.join(TABLE_FORMATS)}")
    return table


def cell_reader(path: Path, form: TableFormat, fields: Sequence[str]) -> Callable[[], Iterator[Row]]:
    """Return a function that yields the rows of a table; cells may hold something other than text.

    `TableFormat.rows` of Parquet refuses fields that do not hold text; here a Parquet file is read whole.
    """
    if path.suffix.lower() == ".parquet":
        return partial(arrow_rows, read_parquet(path, fields), *fields)
    return partial(form.rows, path, *fields)
