"""Count the rows of a split that are also training rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

_ROWS_AT_ONCE = 100_000


def count_shared_rows(rows: Dataset, training_rows: Dataset) -> int:
    """Return how many rows of a split equal a training row in all columns.

    The training rows are read in batches, so the memory is that of the split.
    """
    if not len(rows):
        return 0
    split = rows.with_format("arrow")[:]
    counts = Counter(_rows_of(split))
    shared: set[str] = set()
    for batch in training_rows.with_format("arrow").iter(batch_size=_ROWS_AT_ONCE):
        shared.update(row for row in _rows_of(_candidates(batch, split)) if row in counts)
    return sum(counts[row] for row in shared)


def _candidates(batch: pa.Table, split: pa.Table) -> pa.Table:
    """Return the rows of a batch whose first column is in a split; all rows if the column is nested."""
    values = split.column(0)
    if pa.types.is_nested(values.type):
        return batch
    return batch.filter(pc.is_in(batch.column(0), value_set=values.combine_chunks()))


def _rows_of(table: pa.Table) -> Iterator[str]:
    """Return each row as a text, its columns in the order of their names."""
    for row in table.to_pylist():
        yield json.dumps(row, sort_keys=True, default=str)
