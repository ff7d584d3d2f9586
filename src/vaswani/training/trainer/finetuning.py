"""A trainer of models that predict labels: of texts, or of their words.

A decoder may also learn to continue the texts: L3 = L2 + λ · L1 (Radford et al., 2018, equation 5), where L2
is the loss of the task and L1 is the loss of each token of a text, given the tokens before it.

B rows of a batch · T its longest row · D width
"""

from typing import Any

import torch
from accelerate.utils import send_to_device

from vaswani.data.collation import IGNORED_LABEL
from vaswani.model.losses import linear_cross_entropy
from vaswani.training.config.finetuning_arguments import LabelTrainingArguments
from vaswani.training.trainer.adapted import base_model
from vaswani.training.trainer.base import BaseTrainer, without_cache
from vaswani.training.trainer.labels import LabelTask
from vaswani.training.trainer.objective import Count


class FinetuningTrainer(BaseTrainer):
    """Trains a model on tokenized texts and their labels.

    Rows of a data set hold `input_ids`, `labels` as the task gives them and, where the model has token types,
    `token_type_ids`. Evaluation leaves out the language-modelling loss, which is logged as `lm_loss`.

    Args:
        task: computes the loss from logits and labels, and selects the outputs to keep of an evaluated batch.
        kwargs: as for `BaseTrainer`.
    """

    args: LabelTrainingArguments

    def __init__(self, *, task: LabelTask, **kwargs: Any):
        # Our loss for every model: the library's gives batches of any size the same weight.
        super().__init__(compute_loss_func=self._loss, **kwargs)
        self.label_smoother = None
        self.task = task
        self.forward_options = without_cache(base_model(self.model))
        self._texts: dict[str, torch.Tensor] = {}  # `input_ids` and `attention_mask` of the current batch
        self._states = torch.empty(0)  # states of the last layer, [B, T, D]
        self._num_tokens: Count = None  # predicted tokens of the whole accumulated, distributed batch
        if self.args.lm_loss_weight:
            self.model.base_model.register_forward_hook(self._keep_states)

    def _keep_states(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        if module.training:
            self._states = outputs[0]

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As in `BaseTrainer`; also keeps the texts for the language-modelling loss."""
        self._texts = inputs
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _loss(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int
    ) -> torch.Tensor:
        loss = self._task_loss(outputs, labels, num_items_in_batch)
        if not self.args.lm_loss_weight:
            return loss
        lm_loss = self._lm_loss()
        self.loss_means.add("lm_loss", lm_loss)
        return loss + self.args.lm_loss_weight * lm_loss

    def _task_loss(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int
    ) -> torch.Tensor:
        smoothing = self.args.label_smoothing_factor
        return self.task.loss(outputs.logits, labels, num_items_in_batch, smoothing)

    # ------------------------------------------------------------------------------- the loss of the texts

    def _lm_loss(self) -> torch.Tensor:
        """Cross-entropy of each token of the batch after the first, per token of the whole batch.

        The output layer is the embedding, so that the logits are the states times its weight.
        """
        tokens, mask = self._texts["input_ids"], self._texts["attention_mask"]
        targets = tokens.masked_fill(mask == 0, IGNORED_LABEL)[:, 1:]
        weight = self.model.get_input_embeddings().weight
        states, self._states = self._states, torch.empty(0)
        with self.accelerator.autocast():
            summed = linear_cross_entropy(states[:, :-1], weight, targets)
        return summed / (_predicted(mask) if self._num_tokens is None else self._num_tokens)

    def count_batches(self, batches: list[dict[str, Any]]) -> None:
        """As in `BaseTrainer`; also counts the tokens, by which the language-modelling loss is divided."""
        super().count_batches(batches)
        if self.args.lm_loss_weight:
            counts = torch.stack([_predicted(batch["attention_mask"]) for batch in batches])
            self._num_tokens = self.count_everywhere(counts.sum())

    # -------------------------------------------------------------------------------------------- evaluation

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
            outputs = model(**inputs, **self.forward_options)
        loss = self._task_loss(outputs, labels, labels.ne(IGNORED_LABEL).sum())
        return loss, *((None, None) if prediction_loss_only else (self.task.outputs(outputs.logits), labels))


def _predicted(attention_mask: torch.Tensor) -> torch.Tensor:
    """The number of tokens in rows [B, T] that have one before them."""
    return attention_mask[:, 1:].sum()
