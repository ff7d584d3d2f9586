"""Choosing a few of many."""

import numpy as np


def evenly_spread(num_items: int, num_chosen: int) -> list[int]:
    """Indices of `num_chosen` items, or of all where there are fewer, at equal distances.

    The first and the last are among them; one alone is the first.
    """
    return np.linspace(0, num_items - 1, min(num_items, num_chosen)).round().astype(int).tolist()
