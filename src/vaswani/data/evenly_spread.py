"""Evenly spaced choices."""

import numpy as np


def evenly_spread(num_items: int, num_chosen: int) -> list[int]:
    """Return indices of `num_chosen` evenly spaced items, the first and last included, or of all items."""
    return np.linspace(0, num_items - 1, min(num_items, num_chosen)).round().astype(int).tolist()
