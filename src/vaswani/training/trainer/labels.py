"""What the labels of a task are, for a model: its targets, its loss, and what its logits say.

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

from vaswani.data.batching import IGNORED_LABEL
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
    """A task, with the labels that a model tells apart.

    Args:
        names: of the labels; the place of a name is the label's number.
    """

    auto_class: ClassVar[Any] = AutoModelForSequenceClassification
    problem_type: ClassVar[str | None]  # as a model's configuration calls it
    metric: ClassVar[type[LabelMetric]]
    smooths: ClassVar[bool]  # whether labels can be smoothed

    def __init__(self, names: Sequence[str] = ()):
        self.names = list(names)
        self.numbers = {name: number for number, name in enumerate(self.names)}

    @classmethod
    def names_in(cls, labels: Iterable[Any]) -> list[str]:
        """The labels that rows have, in order: as numbers where all are whole numbers, else as text.

        Raises:
            UserError: there are none to tell apart.
        """
        names = set(cls._each(labels))
        if len(names) < 2:
            found = f"only {names.pop()!r}" if names else "none"
            raise UserError(
                f"there must be two labels or more to tell apart, and train has {found}; see label_field"
            )
        are_numbers = all(name.removeprefix("-").isdecimal() for name in names)
        return sorted(names, key=lambda name: (int(name) if are_numbers else 0, name))

    @staticmethod
    def _each(labels: Iterable[Any]) -> Iterable[str]:
        """Every label of rows that may have several."""
        return (name for row in labels for name in row)

    def check_known(self, labels: Iterable[Any], split: str) -> None:
        """Find labels that were not seen in training.

        Raises:
            UserError: naming one, and those that are known.
        """
        unknown = sorted(set(self._each(labels)) - self.numbers.keys())
        if unknown:
            raise UserError(
                f"{split} has the label {unknown[0]!r}, which no row of train has; those have "
                f"{listing(self.names)}"
            )

    @property
    def num_outputs(self) -> int:
        """Logits of each text or token."""
        return len(self.names)

    def config_fields(self) -> dict[str, Any]:
        """What a model's configuration has to say of the labels."""
        fields: dict[str, Any] = {"num_labels": self.num_outputs, "problem_type": self.problem_type}
        if self.names:
            fields |= {"id2label": dict(enumerate(self.names)), "label2id": self.numbers}
        return fields

    @abstractmethod
    def target(self, row: Mapping[str, Any]) -> Any:
        """The `labels` of a tokenized row, as numbers."""

    @abstractmethod
    def loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items: torch.Tensor | int, smoothing: float
    ) -> torch.Tensor:
        """The summed loss divided by `num_items`: a float32 scalar.

        Args:
            logits: [B, L]; of tags [B, T, L].
            labels: those of the rows, as `target` gives them; −100 in those of tags does not count.
            num_items: labels of the whole batch, of which these may be a part.
            smoothing: of the labels (Szegedy et al., 2016, section 7), where they can be smoothed.
        """

    def outputs(self, logits: torch.Tensor) -> torch.Tensor:
        """What is kept of the logits [B, ..., L] of an evaluated batch, to be read by `predictions`."""
        return logits

    @abstractmethod
    def predictions(self, outputs: np.ndarray, labels: np.ndarray) -> list[Any]:
        """What was predicted for rows, in the form in which their labels are given, from `outputs`."""

    @abstractmethod
    def references(self, labels: np.ndarray) -> list[Any]:
        """The labels of rows in the form in which they are given, from their targets."""


class Classification(LabelTask):
    """One label for each text."""

    problem_type = "single_label_classification"
    metric = ClassificationMetric
    smooths = True

    @staticmethod
    def _each(labels: Iterable[str]) -> Iterable[str]:
        return labels

    def target(self, row: Mapping[str, Any]) -> int:
        """The number of the label."""
        return self.numbers[row["label"]]

    def loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items: torch.Tensor | int, smoothing: float
    ) -> torch.Tensor:
        """Cross-entropy of logits [B, L] with labels [B]."""
        return token_loss_function(logits, labels, num_items, smoothing)

    def predictions(self, outputs: np.ndarray, labels: np.ndarray) -> list[str]:
        """The likeliest label of each row, from logits [rows, L]."""
        return self.references(outputs.argmax(-1))

    def references(self, labels: np.ndarray) -> list[str]:
        """The names of numbers [rows]."""
        return [self.names[number] for number in labels]


class MultiLabel(LabelTask):
    """Any number of labels for each text, each of which applies or not."""

    problem_type = "multi_label_classification"
    metric = MultiLabelMetric
    smooths = False

    def target(self, row: Mapping[str, Any]) -> list[float]:
        """1 for each label that applies and 0 for the others, [L]."""
        return [float(name in row["label"]) for name in self.names]

    def loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items: torch.Tensor | int, smoothing: float
    ) -> torch.Tensor:
        """Binary cross-entropy of logits [B, L] with labels [B, L]; an item is a label of a row."""
        return F.binary_cross_entropy_with_logits(logits.float(), labels, reduction="sum") / num_items

    def predictions(self, outputs: np.ndarray, labels: np.ndarray) -> list[list[str]]:
        """The labels that are likelier to apply than not, from logits [rows, L]."""
        return self.references(outputs > 0)

    def references(self, labels: np.ndarray) -> list[list[str]]:
        """The names where targets [rows, L] are not 0."""
        return [[self.names[number] for number in np.flatnonzero(row)] for row in labels]


class Regression(LabelTask):
    """A number for each text."""

    problem_type = "regression"
    metric = RegressionMetric
    smooths = False

    @classmethod
    def names_in(cls, labels: Iterable[float]) -> list[str]:
        """None: numbers have no names."""
        return []

    def check_known(self, labels: Iterable[float], split: str) -> None:
        """Any number will do."""

    @property
    def num_outputs(self) -> int:
        """One."""
        return 1

    def target(self, row: Mapping[str, Any]) -> float:
        """The number. What the library would take for no label, −100, moves by its last bit."""
        number = row["label"]
        return float(np.nextafter(np.float32(number), np.float32(0))) if number == IGNORED_LABEL else number

    def loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items: torch.Tensor | int, smoothing: float
    ) -> torch.Tensor:
        """The squared error of logits [B, 1] against labels [B]."""
        return F.mse_loss(logits.float().squeeze(-1), labels, reduction="sum") / num_items

    def predictions(self, outputs: np.ndarray, labels: np.ndarray) -> list[float]:
        """Logits [rows, 1] as they are."""
        return self.references(outputs[:, 0])

    def references(self, labels: np.ndarray) -> list[float]:
        """Targets [rows] as they are."""
        return labels.tolist()


class Tagging(LabelTask):
    """A label for each word, which its first token has to tell."""

    auto_class = AutoModelForTokenClassification
    problem_type = None
    metric = TaggingMetric
    smooths = True

    def target(self, row: Mapping[str, Any]) -> list[int]:
        """The number of its word's tag for the first token of each word, and −100 for the others, [T]."""
        labels = [IGNORED_LABEL] * len(row["input_ids"])
        for place, name in zip(row["word_starts"], row["label"], strict=False):  # words may be cut off
            labels[place] = self.numbers[name]
        return labels

    def loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items: torch.Tensor | int, smoothing: float
    ) -> torch.Tensor:
        """Cross-entropy of logits [B, T, L] with labels [B, T], of first tokens."""
        return token_loss_function(logits, labels, num_items, smoothing)

    def outputs(self, logits: torch.Tensor) -> torch.Tensor:
        """The number of the likeliest tag of each token, int64 [B, T]."""
        return logits.argmax(-1)

    def predictions(self, outputs: np.ndarray, labels: np.ndarray) -> list[list[str]]:
        """Tags of the words of each row, from numbers [rows, T]."""
        return [self._named(row[own != IGNORED_LABEL]) for row, own in zip(outputs, labels, strict=True)]

    def references(self, labels: np.ndarray) -> list[list[str]]:
        """Tags of the words of each row, from targets [rows, T]."""
        return [self._named(row[row != IGNORED_LABEL]) for row in labels]

    def _named(self, numbers: np.ndarray) -> list[str]:
        return [self.names[number] for number in numbers]


TASKS: dict[str, type[LabelTask]] = {
    "classification": Classification,
    "multi_label": MultiLabel,
    "regression": Regression,
    "tagging": Tagging,
}
