"""Linear layers under autocast to bfloat16 on the CPU, with rows padded to few different shapes.

For bfloat16, oneDNN generates code for each shape of a product. This takes 1 to 5 ms, ten times as long as
the product of a layer at d 128 on a processor with matrix units. Batches of texts always have new numbers of
tokens. This kernel rounds them up with rows of zeros to the next multiple of 64. The rows are converted to
bfloat16 anyway, so the padding costs nothing.

M rows · K inputs · N outputs · P = M, rounded up
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from vaswani.kernels import onednn
from vaswani.model import operators

MULTIPLE = 64
ROWS_ADDED = 16  # at a time


def unavailable() -> str | None:
    """Return why no code is generated for each shape; None if oneDNN computes the products."""
    return None if torch.backends.mkldnn.is_available() else "this PyTorch was built without oneDNN"


def hook_in() -> None:
    """Put this kernel before the other linear layers, which leave autocast to PyTorch."""
    operators.linear.put_before(linear)


def linear(
    fallback: Callable[..., torch.Tensor],
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """`states @ weight.T + bias` in bfloat16: [..., K], [N, K] and [N] -> [..., N]."""
    if (
        onednn.is_plain(states, weight)
        and states.device.type == "cpu"
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and states.numel() >= MULTIPLE * weight.shape[1]
    ):
        return _HalfLinear.apply(states, weight, bias)
    return fallback(states, weight, bias)


class _HalfLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        rows, factor = pad_rows(states.flatten(0, -2)), weight.to(torch.bfloat16)
        # States in bfloat16 are kept by the layer that made them anyway; saving them needs no more memory.
        ctx.save_for_backward(states if states.dtype == torch.bfloat16 else rows, factor)
        ctx.shape, ctx.dtypes = states.shape, (states.dtype, weight.dtype)
        outputs = nn.functional.linear(rows, factor, None if bias is None else bias.to(torch.bfloat16))
        return outputs[: states.numel() // states.shape[-1]].view(*states.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        kept, factor = ctx.saved_tensors
        of_states, of_weight = ctx.dtypes
        needs_states, needs_weight, needs_bias = ctx.needs_input_grad
        upstream = pad_rows(grad.flatten(0, -2))
        num_rows = grad.numel() // grad.shape[-1]
        return (
            (upstream @ factor)[:num_rows].to(of_states).view(ctx.shape) if needs_states else None,
            (upstream.t() @ pad_rows(kept.flatten(0, -2))).to(of_weight) if needs_weight else None,
            upstream.sum(0, dtype=of_weight) if needs_bias else None,
        )


def pad_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return the rows [M, K] in bfloat16, followed by rows of zeros: [P, K]."""
    num_rows = len(rows)
    if num_rows % MULTIPLE == 0:
        return rows.to(torch.bfloat16).contiguous()
    total = -(-num_rows // MULTIPLE) * MULTIPLE
    padded = rows.new_empty(total, rows.shape[1], dtype=torch.bfloat16)
    padded[:num_rows] = rows
    padded[num_rows:] = 0
    return padded


def gains(states: torch.Tensor) -> bool:
    """Return whether products of these states would often have new shapes."""
    return states.dtype == torch.bfloat16 and states.device.type == "cpu"


def product(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`rows @ weight.T`, without gradients: [M, K] and [N, K] in bfloat16 -> [M, N]."""
    return (pad_rows(rows) @ weight.t())[: len(rows)]


def add_product_over_rows(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add `left.T @ right` to `total` in place, without gradients: [N, K] in float32, [M, N] and [M, K]."""
    added = pad_rows(left).t() @ pad_rows(right)
    # Adding converts to a new float32 tensor; in small parts it stays in the cache and needs no new memory.
    for some, sums in zip(added.split(ROWS_ADDED), total.split(ROWS_ADDED), strict=True):
        sums += some
