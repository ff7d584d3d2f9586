"""A column of integers read as an array equals that of `datasets`, for any selection of rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, concatenate_datasets

from vaswani.data.columns import integer_column

CHOICES: dict[str, Callable[[Dataset], Dataset]] = {
    "all": lambda rows: rows,
    "some": lambda rows: rows.select([5, 0, 11, 5]),
    "a range": lambda rows: rows.select(range(3, 9)),
    "some of some": lambda rows: rows.select([9, 4, 2, 7]).select([3, 1]),
    "a range of some": lambda rows: rows.select([9, 4, 2, 7]).select(range(1, 3)),
    "shuffled": lambda rows: rows.shuffle(seed=0),
    "filtered": lambda rows: rows.filter(lambda row: row["length"] % 3 == 0),
    "joined": lambda rows: concatenate_datasets([rows.select([8, 1]), rows, rows.select([2])]),
    "none": lambda rows: rows.select([]),
}


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("choice", CHOICES)
def test_the_array_equals_the_column(tmp_path: Path, choice: str, on_disk: bool) -> None:
    rows = Dataset.from_dict({"text": [*"abcdefghijkl"], "length": [7, 3, 9, 1, 8, 2, 6, 0, 5, 4, 12, 11]})
    if on_disk:
        rows.save_to_disk(tmp_path / "rows", num_shards=3)
        rows = Dataset.load_from_disk(tmp_path / "rows")
    chosen = CHOICES[choice](rows)
    found = integer_column(chosen, "length")
    assert isinstance(found, np.ndarray)
    assert found.tolist() == list(chosen["length"])
