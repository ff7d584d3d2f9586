"""Training losses as pure functions: tensors in, a scalar out.

Each loss is a sum over the kept tokens divided by `num_tokens`. The caller chooses the divisor: micro-batches
that are divided by the tokens of their whole accumulated step add up to the loss of one large batch.
"""

import torch
import torch.nn.functional as F

from vaswani.data.batching import IGNORED_LABEL


def label_smoothed_loss(
    logits: torch.Tensor, labels: torch.Tensor, *, smoothing: float, num_tokens: torch.Tensor | int | None
) -> torch.Tensor:
    """Cross-entropy, in nats per token, against (1 − ε) · one-hot + ε · uniform over the vocabulary.

    Label smoothing as in Vaswani et al. (2017), section 5.4, after Szegedy et al. (2016), section 7.

    Args:
        logits: [batch, target length, vocabulary], any floating dtype; the loss is computed in float32.
        labels: [batch, target length], int64, aligned with the logits; −100 does not count.
        smoothing: ε, from 0 (plain cross-entropy) to 1.
        num_tokens: the divisor of the summed loss; `None` means the labels that count here.

    Returns:
        A float32 scalar.
    """
    summed = F.cross_entropy(
        logits.float().flatten(0, -2),
        labels.flatten(),
        ignore_index=IGNORED_LABEL,
        reduction="sum",
        label_smoothing=smoothing,
    )
    if num_tokens is None:
        num_tokens = labels.ne(IGNORED_LABEL).sum().clamp(min=1)
    return summed / (num_tokens.to(summed.device) if isinstance(num_tokens, torch.Tensor) else num_tokens)
