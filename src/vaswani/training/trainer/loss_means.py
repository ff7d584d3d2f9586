"""The means of a training's loss and of its parts, for the logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vaswani.training.trainer.base import BaseTrainer

LOSS = "loss"  # name of the whole loss


class LossMeans:
    """Adds up losses by name, and reports the mean of each over the updates since the last report.

    The losses of an update count if the update is made (`keep`), and not if it is skipped (`drop`).
    """

    def __init__(self, trainer: BaseTrainer):
        self.trainer = trainer
        self._of_update: dict[str, torch.Tensor] = {}
        self._begin()
        self._total, self._total_kept = 0.0, 0  # summed loss and number of updates until the last report

    def _begin(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._kept, self._skipped = 0, 0  # numbers of updates

    def add(self, name: str, loss: torch.Tensor) -> None:
        """Add the loss [] of a part of an update, divided by the tokens or rows of the whole update."""
        _add(self._of_update, name, loss.detach())

    def keep(self) -> None:
        """Count the losses of an update that is made."""
        for name, loss in self._of_update.items():
            _add(self._sums, name, loss)
        self._of_update = {}
        self._kept += 1

    def drop(self) -> None:
        """Leave out the losses of an update that is skipped."""
        self._of_update = {}
        self._skipped += 1

    def report(self) -> tuple[dict[str, float], bool]:
        """Return the mean of each loss per update, over all processes, and start again.

        Returns:
            The means, which are empty if all updates were skipped; and whether some updates were skipped.
        """
        trainer, kept, skipped = self.trainer, self._kept, self._skipped
        # A part divided by the tokens of all processes is a share of their sum; the library scales the whole.
        shares = trainer.num_replicas if trainer.args.average_tokens_across_devices else 1
        means = {
            name: trainer.accelerator.reduce(loss, "mean").item() * (1 if name == LOSS else shares) / kept
            for name, loss in self._sums.items()
        }
        self._total += means.get(LOSS, 0.0) * kept
        self._total_kept += kept
        self._begin()
        return means, skipped > 0

    def overall_mean(self) -> float:
        """Return the mean loss of all updates that were made, and start again, as `report` does."""
        self.report()
        return self._total / max(self._total_kept, 1)


def _add(sums: dict[str, torch.Tensor], name: str, loss: torch.Tensor) -> None:
    sums[name] = sums[name] + loss if name in sums else loss
