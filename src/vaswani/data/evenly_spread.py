"""Choose evenly spaced items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from datasets import Dataset


def evenly_spread(num_items: int, num_chosen: int) -> list[int]:
    """Return indices of `num_chosen` evenly spaced items, including first and last, or of all if fewer."""
    return np.linspace(0, num_items - 1, min(num_items, num_chosen)).round().astype(int).tolist()


def at_most(rows: Dataset, most: int | None) -> Dataset:
    """Return `most` evenly spaced rows; all rows if there are no more, or if `most` is None."""
    if most is None or len(rows) <= most:
        return rows
    return rows.select(evenly_spread(len(rows), most))
