"""Linear layers with int8 weights on CPUs with VNNI instructions, by oneDNN.

Dynamic quantization (Jacob et al., 2018, arXiv:1712.05877, with ranges that are found at run time): each
output has its own scale for its weights, and each row of the input has its own scale for its values. Rows do
not share a scale, so that a row's result does not depend on the other rows of the batch.
"""

from __future__ import annotations

import torch
from torch import nn

LARGEST_WEIGHT, LARGEST_INPUT = 127, 127
ZERO_POINT = 128  # oneDNN's fast products take unsigned inputs
MIN_WEIGHTS = 512 * 512  # with fewer, quantizing the inputs costs more than the product saves


def unavailable() -> str | None:
    """Return why int8 weights cannot be used, or None if they can."""
    for name in ("qlinear_prepack", "qlinear_pointwise"):
        if not hasattr(torch.ops.onednn, name):
            return f"this PyTorch has no torch.ops.onednn.{name}"
    has = torch.cpu.get_capabilities()
    if not (has.get("avx512_vnni") or has.get("avx_vnni")):
        return "the processor has no VNNI instructions (avx512_vnni or avx_vnni)"
    return None


class Int8Linear(nn.Module):
    """A linear layer with int8 weights, for inference in float32 on the CPU.

    Args:
        linear: a layer with weight [N, K] and bias [N] or None; it is not changed.
    """

    weight: torch.Tensor
    scales: torch.Tensor
    zero_points: torch.Tensor
    packed: torch.Tensor  # the weights in oneDNN's layout

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight = linear.weight.detach()
        scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST_WEIGHT  # [N]
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("weight", (weight / scales[:, None]).round().to(torch.int8))
        self.register_buffer("scales", scales)
        self.bias = linear.bias
        zero_points = torch.zeros(self.out_features, dtype=torch.int32)
        self.register_buffer("zero_points", zero_points, persistent=False)
        packed = torch.ops.onednn.qlinear_prepack(self.weight, None)
        self.register_buffer("packed", packed, persistent=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """float32 [..., K] -> [..., N]."""
        scale = states.abs().amax(dim=-1, keepdim=True).clamp_(min=1e-30).div_(LARGEST_INPUT)  # [..., 1]
        rounded = (states / scale).add_(ZERO_POINT).round_().to(torch.uint8)
        output = torch.ops.onednn.qlinear_pointwise(
            *(rounded, 1.0, ZERO_POINT),
            *(self.packed, self.scales, self.zero_points, None),
            *(1.0, 0, torch.float32, "none", [], ""),
        )
        output = output.mul_(scale)
        return output if self.bias is None else output.add_(self.bias)

    def extra_repr(self) -> str:
        """Return the same description as `nn.Linear`."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )


def quantize(model: nn.Module) -> int:
    """Replace the large linear layers of a model by layers with int8 weights; return their number.

    Args:
        model: in float32 on the CPU. A weight that is shared with an embedding stays in the embedding.
    """
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear) and child.weight.numel() >= MIN_WEIGHTS
    ]
    for parent, name, child in places:
        setattr(parent, name, Int8Linear(child))
    return len(places)
