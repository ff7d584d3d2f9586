"""Losses of logits that are computed in one pass with their gradient."""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

# (logits, whether a gradient is wanted) -> (loss, gradient in the shape of the logits or None)
LossAndGradient = Callable[[torch.Tensor, bool], tuple[torch.Tensor, torch.Tensor | None]]


def with_known_gradient(logits: torch.Tensor, loss_and_gradient: LossAndGradient) -> torch.Tensor:
    """Return the loss of logits of any shape, a scalar that is differentiable once."""
    if not (torch.is_grad_enabled() and logits.requires_grad):
        return loss_and_gradient(logits, False)[0]
    return _KnownGradient.apply(logits, loss_and_gradient)


class _KnownGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, loss_and_gradient: LossAndGradient) -> torch.Tensor:
        loss, gradient = loss_and_gradient(logits, True)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Scale the gradient by the gradient of the loss."""
        return ctx.saved_tensors[0] * grad_output, None
