"""Rows of a split that are also training rows are counted, whatever the columns hold."""

from typing import Any

import pytest
from datasets import Dataset

from vaswani.data.sources import shared_rows
from vaswani.data.sources.shared_rows import count_shared_rows

# Training rows, rows of another split, and how many of these are also training rows.
CASES: dict[str, tuple[dict[str, list[Any]], dict[str, list[Any]], int]] = {
    "pairs": (
        {"source": ["a", "b", "c", "a"], "target": ["1", "2", "3", "4"]},
        {"source": ["a", "a", "b", "d"], "target": ["4", "2", "2", "3"]},
        2,
    ),
    "twice in either": (
        {"source": ["a", "a"], "target": ["1", "1"]},
        {"source": ["a", "b", "a"], "target": ["1", "1", "1"]},
        2,
    ),
    "none": ({"text": ["a", "b"]}, {"text": ["c", "A"]}, 0),
    "texts with a label": (
        {"text": ["a", "b"], "label": [0, 1]},
        {"text": ["a", "b"], "label": [0, 0]},
        1,
    ),
    "words with tags": (
        {"text": [["a", "b"], ["c"]], "label": [["X", "Y"], ["X"]]},
        {"text": [["a", "b"], ["c"], ["a b"]], "label": [["X", "Y"], ["Y"], ["X"]]},
        1,
    ),
}


@pytest.mark.parametrize("rows_at_once", [1, 100_000])
@pytest.mark.parametrize(("training", "split", "shared"), CASES.values(), ids=CASES)
def test_rows_that_are_equal_in_all_columns_are_shared(
    training: dict[str, list[Any]],
    split: dict[str, list[Any]],
    shared: int,
    rows_at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_rows, "_ROWS_AT_ONCE", rows_at_once)
    assert count_shared_rows(Dataset.from_dict(split), Dataset.from_dict(training)) == shared


def test_only_selected_rows_are_compared() -> None:
    training, split = (Dataset.from_dict({"text": list(letters)}) for letters in ("abcdef", "fedxyz"))
    assert count_shared_rows(split, training.select([0, 4, 5])) == 2
    assert count_shared_rows(split.select([3, 2]), training) == 1
    assert count_shared_rows(split.select([]), training) == 0
