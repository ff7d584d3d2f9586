# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""Any loss of the output projection without ever holding all logits.

As `linear_cross_entropy`, which knows its gradient, for losses that autograd differentiates: projection, loss
and gradients are computed for a few tokens at a time, while their logits are still in the cache.

N tokens that count · n of them at a time · V vocabulary · D width
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers.utils import is_tracing

from .linear_cross_entropy import rows_per_chunk
from .onednn import product, product_over_rows


class TokenLoss(NamedTuple):
    """A loss that is a sum over target tokens.

    Args:
        kept: bool [B, T], the tokens that count.
        function: from logits [n, V] and the place of these tokens among the N, a slice, to their summed loss.
    """

    kept: torch.Tensor
    function: Callable[[torch.Tensor, slice], torch.Tensor]


def projected_loss(hidden_states: torch.Tensor, weight: torch.Tensor, loss: TokenLoss) -> torch.Tensor:
    """Sum of the loss over all tokens that count: `loss.function(hidden_states[kept] @ weight.T, slice(N))`.

    Args:
        hidden_states: [B, T, D], any floating dtype.
        weight: [V, D], of the output projection.
        loss: is asked for some tokens after the others, each once.

    Returns:
        A scalar, differentiable once, float32 or the states' own dtype where that is wider.
    """
    rows = hidden_states[loss.kept]  # [N, D]
    if is_tracing(hidden_states):  # the compiler fuses the passes itself
        return loss.function(torch.nn.functional.linear(rows, weight), slice(0, len(rows)))
    return _ProjectedLoss.apply(rows, weight, loss.function, torch.is_grad_enabled())


class _ProjectedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        weight: torch.Tensor,
        function: Callable[[torch.Tensor, slice], torch.Tensor],
        wants_gradients: bool,
    ) -> torch.Tensor:
        """Rows [N, D], weight [V, D] -> the summed loss; its gradients wait in `ctx`."""
        precision = torch.promote_types(rows.dtype, torch.float32)
        total = rows.new_zeros((), dtype=precision)
        row_gradient = torch.empty_like(rows)
        weight_gradient = torch.zeros_like(weight, dtype=precision)
        size = rows_per_chunk(rows, weight)
        for start in range(0, len(rows), size):
            place = slice(start, min(start + size, len(rows)))
            chunk = rows[place]
            logits = product(chunk, weight).requires_grad_(wants_gradients)  # [n, V]
            with torch.set_grad_enabled(wants_gradients):
                loss = function(logits, place)
            total += loss.detach()
            if wants_gradients:
                (gradient,) = torch.autograd.grad(loss, logits)
                row_gradient[place] = product(gradient, weight.t())
                weight_gradient += product_over_rows(gradient, chunk)
        ctx.save_for_backward(row_gradient, weight_gradient.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        """Scale the gradients by that of the sum."""
        row_gradient, weight_gradient = ctx.saved_tensors
        return row_gradient * grad_output, weight_gradient * grad_output, None, None
