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
    """Return `max_rows` evenly spaced rows; all rows if there are no more, or if `max_rows` is None.

    Each `direction` of a multilingual corpus (see `CorpusSpec`) gets its share of them.
    """
    if max_rows is None or len(rows) <= max_rows:
        return rows
    chosen = evenly_spread(len(rows), max_rows)
    if "direction" in rows.column_names:  # they alternate, so that even steps would skip some
        by_direction = np.argsort(rows["direction"][:], kind="stable")
        chosen = np.sort(by_direction[chosen]).tolist()
    return rows.select(chosen)
