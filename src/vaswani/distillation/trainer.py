"""A trainer whose losses compare a student with a teacher, or with its stored distributions.

B batch · T target tokens, N of which count · S source tokens · V vocabulary · k tokens of a distribution
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from vaswani.data.collation import IGNORED_LABEL, source_mask
from vaswani.distillation.arguments import DistillationObjectives
from vaswani.distillation.losses import DIVERGENCES, soft_target_loss
from vaswani.distillation.mixture import LossMixture, Side
from vaswani.errors import UserError
from vaswani.kernels.projected_loss import TokenLoss, takes_token_loss
from vaswani.model.losses import token_loss_function
from vaswani.model.modeling_vaswani import shift_tokens_right
from vaswani.training.config.training_arguments import TrainingArguments
from vaswani.training.trainer.adapted import base_model
from vaswani.training.trainer.objective import Count
from vaswani.training.trainer.seq2seq import Trainer, check_is_encoder_decoder
from vaswani.unwritten_padding import unwritten_padding

DISTRIBUTION = ("teacher_log_probs", "teacher_tokens")  # columns of a batch with stored distributions

LossOfRows = Callable[[torch.Tensor, slice], torch.Tensor]  # logits [n, V], slice of the N tokens -> loss
# Slice of the N tokens -> the teacher's log-probabilities and, unless these are for all tokens, token ids.
Distributions = Callable[[slice], tuple[torch.Tensor, torch.Tensor | None]]


class DistillationTrainer(Trainer):
    """Trains a student with a weighted sum of losses (see `DistillationObjectives`).

    The teacher runs once per batch, in evaluation mode, without gradients, in its own dtype. Without a
    teacher, batches must contain its distributions: `teacher_log_probs` [B, T, k + 1] and `teacher_tokens`
    [B, T, k] (see `TeacherLogitsCollator`). Losses are divided by the tokens of the whole accumulated,
    distributed batch; each is logged separately, without its weight.

    Args:
        teacher: any encoder-decoder that predicts the student's tokens, or None.
        objectives: the losses and their weights.
        model: the student, as for `Trainer`.
        args: as for `Trainer`.
        kwargs: as for `Trainer`.

    Raises:
        UserError: student and teacher are incompatible, or an objective needs a teacher and none is given.
    """

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        *,
        teacher: PreTrainedModel | None = None,
        objectives: DistillationObjectives | None = None,
        **kwargs: Any,
    ):
        if kwargs.get("compute_loss_func") is not None:
            raise UserError(
                "compute_loss_func is not supported by a distillation, whose losses are set by objectives"
            )
        super().__init__(model, args, **kwargs)
        check_no_consistency(self.args)
        if teacher is not None:
            check_is_encoder_decoder(teacher, "teacher")
        self.objectives = objectives or DistillationObjectives()
        self.mixture = LossMixture(self, teacher, self.objectives)
        self.teacher: Any = teacher
        self._check_vocabularies()
        self.compute_loss_func = self._distillation_loss
        self.forward_options.pop("smoothing", None)
        self._student_takes_token_loss = takes_token_loss(self.model)
        self._token_loss: TokenLoss | None = None  # loss of the current batch
        self._source_mask = torch.empty(0)  # mask of the current batch: bool [B, S]
        self._num_source_tokens: Count = None  # count of the whole accumulated, distributed batch

    def _check_vocabularies(self) -> None:
        if self.teacher is None:
            return
        sizes = [model.get_output_embeddings().weight.shape[0] for model in (self.teacher, self.model)]
        if self.objectives.uses_distributions and sizes[0] != sizes[1]:
            raise UserError(
                f"the teacher predicts {sizes[0]} tokens and the student {sizes[1]}, so their distributions "
                "cannot be compared; set soft_target_weight to 0 and distil by sequences (targets=teacher)"
            )

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in `BaseTrainer`; while training, the student maps to the teacher's width if a loss needs it."""
        with self.mixture.training():
            return super().train(*args, **kwargs)

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
        if "decoder_input_ids" not in inputs:  # left to the model, which gets no labels here
            shift = base_model(self.model).prepare_decoder_input_ids_from_labels
            student_inputs["decoder_input_ids"] = shift(labels=inputs["labels"])
        kept = inputs["labels"] != IGNORED_LABEL
        num_tokens = kept.sum() if num_items_in_batch is None else num_items_in_batch
        if model.training:
            self._source_mask = source_mask(inputs).bool()
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
        """Return a message if the teacher's outputs, stored or computed again, are not finite; else None."""
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
        """The weighted sum of a batch's losses on the student's logits; None if there are no such losses."""
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
            return self.mixture.weighted(losses)

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
        """The loss of the student's outputs: the `compute_loss_func` of `Trainer`."""
        parts = []
        if self._token_loss is not None:
            in_forward = self._student_takes_token_loss
            parts.append(outputs.loss if in_forward else self._token_loss.from_logits(outputs.logits))
        if self.mixture.recorders and self.model.training:
            parts.append(
                self.mixture.weighted(self._state_losses(labels != IGNORED_LABEL, num_items_in_batch))
            )
        return torch.stack(parts).sum()

    def _state_losses(self, kept: torch.Tensor, num_target_tokens: Count) -> dict[str, torch.Tensor]:
        source = self._source_mask
        sides: dict[str, Side] = {
            "encoder": (source, source[:, :, None] & source[:, None], self._num_source_tokens),
            "decoder": (kept, (kept[:, :, None] & kept[:, None]).tril(), num_target_tokens),
        }
        return self.mixture.state_losses(sides)

    def count_batches(self, batches: list[dict[str, Any]]) -> None:
        """As in `BaseTrainer`; also counts the source tokens, by which the encoder's losses are divided."""
        super().count_batches(batches)
        if self.mixture.recorders:
            count: Any = sum(source_mask(batch).sum() for batch in batches)
            self._num_source_tokens = self.count_everywhere(count)


def check_no_consistency(args: TrainingArguments) -> None:
    """Raise `UserError` for a `consistency_weight`, which distillation does not support."""
    if args.consistency_weight:
        raise UserError(
            f"consistency_weight={args.consistency_weight:g} is not supported by a distillation; leave it "
            "out, or let the teacher translate the corpus and train on that with vaswani train"
        )


@torch.no_grad()
def teacher_logits(teacher: PreTrainedModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """A teacher's logits [B, T, V] for the labels of a batch [B, T], in its own dtype.

    If the teacher never generates padding, padding gets the logit of its least probable token.
    """
    config, device = teacher.config, teacher.device
    prepare: Any = getattr(teacher, "prepare_decoder_input_ids_from_labels", None)
    if config.decoder_start_token_id is not None:
        start = shift_tokens_right(batch["labels"], config.pad_token_id, config.decoder_start_token_id)
    elif prepare is not None:  # mBART's targets begin with their language
        start = prepare(batch["labels"])
    else:
        raise UserError(
            f"the teacher's configuration ({config.model_type}) has no decoder_start_token_id, with which "
            "its targets begin; set it"
        )
    with torch.autocast(device.type, enabled=False):
        logits = teacher(
            input_ids=batch["input_ids"].to(device),
            attention_mask=source_mask(batch).to(device),
            decoder_input_ids=start.to(device),
            use_cache=False,
        ).logits
    of_padding = logits[..., config.pad_token_id]  # a view, [B, T]
    if unwritten_padding(teacher) is not None:
        of_padding.fill_(-torch.inf)
    if (is_hidden := of_padding.isneginf()).any():  # an ensemble may have hidden it already
        least = logits.masked_fill(logits.isneginf(), torch.inf).amin(-1)
        of_padding.copy_(torch.where(is_hidden, least, of_padding))
    return logits
