"""Prevent updates from a loss or gradient that is NaN or infinite."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from transformers.utils import logging

from vaswani.errors import RunError

if TYPE_CHECKING:
    from vaswani.training.trainer.base import BaseTrainer

logger = logging.get_logger(__name__)

NON_FINITE_FOLDER = "non_finite"
MAX_SKIPPED = 10  # skipped updates in a row; beyond that, the batches are not the cause


class FiniteUpdates:
    """Checks each update before it is made; stops the run, or skips the update, as `non_finite_loss` says."""

    def __init__(self, trainer: BaseTrainer):
        self.trainer = trainer
        self._batches: list[tuple[dict[str, Any], torch.Tensor]] = []  # of this update: batch, loss
        self._updates = 0  # updates in this process, including skipped ones
        self.skipped = 0
        self._skipped_in_a_row = 0

    def remember(self, inputs: dict[str, Any], loss: torch.Tensor) -> None:
        """Keep a batch until its update is made."""
        self._batches.append((inputs, loss))

    def check(self, model: torch.nn.Module, grad_norm: Any) -> None:
        """Raise `RunError`, or drop the gradients, if the loss or the gradient's norm is not finite."""
        batches, self._batches = self._batches, []
        inputs, losses = [batch for batch, _ in batches], [loss for _, loss in batches]
        self._updates += 1
        if self._is_finite(grad_norm, losses):
            self._skipped_in_a_row = 0
            self.trainer.loss_means.keep()
            return
        self.skipped += 1
        self._skipped_in_a_row += 1
        trainer = self.trainer
        trainer.loss_means.drop()
        update = trainer.state.global_step + 1
        folder = trainer.output_dir / NON_FINITE_FOLDER / f"update-{update}"
        self._write(inputs, folder)
        what = f"the loss or its gradient is not finite in update {update:,}"
        if trainer.args.non_finite_loss == "stop" or self._skipped_in_a_row > MAX_SKIPPED:
            trainer.save_model(str(folder / "model"), _internal_call=True)
            remedy = trainer.non_finite_cause(inputs) or (
                "Lower the learning_rate in a new run, leave out such rows, or set non_finite_loss=skip to "
                f"pass over {MAX_SKIPPED} such updates in a row"
            )
            raise RunError(f"{what}; its batches, and the model before it, are in {folder}. {remedy}")
        logger.warning("%s: it is skipped. Its batches are in %s.", what, folder)
        model.zero_grad()  # without gradients, the optimizer changes nothing

    def raise_if_nothing_was_learned(self) -> None:
        """Raise `RunError` if a training has ended without an update of the weights."""
        steps = self.trainer.state.global_step
        if steps == 0:
            raise RunError("the training made no update; give it more rows, or more num_train_epochs")
        if self.skipped == self._updates == steps:
            raise RunError(
                f"all {steps:,} updates were skipped, as the loss or its gradient was not finite; their "
                f"batches are in {self.trainer.output_dir / NON_FINITE_FOLDER}. Lower the learning_rate, or "
                "leave out such rows"
            )

    def _is_finite(self, grad_norm: Any, losses: list[torch.Tensor]) -> bool:
        # With float16, gradients may overflow: its loss scale is adjusted by them.
        if self.trainer.accelerator.scaler is not None:
            return all(math.isfinite(loss) for loss in losses)
        return math.isfinite(grad_norm.full_tensor() if hasattr(grad_norm, "full_tensor") else grad_norm)

    def _write(self, batches: list[dict[str, Any]], folder: Path) -> None:
        """Save the batches of this process; `model(**load_file(path))` runs a model on one again."""
        folder.mkdir(parents=True, exist_ok=True)
        for number, inputs in enumerate(batches):
            tensors = {
                name: value.contiguous().cpu() for name, value in inputs.items() if torch.is_tensor(value)
            }
            process = self.trainer.args.process_index
            save_file(tensors, folder / f"process-{process}-batch-{number}.safetensors")
