# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""Dropout (Srivastava et al., 2014; section 5.4 of the paper) that is fast on the CPU too.

PyTorch's spends most of its time on the CPU drawing one random number per element, from a Mersenne Twister.
Here one number of it seeds a generator four times as fast, of whose 64-bit numbers each decides for four
elements, 16 bits each; the backward pass has to remember one byte per element.
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.utils import is_tracing

LEVELS = 2**16  # of a 16-bit random number


def draw_kept(
    shape: torch.Size, num_dropped_levels: int, generator: np.random.BitGenerator | None = None
) -> torch.Tensor:
    """What dropout keeps, on the CPU: bool of this shape; `num_dropped_levels` of `LEVELS` are dropped.

    By default one number of PyTorch's global generator decides over all of it.
    """
    if generator is None:
        generator = np.random.SFC64(int(torch.empty((), dtype=torch.int64, device="cpu").random_()))
    numbers = torch.from_numpy(generator.random_raw((shape.numel() + 3) // 4).view(np.int16))
    return numbers[: shape.numel()].view(shape) >= num_dropped_levels - LEVELS // 2


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, num_dropped_levels: int) -> torch.Tensor:
        kept = draw_kept(states.shape, num_dropped_levels)
        ctx.scale = LEVELS / (LEVELS - num_dropped_levels)
        ctx.save_for_backward(kept)
        return (
            kept.to(states.dtype).mul_(states).mul_(ctx.scale)
        )  # in half precision the scale is not rounded

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (kept,) = ctx.saved_tensors
        return kept.to(grad.dtype).mul_(grad).mul_(ctx.scale), None


def dropout(states: torch.Tensor, p: float, training: bool = True) -> torch.Tensor:
    """Zero each element with probability p (on the CPU: the nearest 1/65536), and scale up the others."""
    if p == 0.0 or not training:
        return states
    dropped = round(p * LEVELS)
    if states.device.type != "cpu" or is_tracing(states) or not 0 < dropped < LEVELS:
        return nn.functional.dropout(states, p)
    return _Dropout.apply(states, dropped)
