"""Dropout (Srivastava et al., 2014; section 5.4 of the paper) on the CPU.

PyTorch's spends most of its time on the CPU drawing one random number per element, from a Mersenne Twister.
Here one number of it seeds a generator four times as fast, of whose 64-bit numbers each decides for four
elements, 16 bits each; the backward pass has to remember one byte per element.
"""

from typing import Any

import numpy as np
import torch

from vaswani.model import operators
from vaswani.model.input_checks import has_values

LEVELS = 2**16  # of a 16-bit random number


def unavailable() -> None:
    """Dropout relies on nothing but public names."""


def hook_in() -> None:
    """Compute the dropout of the layers."""
    operators.dropout.kernel = dropout


def dropout(states: torch.Tensor, p: float, training: bool = True) -> torch.Tensor:
    """Zero each element with probability p (on the CPU: the nearest 1/65536), and scale up the others."""
    if p == 0.0 or not training:
        return states
    dropped = round(p * LEVELS)
    if states.device.type != "cpu" or not has_values(states) or not 0 < dropped < LEVELS:
        return operators.dropout.plain(states, p)
    return _Dropout.apply(states, dropped)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, num_dropped_levels: int) -> torch.Tensor:
        kept = draw_kept(states.shape, num_dropped_levels)
        ctx.num_dropped_levels = num_dropped_levels
        ctx.save_for_backward(kept)
        return drop(states, kept, num_dropped_levels)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (kept,) = ctx.saved_tensors
        return drop(grad, kept, ctx.num_dropped_levels), None


def draw_kept(shape: torch.Size, num_dropped_levels: int) -> torch.Tensor:
    """What dropout keeps, on the CPU: bool of this shape; `num_dropped_levels` of `LEVELS` are dropped.

    One number of PyTorch's global generator decides over all of it.
    """
    generator = np.random.SFC64(int(torch.empty((), dtype=torch.int64, device="cpu").random_()))
    numbers = torch.from_numpy(generator.random_raw((shape.numel() + 3) // 4).view(np.int16))
    return numbers[: shape.numel()].view(shape) >= num_dropped_levels - LEVELS // 2


def drop(states: torch.Tensor, kept: torch.Tensor, num_dropped_levels: int) -> torch.Tensor:
    """0 where nothing is kept, and what is kept divided by the share that is kept, in the states' dtype."""
    # The states come first: in half precision a scale times 0 or 1 would be rounded, and shrink all states.
    return kept.to(states.dtype).mul_(states).mul_(LEVELS / (LEVELS - num_dropped_levels))
