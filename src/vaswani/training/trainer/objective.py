"""Objectives: losses that replace a trainer's own loss."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

Count = torch.Tensor | int | None  # number of labels, tokens or rows by which a loss is divided


class Objective:
    """The loss of a trainer's updates (see `BaseTrainer.set_objective`).

    Evaluations that do not call `compute_loss` keep the trainer's own loss. This base class, with which each
    trainer starts, changes nothing.
    """

    def training(self) -> AbstractContextManager[None]:
        """Return a context for the whole training, for example with additional modules in the model."""
        return nullcontext()

    def counts(self, batches: list[dict[str, Any]]) -> None:
        """Count the divisors of losses in the batches of one update."""

    def batch_context(self, inputs: dict[str, Any]) -> AbstractContextManager[None]:
        """Return a context for the forward pass and the loss of a batch."""
        return nullcontext()

    def loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Count = None) -> torch.Tensor:
        """The loss of a batch from the model's outputs: a scalar."""
        raise NotImplementedError

    def non_finite_cause(self, batches: list[dict[str, Any]]) -> str | None:
        """Return what is wrong and the remedy if the trained model is not the cause; otherwise None."""
        return None
