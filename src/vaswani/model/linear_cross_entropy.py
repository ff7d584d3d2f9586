# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""Cross-entropy of the output projection without ever holding all logits.

The logits are a model's largest tensor, and a plain loss passes over them a dozen times: log-softmax, its
smoothing term, and the gradients of both. Here projection, loss and gradients are computed for a few rows at
a time, while their logits are still in the cache, and only the small gradients of the projection's input and
weight are kept.

N tokens · V vocabulary · D width
"""

from typing import Any

import torch
from transformers.utils import is_torchdynamo_compiling

IGNORED_LABEL = -100
CHUNK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 27}  # logits held at a time


def linear_cross_entropy(
    hidden_states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, label_smoothing: float = 0.0
) -> torch.Tensor:
    """Sum over the kept tokens of the cross-entropy against (1 − ε) · one-hot + ε · uniform, in nats.

    Equal to `cross_entropy(hidden_states @ weight.T, labels, reduction="sum", label_smoothing=ε)`, and
    differentiable once. Label smoothing: Vaswani et al. (2017), section 5.4.

    Args:
        hidden_states: [..., D], any floating dtype.
        weight: [V, D], of the output projection.
        labels: int64 [...]; −100 does not count.
        label_smoothing: ε, from 0 to 1.

    Returns:
        A float32 scalar.
    """
    if is_torchdynamo_compiling():  # the compiler fuses the passes itself
        logits = torch.nn.functional.linear(hidden_states, weight).flatten(0, -2).float()
        return torch.nn.functional.cross_entropy(
            logits, labels.flatten(), reduction="sum", label_smoothing=label_smoothing
        )
    kept = labels.flatten() != IGNORED_LABEL
    rows, targets = hidden_states.flatten(0, -2)[kept], labels.flatten()[kept]
    return _LinearCrossEntropy.apply(rows, weight, targets, label_smoothing)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, smoothing: float
    ) -> torch.Tensor:
        """Rows [N, D], weight [V, D], targets int64 [N] -> the summed loss; its gradients wait in `ctx`."""
        loss = rows.new_zeros((), dtype=torch.float32)
        row_gradient = torch.empty_like(rows)
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
        size = max(1, CHUNK_ELEMENTS.get(rows.device.type, CHUNK_ELEMENTS["cuda"]) // weight.shape[0])
        for start in range(0, len(rows), size):
            chunk, target = rows[start : start + size], targets[start : start + size, None]
            log_probs = torch.log_softmax((chunk @ weight.t()).float(), dim=-1)  # [n, V]
            loss -= (1 - smoothing) * log_probs.gather(1, target).sum()
            if smoothing:
                loss -= smoothing * log_probs.mean(dim=-1).sum()
            if any(ctx.needs_input_grad):
                gradient = _logit_gradient(log_probs, target, smoothing).to(rows.dtype)
                row_gradient[start : start + size] = gradient @ weight
                weight_gradient += gradient.t() @ chunk
        ctx.save_for_backward(row_gradient, weight_gradient.to(weight.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        """Scale the gradients by that of the sum."""
        row_gradient, weight_gradient = ctx.saved_tensors
        return row_gradient * grad_output, weight_gradient * grad_output, None, None


def _logit_gradient(log_probs: torch.Tensor, target: torch.Tensor, smoothing: float) -> torch.Tensor:
    """p − (1 − ε) · one-hot − ε / V: [n, V], in the place of `log_probs`."""
    gradient = log_probs.exp_()
    gradient.scatter_add_(1, target, gradient.new_full((), smoothing - 1).expand_as(target))
    return gradient.sub_(smoothing / gradient.shape[1]) if smoothing else gradient
