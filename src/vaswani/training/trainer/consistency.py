"""R-Drop (Liang et al., 2021, arXiv:2106.14448): two passes with different dropout should agree.

Both passes run as one: the model gets each batch concatenated with itself, and dropout differs in each row.

B rows of a batch · T target tokens, N of which count · n of them at a time · V vocabulary
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedConfig

from vaswani.data.collation import IGNORED_LABEL
from vaswani.errors import UserError
from vaswani.kernels.projected_loss import TokenLoss
from vaswani.training.trainer.loss_means import LossMeans
from vaswani.training.trainer.objective import Count

PASSES = 2
DROPOUTS = ("dropout", "dropout_rate")  # endings of the names of dropout fields
LOGGED_AS = "consistency_kl"


def twice(batch: dict[str, Any]) -> dict[str, Any]:
    """Concatenate each tensor of a batch, [B, ...], with itself: [2 · B, ...]."""
    return {name: torch.cat([values] * PASSES) for name, values in batch.items()}


def consistency_loss(
    labels: torch.Tensor, num_tokens: Count, *, weight: float, label_smoothing: float, means: LossMeans
) -> TokenLoss:
    """Half the paper's loss (equation 4), in nats per target token, of the states or logits of both passes.

    The paper adds up the cross-entropies of both passes and α times the mean of KL(P₁ ‖ P₂) and
    KL(P₂ ‖ P₁). Half of that is the mean cross-entropy, which is comparable with that of other trainings,
    plus α / 2 times the mean divergence. Each token counts once: sums are divided by the labels of one pass.

    Args:
        labels: int64 [B, T], the labels of one pass; −100 does not count.
        num_tokens: number of labels in the whole accumulated, distributed batch; default: these.
        weight: the paper's α.
        label_smoothing: ε of the cross-entropy, as in `token_loss_function`.
        means: gets the mean divergence, without its weight, as `consistency_kl`.
    """
    kept = labels != IGNORED_LABEL
    targets = labels[kept]
    divisor = kept.sum().clamp(min=1) if num_tokens is None else num_tokens

    def function(logits: torch.Tensor, place: slice) -> torch.Tensor:
        """Return the loss of some tokens from their logits [n, 2, V]."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        summed, divergence = _PairLoss.apply(logits, targets[place], weight, label_smoothing)
        means.add(LOGGED_AS, divergence / divisor)
        return summed / divisor

    return TokenLoss(kept, function, PASSES)


class _PairLoss(torch.autograd.Function):
    """The loss with a hand-written gradient, which takes far fewer passes over the logits than autograd."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, weight: float, smoothing: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [n, 2, V], targets int64 [n] -> summed loss and, without gradient, summed divergence."""
        alpha = weight / 2
        places = targets[:, None, None].expand(-1, PASSES, 1)
        of_targets, of_all = logits.gather(-1, places).sum(), logits.sum() / logits.shape[-1]
        likelihood = (1 - smoothing) * of_targets + smoothing * of_all
        highest = logits.amax(-1, keepdim=True)
        probs = logits.softmax(-1)
        normalizer = highest - probs.amax(-1, keepdim=True).log()  # log-sum-exp [n, 2, 1]
        first, second = probs.unbind(1)
        ratio = logits[:, 0] - logits[:, 1]
        ratio -= normalizer[:, 0] - normalizer[:, 1]  # log P₁ − log P₂ [n, V]
        with torch.autocast(logits.device.type, enabled=False):  # autocast would round the factors
            kl_first, kl_second = (probs @ ratio[..., None]).unbind(1)  # KL(P₁ ‖ P₂) and −KL(P₂ ‖ P₁), [n, 1]
        divergence = (kl_first - kl_second).sum() / 2
        # Of z₁: p₁ − target + α/2 · (p₁ · (ratio − KL(P₁ ‖ P₂)) + p₁ − p₂). Of z₂: with both exchanged.
        ratio *= alpha
        gradient = torch.empty_like(probs)  # written in place: new memory costs as much as the arithmetic
        torch.add(1 + alpha - alpha * kl_first, ratio, out=gradient[:, 0])
        torch.sub(1 + alpha + alpha * kl_second, ratio, out=gradient[:, 1])
        gradient *= probs
        gradient[:, 0].sub_(second, alpha=alpha)
        gradient[:, 1].sub_(first, alpha=alpha)
        gradient -= smoothing / logits.shape[-1]
        gradient.scatter_add_(-1, places, gradient.new_full((), smoothing - 1).expand_as(places))
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(divergence)
        return (normalizer.sum() - likelihood + weight * divergence) / 2, divergence

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor, _: Any) -> tuple[torch.Tensor, None, None, None]:
        """Scale the gradient by that of the sum, in place: it is needed once."""
        return ctx.saved_tensors[0].mul_(grad_output / 2), None, None, None


def check_passes_differ(weight: float, config: PreTrainedConfig, model: nn.Module | None = None) -> None:
    """Raise `UserError` if a consistency loss would compare equal passes because there is no dropout."""
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
