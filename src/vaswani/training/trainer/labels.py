"""Tasks with labels: the targets, the loss, and the predictions from a model's logits.

B batch · T tokens · L labels
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from vaswani.data.collation import IGNORED_LABEL
from vaswani.errors import UserError, listing
from vaswani.evaluation.label_metrics import (
    ClassificationMetric,
    LabelMetric,
    MultiLabelMetric,
    RegressionMetric,
    TaggingMetric,
)
from vaswani.model.losses import token_loss_function


class LabelTask(ABC):
    """A task with its labels.

    Args:
        names: names of the labels; the index of a name is the label's number.
    """

    auto_class: ClassVar[Any] = AutoModelForSequenceClassification
    problem_type: ClassVar[str | None]  # as a model's configuration calls it
    metric: ClassVar[type[LabelMetric]]
    smooths: ClassVar[bool] = True  # whether labels can be smoothed

    def __init__(self, names: Sequence[str] = ()):
        self.names = list(names)
        self.numbers = {name: number for number, name in enumerate(self.names)}

    @classmethod
    def names_in(cls, labels: Iterable[Any]) -> list[str]:
        """The labels of rows, in order: as numbers where all are whole numbers, else as text.

        Raises:
            UserError: there are fewer than two.
        """
        names = set(cls._iter_labels(labels))
        if len(names) < 2:
            found = f"only {names.pop()!r}" if names else "none"
            raise UserError(f"train must have two labels or more, and it has {found}; see label_field")
        are_numbers = all(name.removeprefix("-").isdecimal() for name in names)
        return sorted(names, key=lambda name: (int(name) if are_numbers else 0, name))

    @staticmethod
    def _iter_labels(labels: Iterable[Any]) -> Iterable[str]:
        """Iterate over the labels of all rows; a row may have several."""
        return (name for row in labels for name in row)

    def check_known(
        self, labels: Iterable[Any], where: str, relation: str = "no row of train has; those have"
    ) -> None:
        """Raise `UserError` for a label that is not among the names.

        Args:
            labels: labels of rows.
            where: where the labels are, for the message.
            relation: text of the message between the unknown label and the known ones.
        """
        unknown = sorted(set(self._iter_labels(labels)) - self.numbers.keys())
        if unknown:
            raise UserError(f"{where} has the label {unknown[0]!r}, which {relation} {listing(self.names)}")

    @property
    def num_outputs(self) -> int:
        """The number of logits of each text or token."""
        return len(self.names)

    def config_fields(self) -> dict[str, Any]:
        """The fields of a model's configuration that describe the labels."""
        fields: dict[str, Any] = {"num_labels": self.num_outputs, "problem_type": self.problem_type}
        if self.names:
            fields |= {"id2label": dict(enumerate(self.names)), "label2id": self.numbers}
        return fields

    @abstractmethod
    def target(self, row: Mapping[str, Any]) -> Any:
        """The `labels` of a tokenized row, as numbers."""

    def loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items: torch.Tensor | int, smoothing: float
    ) -> torch.Tensor:
        """The summed loss divided by `num_items`, a float32 scalar: cross-entropy, unless a task has another.

        Args:
            logits: [B, L]; for tagging, [B, T, L].
            labels: the labels of the rows, as from `target`; for tagging, −100 does not count.
            num_items: number of labels in the whole batch, of which these may be a part.
            smoothing: label smoothing (Szegedy et al., 2016, section 7), if the task supports it.
        """
        return token_loss_function(logits, labels, num_items, smoothing)

    def outputs(self, logits: torch.Tensor) -> torch.Tensor:
        """Reduce the logits [B, ..., L] of an evaluated batch to what `predictions` needs."""
        return logits

    @abstractmethod
    def predictions(self, outputs: np.ndarray, labels: np.ndarray) -> list[Any]:
        """Convert `outputs` to predictions for rows, in the form of their given labels."""

    @abstractmethod
    def references(self, labels: np.ndarray) -> list[Any]:
        """Convert the targets of rows back to labels, in the form in which they are given."""


class Classification(LabelTask):
    """One label for each text; logits [B, L], labels [B]."""

    problem_type = "single_label_classification"
    metric = ClassificationMetric

    @staticmethod
    def _iter_labels(labels: Iterable[str]) -> Iterable[str]:
        return labels

    def target(self, row: Mapping[str, Any]) -> int:
        return self.numbers[row["label"]]

    def predictions(self, outputs: np.ndarray, labels: np.ndarray) -> list[str]:
        return self.references(outputs.argmax(-1))

    def references(self, labels: np.ndarray) -> list[str]:
        return [self.names[number] for number in labels]


class MultiLabel(LabelTask):
    """Any number of labels for each text; logits and labels [B, L]; each label of a row counts as an item."""

    problem_type = "multi_label_classification"
    metric = MultiLabelMetric
    smooths = False

    @classmethod
    def names_in(cls, labels: Iterable[list[str]]) -> list[str]:
        """As for other tasks; also raises `UserError` if each row has all labels."""
        rows = list(labels)
        names = super().names_in(rows)
        if all(len(row) == len(names) for row in rows):
            raise UserError(
                f"each row of train has all of the labels {', '.join(names)}, so there is nothing to "
                "learn; give the names of a row's labels, not a 0 or 1 for each label (see label_field)"
            )
        return names

    def target(self, row: Mapping[str, Any]) -> list[float]:
        return [float(name in row["label"]) for name in self.names]

    def loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items: torch.Tensor | int, smoothing: float
    ) -> torch.Tensor:
        """Binary cross-entropy."""
        return F.binary_cross_entropy_with_logits(logits.float(), labels, reduction="sum") / num_items

    def predictions(self, outputs: np.ndarray, labels: np.ndarray) -> list[list[str]]:
        """The labels with a probability above 1/2."""
        return self.references(outputs > 0)

    def references(self, labels: np.ndarray) -> list[list[str]]:
        return [[self.names[number] for number in np.flatnonzero(row)] for row in labels]


class Regression(LabelTask):
    """A number for each text; logits [B, 1], labels [B]."""

    problem_type = "regression"
    metric = RegressionMetric
    smooths = False
    num_outputs = 1

    @classmethod
    def names_in(cls, labels: Iterable[float]) -> list[str]:
        """Return an empty list: numbers have no names."""
        return []

    def check_known(self, labels: Iterable[float], where: str, relation: str = "") -> None:
        """Accept any number."""

    def target(self, row: Mapping[str, Any]) -> float:
        """The number. The last bit of −100 is changed, because the library ignores that label."""
        number = row["label"]
        return float(np.nextafter(np.float32(number), np.float32(0))) if number == IGNORED_LABEL else number

    def loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items: torch.Tensor | int, smoothing: float
    ) -> torch.Tensor:
        """The squared error."""
        return F.mse_loss(logits.float().squeeze(-1), labels, reduction="sum") / num_items

    def predictions(self, outputs: np.ndarray, labels: np.ndarray) -> list[float]:
        return self.references(outputs[:, 0])

    def references(self, labels: np.ndarray) -> list[float]:
        return labels.tolist()


class Tagging(LabelTask):
    """A label for each word, predicted by its first token; logits [B, T, L], labels [B, T]."""

    auto_class = AutoModelForTokenClassification
    problem_type = None
    metric = TaggingMetric

    def target(self, row: Mapping[str, Any]) -> list[int]:
        """Return, for each token, its word's tag number if it is the word's first token, else −100: [T]."""
        labels = [IGNORED_LABEL] * len(row["input_ids"])
        for place, name in zip(row["word_starts"], row["label"], strict=False):  # words may be cut off
            labels[place] = self.numbers[name]
        return labels

    def outputs(self, logits: torch.Tensor) -> torch.Tensor:
        """The number of the likeliest tag of each token, int64 [B, T]."""
        return logits.argmax(-1)

    def predictions(self, outputs: np.ndarray, labels: np.ndarray) -> list[list[str]]:
        kept = zip(outputs, labels != IGNORED_LABEL, strict=True)
        return [[self.names[number] for number in row[is_first]] for row, is_first in kept]

    def references(self, labels: np.ndarray) -> list[list[str]]:
        return self.predictions(labels, labels)


TASKS: dict[str, type[LabelTask]] = {
    "classification": Classification,
    "multi_label": MultiLabel,
    "regression": Regression,
    "tagging": Tagging,
}
