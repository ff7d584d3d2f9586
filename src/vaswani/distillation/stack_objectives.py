"""Losses of students of one stack: masked and causal language models, and models that predict labels.

B rows of a batch · S its longest row · N tokens or rows that count · V vocabulary · L labels
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from vaswani.data.collation import IGNORED_LABEL
from vaswani.distillation.arguments import DistillationObjectives
from vaswani.distillation.losses import DIVERGENCES, soft_target_loss
from vaswani.distillation.mixture import LossMixture, Side
from vaswani.distillation.recording import stacks
from vaswani.errors import UserError
from vaswani.model.losses import token_loss_function
from vaswani.training.trainer.base import BaseTrainer, without_cache
from vaswani.training.trainer.finetuning import FinetuningTrainer
from vaswani.training.trainer.labels import MultiLabel, Regression, Tagging
from vaswani.training.trainer.objective import Count, Objective
from vaswani.training.trainer.pretraining import PretrainingTrainer, logits_of, predicted_tokens


def mean_log_probs(logits: Sequence[torch.Tensor], temperature: float) -> torch.Tensor:
    """The logarithm of the mean of softmax(logits / T) of several teachers: float32 [N, C]."""
    each = [(one.float() / temperature).log_softmax(-1) for one in logits]
    return each[0] if len(each) == 1 else torch.stack(each).logsumexp(0) - math.log(len(each))


class StackObjective(Objective, ABC):
    """Losses that compare a student of one stack with its teachers, whose probabilities are averaged.

    The teachers run once per batch, in evaluation mode, without gradients, in their own dtypes. Losses are
    divided by the tokens or rows of the whole accumulated, distributed batch.

    Args:
        trainer: the trainer of the student.
        teachers: models for the student's task, with its tokens or labels. The student learns the hidden
            states of the first.
        objectives: the losses and their weights.
    """

    def __init__(
        self, trainer: BaseTrainer, teachers: Sequence[PreTrainedModel], objectives: DistillationObjectives
    ):
        self.trainer = trainer
        self.objectives = objectives
        device = trainer.args.device
        self.teachers = [teacher.eval().requires_grad_(False).to(device) for teacher in teachers]
        self.mixture = LossMixture(trainer, self.teachers[0], objectives)
        self._inputs: dict[str, Any] = {}  # inputs of the current batch
        self._counts: dict[str, torch.Tensor] = {}  # counts of the whole accumulated, distributed batch

    def training(self) -> AbstractContextManager[None]:
        """Record student and teacher if a loss needs their states."""
        return self.mixture.training()

    def counts(self, batches: list[dict[str, Any]]) -> None:
        """Count the tokens and rows of an update."""
        tokens = torch.stack([self.real_tokens(batch).sum() for batch in batches]).sum()
        rows = torch.tensor(sum(len(batch["input_ids"]) for batch in batches))
        counts = {"tokens": tokens, "rows": rows}
        self._counts = {name: self.trainer.count_everywhere(count) for name, count in counts.items()}

    def batch_context(self, inputs: dict[str, Any]) -> AbstractContextManager[None]:
        """Let the student compute only the logits that the losses need."""
        self._inputs = dict(inputs)
        return self.restricted_logits(inputs, self.trainer.model)

    def loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Count = None) -> torch.Tensor:
        """The weighted sum of the losses."""
        losses, weights, logits = {}, self.objectives, outputs.logits
        teacher_logits = self._teacher_logits(self._inputs)
        if weights.label_weight:
            losses["label"] = self.label_loss(logits, labels, num_items_in_batch)
        if weights.uses_distributions:
            losses["soft_target"] = self.soft_target_loss(logits, teacher_logits, labels, num_items_in_batch)
        if weights.uses_states:
            losses |= self.mixture.state_losses(self._sides())
        return self.mixture.weighted(losses)

    @torch.no_grad()
    def _teacher_logits(self, inputs: dict[str, Any]) -> list[torch.Tensor]:
        """Return the logits of each teacher; empty if no loss needs a teacher."""
        if not (self.objectives.uses_distributions or self.objectives.uses_states):
            return []
        device = self.trainer.args.device
        given = {name: value.to(device) for name, value in inputs.items() if name != "labels"}
        with self.restricted_logits(inputs, *self.teachers), torch.autocast(device.type, enabled=False):
            return [teacher(**given, **without_cache(teacher)).logits for teacher in self.teachers]

    def _sides(self) -> dict[str, Side]:
        tokens = self.real_tokens(self._inputs)
        (stack,) = stacks(self.trainer.model)
        visible = tokens[:, :, None] & tokens[:, None]
        return {stack: (tokens, visible.tril() if stack == "decoder" else visible, self._counts["tokens"])}

    def real_tokens(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Mask of the tokens of a batch that are not padding: bool [B, S]."""
        if (mask := inputs.get("attention_mask")) is not None:
            return mask.bool()
        return inputs["input_ids"] != self.trainer.model.config.pad_token_id

    def non_finite_cause(self, batches: list[dict[str, Any]]) -> str | None:
        """Return a message if the teacher's outputs, computed again, are not finite; otherwise None."""
        if all(logits.isfinite().all() for batch in batches for logits in self._teacher_logits(batch)):
            return None
        return "The teacher's outputs are not finite there: give another, or set teacher_dtype=float32"

    # ------------------------------------------------------------------------ steps that depend on the model

    def restricted_logits(self, inputs: dict[str, Any], *models: Any) -> AbstractContextManager[None]:
        """Let models compute only the logits of a batch that the losses need."""
        return nullcontext()

    @abstractmethod
    def label_loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items: Count) -> torch.Tensor:
        """The loss of training without a teacher."""

    @abstractmethod
    def divisor(self, labels: torch.Tensor, num_items: Count) -> Any:
        """The divisor of the summed divergences of an update."""

    def soft_target_loss(
        self, logits: torch.Tensor, teacher_logits: list[torch.Tensor], labels: torch.Tensor, num_items: Count
    ) -> torch.Tensor:
        """T² · divergence of the student's distributions from the mean of the teachers', of logits [N, C]."""
        weights = self.objectives
        return soft_target_loss(
            logits,
            mean_log_probs(teacher_logits, weights.temperature),
            temperature=weights.temperature,
            divergence=DIVERGENCES[weights.divergence],
            num_tokens=self.divisor(labels, num_items),
        )


class LanguageModelObjective(StackObjective):
    """The losses of a masked language model, as in DistilBERT (Sanh et al., 2019), or of a causal one.

    Args:
        args: as for `StackObjective`.
        all_tokens: compare the distributions of all tokens of a masked model, as DistilBERT does, instead of
            only the masked tokens.

    Raises:
        UserError: student and teacher predict different numbers of tokens.
    """

    trainer: PretrainingTrainer

    def __init__(self, *args: Any, all_tokens: bool = False):
        super().__init__(*args)
        self.all_tokens = all_tokens and not self.trainer.is_causal
        models: list[Any] = [self.trainer.model, *self.teachers]
        sizes = {model.get_output_embeddings().weight.shape[0] for model in models}
        if len(sizes) > 1:
            raise UserError(f"teachers and student predict different numbers of tokens: {sorted(sizes)}")

    def _targets(self, labels: torch.Tensor) -> torch.Tensor:
        """The label of each state: int64 [B, S], −100 for none."""
        return predicted_tokens(labels) if self.trainer.is_causal else labels

    def _kept(self, inputs: dict[str, Any]) -> torch.Tensor:
        """The tokens whose logits count: bool [B, S]."""
        if self.all_tokens:
            return self.real_tokens(inputs)
        return self._targets(inputs["labels"]) != IGNORED_LABEL

    def restricted_logits(self, inputs: dict[str, Any], *models: Any) -> AbstractContextManager[None]:
        """Let models compute only the logits [N, V] of the tokens that count."""
        return logits_of(self._kept(inputs), *models)

    def label_loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items: Count) -> torch.Tensor:
        """Cross-entropy with the masked tokens, or with the next tokens."""
        return token_loss_function(logits, self._targets(labels)[self._kept(self._inputs)], num_items)

    def divisor(self, labels: torch.Tensor, num_items: Count) -> Any:
        """The number of tokens whose distributions are compared."""
        return self._counts["tokens"] if self.all_tokens else num_items


class TaskObjective(StackObjective):
    """The losses of a model that predicts labels. Rows without a label (−100) have only soft targets."""

    trainer: FinetuningTrainer

    def divisor(self, labels: torch.Tensor, num_items: Count) -> Any:
        """The rows, unlabelled ones included, times the labels of each; for tagging, the labelled words."""
        if isinstance(self.trainer.task, Tagging):
            return num_items
        return self._counts["rows"] * (labels.shape[1] if labels.ndim > 1 else 1)

    def label_loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items: Count) -> torch.Tensor:
        """The task's loss on the rows that have a label."""
        has_label = (labels != IGNORED_LABEL).reshape(len(labels), -1).any(1)
        if not has_label.any():
            return logits.sum() * 0.0
        smoothing = self.trainer.args.label_smoothing_factor
        divisor = self.divisor(labels, num_items)
        return self.trainer.task.loss(logits[has_label], labels[has_label], divisor, smoothing)

    def soft_target_loss(
        self, logits: torch.Tensor, teacher_logits: list[torch.Tensor], labels: torch.Tensor, num_items: Count
    ) -> torch.Tensor:
        """T² · divergence per row, word or label; for regression, the squared error."""
        task, each = self.trainer.task, [logits, *teacher_logits]
        if isinstance(task, Regression):
            target = torch.stack([one.float() for one in teacher_logits]).mean(0)
            return F.mse_loss(logits.float(), target, reduction="sum") / self.divisor(labels, num_items)
        if isinstance(task, MultiLabel):  # each label is a binary choice
            each = [torch.stack([one, torch.zeros_like(one)], -1).flatten(0, 1) for one in each]
        if isinstance(task, Tagging):
            each = [one[labels != IGNORED_LABEL] for one in each]
        return super().soft_target_loss(each[0], each[1:], labels, num_items)
