"""What a trainer trains for, where that is not the trainer's own loss."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

Count = torch.Tensor | int | None  # of the labels, tokens or rows of a batch, by which a loss is divided


class Objective:
    """An object beside a trainer, with the loss of its updates (see `BaseTrainer.pursue`).

    Evaluations that call no `compute_loss` keep the trainer's own. This one, which each trainer begins with,
    changes nothing.
    """

    def training(self) -> AbstractContextManager[None]:
        """Hold what the trainer's model has in addition while it is trained."""
        return nullcontext()

    def counts(self, batches: list[dict[str, Any]]) -> None:
        """Count what losses are divided by, in the batches of one update."""

    def of_batch(self, inputs: dict[str, Any]) -> AbstractContextManager[None]:
        """Surround the forward pass and the loss of a batch."""
        return nullcontext()

    def loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Count = None) -> torch.Tensor:
        """The loss of a batch from the model's outputs: a scalar."""
        raise NotImplementedError

    def non_finite_cause(self, batches: list[dict[str, Any]]) -> str | None:
        """What is wrong with batches and what to do, where the trained model is not the cause."""
        return None
