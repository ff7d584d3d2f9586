"""A trainer of models that predict labels: of texts, or of their words."""

from typing import Any

import torch
from accelerate.utils import send_to_device

from vaswani.data.batching import IGNORED_LABEL
from vaswani.training.config.finetuning_arguments import FinetuningTrainingArguments
from vaswani.training.trainer.base import BaseTrainer
from vaswani.training.trainer.labels import LabelTask


class FinetuningTrainer(BaseTrainer):
    """Trains a model on tokenized texts and their labels.

    Rows of a data set hold `input_ids`, `labels` as the task gives them and, where the model has token types,
    `token_type_ids`.

    Args:
        task: computes the loss of logits and labels, and says what is kept of an evaluated batch.
        kwargs: as for `BaseTrainer`.
    """

    args: FinetuningTrainingArguments

    def __init__(self, *, task: LabelTask, **kwargs: Any):
        # Our loss for every model: the library's gives batches of any size the same weight.
        super().__init__(compute_loss_func=self._loss, **kwargs)
        self.label_smoother = None
        self.task = task

    def _loss(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int
    ) -> torch.Tensor:
        smoothing = self.args.label_smoothing_factor
        return self.task.loss(outputs.logits, labels, num_items_in_batch, smoothing)

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Loss per label, outputs (see `LabelTask.outputs`) and labels of one batch."""
        inputs = send_to_device({**inputs}, self.args.device)
        labels = inputs.pop("labels")
        with torch.no_grad(), self.accelerator.autocast():
            outputs = model(**inputs)
        loss = self._loss(outputs, labels, labels.ne(IGNORED_LABEL).sum())
        return loss, *((None, None) if prediction_loss_only else (self.task.outputs(outputs.logits), labels))
