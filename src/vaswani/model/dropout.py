# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""Dropout (Srivastava et al., 2014; section 5.4 of the paper) that is fast on the CPU too.

PyTorch's spends most of its time on the CPU drawing one random number per element. Here one 64-bit number
decides for four elements, 16 bits each, and the backward pass has to remember one byte per element.
"""

from typing import Any

import torch
from torch import nn
from transformers.utils import is_torchdynamo_compiling

LEVELS = 2**16  # of a 16-bit random number


def draw_kept(
    shape: torch.Size,
    num_dropped_levels: int,
    numbers: torch.Tensor | None = None,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """What dropout keeps, on the CPU: bool of this shape; `num_dropped_levels` of `LEVELS` are dropped.

    Args:
        shape: of the result.
        num_dropped_levels: from 0 to `LEVELS`.
        numbers: int64 [a quarter as many as elements, or one more], to draw into; new ones by default.
        generator: PyTorch's global one by default.
    """
    numbers = torch.empty((shape.numel() + 3) // 4, dtype=torch.int64) if numbers is None else numbers
    numbers.random_(-(2**63), None, generator=generator)
    return numbers.view(torch.int16)[: shape.numel()].view(shape) >= num_dropped_levels - LEVELS // 2


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, num_dropped_levels: int) -> torch.Tensor:
        kept = draw_kept(states.shape, num_dropped_levels)
        ctx.scale = LEVELS / (LEVELS - num_dropped_levels)
        ctx.save_for_backward(kept)
        return (states * ctx.scale).mul_(kept)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (kept,) = ctx.saved_tensors
        return grad * ctx.scale * kept, None


def dropout(states: torch.Tensor, p: float, training: bool = True) -> torch.Tensor:
    """Zero each element with probability p (on the CPU: the nearest 1/65536), and scale up the others."""
    if p == 0.0 or not training:
        return states
    dropped = round(p * LEVELS)
    if states.device.type != "cpu" or is_torchdynamo_compiling() or not 0 < dropped < LEVELS:
        return nn.functional.dropout(states, p)
    return _Dropout.apply(states, dropped)
