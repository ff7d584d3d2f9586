"""Trainers of students of one stack: masked and causal language models, and models that predict labels.

B rows of a batch · S its longest row · N tokens or rows that count · V vocabulary · L labels
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from vaswani.data.batching import IGNORED_LABEL
from vaswani.distillation.arguments import DistillationObjectives
from vaswani.distillation.losses import DIVERGENCES, soft_target_loss
from vaswani.distillation.mixture import LossMixture, Side
from vaswani.distillation.recording import stacks
from vaswani.errors import UserError
from vaswani.model.losses import token_loss_function
from vaswani.training.trainer.base import BaseTrainer, Count
from vaswani.training.trainer.finetuning import FinetuningTrainer
from vaswani.training.trainer.labels import MultiLabel, Regression, Tagging
from vaswani.training.trainer.pretraining import PretrainingTrainer


class Teachers(nn.Module):
    """One teacher or several with the same outputs; several are averaged by their probabilities.

    Args:
        models: of transformers, with `logits` among their outputs.
    """

    def __init__(self, models: Sequence[PreTrainedModel]):
        super().__init__()
        self.models: Any = nn.ModuleList(models)

    @property
    def config(self) -> Any:
        """That of the first."""
        return self.models[0].config

    @torch.no_grad()
    def logits(self, inputs: dict[str, Any], **options: Any) -> list[torch.Tensor]:
        """The logits of each teacher, in its own dtype."""
        device = next(self.parameters()).device
        given = {name: value.to(device) for name, value in inputs.items()}
        with torch.autocast(device.type, enabled=False):
            return [model(**given, **options).logits for model in self.models]


def mean_log_probs(logits: Sequence[torch.Tensor], temperature: float) -> torch.Tensor:
    """The logarithm of the mean of softmax(logits / T) of several teachers: float32 [N, C]."""
    each = [(one.float() / temperature).log_softmax(-1) for one in logits]
    if len(each) == 1:
        return each[0]
    return torch.stack(each).logsumexp(0) - torch.tensor(float(len(each))).log()


class StackTrainer(BaseTrainer):
    """A trainer whose losses compare a student of one stack with its teachers.

    The teachers run once per batch, in evaluation mode, without gradients. Losses are divided by the tokens
    or rows of the whole accumulated, distributed batch.

    Args:
        teachers: of the student's kind, with its tokens or labels.
        objectives: the losses and their weights.
        kwargs: as for the trainer that a subclass names.
    """

    def __init__(self, *, teachers: Teachers, objectives: DistillationObjectives, **kwargs: Any):
        super().__init__(**kwargs)
        first = teachers.models[0]
        self.teachers = teachers.eval().requires_grad_(False).to(self.args.device)
        self.objectives = objectives
        self.mixture = LossMixture(self, first, objectives)
        self.compute_loss_func = self._taught_loss
        self._inputs: dict[str, Any] = {}  # of the current batch, for the teacher and for the masks
        self._counts: dict[str, torch.Tensor] = {}  # of the whole accumulated, distributed batch

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in `BaseTrainer`; meanwhile the student has maps to the teacher's width if a loss needs them."""
        with self.mixture.maps():
            return super().train(*args, **kwargs)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The weighted sum of the losses."""
        self._inputs = dict(inputs)
        with self.logits_that_count(self.model):
            return super().compute_loss(model, inputs, *args, **kwargs)

    def _taught_loss(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Count = None
    ) -> torch.Tensor:
        """The weighted sum of the losses of the student's outputs; transformers' trainer calls it."""
        losses = {}
        if self.objectives.label_weight:
            losses["label"] = self.label_loss(outputs.logits, labels, num_items_in_batch)
        if self.objectives.soft_target_weight or self.objectives.uses_states:
            teacher_logits = self._ask_teachers()
            if self.objectives.soft_target_weight:
                loss = self.soft_target_loss(outputs.logits, teacher_logits, labels, num_items_in_batch)
                losses["soft_target"] = loss
        if self.mixture.recorders:
            losses |= self.mixture.state_losses(self._sides())
        return self.mixture.weighted(losses)

    def _ask_teachers(self) -> list[torch.Tensor]:
        inputs = {name: value for name, value in self._inputs.items() if name != "labels"}
        with self.logits_that_count(*self.teachers.models):
            return self.teachers.logits(inputs, **self.options_of_forward())

    def _sides(self) -> dict[str, Side]:
        tokens = self.real_tokens(self._inputs)
        (stack,) = stacks(self.model)
        visible = tokens[:, :, None] & tokens[:, None]
        return {stack: (tokens, visible.tril() if stack == "decoder" else visible, self._counts["tokens"])}

    def real_tokens(self, inputs: dict[str, Any]) -> torch.Tensor:
        """The tokens of a batch that are no padding: bool [B, S]."""
        mask = inputs.get("attention_mask")
        padding = self.model.config.pad_token_id
        return inputs["input_ids"] != padding if mask is None else mask.bool()

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, Count]:
        """As in transformers; also counts tokens and rows, by which losses are divided."""
        batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if batches:
            tokens = sum(self.real_tokens(batch).sum() for batch in batches)
            rows = torch.tensor(sum(len(batch["input_ids"]) for batch in batches))
            self._counts = {
                name: self.count_everywhere(torch.as_tensor(count))
                for name, count in (("tokens", tokens), ("rows", rows))
            }
        return batches, num_items

    def non_finite_cause(self, batches: list[dict[str, Any]]) -> str | None:
        """A message about the teacher if its outputs, computed again, are not finite."""
        for self._inputs in batches:
            if any(not logits.isfinite().all() for logits in self._ask_teachers()):
                return "The teacher's outputs are not finite there: give another, or teacher_dtype=float32"
        return None

    # ------------------------------------------------------------------------------ what a kind of model has

    def logits_that_count(self, *models: PreTrainedModel) -> AbstractContextManager[None]:
        """Let models compute only the logits that the losses need."""
        return nullcontext()

    def options_of_forward(self) -> dict[str, Any]:
        """Options of the teachers' forward pass."""
        return {}

    def label_loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items: Count) -> torch.Tensor:
        """The loss of the training without a teacher."""
        raise NotImplementedError

    def soft_target_loss(
        self, logits: torch.Tensor, taught: list[torch.Tensor], labels: torch.Tensor, num_items: Count
    ) -> torch.Tensor:
        """The divergence of the student's outputs from the teachers'."""
        raise NotImplementedError


class LanguageModelDistillation(StackTrainer, PretrainingTrainer):
    """Teaches a masked or causal language model; DistilBERT (Sanh et al., 2019) is the first.

    Args:
        all_tokens: compare the distributions of all tokens of a masked model, as DistilBERT does, and not of
            the masked ones alone.
        kwargs: as for `StackTrainer` and `PretrainingTrainer`.

    Raises:
        UserError: student and teacher predict different numbers of tokens.
    """

    def __init__(self, *, all_tokens: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.all_tokens = all_tokens and not self._is_causal
        sizes = {
            model.get_output_embeddings().weight.shape[0] for model in (self.model, *self.teachers.models)
        }
        if len(sizes) > 1:
            raise UserError(f"teachers and student predict different numbers of tokens: {sorted(sizes)}")

    def _kept(self) -> torch.Tensor:
        """The tokens whose logits count: bool [B, S]."""
        labels = self._inputs["labels"]
        if self._is_causal:  # each state predicts the next token
            return F.pad(labels[:, 1:] != IGNORED_LABEL, (0, 1), value=False)
        return self.real_tokens(self._inputs) if self.all_tokens else labels != IGNORED_LABEL

    @contextmanager
    def logits_that_count(self, *models: PreTrainedModel) -> Iterator[None]:
        """Let the output projections see the states of some tokens alone: logits are [N, V]."""
        kept = self._kept()
        hooks = [
            model.get_output_embeddings().register_forward_pre_hook(lambda _, states: states[0][kept])
            for model in models
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def options_of_forward(self) -> dict[str, Any]:
        """Without keys and values that only decoding needs."""
        return self._options

    def _labels_of_kept(self, labels: torch.Tensor) -> torch.Tensor:
        if self._is_causal:
            labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL)
        return labels[self._kept()]

    def label_loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items: Count) -> torch.Tensor:
        """Cross-entropy with the masked tokens, or with the next ones."""
        return token_loss_function(logits, self._labels_of_kept(labels), num_items)

    def soft_target_loss(
        self, logits: torch.Tensor, taught: list[torch.Tensor], labels: torch.Tensor, num_items: Count
    ) -> torch.Tensor:
        """T² · divergence per token."""
        weights = self.objectives
        return soft_target_loss(
            logits,
            mean_log_probs(taught, weights.temperature),
            temperature=weights.temperature,
            divergence=DIVERGENCES[weights.divergence],
            num_tokens=self._counts["tokens"] if self.all_tokens else num_items,
        )


class TaskDistillation(StackTrainer, FinetuningTrainer):
    """Teaches a model of a task. Rows without a label, −100, have soft targets alone."""

    def _divisor(self, labels: torch.Tensor, num_items: Count) -> Any:
        """All rows count, those without a label too; of tags, the labelled words."""
        if isinstance(self.task, Tagging):
            return num_items
        return self._counts["rows"] * (labels.shape[1] if labels.ndim > 1 else 1)

    def label_loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items: Count) -> torch.Tensor:
        """The task's loss of the rows that have a label."""
        if not isinstance(self.task, Tagging):
            has_label = labels.reshape(len(labels), -1)[:, 0] != IGNORED_LABEL
            if not has_label.any():
                return logits.sum() * 0.0
            logits, divisor, labels = logits[has_label], self._divisor(labels, num_items), labels[has_label]
        else:
            divisor = num_items
        return self.task.loss(logits, labels, divisor, self.args.label_smoothing_factor)

    def soft_target_loss(
        self, logits: torch.Tensor, taught: list[torch.Tensor], labels: torch.Tensor, num_items: Count
    ) -> torch.Tensor:
        """T² · divergence per row, word or label; the squared error of numbers."""
        divisor, temperature = self._divisor(labels, num_items), self.objectives.temperature
        if isinstance(self.task, Regression):
            target = torch.stack([one.float() for one in taught]).mean(0)
            return F.mse_loss(logits.float(), target, reduction="sum") / divisor
        if isinstance(self.task, MultiLabel):  # each label is a choice of two
            logits, *taught = (torch.stack([one, torch.zeros_like(one)], -1) for one in (logits, *taught))
            logits, *taught = (one.flatten(0, 1) for one in (logits, *taught))
        if isinstance(self.task, Tagging):
            kept = labels != IGNORED_LABEL
            logits, *taught = (one[kept] for one in (logits, *taught))
        return soft_target_loss(
            logits,
            mean_log_probs(taught, temperature),
            temperature=temperature,
            divergence=DIVERGENCES[self.objectives.divergence],
            num_tokens=divisor,
        )
