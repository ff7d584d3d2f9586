# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""Linear layers through oneDNN, on CPUs where PyTorch would take MKL.

For the narrow weights of a Transformer and a few thousand rows, oneDNN's float32 products with weights as
they are run 10 to 15 % faster than MKL's on Intel's processors, forward and for the gradient of the states;
for the gradient of the weights MKL's are the faster ones there. On others MKL reaches half of what it could,
and oneDNN computes all three.
"""

import platform
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.utils import is_tracing

MIN_ROWS = 256  # below, the call costs more than it saves


def _is_intel() -> bool:
    """Whether the processor is one that MKL is written for; elsewhere than on Linux, its name tells."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return "Intel" in platform.processor()


MKL_IS_AT_HOME = _is_intel()

# oneDNN is there, and has MKL to beat; its products are no public functions of PyTorch.
_IS_BUILT = (
    torch.backends.mkl.is_available()
    and torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
)


def is_available() -> bool:
    """Whether oneDNN is there, faster than what PyTorch would take, and not switched off."""
    return _IS_BUILT and bool(torch.backends.mkldnn.enabled)


def onednn_product(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`states @ weight.T + bias`: float32 [..., K] and [N, K], as they are or rearranged -> [..., N]."""
    return torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")


def product(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`states @ weight.T`, without gradients: [..., K] and [N, K] -> [..., N]."""
    if _gains_from_onednn(states, weight):
        return onednn_product(states, weight, None)
    return nn.functional.linear(states, weight)


def product_over_rows(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """`left.T @ right`, without gradients, as for the gradient of a weight: [M, N] and [M, K] -> [N, K]."""
    if MKL_IS_AT_HOME or not _gains_from_onednn(left, left):
        return left.t() @ right
    if right.shape[1] > left.shape[1]:  # the wider one takes the place of the weight
        return onednn_product(left.t(), right.t(), None)
    return onednn_product(right.t(), left.t(), None).t()


def _gains_from_onednn(states: torch.Tensor, weight: torch.Tensor) -> bool:
    return (
        states.device.type == "cpu"
        and states.dtype == weight.dtype == torch.float32
        and states.numel() >= MIN_ROWS * weight.shape[1]
        and not torch.is_autocast_enabled("cpu")
        and is_available()
    )


class Linear(nn.Linear):
    """`torch.nn.Linear`, faster on the CPU where there are many rows, as in training."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        is_plain = type(self.weight) is nn.Parameter  # no shard, nothing quantized
        if is_plain and not is_tracing(states) and _gains_from_onednn(states, self.weight):
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
