# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""Losses of the output projection: of its logits, or in one pass with it.

B batch · T length · V vocabulary · D width
"""

from typing import Any

import torch
from torch import nn

from .input_checks import IGNORED_LABEL
from .linear_cross_entropy import linear_cross_entropy
from .projected_loss import TokenLoss, projected_loss


def token_loss_function(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    label_smoothing: float = 0.0,
    **kwargs: Any,
) -> torch.Tensor:
    """Cross-entropy, in nats per label, against (1 − ε) · one-hot + ε · uniform over the vocabulary.

    Label smoothing as in Vaswani et al. (2017), section 5.4, after Szegedy et al. (2016), section 7.

    Args:
        logits: [..., V].
        labels: int64 [...], aligned with the logits; −100 does not count.
        num_items_in_batch: labels of the whole batch, of which these may be a part; default these.
        label_smoothing: ε, from 0 (plain cross-entropy) to 1.

    Returns:
        A scalar, float32 or the logits' own dtype where that is wider.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, -2)
    labels = labels.flatten().to(logits.device)
    summed = nn.functional.cross_entropy(
        logits, labels, ignore_index=IGNORED_LABEL, reduction="sum", label_smoothing=label_smoothing
    )
    return per_token(summed, labels.ne(IGNORED_LABEL).sum(), num_items_in_batch)


def next_token_loss_function(
    logits: torch.Tensor,
    labels: torch.Tensor,
    shift_labels: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """As `token_loss_function`, of each token for the one after it: logits [B, T, V], labels int64 [B, T].

    Labels that are shifted already are given as `shift_labels`, as in the library.
    """
    if shift_labels is not None:
        return token_loss_function(logits, shift_labels, **kwargs)
    return token_loss_function(logits[:, :-1], labels[:, 1:], **kwargs)


def summed_loss(hidden_states: torch.Tensor, lm_head: nn.Module, token_loss: TokenLoss) -> torch.Tensor:
    """Any loss of the logits, summed over the tokens that count; from states [B, T, D]."""
    if type(lm_head) is nn.Linear:
        return projected_loss(*_as_product(hidden_states, lm_head), token_loss)
    logits = lm_head(hidden_states[token_loss.kept])  # only an adapter knows what it computes
    return token_loss.function(logits, slice(0, len(logits)))


def smoothed_loss(
    hidden_states: torch.Tensor,
    lm_head: nn.Module,
    labels: torch.Tensor,
    label_smoothing: float,
    num_items_in_batch: torch.Tensor | int | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Cross-entropy with label smoothing (Vaswani et al., 2017, section 5.4), per label.

    Args:
        hidden_states: [..., D].
        lm_head: the output projection, D to V.
        labels: int64 [...]; −100 does not count.
        label_smoothing: ε; 0 is plain cross-entropy.
        num_items_in_batch: labels of the whole batch, of which these may be a part; default these.

    Returns:
        A scalar.
    """
    if type(lm_head) is not nn.Linear:  # only an adapter knows what it computes
        return token_loss_function(lm_head(hidden_states), labels, num_items_in_batch, label_smoothing)
    summed = linear_cross_entropy(*_as_product(hidden_states, lm_head), labels, label_smoothing)
    return per_token(summed, labels.ne(IGNORED_LABEL).sum(), num_items_in_batch)


def per_token(
    summed: torch.Tensor, num_kept: torch.Tensor | int, num_items_in_batch: torch.Tensor | int | None
) -> torch.Tensor:
    """A sum over `num_kept` tokens, divided by `num_items_in_batch` where that is given."""
    if num_items_in_batch is None:
        num_items_in_batch = torch.as_tensor(num_kept).clamp(min=1)
    if isinstance(num_items_in_batch, torch.Tensor):
        num_items_in_batch = num_items_in_batch.to(summed.device)
    return summed / num_items_in_batch


def _as_product(hidden_states: torch.Tensor, lm_head: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """States and weight whose product is the projection: a bias is a column more, times one."""
    if lm_head.bias is None:
        return hidden_states, lm_head.weight
    ones = hidden_states.new_ones(*hidden_states.shape[:-1], 1)
    return torch.cat([hidden_states, ones], -1), torch.cat([lm_head.weight, lm_head.bias[:, None]], 1)
