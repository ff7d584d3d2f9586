"""Linear layers on the CPU by C++ (`products_native.cpp`), which is compiled at the first call.

The products of a training are small, and each batch has different shapes. A library that prepares code for
each shape (oneDNN: 0.3 ms, about the time of a narrow layer's product, and 0.6 MB) or copies transposed
matrices is slower there. On one core of a fifth-generation EPYC, 2,000 rows of 128 to 2,048 numbers are
multiplied at 230 GFLOP/s forward and 210 for gradients of weights; by oneDNN at 210 and 150 to 200, by MKL at
100.
"""

import ctypes
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from vaswani.kernels import half_products, onednn
from vaswani.kernels.native_library import native_library, why_not_compiled
from vaswani.model import operators

SOURCE = Path(__file__).with_name("products_native.cpp")
MIN_ROWS = 64  # with fewer, copying the right matrix takes longer than multiplying by it
MIN_MULTIPLICATIONS = 1 << 20  # with fewer, the call from Python costs more than it saves


def unavailable() -> str | None:
    """Return why nothing can be compiled here or compiled code would not be faster; else None."""
    if onednn.IS_INTEL_CPU:
        return "MKL is fast on this processor"
    return why_not_compiled(SOURCE)


def hook_in() -> None:
    """Put this kernel before oneDNN."""
    operators.linear.put_before(linear)


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Return the compiled library, or None if there is none."""
    if unavailable() is not None:
        return None
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    matrix = (pointer, number, number)
    types = [number, number, number, *matrix, *matrix, pointer, number, pointer, number, number]
    return native_library(SOURCE, vaswani_product=types)


def linear(
    fallback: Callable[..., torch.Tensor],
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """`states @ weight.T + bias`, by the library if it is faster: [..., K], [N, K] and [N] -> [..., N]."""
    if onednn.is_plain(states, weight) and gains(states, weight.t()) and onednn.packed_weight(weight) is None:
        return _Linear.apply(states, weight, bias)
    return fallback(states, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(states, weight)
        return native_product(states.flatten(0, -2), weight.t(), bias).view(*states.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        def times(upstream: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return native_product(upstream.flatten(0, -2), weight).view(*upstream.shape[:-1], -1)

        def times_over_rows(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return native_product(left.t(), right)

        return onednn.gradients_of_product(ctx, grad, times, times_over_rows)


def gains(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether the library multiplies [..., K] by [K, N] faster than others, by their shapes alone."""
    num_multiplications = left.numel() * right.shape[1]
    return (
        num_multiplications >= MIN_MULTIPLICATIONS
        and left.numel() >= MIN_ROWS * right.shape[0]
        and left.device.type == "cpu"
        and left.dtype == right.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and library() is not None
    )


def native_product(
    left: torch.Tensor,
    right: torch.Tensor,
    bias: torch.Tensor | None = None,
    added_to: torch.Tensor | None = None,
) -> torch.Tensor:
    """`left @ right + bias` by the library, without gradients: float32 [M, K], [K, N] and [N] -> [M, N].

    Left and right may be transposed or strided. With `added_to`, [M, N] with adjacent columns, the product is
    added to it in place, and there is no bias.
    """
    compiled = library()
    assert compiled is not None  # checked by `gains`
    bias = None if bias is None else bias.contiguous()
    output = left.new_empty(left.shape[0], right.shape[1]) if added_to is None else added_to
    compiled.vaswani_product(
        *(left.shape[0], right.shape[1], left.shape[1]),
        *(left.data_ptr(), *left.stride(), right.data_ptr(), *right.stride()),
        *(None if bias is None else bias.data_ptr(), added_to is not None),
        *(output.data_ptr(), output.stride(0), torch.get_num_threads()),
    )
    return output


def product(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`states @ weight.T`, without gradients, by the fastest library: [..., K] and [N, K] -> [..., N]."""
    if gains(states, weight.t()):
        return native_product(states.flatten(0, -2), weight.t()).view(*states.shape[:-1], -1)
    if half_products.gains(states):
        return half_products.product(states.flatten(0, -2), weight).view(*states.shape[:-1], -1)
    return onednn.product(states, weight)


def add_product_over_rows(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add `left.T @ right` to `total` in place, without gradients: [N, K], [M, N] and [M, K]."""
    if gains(left.t(), right):
        native_product(left.t(), right, added_to=total)
    elif half_products.gains(left):
        half_products.add_product_over_rows(total, left, right)
    else:
        total += onednn.product_over_rows(left, right)
