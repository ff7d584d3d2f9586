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

_LEVELS = 2**16  # of a 16-bit random number


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, num_dropped_levels: int) -> torch.Tensor:
        numbers = torch.empty((states.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        numbers = numbers.view(torch.int16)[: states.numel()].view(states.shape)
        kept = numbers >= num_dropped_levels - _LEVELS // 2
        ctx.scale = _LEVELS / (_LEVELS - num_dropped_levels)
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
    dropped = round(p * _LEVELS)
    if states.device.type != "cpu" or is_torchdynamo_compiling() or not 0 < dropped < _LEVELS:
        return nn.functional.dropout(states, p)
    return _Dropout.apply(states, dropped)
