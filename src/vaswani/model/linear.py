# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""Linear layers whose products on the CPU are oneDNN's where it is the faster."""

from typing import Any

import torch
from torch import nn
from transformers.utils import is_tracing

from .onednn import gains_from_onednn, onednn_product, product_over_rows


class Linear(nn.Linear):
    """`torch.nn.Linear`, faster on the CPU where there are many rows, as in training."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        is_plain = type(self.weight) is nn.Parameter  # no shard, nothing quantized
        if is_plain and not is_tracing(states) and gains_from_onednn(states, self.weight):
            return _Product.apply(states, self.weight, self.bias)
        return super().forward(states)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(states, weight)
        return onednn_product(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        needs_states, needs_weight, needs_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        return (
            onednn_product(grad, weight.t(), None) if needs_states else None,
            product_over_rows(rows, states.flatten(0, -2)) if needs_weight else None,
            rows.sum(0) if needs_bias else None,
        )
