"""The pairs of a source and a target that a command reads: two files of lines, or two fields of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from vaswani.data.sources import reading
from vaswani.errors import UserError
from vaswani.files.line_files import count_lines, open_lines
from vaswani.inference.inputs import (
    Column,
    LineReport,
    Lines,
    TableTexts,
    decoded,
    for_tables,
    has_table_ending,
    open_table,
    valid_text,
)

if TYPE_CHECKING:
    from vaswani.data.sources.records import Record

SOURCE, TARGET, HYPOTHESES = "source", "target", "hypotheses"  # default fields


class PairLines(Lines):
    """Pairs of lines from a stream of sources and a stream of targets.

    Args:
        sources, targets: UTF-8 text; invalid bytes become U+FFFD.
        names: names of the two streams, for messages.
        total: number of lines, if known.
    """

    def __init__(
        self, sources: BinaryIO, targets: BinaryIO, names: tuple[str, str], total: int | None = None
    ):
        super().__init__(LineReport())
        self.total, self.typed = total, sources.isatty()
        self._names = names
        self._sides = decoded(sources, self.report), decoded(targets, self.report)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        sources, targets = self._sides
        number = 0
        for source in sources:
            number += 1
            target = next(targets, None)
            if target is None:
                raise _length_mismatch(self._names, f"{self._names[1]} ends before its line {number:,}")
            yield source, target
        if next(targets, None) is not None:
            raise _length_mismatch(self._names, f"{self._names[0]} ends after its line {number:,}")


def _length_mismatch(names: tuple[str, str], found: str) -> UserError:
    return UserError(
        f"{names[0]} and {names[1]} have different numbers of lines: {found}; give a pair per line"
    )


Pairs = PairLines | TableTexts


@dataclass(frozen=True)
class NBestTarget:
    """A target of an n-best list.

    Args:
        text: the text of the target.
        fields: the fields of its object in the list; empty for a plain text.
        complete: whether it ends with the end token, as `translate --n_best` reports.
    """

    text: str
    fields: dict[str, Any]
    complete: bool = True


class TargetColumn(Column):
    """A field that holds a target or, with `lists`, an n-best list of targets.

    Args:
        field: its name; None means the default or, with `lists`, `hypotheses`, whichever the rows have.
        default: the default.
        lists: a target may be a list of texts, or of objects with a `text`.
        added: names of the fields that the output adds to a row whose target is a text.

    Attributes:
        field: the name, known after a check.
    """

    def __init__(self, field: str | None, default: str, lists: bool, added: Sequence[str]):
        super().__init__(field or default, "target_field", words=lists)
        self._given, self._added = field is not None, added

    def check(self, path: Path) -> None:
        """Raise a UserError unless a table has the field and the field can hold text."""
        from vaswani.data.sources.records import fields_of

        self._choose(set(fields_of(path)), str(path))
        super().check(path)

    def check_first(self, record: Record) -> None:
        """Raise a UserError unless the first row of a stream has the field."""
        self._choose({name for name in (self.field, HYPOTHESES) if record.has(name)}, record.place)
        super().check_first(record)

    def _choose(self, known: set[str], where: str) -> None:
        if self._given or not self.words or HYPOTHESES not in known:
            return
        if known & {self.field, self.field.partition(".")[0]}:
            raise UserError(
                f"{where} has fields '{self.field}' and '{HYPOTHESES}'; choose with --target_field "
                f"{HYPOTHESES}, or --target_field {self.field}"
            )
        self.field = HYPOTHESES

    def read(self, record: Record) -> Any:
        """Return the target of a row, or its list of `NBestTarget`s; raise a UserError for anything else.

        If the row has no target, return None with `lists`, and an empty text without.
        """
        cell = reading.cell_of(record.row, self.field)
        if not (self.words and isinstance(cell, list)):
            record.check_lacks(self._added, "rename it")
            return None if self.words and cell is None else record.text(self.field)
        return [self._candidate(record, each) for each in cell]

    def valid(self, cell: Any) -> Any:
        """Return a cell with U+FFFD in place of bytes that were not UTF-8."""
        if isinstance(cell, list):
            return [NBestTarget(valid_text(each.text), each.fields, each.complete) for each in cell]
        return None if cell is None else valid_text(cell)

    def _candidate(self, record: Record, cell: Any) -> NBestTarget:
        if isinstance(cell, str):
            return NBestTarget(cell, {})
        if not isinstance(cell, dict) or not isinstance(cell.get("text"), str):
            raise UserError(
                f"{record.place}: the list '{self.field}' holds {reading.shown(cell)}; expected texts, or "
                "objects with a field 'text'"
            )
        return NBestTarget(cell["text"], cell, cell.get("complete") is not False)


@contextmanager
def open_pairs(
    name: str,
    target_name: str | None,
    source_field: str | None,
    target_field: str | None,
    *,
    added: Sequence[str],
    defaults: Sequence[str] = (SOURCE, TARGET),
    lists: bool = False,
) -> Iterator[tuple[Pairs, str]]:
    """Open pairs of a table, or of two files of lines.

    Without a second file, standard input and files that do not end like a table are read as JSON Lines.

    Args:
        name: name of the table or the file of sources; "-" for standard input.
        target_name: name of the file of targets; None for a table.
        source_field: field of the source in a table; None means the default.
        target_field: field of the target; None means the default or, with `lists`, `hypotheses` if rows have
            it.
        defaults: default fields of the source and of the target.
        added: names of the fields that the output adds to the rows of a table, unless the target is a list.
        lists: a target may be a list of texts, or of objects with a `text`.

    Yields:
        The pairs, and the name of the field of the targets.

    Raises:
        UserError: the input cannot be read, lacks a field, or has a field that would be added; or the files
            have different numbers of lines.
    """
    if target_name is None:
        target = TargetColumn(target_field, defaults[1], lists, added)
        columns = [Column(source_field or defaults[0], "source_field"), target]
        with _with_advice_for_lines(name, open_table(name, columns, added=())) as rows:
            yield rows, target.field
        return
    names = name, target_name
    for option, value in {"source_field": source_field, "target_field": target_field}.items():
        if value is not None:
            raise for_tables(f"--{option} {value}", name)
    if table := next(filter(has_table_ending, names), None):
        raise UserError(f"{table} is a table; give one table, or two files of text")
    with open_lines(name) as sources, open_lines(target_name) as targets:
        counts = [count_lines(each, unpack=True) for each in names]
        if None not in counts and counts[0] != counts[1]:
            raise _length_mismatch(names, f"{counts[0]:,} and {counts[1]:,}")
        yield PairLines(sources, targets, names, counts[0]), TARGET


@contextmanager
def _with_advice_for_lines(name: str, table: AbstractContextManager[TableTexts]) -> Iterator[TableTexts]:
    """Open a table; if it is not JSON, say in the error how to give two files of lines."""
    with ExitStack() as stack:
        try:
            rows = stack.enter_context(table)
        except UserError as error:
            if has_table_ending(name) or "is not JSON" not in str(error):
                raise
            raise UserError(f"{error}; for a file of sources, give that of the targets after it") from error
        yield rows
