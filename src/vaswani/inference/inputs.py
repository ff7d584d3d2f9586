"""The texts that a command reads: lines of text, or a field of the rows of a table.

The results of a text become one output line. For a table, it is a JSON object: the row with new fields.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from vaswani.errors import UserError, listing
from vaswani.files.json_files import finite_json, without_non_finite
from vaswani.files.line_files import (
    COLUMN_ENDINGS,
    STANDARD_STREAM,
    count_lines,
    open_lines,
    paragraphs,
    read_lines,
)

if TYPE_CHECKING:
    from vaswani.data.sources.records import Record

Documents = Literal["line", "blank_line", "file"]
DOCUMENTS = ("line", "blank_line", "file")
_SURROGATES = re.compile("[\ud800-\udfff]")  # bytes that were not UTF-8, or such escapes in JSON


@dataclass
class LineReport:
    """Counts of the texts of one input."""

    lines: int = 0
    empty: int = 0
    left_empty: int = 0
    not_continued: int = 0
    not_utf8: int = 0
    source_cut_off: int = 0
    question_cut_off: int = 0
    prompt_cut_off: int = 0
    cut_off: int = 0
    not_scored: int = 0
    not_aligned: int = 0
    line_breaks: int = 0
    unit: str = "line"

    def __str__(self) -> str:
        counts = {
            "empty": self.empty,
            "not translated and left empty": self.left_empty,
            "not continued and left empty": self.not_continued,
            "not UTF-8 (their bad bytes were read as U+FFFD)": self.not_utf8,
            "of which only the beginning was read": self.source_cut_off,
            "of whose question only the beginning was read": self.question_cut_off,
            "of which only the end was read": self.prompt_cut_off,
            "cut off at the length limit": self.cut_off,
            "not scored": self.not_scored,
            "not aligned": self.not_aligned,
            "with line breaks, which became spaces": self.line_breaks,
        }
        problems = "; ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        return f"{self.lines:,} {self.unit}{'s' * (self.lines != 1)}" + (f"; {problems}" if problems else "")


def decoded(lines: BinaryIO, report: LineReport) -> Iterator[str]:
    """Yield lines of UTF-8 without their ends; replace invalid bytes and count their lines."""
    for number, line in enumerate(read_lines(lines)):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            report.not_utf8 += 1
            text = line.decode("utf-8", errors="replace")
        yield text.removeprefix("\ufeff") if number == 0 else text  # drop a byte order mark


class Lines:
    """Base class of inputs that are read from lines, which have no other fields.

    Attributes:
        row: None; lines have no other fields.
        report: counts of the items taken so far.
        place: the place of the item taken last, such as "line 3".
    """

    row: None = None

    def __init__(self, report: LineReport):
        self.report = report

    @property
    def place(self) -> str:
        return f"{self.report.unit} {self.report.lines}"

    def take(self) -> None:
        """Advance to the next item; call this before writing its result."""
        self.report.lines += 1

    def record(self, **fields: Any) -> str:
        """Return the fields as one line of JSON."""
        return finite_json(fields, ensure_ascii=False)


class TextLines(Lines):
    """The texts of a stream of lines.

    Args:
        lines: UTF-8 text; invalid bytes become U+FFFD.
        documents: what forms one text: a line, the lines up to a blank line, or the whole stream.
        total: number of lines, if known.
    """

    def __init__(self, lines: BinaryIO, documents: Documents = "line", total: int | None = None):
        super().__init__(LineReport(unit="line" if documents == "line" else "document"))
        self.total = total if documents == "line" else None
        self.typed = lines.isatty()
        self._texts = _GROUPED[documents](decoded(lines, self.report))

    def __iter__(self) -> Iterator[str]:
        return self._texts


def _whole(lines: Iterable[str]) -> Iterator[str]:
    if (text := "\n".join(lines)).strip():
        yield text


_GROUPED: dict[str, Callable[[Iterator[str]], Iterator[str]]] = {
    "line": iter,
    "blank_line": paragraphs,
    "file": _whole,
}


@dataclass
class Column:
    """A field of a table's rows that holds a text.

    Args:
        field: its name; dots reach into nested objects.
        option: the option that gives the name, for messages.
        words: a text may be a list of words.
    """

    field: str
    option: str
    words: bool = False

    def check(self, path: Path) -> None:
        """Raise a UserError unless a table has the field and the field can hold text."""
        from vaswani.data.sources.records import check_text_field

        check_text_field(path, f"--{self.option}", self.field, words=self.words)

    def check_first(self, record: Record) -> None:
        """Raise a UserError unless the first row of a stream has the field."""
        if not record.has(self.field):
            raise UserError(f"{record.place} has no field '{self.field}'; it has {listing(record.row)}")

    def read(self, record: Record) -> Any:
        """Return the text of a row, or raise a UserError."""
        return record.text(self.field, self.words)

    def valid(self, cell: Any) -> Any:
        """Return a cell with U+FFFD in place of bytes that were not UTF-8."""
        return [valid_text(word) for word in cell] if isinstance(cell, list) else valid_text(cell)


def on_one_line(text: str) -> str:
    """Return a text with spaces in place of its line breaks."""
    return re.sub(r"[\r\n]+", " ", text)


def valid_text(text: str) -> str:
    """Return a text with U+FFFD in place of bytes that were not UTF-8."""
    return _SURROGATES.sub("\ufffd", text)


class ChatColumn(Column):
    """A field of a table's rows that holds a chat: a list, so `words` is true."""

    def read(self, record: Record) -> Any:
        """Return the messages of a row, or raise a UserError."""
        from vaswani.data.sources.reading import cell_of
        from vaswani.data.text.chats import as_chat

        try:
            return as_chat(cell_of(record.row, self.field))
        except UserError as error:
            raise UserError(f"{record.place}: field '{self.field}' holds no chat: {error}") from error

    def valid(self, cell: Any) -> Any:
        """Return a chat with U+FFFD in place of bytes that were not UTF-8."""
        return [
            {name: valid_text(value) if isinstance(value, str) else value for name, value in message.items()}
            for message in cell
        ]


class TableTexts:
    """The texts in a column of a table.

    Args:
        records: the rows (see `read_records`).
        columns: the column of the text. With several columns, each text is a tuple of their cells.
        added: names of the fields that the output adds.
        remedy: advice for the message if a row already has one of these fields.
        total: number of rows, if known.
        typed: whether the rows are typed at a terminal.

    Attributes:
        row: the row taken last.
        place: the place of this row, such as "line 3 of FILE".
    """

    def __init__(
        self,
        records: Iterator[Record],
        *columns: Column,
        added: Sequence[str] = (),
        remedy: str = "rename it",
        total: int | None = None,
        typed: bool = False,
    ):
        self.report = LineReport(unit="row")
        self.total, self.typed = total, typed
        self.row: dict[str, Any] = {}
        self.place = ""
        self._records, self._columns = records, columns
        self._added, self._remedy = added, remedy
        self._waiting: deque[Record] = deque()

    def __iter__(self) -> Iterator[Any]:
        for record in self._records:
            record.check_lacks(self._added, self._remedy)
            cells = [column.read(record) for column in self._columns]
            valid = [column.valid(cell) for column, cell in zip(self._columns, cells, strict=True)]
            self.report.not_utf8 += valid != cells
            self._waiting.append(record)
            yield valid[0] if len(valid) == 1 else tuple(valid)

    def take(self) -> None:
        """Advance to the next row; call this before writing its result."""
        record = self._waiting.popleft()
        self.row, self.place = record.row, record.place
        self.report.lines += 1

    def record(self, **fields: Any) -> str:
        """Return the row with the fields as one line of JSON."""
        from vaswani.data.sources.reading import put_cell

        row = self.row
        for name, value in fields.items():
            row = put_cell(row, name, value)
        try:
            return json.dumps(row, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError):  # the row holds NaN, a date ...
            finite_json(fields)  # raises for such a result
            return json.dumps(without_non_finite(row), ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """Return a date, or another value from Parquet, as text that JSON can hold."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


Texts = TextLines | TableTexts


@contextmanager
def open_texts(
    name: str,
    field: str | None,
    *,
    option: str,
    default: str,
    added: Sequence[str],
    remedy: str = "rename it",
    documents: Documents | None = None,
    default_documents: Documents = "line",
    pair_field: str | None = None,
    words: bool = False,
    chats: bool = False,
    others: Sequence[Column] = (),
) -> Iterator[Texts]:
    """Open the texts of a file or of standard input.

    A file whose name ends like a table (JSONL, JSON, CSV, TSV, also .gz; Parquet) is read as a table: all its
    rows are checked before the first is yielded. Standard input is read as JSON Lines if a field is given. If
    a text may be a list of words, the sentences of a file in CoNLL's columns (.conll) are read. Any other
    input is read as lines.

    Args:
        name: name of the file; "-" for standard input.
        field: field of the text in a table; None means `default`.
        option: the option that gives the field, for messages.
        default: see `field`.
        added: names of the fields that the output adds to the rows of a table.
        remedy: advice for the message if a row already has one of these fields.
        documents: what forms one text in lines; None means `default_documents`.
        default_documents: see `documents`.
        pair_field: field of a second text in a table; texts are then pairs.
        words: in tables, a text may be a list of words; also read CoNLL's columns.
        chats: in tables, the field holds chats in place of texts.
        others: columns of a table that are read besides the text.

    Raises:
        UserError: the input cannot be read, has no such field, has a field that would be added, is a table
            and `documents` is given, or has CoNLL's columns and `words` is false.
    """
    if documents not in (None, *DOCUMENTS):
        raise UserError(f"documents={documents} is unknown; expected {', '.join(DOCUMENTS)}")
    of_texts = ChatColumn if chats else Column
    columns = [of_texts(field or default, option, words or chats), *others]
    if pair_field is not None:
        columns.insert(1, Column(pair_field, "text_pair_field", words))
    of_table = field is not None or pair_field is not None or bool(others)
    if has_table_ending(name) or (name == STANDARD_STREAM and of_table):
        if documents is not None:
            raise UserError(f"--documents is for plain text, and {name} is read as a table; leave it out")
        with open_table(name, columns, added=added, remedy=remedy) as texts:
            yield texts
        return
    in_columns = name.lower().endswith(COLUMN_ENDINGS)
    if in_columns and not words:
        raise UserError(
            f"{name} is in CoNLL's columns, a word in each line; give lines of text, or a table that has the "
            "words in a field"
        )
    with open_lines(name) as lines:
        if of_table:
            of = columns[-1]
            files = "a file that ends with .jsonl, .json, .csv, .tsv (also .gz) or .parquet"
            raise for_tables(f"--{of.option} {of.field}", name, f"leave it out, or give {files}")
        if in_columns:
            yield _sentences(Path(name), option, added=added)
        else:
            yield TextLines(lines, documents or default_documents, count_lines(name))


@contextmanager
def open_table(
    name: str, columns: Sequence[Column], *, added: Sequence[str], remedy: str = "rename it"
) -> Iterator[TableTexts]:
    """Open columns of a table; if the name of a file ends like a table, check all its rows first.

    Args:
        name: name of the file; "-" for standard input. Files with other endings, and pipes, are JSON Lines.
        columns: the columns of the texts.
        added: names of the fields that the output adds to the rows.
        remedy: advice for the message if a row already has one of these fields.

    Raises:
        UserError: as `open_texts`.
    """
    rows: dict[str, Any] = {"added": added, "remedy": remedy}
    if has_table_ending(name) and Path(name).is_file():
        with open_lines(name):  # raises if the file cannot be read
            pass
        yield _table(Path(name), columns, **rows)
        return
    with open_lines(name) as lines:
        where = "standard input" if name == STANDARD_STREAM else name
        yield _json_stream(lines, where, columns, **rows)


def for_tables(option: str, name: str, remedy: str = "leave it out") -> UserError:
    """Return the error for a table option, such as `--text_field body`, if the input is read as lines."""
    return UserError(f"{option} is for tables, and {name} is read as lines; {remedy}")


def has_table_ending(name: str) -> bool:
    """Return whether the name of a file ends like that of a table."""
    endings = [f"{ending}{gz}" for ending in (".jsonl", ".json", ".csv", ".tsv") for gz in ("", ".gz")]
    return name.lower().endswith((*endings, ".parquet"))


def _table(path: Path, columns: Sequence[Column], **rows: Any) -> TableTexts:
    from vaswani.data.sources.records import count_records, read_records

    for column in columns:
        column.check(path)
    total = count_records(path)
    if total is None:
        total = 0
        for record in read_records(path):
            record.check_lacks(rows["added"], rows["remedy"])
            for column in columns:
                column.read(record)
            total += 1
    return TableTexts(read_records(path), *columns, total=total, **rows)


def _sentences(path: Path, option: str, **rows: Any) -> TableTexts:
    from vaswani.data.sources.records import read_sentences

    texts = TableTexts(read_sentences(path), Column("words", option, words=True), **rows)
    texts.report.unit = "sentence"
    return texts


def _json_stream(lines: BinaryIO, name: str, columns: Sequence[Column], **rows: Any) -> TableTexts:
    from vaswani.data.sources.records import json_records

    decoded_lines = (line.decode("utf-8-sig", "surrogateescape") for line in read_lines(lines))
    records = json_records(decoded_lines, name)
    first = next(records, None)
    if first is None:
        return TableTexts(records, *columns, **rows)
    for column in columns:
        column.check_first(first)
    return TableTexts(chain([first], records), *columns, typed=lines.isatty(), **rows)
