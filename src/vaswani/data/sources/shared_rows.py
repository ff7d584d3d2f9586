"""Count the rows of a split that are also training rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

_ROWS_AT_ONCE = 100_000


def count_shared_rows(rows: Dataset, training_rows: Dataset) -> int:
    """Return how many rows of a split equal a training row in all columns.

    Rows are read in batches and compared by their hashes, so the memory is some 100 bytes for each row of the
    split.
    """
    counts = Counter(chain.from_iterable(map(_hashes, _batches(rows))))
    column = rows.column_names[0]
    values = rows.with_format("arrow")[:].column(column)
    shared: set[int] = set()
    for batch in _batches(training_rows):
        shared.update(row for row in _hashes(_candidates(batch, column, values)) if row in counts)
    return sum(counts[row] for row in shared)


def _batches(rows: Dataset) -> Iterator[pa.Table]:
    return rows.with_format("arrow").iter(batch_size=_ROWS_AT_ONCE)


def _candidates(batch: pa.Table, column: str, values: pa.ChunkedArray) -> pa.Table:
    """Return the rows of a batch whose column has one of the values; all rows if it is nested."""
    if pa.types.is_nested(values.type):
        return batch
    return batch.filter(pc.is_in(batch.column(column), value_set=values))


def _hashes(table: pa.Table) -> Iterator[int]:
    """Return the hash of each row, whatever the order of its columns."""
    for row in table.to_pylist():
        yield hash(json.dumps(row, sort_keys=True))
