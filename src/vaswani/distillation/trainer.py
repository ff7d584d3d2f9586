"""A trainer whose losses compare a student with a teacher, or with its stored distributions.

B batch · T target tokens, N of which count · S source tokens · V vocabulary · k tokens of a distribution
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from vaswani.data.batching import IGNORED_LABEL
from vaswani.distillation.arguments import DistillationObjectives
from vaswani.distillation.losses import (
    DIVERGENCES,
    cosine_loss,
    relation_loss,
    soft_target_loss,
)
from vaswani.distillation.recording import Recorder, stacks
from vaswani.errors import UserError
from vaswani.kernels.projected_loss import TokenLoss
from vaswani.model.losses import token_loss_function
from vaswani.model.modeling_vaswani import shift_tokens_right
from vaswani.training.trainer.seq2seq import Trainer

TO_TEACHER_WIDTH = "to_teacher_width"  # a module of the student during training; a file of its checkpoints
DISTRIBUTION = ("teacher_log_probs", "teacher_tokens")  # columns of a batch with stored distributions

Count = torch.Tensor | int | None
LossOfRows = Callable[[torch.Tensor, slice], torch.Tensor]  # of logits [n, V] and their slice of the N
Distributions = Callable[[slice], tuple[torch.Tensor, torch.Tensor | None]]  # log-probabilities and tokens


class DistillationTrainer(Trainer):
    """Trains a student with a weighted sum of losses (see `DistillationObjectives`).

    The teacher runs once per batch, in evaluation mode, without gradients, in its own dtype. Without a
    teacher, batches must contain its distributions: `teacher_log_probs` [B, T, k + 1] and `teacher_tokens`
    [B, T, k] (see `TeacherLogitsCollator`). Losses are divided by the tokens of the whole accumulated,
    distributed batch; each is logged separately, without its weight.

    Args:
        teacher: any encoder-decoder that predicts the student's tokens, or None.
        objectives: the losses and their weights.
        kwargs: as for `Trainer`.

    Raises:
        UserError: student and teacher do not fit together, or an objective needs a teacher and none is given.
    """

    def __init__(
        self,
        *,
        teacher: PreTrainedModel | None = None,
        objectives: DistillationObjectives | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.objectives = objectives or DistillationObjectives()
        self.teacher: Any = teacher
        if teacher is not None:
            self.teacher = teacher.eval().requires_grad_(False).to(self.args.device)
        self._check_teacher()
        self.compute_loss_func = self._distillation_loss
        self._model_smooths = False
        self._recorders: list[Recorder] = []  # of student and teacher, if objectives need states
        if teacher is not None and self.objectives.uses_states:
            projections = self.objectives.relation_weight > 0
            self._recorders = [Recorder(model, projections) for model in (self.model, teacher)]
        self._student_takes_token_loss = "token_loss" in signature(self.model.forward).parameters
        self._token_loss: TokenLoss | None = None  # of the current batch
        self._source_mask = torch.empty(0)  # of the current batch: bool [B, S]
        self._num_source_tokens: Count = None  # of the whole accumulated, distributed batch
        self._losses: dict[str, torch.Tensor] = {}  # sums since the last log
        self._first_step = 0  # update after which these sums begin

    def _check_teacher(self) -> None:
        if self.teacher is None:
            if self.objectives.uses_states:
                raise UserError(
                    "cosine_weight and relation_weight need a teacher; give one, or set both to 0"
                )
            return
        sizes = [model.get_output_embeddings().weight.shape[0] for model in (self.teacher, self.model)]
        if self.objectives.uses_distributions and sizes[0] != sizes[1]:
            raise UserError(
                f"the teacher predicts {sizes[0]} tokens and the student {sizes[1]}, so their distributions "
                "cannot be compared; set soft_target_weight to 0 and distil by sequences (targets=teacher)"
            )
        if self.objectives.relation_weight and self.args.tensor_parallel_size > 1:
            raise UserError(
                f"relation_weight={self.objectives.relation_weight} needs whole queries and keys, and "
                f"tensor_parallel_size={self.args.tensor_parallel_size} splits them; set one of them to its "
                "default, or use fsdp_size"
            )
        heads = self.objectives.relation_heads
        for width in (self.teacher.config.hidden_size, self.model.config.hidden_size):
            if self.objectives.relation_weight and width % heads:
                raise UserError(
                    f"relation_heads={heads} does not divide the width {width}; give one that does"
                )

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in `Trainer`; meanwhile the student has maps to the teacher's width if a loss needs them."""
        self._add_maps()
        try:
            return super().train(*args, **kwargs)
        finally:
            for name in self.extra_modules:
                delattr(self.model, name)
            self.extra_modules = {}

    def _add_maps(self) -> None:
        if self.teacher is None or not self.objectives.cosine_weight:
            return
        width, teacher_width = (model.config.hidden_size for model in (self.model, self.teacher))
        if width != teacher_width:
            maps = {stack: nn.Linear(width, teacher_width, bias=False) for stack in stacks(self.model)}
            self.extra_modules = {TO_TEACHER_WIDTH: nn.ModuleDict(maps).to(self.args.device)}
            self.model.add_module(TO_TEACHER_WIDTH, self.extra_modules[TO_TEACHER_WIDTH])

    # ---------------------------------------------------------------------------------------------- losses

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Count = None,
    ) -> Any:
        """The weighted sum of the losses; in evaluation, the loss of `Trainer`."""
        student_inputs = {name: value for name, value in inputs.items() if name not in DISTRIBUTION}
        kept = inputs["labels"] != IGNORED_LABEL
        num_tokens = kept.sum() if num_items_in_batch is None else num_items_in_batch
        if model.training:
            self._source_mask = inputs["attention_mask"].bool()
            self._token_loss = self._token_losses(inputs, self._teacher_logits(inputs), kept, num_tokens)
        else:
            self._token_loss = TokenLoss(kept, self._label_loss(inputs["labels"][kept], num_tokens))
        if self._student_takes_token_loss:
            student_inputs["token_loss"] = self._token_loss
        return super().compute_loss(model, student_inputs, return_outputs, num_items_in_batch)

    def _teacher_logits(self, inputs: dict[str, Any]) -> torch.Tensor | None:
        """The teacher's logits for the batch; None if no objective needs them."""
        if self.teacher is None or not (self.objectives.uses_distributions or self.objectives.uses_states):
            return None
        return teacher_logits(self.teacher, inputs)

    def non_finite_cause(self, batches: list[dict[str, Any]]) -> str | None:
        """A message about the teacher if its outputs, stored or computed again, are not finite."""
        kept = [batch[name] for batch in batches for name in DISTRIBUTION if name in batch]
        outputs = [logits for batch in batches if (logits := self._teacher_logits(batch)) is not None]
        if not any(output.isnan().any() or output.eq(torch.inf).any() for output in [*kept, *outputs]):
            return None
        return (
            "The teacher's outputs are not finite there: give another teacher, or set teacher_dtype=float32"
        )

    def _token_losses(
        self,
        inputs: dict[str, Any],
        teacher_logits: torch.Tensor | None,
        kept: torch.Tensor,
        num_tokens: Count,
    ) -> TokenLoss | None:
        """The losses of a batch that depend on the student's logits; None if there are none."""
        weights = self.objectives
        if not (weights.label_weight or weights.soft_target_weight):
            return None
        label_loss = self._label_loss(inputs["labels"][kept], num_tokens)
        taught = self._distributions(inputs, teacher_logits, kept) if weights.soft_target_weight else None

        def weighted_sum(logits: torch.Tensor, rows: slice) -> torch.Tensor:
            losses = {}
            if weights.label_weight:
                losses["label"] = label_loss(logits, rows)
            if taught is not None:
                teacher_log_probs, teacher_tokens = taught(rows)
                losses["soft_target"] = soft_target_loss(
                    logits,
                    teacher_log_probs,
                    temperature=weights.temperature,
                    divergence=DIVERGENCES[weights.divergence],
                    num_tokens=num_tokens,
                    teacher_tokens=teacher_tokens,
                )
            return self._weighted(losses)

        return TokenLoss(kept, weighted_sum)

    def _label_loss(self, labels: torch.Tensor, num_tokens: Count) -> LossOfRows:
        """The cross-entropy with labels [N]."""
        smoothing = self.args.label_smoothing_factor
        return lambda logits, rows: token_loss_function(logits, labels[rows], num_tokens, smoothing)

    def _distributions(
        self, inputs: dict[str, Any], teacher_logits: torch.Tensor | None, kept: torch.Tensor
    ) -> Distributions:
        """The teacher's distributions for slices of the N tokens, from its logits or from the batch."""
        if teacher_logits is not None:
            logits = teacher_logits[kept]  # [N, V]
            return lambda rows: ((logits[rows].float() / self.objectives.temperature).log_softmax(-1), None)
        if missing := [name for name in DISTRIBUTION if name not in inputs]:
            raise UserError(
                f"the batch has no {' and no '.join(missing)} and there is no teacher; give a teacher, or "
                "collate with a TeacherLogitsCollator"
            )
        log_probs, tokens = (inputs[name][kept] for name in DISTRIBUTION)
        return lambda rows: (log_probs[rows], tokens[rows])

    def _distillation_loss(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Count = None
    ) -> torch.Tensor:
        """The loss of the student's outputs; `Trainer` calls it."""
        parts = []
        if self._token_loss is not None:
            in_forward = self._student_takes_token_loss
            parts.append(outputs.loss if in_forward else _at_once(self._token_loss, outputs.logits))
        if self._recorders and self.model.training:
            states = self._state_losses(labels != IGNORED_LABEL, num_items_in_batch)
            parts.append(self._weighted(states))
        return torch.stack(parts).sum()

    def _weighted(self, losses: dict[str, torch.Tensor]) -> torch.Tensor:
        """The weighted sum of losses, each of which is also added up for the log."""
        if not self._losses:
            self._first_step = self.state.global_step
        for name, loss in losses.items():
            self._losses[name] = self._losses.get(name, loss.new_zeros(())) + loss.detach()
        weighted = [getattr(self.objectives, f"{name}_weight") * loss for name, loss in losses.items()]
        return torch.stack(weighted).sum()

    def _state_losses(self, kept: torch.Tensor, num_target_tokens: Count) -> dict[str, torch.Tensor]:
        """The losses of hidden states and of relations, each the mean over both stacks."""
        student, teacher = (recorder.take() for recorder in self._recorders)
        source = self._source_mask
        sides: dict[str, tuple[torch.Tensor, torch.Tensor, Count]] = {  # tokens, what each sees, the divisor
            "encoder": (source, source[:, :, None] & source[:, None], self._num_source_tokens),
            "decoder": (kept, (kept[:, :, None] & kept[:, None]).tril(), num_target_tokens),
        }
        losses: dict[str, list[torch.Tensor]] = {"cosine": [], "relation": []}
        for stack, (tokens, visible, num_tokens) in sides.items():
            if self.objectives.cosine_weight:
                states = self._to_teacher_width(student[stack]["states"], stack)
                loss = cosine_loss(states, teacher[stack]["states"], tokens, num_tokens=num_tokens)
                losses["cosine"].append(loss)
            if self.objectives.relation_weight:
                for a, b in (("query", "key"), ("value", "value")):
                    loss = relation_loss(
                        (student[stack][a], student[stack][b]),
                        (teacher[stack][a], teacher[stack][b]),
                        visible,
                        num_heads=self.objectives.relation_heads,
                        num_tokens=num_tokens,
                    )
                    losses["relation"].append(loss)
        return {name: torch.stack(parts).mean() for name, parts in losses.items() if parts}

    def _to_teacher_width(self, states: torch.Tensor, stack: str) -> torch.Tensor:
        maps: Any = self.extra_modules.get(TO_TEACHER_WIDTH)
        return states if maps is None else maps[stack](states.to(maps[stack].weight.dtype))

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, Count]:
        """As in `Trainer`; also counts the source tokens, by which the encoder's losses are divided."""
        batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self._recorders and batches:
            count = sum(batch["attention_mask"].sum() for batch in batches)
            if self.args.average_tokens_across_devices and self.args.world_size > 1:
                count = self.accelerator.gather(count.to(device)).sum() / self.get_tp_size()
            self._num_source_tokens = count.to(device)
        return batches, num_items

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in `Trainer`, with each loss separately."""
        if "loss" in logs and self._losses:
            steps = max(self.state.global_step - self._first_step, 1)
            for name, loss in self._losses.items():
                # Divided by the tokens of all processes, each loss is a share of their sum.
                shares = self.num_replicas if self.args.average_tokens_across_devices else 1
                logs[f"{name}_loss"] = self.accelerator.reduce(loss, "mean").item() * shares / steps
            self._losses = {}
        super().log(logs, start_time)


@torch.no_grad()
def teacher_logits(teacher: PreTrainedModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """A teacher's logits [B, T, V] for the labels of a batch [B, T], in its own dtype."""
    config, device = teacher.config, teacher.device
    start = shift_tokens_right(batch["labels"], config.pad_token_id, config.decoder_start_token_id)
    with torch.autocast(device.type, enabled=False):
        return teacher(
            input_ids=batch["input_ids"].to(device),
            attention_mask=batch["attention_mask"].to(device),
            decoder_input_ids=start.to(device),
            use_cache=False,
        ).logits


def _at_once(token_loss: TokenLoss, logits: torch.Tensor) -> torch.Tensor:
    """The loss from the logits [B, T, V] of a student that does not take a `token_loss`."""
    rows = logits[token_loss.kept]
    return token_loss.function(rows, slice(0, len(rows)))
