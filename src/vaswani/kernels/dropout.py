"""Dropout (Srivastava et al., 2014; section 5.4 of the paper) on the CPU.

PyTorch's dropout on the CPU spends most of its time drawing one random number per element from a Mersenne
Twister. Here one of its numbers seeds a generator that is four times as fast. Each 64-bit number of that
generator decides for four elements, with 16 bits each. The backward pass keeps one byte per element. With a
compiler, C++ (`dropout_native.cpp`) draws and multiplies, with the same results in a third of the time.
"""

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vaswani.kernels.native_library import native_library
from vaswani.model import operators
from vaswani.model.input_checks import has_values

SOURCE = Path(__file__).with_name("dropout_native.cpp")
LEVELS = 2**16  # of a 16-bit random number


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The compiled library, or None if there is none."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    return native_library(
        SOURCE,
        vaswani_draw_kept=[pointer, number, number, pointer],
        vaswani_drop=[pointer, ctypes.c_bool, pointer, number, ctypes.c_float, number, pointer],
    )


def unavailable() -> None:
    """Return None: dropout relies only on public names."""


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
    """Draw what dropout keeps, on the CPU: bool of this shape; drops `num_dropped_levels` of `LEVELS`.

    Draws one number from PyTorch's global generator.
    """
    generator = np.random.SFC64(int(torch.empty((), dtype=torch.int64, device="cpu").random_()))
    least, compiled = num_dropped_levels - LEVELS // 2, library()
    if compiled is None:
        numbers = torch.from_numpy(generator.random_raw((shape.numel() + 3) // 4).view(np.int16))
        return numbers[: shape.numel()].view(shape) >= least
    state: Any = generator.state
    kept = torch.empty(shape, dtype=torch.bool, device="cpu")
    compiled.vaswani_draw_kept(state["state"]["state"].ctypes.data, kept.numel(), least, kept.data_ptr())
    return kept


def drop(states: torch.Tensor, kept: torch.Tensor, num_dropped_levels: int) -> torch.Tensor:
    """Zero the dropped elements, and divide the kept ones by the kept share, in the states' dtype."""
    scale, compiled = LEVELS / (LEVELS - num_dropped_levels), library()
    if compiled is None or states.dtype not in (torch.float32, torch.bfloat16):
        # The states come first: in half precision a scale times 0 or 1 would be rounded, and shrink all.
        return kept.to(states.dtype).mul_(states).mul_(scale)
    states, kept = states.contiguous(), kept.contiguous()
    outputs = torch.empty_like(states)
    compiled.vaswani_drop(
        *(states.data_ptr(), states.dtype == torch.bfloat16, kept.data_ptr(), states.numel()),
        *(scale, torch.get_num_threads(), outputs.data_ptr()),
    )
    return outputs
