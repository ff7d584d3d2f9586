"""Choose evenly spaced items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from datasets import Dataset


def evenly_spread(num_items: int, num_chosen: int) -> list[int]:
    """Return indices of `num_chosen` evenly spaced items, including first and last, or of all if fewer."""
    return np.linspace(0, num_items - 1, min(num_items, num_chosen)).round().astype(int).tolist()


def limit_rows(rows: Dataset, max_rows: int | None) -> Dataset:
    """Return `max_rows` evenly spaced rows; all rows if there are no more, or if `max_rows` is None."""
    if max_rows is None or len(rows) <= max_rows:
        return rows
    return rows.select(evenly_spread(len(rows), max_rows))
