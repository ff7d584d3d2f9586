# Copyright 2026 The vaswani authors. Licensed under the Apache License, Version 2.0.
"""Losses over the vocabulary, from logits or from states before the output projection, and of other heads.

B batch · T length · V vocabulary · D width · L labels · C choices
"""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from .input_checks import (
    IGNORED_LABEL,
    check_answers,
    check_class_labels,
    check_labels,
    check_loss_options,
    check_shape,
    has_values,
)
from .kernel_slots import KernelSlot
from .operators import OutputProjection, is_called_alone

PLAIN_PROJECTIONS = (nn.Linear, OutputProjection)  # other classes may compute something else


def is_plain_projection(lm_head: nn.Module) -> bool:
    """Return whether calling a projection computes only the product with its weight, plus its bias."""
    return type(lm_head) in PLAIN_PROJECTIONS and is_called_alone(lm_head)


def token_loss_function(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = IGNORED_LABEL,
    **kwargs: Any,
) -> torch.Tensor:
    """Cross-entropy, in nats per label, against (1 − ε) · one-hot + ε · uniform over the vocabulary.

    Label smoothing as in Vaswani et al. (2017), section 5.4, after Szegedy et al. (2016), section 7.

    Args:
        logits: [..., V].
        labels: int64 [...], aligned with the logits; −100 is ignored.
        num_items_in_batch: number of labels in the whole batch, if this is a part of it; default: its own.
        label_smoothing: ε, from 0 (plain cross-entropy) to 1.
        ignore_index: another label to ignore.

    Returns:
        A scalar in float32, or in the logits' dtype if that is wider.

    Raises:
        ValueError: labels and logits have different shapes.
    """
    _check_alike(labels, logits)
    labels = _leave_out(ignore_index, labels.to(logits.device))
    summed = summed_cross_entropy(logits.flatten(0, -2), labels.flatten(), label_smoothing)
    return per_token(summed, labels.ne(IGNORED_LABEL).sum(), num_items_in_batch)


def next_token_loss_function(
    logits: torch.Tensor,
    labels: torch.Tensor,
    shift_labels: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """`token_loss_function` of the prediction of each next token: logits [B, T, V], labels int64 [B, T].

    Pass labels that are already shifted as `shift_labels`, as in the library.
    """
    if shift_labels is not None:
        return token_loss_function(logits, shift_labels, **kwargs)
    _check_alike(labels, logits)
    return token_loss_function(logits[:, :-1], labels[:, 1:], **kwargs)


def smoothed_loss(
    hidden_states: torch.Tensor,
    lm_head: nn.Module,
    labels: torch.Tensor,
    label_smoothing: float,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = IGNORED_LABEL,
    **kwargs: Any,
) -> torch.Tensor:
    """`token_loss_function` of the logits `lm_head(hidden_states)`: states [..., D], labels int64 [...]."""
    labels = _leave_out(ignore_index, labels)
    if not is_plain_projection(lm_head):
        return token_loss_function(lm_head(hidden_states), labels, num_items_in_batch, label_smoothing)
    summed = linear_cross_entropy(*as_product(hidden_states, lm_head), labels, label_smoothing)
    return per_token(summed, labels.ne(IGNORED_LABEL).sum(), num_items_in_batch)


def _check_alike(labels: torch.Tensor, logits: torch.Tensor) -> None:
    """Raise unless there is a label for each place of the logits."""
    if has_values(labels):
        check_shape("labels", labels, logits.shape[:-1])


def _leave_out(label: int, labels: torch.Tensor) -> torch.Tensor:
    """Return labels in which one more label is ignored."""
    return labels if label == IGNORED_LABEL else labels.masked_fill(labels == label, IGNORED_LABEL)


@KernelSlot
def linear_cross_entropy(
    hidden_states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, label_smoothing: float = 0.0
) -> torch.Tensor:
    """Summed cross-entropy of `hidden_states @ weight.T`: [..., D], [V, D] and labels int64 [...]."""
    logits = nn.functional.linear(hidden_states, weight)
    return summed_cross_entropy(logits.flatten(0, -2), labels.flatten(), label_smoothing)


@KernelSlot
def summed_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float = 0.0
) -> torch.Tensor:
    """Summed cross-entropy of logits [N, V] and labels int64 [N]."""
    return nn.functional.cross_entropy(
        logits.to(torch.promote_types(logits.dtype, torch.float32)),
        labels,
        ignore_index=IGNORED_LABEL,
        reduction="sum",
        label_smoothing=label_smoothing,
    )


def per_token(
    summed: torch.Tensor, num_kept: torch.Tensor | int, num_items_in_batch: torch.Tensor | int | None
) -> torch.Tensor:
    """Divide a sum over tokens by `num_items_in_batch`; if that is None, by `num_kept`."""
    if num_items_in_batch is None:
        num_items_in_batch = torch.as_tensor(num_kept).clamp(min=1)
    if isinstance(num_items_in_batch, torch.Tensor):
        num_items_in_batch = num_items_in_batch.to(summed.device)
    return summed / num_items_in_batch


def next_sentence_loss(
    relation_logits: torch.Tensor,
    next_sentence_label: torch.Tensor,
    labels: torch.Tensor | None = None,
    num_items_in_batch: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """Cross-entropy of BERT's prediction whether one segment follows another, the mean over the pairs.

    Args:
        relation_logits: [B, 2].
        next_sentence_label: int64 [B].
        labels: the masked tokens, int64 [B, T], if they are predicted too.
        num_items_in_batch: number of masked tokens in the whole batch, if this is a part of it. The loss is
            then multiplied by the share of this part.
    """
    loss = token_loss_function(relation_logits, next_sentence_label)
    if labels is None or num_items_in_batch is None:
        return loss
    return per_token(loss * labels.ne(IGNORED_LABEL).sum(), 1, num_items_in_batch)


def as_product(hidden_states: torch.Tensor, lm_head: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return states and a weight whose product is the projection; a bias is one more column, times one."""
    if lm_head.bias is None:
        return hidden_states, lm_head.weight
    ones = hidden_states.new_ones(*hidden_states.shape[:-1], 1)
    return torch.cat([hidden_states, ones], -1), torch.cat([lm_head.weight, lm_head.bias[:, None]], 1)


# Losses of the heads that both encoders and decoders have.


def class_loss(
    model: PreTrainedModel, logits: torch.Tensor, labels: torch.Tensor | None, **kwargs: Any
) -> torch.Tensor | None:
    """Return the loss of logits [B, L] of texts, as `config.problem_type` says; None without labels."""
    if labels is None:
        return None
    check_class_labels(labels, logits.shape[0], model.config)
    loss = model.loss_function(labels=labels, pooled_logits=logits, config=model.config, **kwargs)
    items = kwargs.get("num_items_in_batch")
    if items is None or model.config.problem_type == "single_label_classification":
        return loss
    return loss * (labels.numel() / items)  # the library's loss is a mean over the labels of this part


def choice_loss(
    logits: torch.Tensor,
    labels: torch.Tensor | None,
    num_items_in_batch: torch.Tensor | int | None = None,
    **kwargs: Any,
) -> torch.Tensor | None:
    """Return the cross-entropy of logits [B, C] with the right choices [B]; None without labels."""
    check_labels("labels", labels, logits.shape[:1], logits.shape[1])
    check_loss_options(None, num_items_in_batch)
    return None if labels is None else token_loss_function(logits, labels, num_items_in_batch)


def tag_loss(
    model: PreTrainedModel, logits: torch.Tensor, labels: torch.Tensor | None, **kwargs: Any
) -> torch.Tensor | None:
    """Return the loss of logits [B, T, L] of tokens; None without labels."""
    check_labels("labels", labels, logits.shape[:2], logits.shape[2])
    check_loss_options(None, kwargs.get("num_items_in_batch"))
    return None if labels is None else model.loss_function(logits, labels, **kwargs)


def answer_loss(
    model: PreTrainedModel,
    start_logits: torch.Tensor,
    end_logits: torch.Tensor,
    start_positions: torch.Tensor | None,
    end_positions: torch.Tensor | None,
    **kwargs: Any,
) -> torch.Tensor | None:
    """Return the loss of the logits [B, T] of first and last tokens of answers; None without positions."""
    check_answers(start_logits.shape[0], start_positions, end_positions)
    if start_positions is None or end_positions is None:
        return None
    positions = (start_positions.long(), end_positions.long())
    return model.loss_function(start_logits, end_logits, *positions, **kwargs)
