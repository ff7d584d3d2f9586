"""The means of the losses that a training's loss is the sum of, for its logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vaswani.training.trainer.base import BaseTrainer


class LossMeans:
    """Adds up losses by name, and reports the mean of each over the updates since the last report."""

    def __init__(self, trainer: BaseTrainer):
        self.trainer = trainer
        self._sums: dict[str, torch.Tensor] = {}
        self._first_step = 0  # update after which these sums begin

    def add(self, name: str, loss: torch.Tensor) -> None:
        """Add a loss, [], of a part of an update; it is divided by the tokens or rows of the whole update."""
        if not self._sums:
            self._first_step = self.trainer.state.global_step
        self._sums[name] = self._sums.get(name, loss.new_zeros(())) + loss.detach()

    def report(self) -> dict[str, float]:
        """Return the mean of each loss per update, over all processes, and begin anew."""
        trainer, sums = self.trainer, self._sums
        self._sums = {}
        steps = max(trainer.state.global_step - self._first_step, 1)
        # Divided by the tokens of all processes, each loss is a share of their sum.
        shares = trainer.num_replicas if trainer.args.average_tokens_across_devices else 1
        return {
            name: trainer.accelerator.reduce(loss, "mean").item() * shares / steps
            for name, loss in sums.items()
        }
