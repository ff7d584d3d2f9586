"""Losses of logits that are computed together with their gradient, in the same pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

# From logits and whether a gradient is wanted to the loss and its gradient, of the shape of the logits.
LossAndGradient = Callable[[torch.Tensor, bool], tuple[torch.Tensor, torch.Tensor | None]]


def with_known_gradient(logits: torch.Tensor, loss_and_gradient: LossAndGradient) -> torch.Tensor:
    """The loss of logits of any shape, differentiable once: a scalar."""
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
        """Scale the gradient by that of the loss."""
        return ctx.saved_tensors[0] * grad_output, None
