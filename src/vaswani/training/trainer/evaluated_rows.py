"""Collect what a model predicts for the rows of a data set, and its loss, from batches and processes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object

from vaswani.data.collation import IGNORED_LABEL


class EvaluatedRows:
    """Predictions, labels and losses of an evaluation; each row once, even if several processes had it."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[Any, Any]] = {}  # prediction and labels, by row number
        self._losses: dict[tuple[int, ...], tuple[float, int]] = {}  # (summed loss, labels), by row numbers

    def add(
        self, row_numbers: Sequence[int], predictions: torch.Tensor | None, labels: torch.Tensor | None
    ) -> None:
        """Add the rows of a batch."""
        columns = (_rows(batch, len(row_numbers)) for batch in (predictions, labels))
        self._rows |= zip(row_numbers, zip(*columns, strict=True), strict=True)

    def add_loss(self, row_numbers: Sequence[int], loss: torch.Tensor, labels: torch.Tensor) -> None:
        """Add the mean loss of the labels of a batch."""
        num_labels = int(labels.ne(IGNORED_LABEL).sum())
        self._losses[tuple(row_numbers)] = loss.item() * num_labels, num_labels

    def gather(self) -> None:
        """Add the rows of all other processes; put the rows in the order of the data set."""
        self._rows = dict(sorted(gather_object([*self._rows.items()]), key=lambda row: row[0]))
        self._losses = dict(gather_object([*self._losses.items()]))

    def __len__(self) -> int:
        return len(self._rows)

    def predictions(self) -> np.ndarray | None:
        """Return the predictions of all rows, padded with −100."""
        return _pad([prediction for prediction, _ in self._rows.values()])

    def labels(self) -> np.ndarray | None:
        """Return the labels of all rows, padded with −100."""
        return _pad([labels for _, labels in self._rows.values()])

    def loss(self) -> float | None:
        """Return the mean loss of all labels; None without losses."""
        if not self._losses:
            return None
        sums, counts = zip(*self._losses.values(), strict=True)
        return sum(sums) / max(sum(counts), 1)


def _rows(batch: torch.Tensor | None, num_rows: int) -> list[Any]:
    if batch is None:
        return [None] * num_rows
    return list((batch.float() if batch.dtype == torch.bfloat16 else batch).cpu().numpy())


def _pad(column: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Stack arrays that may differ in their first length to one array [rows, ...], padded with −100."""
    arrays = [array for array in column if array is not None]
    if not arrays:
        return None
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    longest = max(map(len, arrays))
    padded = np.full((len(arrays), longest, *arrays[0].shape[1:]), IGNORED_LABEL, dtype=arrays[0].dtype)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return padded
