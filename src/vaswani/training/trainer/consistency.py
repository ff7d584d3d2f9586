"""R-Drop (Liang et al., 2021, arXiv:2106.14448): two passes with different dropout should agree.

Both passes are one: the model gets each batch twice, the second behind the first, and dropout draws for each
row anew.

B rows of a batch · T target tokens, N of which count · n of them at a time · V vocabulary
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from vaswani.data.batching import IGNORED_LABEL
from vaswani.errors import UserError
from vaswani.kernels.projected_loss import TokenLoss
from vaswani.training.trainer.loss_means import LossMeans
from vaswani.training.trainer.objective import Count

PASSES = 2
DROPOUTS = ("dropout", "dropout_rate")  # last words of names of dropout in configurations
LOGGED_AS = "consistency_kl"


def twice(batch: dict[str, Any]) -> dict[str, Any]:
    """The tensors of a batch, [B, ...], each behind itself: [2 · B, ...]."""
    return {name: torch.cat([values] * PASSES) for name, values in batch.items()}


def consistency_loss(
    labels: torch.Tensor, num_tokens: Count, *, weight: float, label_smoothing: float, means: LossMeans
) -> TokenLoss:
    """Half the paper's loss (equation 4), in nats per target token, of the states or logits of both passes.

    The paper adds up the cross-entropies of both passes and α times the mean of KL(P₁ ‖ P₂) and
    KL(P₂ ‖ P₁). Half of that is the mean cross-entropy, which compares with that of other trainings, plus
    α / 2 times the mean divergence. Each token counts once: sums are divided by the labels of one pass.

    Args:
        labels: int64 [B, T] of one pass; −100 does not count.
        num_tokens: number of labels in the whole accumulated, distributed batch; default: these.
        weight: the paper's α.
        label_smoothing: ε of the cross-entropy, as in `token_loss_function`.
        means: gets the mean divergence, without its weight, as `consistency_kl`.
    """
    kept = labels != IGNORED_LABEL
    targets = labels[kept]
    divisor = kept.sum().clamp(min=1) if num_tokens is None else num_tokens

    def function(logits: torch.Tensor, place: slice) -> torch.Tensor:
        """Logits [n, 2, V] of some tokens -> their share of the loss."""
        log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        divergence = symmetric_kl(*log_probs.unbind(1)).sum() / divisor
        means.add(LOGGED_AS, divergence)
        of_labels = log_probs.mean(1).gather(-1, targets[place, None]).sum()
        of_all = log_probs.mean(-1).mean(-1).sum()
        likelihood = (1 - label_smoothing) * of_labels + label_smoothing * of_all
        return weight / 2 * divergence - likelihood / divisor

    return TokenLoss(kept, function, PASSES)


def symmetric_kl(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The mean of KL(P₁ ‖ P₂) and KL(P₂ ‖ P₁), in nats, of log-probabilities [..., V] -> [...]."""
    return ((first.exp() - second.exp()) * (first - second)).sum(-1) / 2


def check_passes_differ(weight: float, config: PreTrainedConfig, model: nn.Module | None = None) -> None:
    """Raise `UserError` where a consistency loss would compare equal passes, for want of dropout."""
    rates = {
        name: rate
        for name, rate in config.to_dict().items()
        if name.endswith(DROPOUTS) and not name.startswith("classif") and isinstance(rate, float)
    }
    layers = () if model is None else model.modules()
    has_dropout = any(rates.values()) or any(isinstance(each, nn.Dropout) and each.p for each in layers)
    if weight and not has_dropout:
        told = ", ".join(f"{name}={rate:g}" for name, rate in rates.items())
        raise UserError(
            f"consistency_weight={weight:g} compares two passes with different dropout, and here they are "
            f"equal ({told}); set dropout=0.1, or leave consistency_weight out"
        )
